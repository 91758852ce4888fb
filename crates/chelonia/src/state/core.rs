//! The state that all handles of a database share.
//!
//! Fields are grouped by how they are guarded. Lock order, outermost first:
//!
//! | lock | held for |
//! | --- | --- |
//! | `keyspaces_change` | creating and dropping keyspaces, with their checkpoint |
//! | `checkpoint` | one checkpoint |
//! | `KeyspaceCore::flush` | one absorb of a keyspace; plan or install of a job, not its run |
//! | `large_sync` | one sync of large values; nothing of this table is taken under it |
//! | `commit` | appending one record, rotating memtables |
//! | `recent_writes` | adding the keys of a commit, or comparing a few |
//! | the registry of `snapshots` | making a pin, publishing a flush |
//! | `Counters::recount` | counting the backlog |
//! | `KeyspaceCore::change`, `KeyspaceCore::latest`, `keyspaces` | a few loads and stores |
//! | the table of `KeyspaceCore::empty_ranges`, `KeyspaceCore::postponed` | a few comparisons |
//! | `KeyspaceCore::jobs`, `shares` | a few comparisons |

use crate::admission::governor::Governor;
use crate::admission::headroom::Headroom;
use crate::admission::pacing::{FLUSH_END_PART, Pacer};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, Lsn, SeqNo};
use crate::base::logs::{LogPosition, PerLog};
use crate::log::{LogTail, Logs};
use crate::options::keyspace::Durability;
use crate::records::RecordCache;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, CachePadded, Mutex, OnceLock, Ordering, RwLock,
};
use crate::runtime::workers::Workers;
use crate::state::health::Health;
use crate::state::jobs::WorkerShares;
use crate::state::keyspace::KeyspaceCore;
use crate::state::pending_sync::{PendingSync, PendingSyncs};
use crate::state::scrubbing::Scrub;
use crate::state::signals::Signals;
use crate::storage::Storage;
use crate::storage::io::fence::Fence;
use crate::storage::io::{Directory, LockGuard};
use crate::versions::dropped::Dropped;
use crate::versions::lifetimes::RootVersion;
use crate::versions::pins::{Pin, Scope, Snapshots};
use crate::versions::recent_writes::{RecentWrites, Watch};
use crate::versions::visibility::Visibility;
use std::collections::BTreeMap;
use std::time::Duration;

/// The shared state of an open database.
pub struct Core {
    // Constant after open.
    /// The directory, behind the fence.
    pub directory: Arc<dyn Directory>,
    /// Shut by the close; no call on a file of the database passes it afterwards.
    pub fence: Arc<Fence>,
    pub storage: Arc<Storage>,
    pub records: Arc<RecordCache>,
    pub read_only: bool,
    /// Set once recovery has replayed it; never when read-only.
    pub log: OnceLock<Logs>,
    pub clock: Clock,
    pub durability: Durability,
    pub workers: Workers,
    /// How flushes and jobs divide them.
    pub shares: WorkerShares,
    /// The committing thread does the background work, in order, so that runs can be replayed.
    pub stepped: bool,
    /// A close makes no checkpoint.
    pub leave_log: bool,
    /// A sync ends the block of a single log: [`crate::LogLayout::Sparse`].
    pub is_log_sparse: bool,
    /// The duration of one full scrub; `None` to disable it.
    pub scrub_interval: Option<Duration>,
    // With their own synchronisation.
    pub commit: CachePadded<Mutex<CommitState>>,
    pub visibility: Arc<Visibility>,
    pub snapshots: Arc<Snapshots>,
    /// The keys of recent commits, for transactions.
    pub recent_writes: Arc<RecentWrites>,
    pub keyspaces: RwLock<BTreeMap<String, Arc<KeyspaceCore>>>,
    pub keyspaces_change: Mutex<()>,
    pub checkpoint: Mutex<CheckpointState>,
    pub health: Health,
    pub governor: Governor,
    pub pacer: Pacer,
    pub headroom: Headroom,
    pub signals: Signals,
    /// Syncs that the log thread does for others.
    pub pending_syncs: PendingSyncs,
    pub scrub: Scrub,
    pub dropped: Dropped,
    pub counters: Counters,
    /// Large values were written after the last sync of the data file.
    pub large_unsynced: AtomicBool,
    /// Called once, between run and install of a job that does not keep the lock.
    #[cfg(any(test, feature = "internals"))]
    pub beside_job: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Released last; another process may open the database afterwards.
    pub lock: Mutex<Option<Box<dyn LockGuard>>>,
}

