//! Flushes, checkpoints, maintenance, and the background threads that run them.
//!
//! | file | content |
//! | --- | --- |
//! | `rotation` | the active memtable becomes immutable |
//! | `memtable` | a flush: the engine absorbs an immutable memtable |
//! | `checkpoint` | absorbed updates become durable, and the log is released |
//! | `maintenance`, `idle` | background work of engines; write-idle periods |
//! | `background` | the threads that run all of this |

pub mod background;
pub mod checkpoint;
pub mod idle;
pub mod maintenance;
pub mod memtable;
pub mod rotation;
