//! Opening a database (superblock, catalog, trees, the replay of the log), and closing it.

pub mod handle;
pub mod open;
pub mod replay;
