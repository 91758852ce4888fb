//! What a user holds, and what happens between a call and its answer.
//!
//! | file | what |
//! | --- | --- |
//! | `database`, `keyspace`, `batch`, `snapshot`, `iter`, `builder`, `options` | the public face |
//! | `handle`, `core`, `keyspace_core` | the state behind it, and who keeps it open |
//! | `writes`, `commit`, `commit_options`, `record`, `visibility` | the life of a write |
//! | `room`, `pacing` | what a write waits for |
//! | `view`, `snapshots`, `history` | what a read sees, and what is kept for it in memory |
//! | `lifetimes`, `dropped` | and on disk |
//! | `drain`, `checkpoint`, `maintenance`, `lull`, `governor` | from memory to the data file |
//! | `background`, `signals` | the threads that do that |
//! | `open`, `settings`, `health` | recovery, failure |
//! | `verify`, `scrub`, `salvage`, `stats`, `inspect` | inspection |

mod background;
mod batch;
mod builder;
mod checkpoint;
mod commit;
mod commit_options;
mod core;
mod database;
mod drain;
mod dropped;
mod gaps;
mod governor;
mod handle;
mod health;
mod history;
#[cfg(any(test, feature = "internals"))]
mod inspect;
mod iter;
mod keyspace;
mod keyspace_core;
mod lifetimes;
mod lull;
mod maintenance;
mod open;
mod options;
mod pacing;
mod record;
mod replay;
mod room;
mod salvage;
mod scrub;
mod settings;
mod signals;
mod snapshot;
mod snapshots;
mod stats;
#[cfg(test)]
mod tests;
mod verify;
mod view;
mod visibility;
mod writes;

/// Decodes the options of a keyspace. For tests.
#[cfg(feature = "internals")]
pub fn decode_options(bytes: &[u8]) -> crate::base::error::Result<()> {
    options::StoredOptions::decode(bytes).map(|_| ())
}

/// Decodes a record of the log. For tests.
#[cfg(feature = "internals")]
pub fn decode_record(bytes: &[u8]) -> crate::base::error::Result<()> {
    let mut entries = record::Entries::new(bytes)?;
    while entries.next_entry()?.is_some() {}
    Ok(())
}

pub use batch::Batch;
pub use builder::DatabaseBuilder;
pub use commit_options::CommitOptions;
pub use database::Database;
pub use iter::{Iter, Keys};
pub use keyspace::Keyspace;
pub use options::{Durability, KeyspaceOptions};
pub use salvage::{Loss, Salvage, SalvageReport, SalvagedKeyspace};
pub use scrub::ScrubStats;
pub use settings::{Internals, RecoveryProgress};
pub use snapshot::Snapshot;
pub use stats::{
    BackgroundStats, CommitStats, DiskStats, IoStats, KeyspaceStats, MemoryStats, ScanStats, Stats,
};
pub use verify::VerifyReport;
