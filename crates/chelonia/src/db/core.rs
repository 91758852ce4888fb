//! The state that all handles of a database share.
//!
//! Fields are grouped by how they are guarded. Lock order, outermost first:
//!
//! | lock | held for |
//! | --- | --- |
//! | `keyspaces_change` | creating and dropping keyspaces, with their checkpoint |
//! | `checkpoint` | one checkpoint |
//! | `KeyspaceCore::drain` | one absorb of a keyspace |
//! | `commit` | appending one record, rotating memtables |
//! | the registry of `snapshots` | making a pin, publishing a drain |
//! | `KeyspaceCore::change`, `KeyspaceCore::latest`, `keyspaces` | a few loads and stores |

use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, Lsn, SeqNo};
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, RwLock};
use crate::base::workers::Workers;
use crate::db::background::Signals;
use crate::db::governor::Governor;
use crate::db::health::Health;
use crate::db::keyspace_core::KeyspaceCore;
use crate::db::lifetimes::HeldVersion;
use crate::db::options::Durability;
use crate::db::pacing::{Debt, Pacer};
use crate::db::snapshots::{Pin, Snapshots};
use crate::db::visibility::Visibility;
use crate::log::{Log, LogTail};
use crate::storage::Storage;
use crate::storage::io::{Directory, LockGuard};
use std::collections::BTreeMap;

/// A database inside.
pub struct Core {
    // Constant after open.
    pub directory: Arc<dyn Directory>,
    pub storage: Arc<Storage>,
    pub read_only: bool,
    /// Set once recovery has replayed it; never when read-only.
    pub log: OnceLock<Arc<Log>>,
    pub clock: Clock,
    pub durability: Durability,
    pub workers: Workers,
    /// Background work is done by the committing thread, in order: runs can be replayed.
    pub stepped: bool,
    // With their own synchronisation.
    pub commit: Mutex<CommitState>,
    pub visibility: Arc<Visibility>,
    pub snapshots: Arc<Snapshots>,
    pub keyspaces: RwLock<BTreeMap<String, Arc<KeyspaceCore>>>,
    pub keyspaces_change: Mutex<()>,
    pub checkpoint: Mutex<CheckpointState>,
    pub health: Health,
    pub governor: Governor,
    pub pacer: Pacer,
    pub signals: Signals,
    pub counters: Counters,
    /// Orders syncs of large values before syncs of the log that refers to them.
    pub large_sync: Mutex<()>,
    pub large_unsynced: AtomicBool,
    /// Released last: another process may open from then on.
    pub lock: Mutex<Option<Box<dyn LockGuard>>>,
}

/// What the commit lock guards.
pub struct CommitState {
    /// `None` when read-only or closed.
    pub tail: Option<LogTail>,
    /// Where the log ended when it was opened: its end for ever when read-only.
    pub opened_end: Lsn,
    pub next_seqno: SeqNo,
    pub next_ticket: u64,
}

/// What the checkpoint lock guards.
pub struct CheckpointState {
    /// What the durable root refers to.
    pub durable: BTreeMap<KeyspaceId, DurableVersion>,
    /// The number of the next new keyspace.
    pub next_keyspace: u32,
}

/// A keyspace in the durable root.
pub struct DurableVersion {
    /// The version, held: what it refers to is not used again.
    pub _version: HeldVersion,
    /// Replay skips what the keyspace has up to this seqno.
    pub absorbed: SeqNo,
}

/// Totals since open.
#[derive(Default)]
pub struct Counters {
    pub commits: AtomicU64,
    pub entries: AtomicU64,
    /// Key and value bytes that users wrote.
    pub user_bytes: AtomicU64,
    pub rotations: AtomicU64,
    pub drains: AtomicU64,
    pub checkpoints: AtomicU64,
    /// Progress of the drain that runs, in memtable bytes absorbed.
    pub draining_absorbed_bytes: AtomicU64,
    /// Bytes of finalized memtables, whether their drain has begun or not.
    pub frozen_bytes: AtomicU64,
    /// Bytes finalized and not yet absorbed, with what engines owe: what writers are paced by.
    pub backlog_bytes: AtomicU64,
    /// The last drain found no space: writers are told instead of waiting for it.
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

    /// All keyspaces, in the order of their names.
    pub fn all_keyspaces(&self) -> Vec<Arc<KeyspaceCore>> {
        self.keyspaces.read().values().cloned().collect()
    }

    /// Pins this moment over all keyspaces.
    pub fn pin_all(&self) -> Arc<Pin> {
        self.snapshots.pin(|| {
            let keyspaces = self.keyspaces.read();
            keyspaces.values().map(|keyspace| (keyspace.id, keyspace.current_view())).collect()
        })
    }

    /// Pins this moment over one keyspace.
    pub fn pin_one(&self, keyspace: &KeyspaceCore) -> Arc<Pin> {
        self.snapshots.pin(|| BTreeMap::from([(keyspace.id, keyspace.current_view())]))
    }

    /// What writers are paced by.
    #[inline]
    pub fn debt(&self) -> Debt {
        Debt {
            room_bytes: self.governor.write_share().saturating_sub(self.governor.memtable_bytes()),
            backlog_bytes: self.counters.backlog_bytes.load(Ordering::Relaxed),
        }
    }

    /// Counts the backlog anew: after a rotation, and as drains go on.
    pub fn refresh_backlog(&self) {
        let (mut frozen, mut owed) = (0, 0);
        for keyspace in self.keyspaces.read().values() {
            frozen += keyspace.memtable_bytes().1;
            owed += keyspace.engine.debt_bytes();
        }
        let absorbed = self.counters.draining_absorbed_bytes.load(Ordering::Relaxed);
        let backlog = frozen.saturating_sub(absorbed) + owed;
        self.counters.frozen_bytes.store(frozen, Ordering::Relaxed);
        self.counters.backlog_bytes.store(backlog, Ordering::Relaxed);
    }

    /// Makes every commit so far durable.
    pub fn sync(&self) -> Result<()> {
        self.check_write()?;
        let Some(log) = self.log.get() else { return Ok(()) };
        let target = log.written();
        let synced = self.sync_large_values().and_then(|()| log.sync_through(target));
        synced.map_err(|error| self.health.stop(error))
    }

    /// Makes large values durable before the log that refers to them. Whoever comes while another
    /// syncs waits for it: its own record may refer to what that sync covers.
    pub fn sync_large_values(&self) -> Result<()> {
        let _order = self.large_sync.lock();
        if self.large_unsynced.swap(false, Ordering::SeqCst) {
            self.storage.sync()?;
        }
        Ok(())
    }
}
