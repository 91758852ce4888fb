//! The state that all handles and background threads of a database share.
//!
//! | file | content |
//! | --- | --- |
//! | `core` | the state itself, its locks in order, and its counters |
//! | `keyspace` | the state of one keyspace: engine, view, options |
//! | `reads` | every read of a handle begins here |
//! | `health` | whether writes are accepted |
//! | `jobs` | outstanding jobs of engines; division of the worker threads |
//! | `signals` | wake-ups of the background threads |
//! | `pending_sync` | syncs that somebody waits for without a thread |
//! | `open_cursors` | memory of the read-ahead of iterators |
//! | `postponed` | maintenance that failed, and when it is tried again |
//! | `scrubbing` | progress and findings of the scrub |

pub mod core;
pub mod health;
pub mod jobs;
pub mod keyspace;
pub mod open_cursors;
pub mod pending_sync;
pub mod postponed;
pub mod reads;
pub mod scrubbing;
pub mod signals;
