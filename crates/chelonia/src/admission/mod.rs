//! Admission of writes: memory, pacing by flushes, disk space.
//!
//! | file | content |
//! | --- | --- |
//! | `balance` | the worth of memory for memtables and for caches |
//! | `governor` | division of the memory budget; the write share |
//! | `pacing` | back-pressure: delays of writers, and pauses of flushes |
//! | `factors` | bytes of space for each byte of updates, by engine |
//! | `headroom` | the known state of disk space; the work for space is in `disk_full` |

pub mod balance;
pub mod factors;
pub mod governor;
pub mod headroom;
pub mod pacing;
