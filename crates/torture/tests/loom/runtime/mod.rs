//! As in the library.

pub mod coverage;
pub mod sync;
