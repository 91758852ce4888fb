//! Checkpoints: make absorbed updates durable and release the log behind them.
//!
//! The order ensures that nothing that the durable root refers to is overwritten:
//!
//! 1. Choose, for every keyspace, the log position that replay needs from (before the first record
//!    of any memtable that is not in its latest version), then its latest complete version.
//! 2. Sync the log through everything written by then: a keyspace must not become durable ahead of
//!    commits that other keyspaces have only in the log (a crash leaves a prefix, over all
//!    keyspaces), nor the root ahead of the log that orders seqnos.
//! 3. Write the catalog to new blocks; sync the data file; write and sync the superblock's copies
//!    ([`crate::storage::Storage::checkpoint`]).
//! 4. Release the versions of the previous root: their extents may be reused now.
//! 5. Recycle the log before the position.
//!
//! A crash before the first copy of the superblock is durable leaves the old root with its log; a
//! crash after it leaves the new root with its log. Nothing that either needs was overwritten.

use crate::base::error::Result;
use crate::base::ids::SeqNo;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::logs::{LogMark, PerLog};
use crate::log::{LogTail, Logs};
use crate::runtime::coverage::{self, Mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::{Change, CheckpointState, Core, DurableVersion};
use crate::state::health::Health;
use crate::state::keyspace::KeyspaceCore;
use crate::storage::GIVE_BACK_BLOCKS;
use crate::storage::data_file::catalog::{Catalog, CatalogEntry};
use std::collections::BTreeMap;

/// Fraction of the used space that a background checkpoint keeps free in the data file for the next
/// work. Returning space to the file system and taking it back blocks all readers of the data file:
/// the kernel locks the file for that.
const SPACE_KEPT_PART: u64 = 16;

/// The same fraction for a checkpoint that a user requested.
const SPACE_KEPT_PART_LEAST: u64 = 64;

impl Core {
    /// Rotates and flushes all memtables that have entries, then makes a checkpoint.
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
            // Only memtables that were rotated above: other threads continue to write.
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
        // Of its own, so that the lock ends with it: returning space may take long.
        let made = self.checkpoint_locked(&mut self.checkpoint.lock());
        made.and_then(|()| self.give_space_back(SPACE_KEPT_PART))
            .map_err(|error| self.health.stop_unless_harmless(error))
    }

    /// Makes a checkpoint that changes the set of keyspaces. `NoSpace` changes nothing.
    pub fn checkpoint_change(&self, state: &mut CheckpointState, change: Change) -> Result<()> {
        state.change = change;
        let made = self.checkpoint_locked(state);
        state.change = Change::Nothing;
        made.map_err(|error| self.health.stop_unless_harmless(error))
    }

    /// Steps 1 to 5, under the checkpoint lock. After `NoSpace` the durable root is unchanged.
    pub fn checkpoint_locked(&self, state: &mut CheckpointState) -> Result<()> {
        let Some(logs) = self.log.get() else { return Ok(()) };
        let undurable = self.counters.undurable_bytes.swap(0, Ordering::Relaxed);
        let turned = self.counters.options_changed.swap(false, Ordering::Relaxed);
        let result = self.make_root(logs, state);
        if result.is_err() {
            if turned {
                self.counters.options_changed.store(true, Ordering::Relaxed);
            }
            self.counters.undurable_bytes.fetch_add(undurable, Ordering::Relaxed);
        }
        result
    }

    fn make_root(&self, logs: &Logs, state: &mut CheckpointState) -> Result<()> {
        let mut keyspaces = self.all_keyspaces();
        match &state.change {
            Change::Nothing => {}
            Change::Create(keyspace) => keyspaces.push(Arc::clone(keyspace)),
            Change::Drop(id) => keyspaces.retain(|keyspace| keyspace.id != *id),
        }
        keyspaces.sort_by_key(|keyspace| keyspace.id);
        let mut mark = self.log_mark(logs, &keyspaces)?;
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
        // Only now: memtables flushed since the mark are in the versions too.
        self.sync_logs(None)?;
        mark.durable = logs.synced();
        if let Err(error) = self.storage.checkpoint(&catalog, mark) {
            if !error.is_transient() {
                coverage::mark(Mark::RootSuspect);
                // A superblock copy may name these versions: running work must not reuse their
                // extents.
                state.suspect.extend(versions.into_values());
            }
            return Err(error);
        }
        state.durable = versions;
        logs.trim(&mark.begin);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns free space of the data file to the file system, except for 1/`kept_part` of the used
    /// space, so that a shrinking database returns nearly everything. Half of the time is left to
    /// readers, who wait while a piece is returned.
    fn give_space_back(&self, kept_part: u64) -> Result<()> {
        let space = self.storage.stats().space;
        let used = space.used_blocks * BLOCK_BYTES_U64;
        let kept_bytes = (used / kept_part).min(self.governor.write_share());
        // As much as is free now: more may become free all the time.
        for _ in 0..=space.free_blocks / GIVE_BACK_BLOCKS {
            let began = self.clock.now();
            match self.storage.give_back(kept_bytes) {
                Ok(true) => self.clock.sleep(self.clock.now().saturating_sub(began)),
                // Punching a hole can need space for metadata. The checkpoint succeeded, so
                // `NoSpace` would be wrong.
                Err(error) if !error.is_transient() => return Err(error),
                Ok(false) | Err(_) => break,
            }
        }
        Ok(())
    }

    /// Where replay has to begin for the latest versions, and how far the log is written. `Stopped`
    /// once a close has taken the log's tail.
    ///
    /// Taken before the versions: a flush published in between only makes the position older than
    /// necessary, and replay skips entries that a root contains.
    fn log_mark(&self, logs: &Logs, keyspaces: &[Arc<KeyspaceCore>]) -> Result<LogMark> {
        let tails = logs.lock_tails();
        let mut commit = self.commit.lock();
        let tails = tails.iter().map(|tail| tail.as_ref());
        let single = logs.is_single().then(|| commit.tail.as_ref());
        let ends: Option<Vec<_>> =
            tails.chain(single).map(|tail| tail.map(LogTail::position)).collect();
        let begin = PerLog::collect(ends.ok_or_else(Health::closed)?);
        // Nobody appends. Later commits must not begin before what is trimmed for this mark.
        commit.starts = begin;
        let durable = begin.map(|position| position.lsn);
        let mut mark = LogMark { begin, durable, seqno: SeqNo(commit.next_seqno.0 - 1) };
        for keyspace in keyspaces {
            let view = keyspace.current_view();
            for first in view.buffers.iter().filter_map(|buffer| buffer.first()) {
                if first.seqno <= mark.seqno {
                    mark.begin = first.positions;
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
