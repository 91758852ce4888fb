//! Statistics of a running database. Totals count from the open.
//!
//! To add one: count in `Counters` (`state/core.rs`), or in the part that knows the event; add a
//! field here; print it in `crates/chelonia-cli/src/commands/inspect.rs`, where a test fails if a
//! public statistic is not printed; add it to `prometheus.rs`, if it is a number. Events of an
//! engine (`engines/autumn/counters.rs`, `buffer_tree/events.rs`) are part of [`EngineStats`], and
//! are printed without further code.

use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::EngineStats;
use crate::log::Log;
use crate::memory::budget::Use;
use crate::options::compression::Compression;
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::state::scrubbing::ScrubStats;

/// Statistics returned by [`crate::Database::stats`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The memory budget and its uses.
    pub memory: MemoryStats,
    /// Device input and output.
    pub io: IoStats,
    /// Space on the device.
    pub disk: DiskStats,
    /// Commits and their delays.
    pub commits: CommitStats,
    /// Iterators.
    pub scans: ScanStats,
    /// Flushes, checkpoints, snapshots.
    pub background: BackgroundStats,
    /// Scrubbing: background reads that find bit rot.
    pub scrub: ScrubStats,
    /// Bytes written to the data file and the log per byte of keys and values that users wrote; 0
    /// before the first write.
    pub write_amplification: f64,
    /// The sequence number of the last visible write.
    pub last_seqno: u64,
    /// All keyspaces, sorted by name.
    pub keyspaces: Vec<KeyspaceStats>,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The budget.
    pub budget_bytes: u64,
    /// Memory in use, for all purposes together.
    pub used_bytes: u64,
    /// Memory taken from the system, in use or free for reuse.
    pub held_bytes: u64,
    /// Memtables.
    pub memtable_bytes: u64,
    /// Cached blocks.
    pub cache_bytes: u64,
    /// Cached records.
    pub record_bytes: u64,
    /// Merges, read-ahead of open iterators, reads and writes of open transactions.
    pub work_bytes: u64,
    /// Tree nodes, open runs and other bookkeeping.
    pub metadata_bytes: u64,
    /// Mapped log segments.
    pub log_bytes: u64,
}

/// Input and output.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct IoStats {
    /// True if reads and writes of the data file bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// True if a commit is copied into a mapped log file; otherwise it is written by a system call.
    pub mapped_log: bool,
    /// The type of the file system, if recognized.
    pub file_system: String,
    /// Read from the data file, in bytes.
    pub data_bytes_read: u64,
    /// Written to the data file, in bytes.
    pub data_bytes_written: u64,
    /// Written to the log, in bytes.
    pub log_bytes_written: u64,
    /// Reads of the data file.
    pub data_reads: u64,
    /// Writes of the data file.
    pub data_writes: u64,
    /// Syncs of the data file.
    pub data_syncs: u64,
    /// Syncs of the log.
    pub log_syncs: u64,
    /// Blocks in the cache now.
    pub cached_blocks: u64,
    /// Requested blocks that were not in the cache and had to be read.
    pub cache_misses: u64,
    /// Records in the cache now.
    pub cached_records: u64,
    /// Records added to the cache.
    pub record_fills: u64,
    /// Records evicted from the cache.
    pub record_evictions: u64,
}

/// Space in bytes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct DiskStats {
    /// The length of the data file; a temporary file beside it does not count.
    pub data_file_bytes: u64,
    /// Bytes of it in use, including versions held only by snapshots.
    pub data_used_bytes: u64,
    /// Bytes that the data file occupies on the device; holes do not count.
    pub data_allocated_bytes: u64,
    /// Length of the temporary file of a database opened read-only. It holds the updates of the log
    /// that did not fit into memory.
    pub scratch_bytes: u64,
    /// Bytes that the newest state no longer needs, retained for snapshots, iterators and the last
    /// checkpoint; dropped keyspaces included.
    pub retained_bytes: u64,
    /// Bytes of keyspaces dropped since the open whose extents are unknown because of damage. The
    /// next open frees them.
    pub orphaned_bytes: u64,
    /// Length of all log segment files.
    pub log_file_bytes: u64,
}

