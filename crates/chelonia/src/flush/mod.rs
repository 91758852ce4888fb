//! Flushes, checkpoints, maintenance, and the background threads that run them.

pub mod background;
pub mod checkpoint;
pub mod idle;
pub mod maintenance;
pub mod memtable;
pub mod rotation;
