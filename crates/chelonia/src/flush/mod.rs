//! From memory to the data file: flushes, checkpoints, maintenance, and the threads that do them.

pub mod background;
pub mod checkpoint;
pub mod idle;
pub mod maintenance;
pub mod memtable;