/// Commits.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CommitStats {
    /// Number of commits.
    pub commits: u64,
    /// Number of writes in them.
    pub entries: u64,
    /// Key and value bytes in them.
    pub user_bytes: u64,
    /// Commits delayed by back-pressure: for memory, for pacing, or for space on a nearly full
    /// device.
    pub delayed: u64,
    /// Total of these delays, in nanoseconds.
    pub delay_nanos: u64,
    /// The longest of these delays, in nanoseconds.
    pub delay_nanos_max: u64,
    /// Commits that failed with [`crate::ErrorKind::WouldBlock`].
    pub would_block: u64,
    /// Commits of transactions, and attempts of compare-and-swaps and updates, that were refused
    /// with [`crate::ErrorKind::Conflict`].
    pub conflicts: u64,
}

/// Iterators.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ScanStats {
    /// Tombstones that iterators passed over. Many consecutive ones are passed over only once.
    pub tombstones_passed: u64,
}

/// Background work.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BackgroundStats {
    /// Memtables flushed into engines.
    pub flushes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Background jobs of engines (merges, read-triggered flushes) that were planned.
    pub jobs_planned: u64,
    /// Of these, the jobs whose result became part of their keyspace.
    pub jobs_installed: u64,
    /// Of these, the jobs that failed, or were overtaken by a flush of their keyspace and whose
    /// output was thrown away.
    pub jobs_dropped: u64,
    /// Bytes of immutable memtables that wait for a flush or are being flushed.
    pub backlog_bytes: u64,
    /// Open snapshots and iterators.
    pub pins: usize,
    /// The oldest sequence number that a snapshot or iterator reads at.
    pub oldest_pinned_seqno: Option<u64>,
}

/// One keyspace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name.
    pub name: String,
    /// Its engine's name.
    pub engine: &'static str,
    /// How the values of new runs are stored.
    pub compression: Compression,
    /// Its memtables, in bytes.
    pub memtable_bytes: u64,
    /// The effective checkpoint distance, in bytes of updates; see
    /// [`crate::Keyspace::checkpoint_distance`].
    pub checkpoint_distance_bytes: u64,
    /// The checkpoint distance that was set, in bytes of updates; `None` if it follows the budget.
    /// If it exceeds the effective one, the memory budget clips it.
    pub checkpoint_distance_set_bytes: Option<u64>,
    /// Memtables flushed since the open.
    pub flushes: u64,
    /// Bytes of updates in the flushed memtables. Divided by `flushes`, the mean size of a flushed
    /// memtable.
    pub flushed_bytes: u64,
    /// Versions of the keyspace in use: the newest, and those of snapshots, iterators and the last
    /// checkpoint.
    pub versions_held: usize,
    /// True if the engine has background work to do; never if the database is open read-only.
    pub maintenance_pending: bool,
    /// Bytes to be rewritten by background work (compaction debt). Writers are delayed as it grows.
    pub debt_bytes: u64,
    /// The engine's own statistics.
    pub engine_stats: EngineStats,
}

impl Core {
    /// The current statistics.
    pub fn stats(&self) -> Stats {
        let keyspaces = self.all_keyspaces();
        let commits = self.commit_stats();
        let io = self.io_stats();
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let write_amplification = match commits.user_bytes {
            0 => 0.0,
            user => (io.data_bytes_written + io.log_bytes_written) as f64 / user as f64,
        };
        Stats {
            memory: self.memory_stats(),
            disk: self.disk_stats(&keyspaces),
            scans: ScanStats {
                tombstones_passed: self.counters.tombstones_passed.load(Ordering::Relaxed),
            },
            background: self.background_stats(),
            scrub: self.scrub.stats(),
            write_amplification,
            last_seqno: self.visibility.visible().0,
            keyspaces: keyspaces.iter().map(|keyspace| self.keyspace_stats(keyspace)).collect(),
            commits,
            io,
        }
    }

    fn memory_stats(&self) -> MemoryStats {
        let budget = self.storage.budget();
        MemoryStats {
            budget_bytes: budget.limit(),
            used_bytes: budget.used(),
            held_bytes: budget.held(),
            memtable_bytes: budget.used_by(Use::Memtable),
            cache_bytes: budget.used_by(Use::Cache),
            record_bytes: budget.used_by(Use::Records),
            work_bytes: [Use::Work, Use::Scans, Use::Transactions]
                .iter()
                .map(|part| budget.used_by(*part))
                .sum(),
            metadata_bytes: budget.used_by(Use::Metadata),
            log_bytes: budget.used_by(Use::Log),
        }
    }

