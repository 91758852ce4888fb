//! Open (superblock, catalog, trees, log replay) and close of a database.

pub mod handle;
pub mod open;
pub mod replay;