/// The state under the commit lock. Fields that every commit changes are adjacent.
#[repr(C)]
pub struct CommitState<T = LogTail> {
    pub next_seqno: SeqNo,
    pub next_ticket: u64,
    pub totals: CommitTotals,
    /// The tail of a single log; `None` when read-only or closed, or with several logs.
    pub tail: Option<T>,
    /// The end of each log at the open; final when read-only.
    pub opened_ends: PerLog<Lsn>,
    /// With several logs, a position in each before which no later record is placed: the start of
    /// the last one that was, or its end at a later checkpoint.
    pub starts: PerLog<LogPosition>,
}

/// Where a commit ends in the order of all writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogEnd {
    /// With one log: the end of its record.
    Position(Lsn),
    /// With several logs: its last seqno.
    Write(SeqNo),
}

/// Totals of commits since open.
#[derive(Clone, Copy, Default)]
pub struct CommitTotals {
    pub commits: u64,
    pub entries: u64,
    /// Key and value bytes that users wrote.
    pub user_bytes: u64,
}

/// The state under the checkpoint lock.
pub struct CheckpointState {
    /// The versions that the durable root refers to.
    pub durable: BTreeMap<KeyspaceId, DurableVersion>,
    /// Versions of a root that may be durable or not, since its checkpoint failed.
    pub suspect: Vec<DurableVersion>,
    /// The number of the next new keyspace.
    pub next_keyspace: u32,
    /// The change that the running checkpoint makes durable.
    pub change: Change,
}

/// A change of the set of keyspaces. It becomes visible when it is durable, so that nobody writes
/// to a keyspace that a crash would remove, and a full disk changes nothing.
#[derive(Default)]
pub enum Change {
    /// None.
    #[default]
    Nothing,
    /// A new keyspace, not in the list yet.
    Create(Arc<KeyspaceCore>),
    /// A keyspace that is still in the list.
    Drop(KeyspaceId),
}

/// A keyspace in the durable root.
pub struct DurableVersion {
    /// The version, held, so that its extents are not reused.
    pub version: RootVersion,
    /// Replay skips writes up to this seqno.
    pub absorbed: SeqNo,
}

/// Totals since open.
#[derive(Default)]
pub struct Counters {
    /// See [`crate::DiskStats::orphaned_bytes`].
    pub orphaned_bytes: AtomicU64,
    /// Commits refused because of a conflict.
    pub conflicts: AtomicU64,
    /// Tombstones that iterators passed over.
    pub tombstones_passed: AtomicU64,
    pub rotations: AtomicU64,
    pub flushes: AtomicU64,
    /// Bytes of flushed memtables, and processor time of flushes and maintenance.
    pub flushed_bytes: AtomicU64,
    pub background_nanos: AtomicU64,
    pub checkpoints: AtomicU64,
    /// Jobs of engines: planned, and of these installed and dropped.
    pub jobs_planned: AtomicU64,
    pub jobs_installed: AtomicU64,
    pub jobs_dropped: AtomicU64,
    /// Where the search for the next job begins in the list of keyspaces.
    pub next_job: AtomicUsize,
    /// The flush of a helping thread found no space: the flush thread deals with it.
    pub helps_not: AtomicBool,
    /// Progress of the running flushes, in memtable bytes absorbed.
    pub flush_progress_bytes: AtomicU64,
    /// Held while the next two are counted and stored.
    pub recount: Mutex<()>,
    /// Bytes of immutable memtables, whether their flush has begun or not.
    pub immutable_bytes: AtomicU64,
    /// Bytes of immutable memtables that are not absorbed yet, plus the debt of engines; paces
    /// writers.
    pub backlog_bytes: AtomicU64,
    /// Bytes of updates absorbed, and of space released by maintenance, since the last checkpoint
    /// began.
    pub undurable_bytes: AtomicU64,
    /// Options of a keyspace changed since the last checkpoint began.
    pub options_changed: AtomicBool,
    /// The last flush found no space; writers get an error instead of waiting for it.
    pub out_of_space: AtomicBool,
}

