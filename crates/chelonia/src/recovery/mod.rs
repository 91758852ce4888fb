//! Open of a database: superblock, catalog, trees, log replay.

pub mod open;
pub mod replay;
