//! Forged input: modified bytes with valid checksums, which therefore reach the code behind the
//! checksums.

mod decoders;
mod mutate;
mod stores;

pub use decoders::{Decoders, write_seeds};
pub use stores::{Stores, fuzz_store};
