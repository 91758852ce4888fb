//! The settings of a database: collected by the builder, read by the open.

use crate::base::error::{Error, Result};
use crate::base::limits::{LOGS_MAX, MEMORY_BYTES_DEFAULT, SCRUB_INTERVAL_DEFAULT};
use crate::options::keyspace::Durability;
use crate::runtime::clock::Clock;
use crate::runtime::sync::Arc;
use crate::runtime::workers::Workers;
use crate::storage::io::Directory;
use std::time::Duration;

/// The progress of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Bytes of log records replayed so far.
    pub log_bytes_done: u64,
    /// Bytes of log records to replay.
    pub log_bytes_total: u64,
    /// Records replayed so far.
    pub records: u64,
}

/// How commits are laid out in the write-ahead log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogLayout {
    /// One log: threads append to it one after another, and one sync covers the commits of all.
    #[default]
    Shared,
    /// Several logs, as in SplinterDB (section 5.4 of its paper): each thread appends to one of
    /// them, so that threads copy their records side by side. A sync covers the commits of all, and
    /// syncs each log that was written. Each log has files of its own.
    PerThread {
        /// The number of logs: 2 to 16 ([`crate::limits::LOGS_MAX`]). As many as there are threads
        /// that write at a time are enough; more threads share them.
        logs: usize,
    },
    /// One log, in which the commits of each sync begin with a block of their own (sparse redo
    /// logging, section 3.3 of "Closing the B-tree vs. LSM-tree Write Amplification Gap on Modern
    /// Storage Hardware with Built-in Transparent Compression"). So no block of 4 KiB is synced
    /// twice, and storage that compresses removes the zeros at the end of each. The log is longer:
    /// the commits of a sync take at least a block, so do not use it on storage that does not
    /// compress. A database with several logs keeps them, and they are not sparse.
    Sparse,
}

impl LogLayout {
    /// The number of logs.
    pub(crate) fn logs(self) -> Result<usize> {
        match self {
            LogLayout::Shared | LogLayout::Sparse => Ok(1),
            LogLayout::PerThread { logs } if (2..=LOGS_MAX).contains(&logs) => Ok(logs),
            LogLayout::PerThread { logs } => Err(Error::invalid(format!(
                "{logs} logs: a database with a log per thread has 2 to {LOGS_MAX} (LOGS_MAX)"
            ))),
        }
    }
}

type ProgressFn = dyn Fn(RecoveryProgress) + Send + Sync;

/// The settings of an open; [`crate::DatabaseBuilder`] documents them.
pub struct Settings {
    pub memory: u64,
    pub durability: Durability,
    pub read_only: bool,
    pub create: bool,
    pub threads: Option<usize>,
    pub scrub_interval: Option<Duration>,
    pub on_recovery: Option<Box<ProgressFn>>,
    pub log_layout: LogLayout,
    pub internals: Internals,
}

/// Settings for the project's own tests and tools.
pub struct Internals {
    /// The directory of the files, if not the path.
    pub directory: Option<Arc<dyn Directory>>,
    /// The committing thread does the background work.
    pub stepped: bool,
    /// The clock.
    pub clock: Clock,
    /// The salt of a new database.
    pub salt: Option<u64>,
    /// The bytes of all memtables together.
    pub write_share: Option<u64>,
    /// The size of all log segments.
    pub log_segment_bytes: Option<u64>,
    /// A close makes no checkpoint of memtables, so that the next open replays the log.
    pub leave_log: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory: MEMORY_BYTES_DEFAULT,
            durability: Durability::default(),
            read_only: false,
            create: true,
            threads: None,
            scrub_interval: Some(SCRUB_INTERVAL_DEFAULT),
            on_recovery: None,
            log_layout: LogLayout::default(),
            internals: Internals::default(),
        }
    }
}

impl Default for Internals {
    fn default() -> Self {
        Self {
            directory: None,
            stepped: false,
            clock: Clock::real(),
            salt: None,
            write_share: None,
            log_segment_bytes: None,
            leave_log: false,
        }
    }
}

impl Settings {
    /// The number of threads of a merge.
    pub fn workers(&self) -> Workers {
        match self.threads {
            _ if self.internals.stepped => Workers::inline(),
            Some(threads) => Workers::new(threads),
            None => default_workers(),
        }
    }

    /// The salt of a new database.
    pub fn salt(&self) -> Result<u64> {
        match self.internals.salt {
            Some(salt) => Ok(salt),
            None => random_salt(),
        }
    }
}

/// Threads of a merge on a machine of few processors: they wait for the device half of the time.
const FEW_WORKERS: usize = 4;

/// The default number of threads of a merge: as many as processors; twice as many up to four.
fn default_workers() -> Workers {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Workers::new(processors.max((2 * processors).min(FEW_WORKERS)))
}

/// 64 unpredictable bits.
fn random_salt() -> Result<u64> {
    let mut bytes = [0_u8; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("get random numbers", "", error.into())),
        }
    }
    Ok(u64::from_le_bytes(bytes))
}
