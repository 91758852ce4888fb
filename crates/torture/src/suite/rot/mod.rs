//! Bit rot: flipped bits, and blocks zeroed, swapped, misdirected, or older than they should be.

mod blocks;
mod flips;
mod store;

pub use blocks::Blocks;
pub use flips::Flips;
