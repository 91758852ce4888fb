//! The one door to the inside, for the project's own tests, tools and benchmarks (feature
//! `internals`). Nothing here is covered by the version promise.

pub mod forged;
pub mod leaf_index;

#[cfg(feature = "shuttle")]
pub use crate::runtime::sync::begin_execution;

use crate::Database;
use crate::{Error, Result};
use std::sync::Arc;

pub use crate::base::checksum::KeyHash;
pub use crate::filters::FilterSpec;
pub use crate::filters::maplet::MapletSpec;
pub use crate::filters::sizing::spec_for as filter_spec;
pub use crate::options::database::Internals;
pub use crate::runtime::clock::Clock;
pub use crate::runtime::coverage::{Mark, mark_again, reached};
pub use crate::runtime::rng::Rng;
pub use crate::storage::data_file::superblock::set_format;
pub use crate::storage::io::crash::{CrashDirectory, Journal, Survivors};
pub use crate::storage::io::direct::DirectDirectory;
pub use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
pub use crate::storage::io::memory::MemoryDirectory;
pub use crate::storage::io::{Access, Directory, File, OpenMode};

/// Blocks in use that nothing refers to; zero after a checkpoint when nothing older is held.
///
/// # Errors
/// As a read.
pub fn unreachable_blocks(database: &Database) -> Result<u64> {
    database.handle.core().unreachable_blocks()
}

/// Makes a backup in `target`.
///
/// # Errors
/// As [`Database::backup`].
pub fn backup_into(
    database: &Database,
    target: &Arc<dyn Directory>,
    on_progress: impl FnMut(crate::BackupProgress),
) -> Result<crate::BackupReport> {
    database.backup_into(target, "memory".as_ref(), on_progress)
}

/// Does `act` while nothing can be pinned or let go.
pub fn while_pins_are_locked<T>(database: &Database, act: impl FnOnce() -> T) -> T {
    database.handle.core().snapshots.while_locked(act)
}

/// The error that stopped writes, if any.
#[must_use]
pub fn stopped_by(database: &Database) -> Option<Error> {
    database.handle.core().health.cause()
}

/// Lets the next job of an engine that does not keep the lock call `act` between its run and its
/// install, on a database that is stepped.
pub fn beside_next_job(database: &Database, act: impl FnOnce() + Send + 'static) {
    *database.handle.core().beside_job.lock() = Some(Box::new(act));
}

/// Returns what [`beside_next_job`] set and no job has called.
#[must_use]
pub fn take_beside_job(database: &Database) -> Option<Box<dyn FnOnce() + Send>> {
    database.handle.core().beside_job.lock().take()
}

/// Does what the background does for the log in two intervals without a commit between them, and
/// what it scrubs meanwhile, on a database that is stepped.
///
/// # Errors
/// As [`Database::sync`].
pub fn tick(database: &Database) -> Result<()> {
    database.handle.core().tick()
}