    fn io_stats(&self) -> IoStats {
        let facts = self.directory.facts();
        let data = self.storage.stats();
        let records = self.records.stats();
        let log = self.log.get().map(|log| log.stats());
        IoStats {
            direct: facts.direct,
            mapped_log: facts.mapped_log,
            file_system: facts.name.to_owned(),
            data_bytes_read: data.file.blocks_read.iter().sum::<u64>() * BLOCK_BYTES_U64,
            data_bytes_written: data.file.blocks_written.iter().sum::<u64>() * BLOCK_BYTES_U64,
            log_bytes_written: log.as_ref().map_or(0, |log| log.stream_bytes),
            data_reads: data.file.reads,
            data_writes: data.file.writes,
            data_syncs: data.file.syncs,
            log_syncs: log.as_ref().map_or(0, |log| log.syncs),
            cached_blocks: data.cache.cached,
            cache_misses: data.cache.misses,
            cached_records: records.records,
            record_fills: records.fills,
            record_evictions: records.evictions,
        }
    }

    fn disk_stats(&self, keyspaces: &[Arc<KeyspaceCore>]) -> DiskStats {
        let data = self.storage.stats();
        let log_file_bytes = match self.log.get() {
            Some(log) => log.stats().file_bytes,
            // A read-only database; a statistic is no reason to fail.
            None => Log::file_bytes(&*self.directory).unwrap_or(0),
        };
        DiskStats {
            data_file_bytes: data.data_file_space.file_blocks * BLOCK_BYTES_U64,
            data_used_bytes: data.data_file_space.used_blocks * BLOCK_BYTES_U64,
            data_allocated_bytes: data.allocated_bytes,
            scratch_bytes: data.scratch_bytes,
            retained_bytes: keyspaces
                .iter()
                .map(|one| one.lifetimes.lost_bytes())
                .chain([self.dropped.lost_bytes()])
                .sum(),
            orphaned_bytes: self.counters.orphaned_bytes.load(Ordering::Relaxed),
            log_file_bytes,
        }
    }

    fn commit_stats(&self) -> CommitStats {
        let delays = self.pacer.delays();
        let totals = self.commit.lock().totals;
        CommitStats {
            commits: totals.commits,
            entries: totals.entries,
            user_bytes: totals.user_bytes,
            delayed: delays.count,
            delay_nanos: delays.nanos,
            delay_nanos_max: delays.nanos_max,
            would_block: delays.refused,
            conflicts: self.counters.conflicts.load(Ordering::Relaxed),
        }
    }

    fn background_stats(&self) -> BackgroundStats {
        BackgroundStats {
            flushes: self.counters.flushes.load(Ordering::Relaxed),
            checkpoints: self.counters.checkpoints.load(Ordering::Relaxed),
            jobs_planned: self.counters.jobs_planned.load(Ordering::Relaxed),
            jobs_installed: self.counters.jobs_installed.load(Ordering::Relaxed),
            jobs_dropped: self.counters.jobs_dropped.load(Ordering::Relaxed),
            backlog_bytes: self.counters.backlog_bytes.load(Ordering::Relaxed),
            pins: self.snapshots.count(),
            oldest_pinned_seqno: self.snapshots.oldest().map(|seqno| seqno.0),
        }
    }

    fn keyspace_stats(&self, keyspace: &KeyspaceCore) -> KeyspaceStats {
        let (active, immutable) = keyspace.memtable_bytes();
        let asked = keyspace.distance.load(Ordering::Relaxed);
        KeyspaceStats {
            name: keyspace.name.clone(),
            engine: keyspace.stored.engine.kind().name(),
            compression: keyspace.compression.mode(),
            memtable_bytes: active + immutable,
            checkpoint_distance_bytes: self.governor.checkpoint_distance(asked, keyspace.density()),
            checkpoint_distance_set_bytes: Some(asked).filter(|asked| *asked != 0),
            flushes: keyspace.flushed.memtables(),
            flushed_bytes: keyspace.flushed.bytes(),
            versions_held: keyspace.lifetimes.held(),
            maintenance_pending: !self.read_only && keyspace.engine.wants_maintenance(),
            debt_bytes: keyspace.engine.debt_bytes(),
            engine_stats: keyspace.engine.stats(),
        }
    }
}
