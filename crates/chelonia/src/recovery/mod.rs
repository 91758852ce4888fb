//! Opening a database: superblock, catalog, trees, and the replay of the log.

pub mod open;
pub mod replay;
