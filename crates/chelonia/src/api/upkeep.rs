//! The upkeep of an open database: memory, syncs, checkpoints, verification, statistics.

use crate::admission::governor::Governor;
use crate::base::dump::DumpVisitor;
use crate::base::error::Result;
use crate::integrity::backup::{BackupProgress, BackupReport};
use crate::integrity::stats::Stats;
use crate::integrity::verify::VerifyReport;
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::state::pending_sync::PendingSync;
use crate::storage::io::Directory;

/// The upkeep of an open database.
#[derive(Clone, Copy)]
pub struct Upkeep<'a> {
    core: &'a Core,
}

impl<'a> Upkeep<'a> {
    /// The upkeep of the database that `core` belongs to.
    pub fn new(core: &'a Core) -> Self {
        Self { core }
    }

    /// Changes the memory budget, in bytes.
    pub fn set_memory(self, bytes: u64) -> Result<()> {
        let core = self.core;
        Governor::check(bytes)?;
        core.health.check_read()?;
        core.storage.budget().set_limit(bytes);
        core.storage.trim_memory();
        if let Some(log) = core.log.get() {
            log.set_segment_bytes_max(core.governor.log_segment_bytes());
        }
        for keyspace in core.all_keyspaces() {
            let asked = keyspace.distance.load(Ordering::Relaxed);
            keyspace.engine.set_checkpoint_distance(core.governor.usual_distance(asked));
        }
        core.pacer.wake();
        if core.check_write().is_ok() {
            core.fit_memtables();
        }
        Ok(())
    }

    /// Makes every commit so far durable in the log.
    pub fn sync(self) -> Result<()> {
        self.core.sync().map_err(|error| self.core.locate(error))
    }

    /// Requests a sync of every commit so far.
    pub fn sync_later(self) -> PendingSync {
        self.core.sync_later()
    }

    /// Makes every commit so far durable in the data file.
    pub fn checkpoint(self) -> Result<()> {
        self.core.checkpoint_all().map_err(|error| self.core.locate(error))
    }

    /// Fails unless writes are accepted.
    pub fn check_write(self) -> Result<()> {
        self.core.check_write()
    }

    /// Copies the state of this moment to an empty directory.
    pub fn backup(
        self,
        target: &Arc<dyn Directory>,
        on_progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport> {
        self.core.backup(target, on_progress).map_err(|error| self.core.locate(error))
    }

    /// Verifies all stored data.
    pub fn verify(self) -> Result<VerifyReport> {
        self.core.verify()
    }

    /// Verifies the data of one keyspace.
    pub fn verify_keyspace(self, keyspace: &KeyspaceCore) -> Result<VerifyReport> {
        keyspace.check_exists()?;
        self.core.verify_keyspace(keyspace)
    }

    /// Sends the structure on disk to `out`.
    pub fn dump(self, out: &mut dyn DumpVisitor) -> Result<()> {
        self.core.health.check_read()?;
        self.core.dump(out)
    }

    /// The current statistics.
    pub fn stats(self) -> Stats {
        self.core.stats()
    }
}
