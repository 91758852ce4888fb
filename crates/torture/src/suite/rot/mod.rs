//! Bit rot: bits flipped, blocks zeroed, swapped, misdirected, and older than they should be.

mod blocks;
mod flips;
mod store;

pub use blocks::Blocks;
pub use flips::Flips;
