//! Files that lie: bytes changed and their checksums made right again, so that what is behind the
//! checksums gets to see them.

mod decoders;
mod mutate;
mod stores;

pub use decoders::{Decoders, write_seeds};
pub use stores::{Stores, fuzz_store};
