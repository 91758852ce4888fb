//! Checkpoints: what engines have absorbed becomes durable, and the log behind it goes.
//!
//! In this order, so that nothing that the durable root refers to is overwritten:
//!
//! 1. Choose, for every keyspace, the log position that replay needs from (before the first record
//!    of any memtable that is not in its latest version), then its latest whole version.
//! 2. Sync the log through everything that was written by then: a keyspace must not become durable
//!    ahead of commits that other keyspaces only have in the log (a crash leaves a prefix, over all
//!    keyspaces), nor the root ahead of the log that gives seqnos their order.
//! 3. Write the catalog to new blocks; sync the data file; write and sync the superblock's copies
//!    ([`crate::storage::Storage::checkpoint`]).
//! 4. Let go of the versions of the root before: their extents may be reused now.
//! 5. Recycle the log before the position.
//!
//! A crash before the first copy of the superblock is durable leaves the old root with its log;
//! after it, the new one with its log. Nothing that either needs was touched.

use crate::base::error::Result;
use crate::base::ids::SeqNo;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::log::{Log, LogPosition, LogTail};
use crate::runtime::coverage::{self, Mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::{Change, CheckpointState, Core, DurableVersion};
use crate::state::health::Health;
use crate::state::keyspace::KeyspaceCore;
use crate::storage::data_file::catalog::{Catalog, CatalogEntry};
use crate::storage::data_file::superblock::LogMark;
use std::collections::BTreeMap;

/// The part of the used space that is kept free, when the background made a checkpoint, for what it
/// does next. To give space to the file system and to take it back keeps all readers of the data
/// file waiting: the kernel locks the file for that.
const SPACE_KEPT_PART: u64 = 16;

/// The same when a user made one.
const SPACE_KEPT_PART_LEAST: u64 = 64;

impl Core {
    /// Finalizes and flushes everything that is in memtables now, then makes a checkpoint.
    pub fn checkpoint_all(&self) -> Result<()> {
        self.check_write()?;
        let _hurry = self.pacer.hurry();
        let upto = {
            let commit = self.commit.lock();
            for keyspace in self.all_keyspaces() {
                if keyspace.current_view().buffers[0].first().is_some() {
                    self.rotate(&keyspace);
                }
            }
            SeqNo(commit.next_seqno.0 - 1)
        };
        for keyspace in self.all_keyspaces() {
            // Only what was immutable above: others go on writing meanwhile.
            while oldest_is_within(&keyspace, upto)
                && self.flush_or_reclaim(|pace| self.flush_at(&keyspace, pace))?
            {}
        }
        self.checkpoint_now()?;
        self.give_space_back(SPACE_KEPT_PART_LEAST)
            .map_err(|error| self.health.stop_unless_harmless(error))
    }

    /// Makes the latest versions of all keyspaces durable.
    pub fn checkpoint_now(&self) -> Result<()> {
        self.check_write()?;
        let mut state = self.checkpoint.lock();
        self.checkpoint_locked(&mut state).map_err(|error| self.health.stop_unless_harmless(error))
    }

    /// A checkpoint that changes the set of keyspaces. `NoSpace` changes nothing.
    pub fn checkpoint_change(&self, state: &mut CheckpointState, change: Change) -> Result<()> {
        state.change = change;
        let made = self.checkpoint_locked(state);
        state.change = Change::Nothing;
        made.map_err(|error| self.health.stop_unless_harmless(error))
    }

    /// Steps 1 to 5, under the checkpoint lock. After `NoSpace` the durable root is as before.
    pub fn checkpoint_locked(&self, state: &mut CheckpointState) -> Result<()> {
        let Some(log) = self.log.get() else { return Ok(()) };
        let undurable = self.counters.undurable_bytes.swap(0, Ordering::Relaxed);
        let turned = self.counters.options_changed.swap(false, Ordering::Relaxed);
        let result = self.make_root(log, state);
        if result.is_err() {
            if turned {
                self.counters.options_changed.store(true, Ordering::Relaxed);
            }
            self.counters.undurable_bytes.fetch_add(undurable, Ordering::Relaxed);
        }
        result
    }

    fn make_root(&self, log: &Log, state: &mut CheckpointState) -> Result<()> {
        let mut keyspaces = self.all_keyspaces();
        match &state.change {
            Change::Nothing => {}
            Change::Create(keyspace) => keyspaces.push(Arc::clone(keyspace)),
            Change::Drop(id) => keyspaces.retain(|keyspace| keyspace.id != *id),
        }
        keyspaces.sort_by_key(|keyspace| keyspace.id);
        let mut mark = self.log_mark(&keyspaces)?;
        let mut catalog = Catalog { next_keyspace: state.next_keyspace, keyspaces: Vec::new() };
        let mut versions = BTreeMap::new();
        for keyspace in &keyspaces {
            let latest = keyspace.latest.lock();
            catalog.keyspaces.push(CatalogEntry {
                id: keyspace.id,
                name: keyspace.name.clone(),
                engine: keyspace.stored.engine.kind().number(),
                options: keyspace.stored_options().encode(),
                root: latest.root.clone(),
                absorbed: latest.absorbed,
            });
            let (version, absorbed) = (latest.version.as_root(), latest.absorbed);
            versions.insert(keyspace.id, DurableVersion { version, absorbed });
        }
        // Only now: what was drained since the mark is in the versions too.
        mark.durable = log.written();
        log.sync_through_after(mark.durable, || self.sync_large_values())?;
        if let Err(error) = self.storage.checkpoint(&catalog, mark) {
            if !error.is_transient() {
                coverage::mark(Mark::RootSuspect);
                // One copy of the superblock may name them: what still runs must not reuse them.
                state.suspect.extend(versions.into_values());
            }
            return Err(error);
        }
        state.durable = versions;
        log.trim(LogPosition { lsn: mark.lsn, chain: mark.chain });
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.give_space_back(SPACE_KEPT_PART)
    }

    /// Gives free space to the file system, but for one of so many parts of what is in use, so that
    /// a database that shrinks gives nearly everything back.
    fn give_space_back(&self, kept_part: u64) -> Result<()> {
        let used = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        match self.storage.give_back((used / kept_part).min(self.governor.write_share())) {
            // A hole can want space for its own bookkeeping. The checkpoint is made, and `NoSpace`
            // would say that it is not.
            Err(error) if error.is_transient() => Ok(()),
            given => given,
        }
    }

    /// Where replay has to begin for the latest versions, and how far the log is written. `Stopped`
    /// once a close has taken the log's end away.
    ///
    /// Taken before the versions are: a drain that is published in between only makes the position
    /// older than need be, and replay skips what a root contains.
    fn log_mark(&self, keyspaces: &[Arc<KeyspaceCore>]) -> Result<LogMark> {
        let commit = self.commit.lock();
        let end = commit.tail.as_ref().map(LogTail::position).ok_or_else(Health::closed)?;
        let mut mark = LogMark {
            lsn: end.lsn,
            chain: end.chain,
            durable: end.lsn,
            seqno: SeqNo(commit.next_seqno.0 - 1),
        };
        for keyspace in keyspaces {
            let view = keyspace.current_view();
            for first in view.buffers.iter().filter_map(|buffer| buffer.first()) {
                if first.position.lsn < mark.lsn {
                    mark.lsn = first.position.lsn;
                    mark.chain = first.position.chain;
                    mark.seqno = SeqNo(first.seqno.0 - 1);
                }
            }
        }
        Ok(mark)
    }
}

/// True if the oldest immutable memtable has writes up to `upto`.
fn oldest_is_within(keyspace: &KeyspaceCore, upto: SeqNo) -> bool {
    let oldest = keyspace.immutable().pop();
    oldest.is_some_and(|buffer| buffer.first().is_none_or(|first| first.seqno <= upto))
}