impl Core {
    /// Fails unless writes are accepted.
    pub fn check_write(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the database was opened read-only"));
        }
        self.health.check_write()
    }

    /// Adds the path of the file that the error names, for users.
    #[cold]
    pub fn locate(&self, error: Error) -> Error {
        error.within(self.directory.path())
    }

    /// Does work of the background, and counts its processor time.
    pub fn in_background<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.clock.processor_time();
        let outcome = work();
        let took = self.clock.processor_time().saturating_sub(before).as_nanos();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        self.counters.background_nanos.fetch_add(took, Ordering::Relaxed);
        outcome
    }

    /// All keyspaces, in the order of their names.
    pub fn all_keyspaces(&self) -> Vec<Arc<KeyspaceCore>> {
        self.keyspaces.read().values().cloned().collect()
    }

    /// Pins this moment over one keyspace.
    pub fn pin_one(&self, keyspace: &KeyspaceCore) -> Arc<Pin> {
        self.snapshots.pin(Scope::One(keyspace.id, Arc::clone(&keyspace.history)))
    }

    /// Begins a watch of what is written from now on. All writes before are visible on return.
    pub fn watch(&self) -> Result<Watch> {
        if !self.health.is_owner_process() {
            return Err(Health::inherited());
        }
        let watch = {
            let commit = self.commit.lock();
            self.recent_writes.watch(SeqNo(commit.next_seqno.0.saturating_sub(1)))
        };
        self.visibility.wait_until_visible(watch.from())?;
        Ok(watch)
    }

    /// Recounts the backlog: after a rotation, during flushes, and after jobs.
    pub fn refresh_backlog(&self) {
        // Without the lock, a thread could store what it counted before another one's change.
        let _recount = self.counters.recount.lock();
        let (mut immutable, mut owed) = (0, 0);
        for keyspace in self.keyspaces.read().values() {
            immutable += keyspace.memtable_bytes().1;
            owed += keyspace.engine.debt_bytes();
        }
        let absorbed = self.counters.flush_progress_bytes.load(Ordering::Relaxed);
        let left = immutable.saturating_sub(absorbed).max(immutable / FLUSH_END_PART);
        let backlog = left + owed;
        if immutable == 0 {
            // No flush waits for space.
            self.counters.out_of_space.store(false, Ordering::Relaxed);
        }
        self.counters.immutable_bytes.store(immutable, Ordering::Relaxed);
        self.counters.backlog_bytes.store(backlog, Ordering::Relaxed);
    }

    /// Makes every commit so far durable.
    pub fn sync(&self) -> Result<()> {
        self.check_write()?;
        self.sync_logs(None).map_err(|error| self.health.stop(error))
    }

    /// Requests a sync of every commit so far from the log thread.
    pub fn sync_later(&self) -> PendingSync {
        if let Err(error) = self.check_write() {
            return PendingSync::done(&Err(self.locate(error)));
        }
        if self.stepped {
            return PendingSync::done(&self.sync());
        }
        let pending = self.pending_syncs.add();
        self.signals.wake_to_sync();
        // A close that took all slots before this one was added has ended the thread.
        if self.signals.is_stopping() {
            self.sync_for_waiting();
        }
        pending
    }

    /// Does the syncs that were requested.
    pub fn sync_for_waiting(&self) {
        let taken = self.pending_syncs.take();
        if !taken.is_empty() {
            let synced = self.sync().map_err(|error| self.locate(error));
            taken.complete(&synced);
        }
    }

    /// Makes the logs those that commits write to, with the tail of a single one.
    pub fn begin_logs(&self, tail: Option<LogTail>, logs: Logs) {
        let logs = if self.stepped { logs.in_turns() } else { logs };
        let mut commit = self.commit.lock();
        commit.starts = logs.begins();
        commit.tail = tail;
        let _ = self.log.set(logs);
    }

    /// Makes the writes up to `end` durable; all so far if there is no end.
    pub fn sync_logs(&self, end: Option<LogEnd>) -> Result<()> {
        let Some(logs) = self.log.get() else { return Ok(()) };
        let last = || SeqNo(self.commit.lock().next_seqno.0 - 1);
        let all = || match logs.is_single() {
            true => LogEnd::Position(logs.first().written()),
            // A block that was sealed has to be synced too, and has no seqno.
            false => LogEnd::Write(SeqNo::MAX),
        };
        match end.unwrap_or_else(all) {
            LogEnd::Position(lsn) => logs.first().sync_through_after(lsn, || {
                self.leave_block();
                self.sync_large_values()
            }),
            LogEnd::Write(seqno) => logs.sync_several(seqno, last, || self.sync_large_values()),
        }
    }

    /// With a sparse log, ends the block that is about to be synced: no later record is in it.
    fn leave_block(&self) {
        if self.is_log_sparse {
            let mut commit = self.commit.lock();
            commit.tail.iter_mut().for_each(LogTail::leave_block);
            self.rotate_laggards();
        }
    }

    /// Makes large values durable before the log that refers to them. Called by the leader of a log
    /// sync, one at a time; after a failure never again.
    pub fn sync_large_values(&self) -> Result<()> {
        if self.large_unsynced.swap(false, Ordering::SeqCst) {
            let synced = self.storage.sync();
            return synced.inspect_err(|_| self.large_unsynced.store(true, Ordering::SeqCst));
        }
        Ok(())
    }
}
