//! An embedded, ordered, crash-safe key-value store with one number to set: its memory budget.
//!
//! ```
//! use chelonia::{Database, KeyspaceOptions};
//!
//! # fn main() -> chelonia::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("my-database");
//! let database = Database::open(&path)?;
//! let people = database.keyspace("people", KeyspaceOptions::default())?;
//! people.insert("ada", "analyst")?;
//! people.insert("grace", "admiral")?;
//! assert_eq!(people.get("ada")?.as_deref(), Some(&b"analyst"[..]));
//! let (last, _) = people.iter().next_back().unwrap()?;
//! assert_eq!(last, b"grace");
//! # Ok(())
//! # }
//! ```
//!
//! # Overview
//!
//! A [`Database`] is a directory with any number of [`Keyspace`]s, ordered maps of bytes to bytes.
//! A [`Batch`] writes to several of them atomically; a [`Transaction`] also reads from them, and is
//! serializable; a [`Snapshot`] is a consistent view of all of
//! them; an [`Iter`] iterates over a range of one keyspace from either end. Handles are cheap to
//! clone and can be used
//! from any thread.
//!
//! # Durability
//!
//! By default a commit survives a crash of the process when its call returns, and a power failure
//! once it is synced: a background sync starts at most 100 ms after the write, so a power failure
//! can lose the commits of the last 100 ms plus the duration of one sync ([`Durability::Process`]).
//! [`Durability::Sync`] makes a commit survive a power failure when its call returns. After any
//! crash the database contains a prefix of its commits, with complete batches.
//!
//! # Memory
//!
//! [`DatabaseBuilder::memory`] sets the budget for all memory of the database. The checkpoint
//! distance, which trades write cost for memory, follows from it and from the work: memory goes to
//! memtables or to caches, where it saves more time. [`Keyspace::set_checkpoint_distance`]
//! overrides it while the database is open.
//!
//! # Errors
//!
//! Every [`Error`] has an [`ErrorKind`] that says how to handle it. Errors about damage name file
//! and offset. After a failed write or sync, no writes are accepted until the database is reopened;
//! reads continue.
//!
//! # Features
//!
//! `bytes` (off by default): [`Key`] and [`Value`] convert to `bytes::Bytes` without a copy.
#![deny(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Chelonia does not run on this operating system yet: it runs on Linux (x86-64, aarch64). A \
     port needs its own part of src/storage/io (direct reads and writes, locks, mapping and \
     allocation of files), of src/memory/pages.rs (memory pages) and of src/options/database.rs \
     (random numbers). The errors below follow from this one."
);

#[cfg(all(target_os = "linux", not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "Chelonia does not run on this processor yet: it runs on Linux on x86-64 and aarch64. \
     src/kernels has portable code, but nothing was tested on another processor. The errors below \
     follow from this one."
);

#[cfg(feature = "internals")]
pub mod internals;

mod admission;
mod api;
mod base;
mod buffer_tree;
mod compress;
mod disk_full;
mod engine;
mod engines;
mod filters;
mod flush;
mod integrity;
mod kernels;
mod log;
mod memory;
mod memtable;
mod merge;
mod options;
mod pages;
mod records;
mod recovery;
mod run;
mod runtime;
mod state;
mod storage;
mod structure;
#[cfg(test)]
mod tests;
mod versions;
mod write;

pub use api::batch::Batch;
pub use api::builder::DatabaseBuilder;
pub use api::database::Database;
pub use api::iter::{Iter, Keys};
pub use api::keyspace::Keyspace;
pub use api::salvage::{Loss, Salvage, SalvageReport, SalvagedKeyspace};
pub use api::snapshot::Snapshot;
pub use api::transaction::iter::TransactionIter;
pub use api::transaction::{Savepoint, Transaction};
pub use base::bytes::{Key, Value};
pub use base::dump::{DumpField, DumpItem, DumpVisitor};
pub use base::error::{Error, ErrorKind, Result};
pub use base::limits;
pub use engine::{
    AutumnOptions, BminusOptions, EngineKind, EngineOptions, EngineStats, LevelOptions,
    LiveOptions, SplinterOptions, TreelineOptions, TurtleOptions,
};
pub use filters::FilterKind;
pub use integrity::backup::{BackupProgress, BackupReport};
pub use integrity::stats::{
    BackgroundStats, CommitStats, DiskStats, IoStats, KeyspaceStats, MemoryStats, ScanStats, Stats,
};
pub use integrity::verify::VerifyReport;
pub use options::commit::CommitOptions;
pub use options::compression::Compression;
pub use options::database::{LogLayout, RecoveryProgress};
pub use options::keyspace::{Durability, KeyspaceOptions};
pub use state::pending_sync::PendingSync;
pub use state::scrubbing::ScrubStats;

/// The version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The examples of the README are tests too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
