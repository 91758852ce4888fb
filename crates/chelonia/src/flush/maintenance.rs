//! Maintenance: background work of engines, in units, while no memtable waits for a flush.
//!
//! The flush thread runs it, unit after unit. Some units serve reads: an engine wants a unit once
//! its read cost has been accumulated, until it is done. Others merge what writes left: the engine
//! reports debt (`debt_bytes`), writers are delayed as it grows, and all workers take part. Flushes
//! have priority.
//!
//! A unit that fails for lack of space, or because something cannot be read, leaves everything
//! readable and writable. It is *postponed* (`state/postponed.rs`). On a full disk, small units
//! that free space are tried first, each with its own checkpoint.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::{Absorbed, Engine, Work};
use crate::memtable::SortedBatch;
use crate::runtime::sync::Ordering;
use crate::runtime::workers::Workers;
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::state::postponed::{Now, Postponed};
use crate::storage::quota::Quota;

/// Maintenance makes a checkpoint when this many bytes, or 1/`UNDURABLE_DIVISOR` of the data file,
/// wait for one to be freed: a checkpoint after every unit would cost much of the time. (Flushes
/// come in a row and accumulate more.)
const UNDURABLE_BYTES_MAX: u64 = 64 << 20;
const UNDURABLE_DIVISOR: u64 = 32;

/// A full device is tried again for a unit with this much free space, or as much as the debt.
const SPACE_BYTES_MIN: u64 = 1 << 20;
const SPACE_BYTES_MAX: u64 = 64 << 20;

impl Core {
    /// True if `keyspace` may have maintenance that can be done now.
    pub fn wants_maintenance(&self, keyspace: &KeyspaceCore) -> bool {
        keyspace.engine.wants_maintenance() && !self.is_postponed(keyspace)
    }

    fn is_postponed(&self, keyspace: &KeyspaceCore) -> bool {
        let Some(before) = *keyspace.postponed.lock() else { return false };
        let mut postponed = before;
        let lasts = self.with_now(keyspace, |now| postponed.lasts(now));
        // Another thread may have updated it meanwhile.
        let mut current = keyspace.postponed.lock();
        if *current == Some(before) {
            *current = Some(postponed);
        }
        lasts
    }

    fn with_now<T>(&self, keyspace: &KeyspaceCore, ask: impl FnOnce(&Now<'_>) -> T) -> T {
        let bytes = keyspace.engine.debt_bytes().clamp(SPACE_BYTES_MIN, SPACE_BYTES_MAX);
        let absorbed = keyspace.latest.lock().absorbed;
        ask(&Now {
            absorbed,
            free_blocks: self.storage.stats().space.free_blocks,
            time: (!self.stepped).then(|| self.clock.now()),
            has_space: &|| self.may_have_space(bytes),
        })
    }

    /// Lets every engine do its pending maintenance while no memtable waits for a flush. If it ran
    /// to the end, the result is durable.
    pub fn maintain_all(&self) -> Result<()> {
        let mut waiting = self.all_keyspaces();
        while !waiting.is_empty() {
            for place in (0..waiting.len()).rev() {
                if self.has_immutable() || self.signals.is_stopping() {
                    // The flush makes a checkpoint; after a close the units are redone.
                    return Ok(());
                }
                if !self.maintain_unit(&waiting[place])? {
                    waiting.swap_remove(place);
                }
            }
        }
        self.checkpoint_if_undurable(1)
    }

    /// True if memtables wait to be flushed.
    pub fn has_immutable(&self) -> bool {
        self.counters.immutable_bytes.load(Ordering::Relaxed) > 0
    }

    /// Lets the engine of `keyspace` do one unit of maintenance; false if there is none that can be
    /// done.
    fn maintain_unit(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        if self.is_postponed(keyspace) {
            return Ok(false);
        }
        let quota = || self.quota_beside_flushes(self.kept_bytes());
        match self.maintain(keyspace, quota, |engine, work| engine.maintain(work)) {
            Ok(true) => {
                *keyspace.postponed.lock() = None;
                self.checkpoint_if_undurable(self.maintenance_undurable_max())?;
                Ok(true)
            }
            Ok(false) => {
                if !keyspace.engine.wants_maintenance() {
                    // A pass that freed space did the postponed work.
                    *keyspace.postponed.lock() = None;
                }
                Ok(false)
            }
            Err(error) if error.is_transient() && self.reclaim_in(keyspace)? => Ok(true),
            Err(error) if self.is_harmless_to_maintenance(&error) => {
                let before = *keyspace.postponed.lock();
                let postpone = |now: &Now<'_>| Postponed::new(before, error.is_transient(), now);
                *keyspace.postponed.lock() = Some(self.with_now(keyspace, postpone));
                Ok(false)
            }
            Err(error) => Err(self.health.stop(error)),
        }
    }

    /// True if `error` left everything unchanged: no disk space, or an unreadable block.
    pub fn is_harmless_to_maintenance(&self, error: &Error) -> bool {
        let is_read = error.kind() == ErrorKind::Io && !self.storage.has_failed_write();
        error.is_transient() || error.kind() == ErrorKind::Corrupt || is_read
    }

    /// Bytes of the data file that may wait for the checkpoint after maintenance.
    fn maintenance_undurable_max(&self) -> u64 {
        let in_use = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        (in_use / UNDURABLE_DIVISOR).min(UNDURABLE_BYTES_MAX)
    }

    /// Runs `unit` on the engine of `keyspace`, within `quota` as it is then; false if there
    /// was nothing to do.
    pub fn maintain<'a>(
        &'a self,
        keyspace: &KeyspaceCore,
        quota: impl FnOnce() -> Quota<'a>,
        unit: impl FnOnce(&dyn Engine, &Work<'_>) -> Result<Option<Absorbed>>,
    ) -> Result<bool> {
        let partial = keyspace.flush.lock();
        if !partial.versions.is_empty() || keyspace.check_exists().is_err() {
            // A flush stopped half way and its part of the memtable is not published yet; or the
            // keyspace was dropped, and its space is freed.
            return Ok(false);
        }
        // Writers wait for debt, so all workers help. Without debt readers keep the processors.
        let owes = keyspace.engine.debt_bytes() > 0;
        let workers = if owes { self.workers } else { Workers::inline() };
        let quota = quota();
        let work = Work { workers: &workers, progress: &|_| {}, quota: &quota };
        let maintained = unit(&*keyspace.engine, &work);
        if owes {
            self.refresh_backlog();
            self.pacer.wake();
        }
        let Some(absorbed) = maintained? else { return Ok(false) };
        let lost = absorbed.lost.iter().map(|owned| owned.extent.bytes()).sum::<u64>();
        let version = keyspace.lifetimes.hold(absorbed.version, absorbed.lost);
        self.records.refresh::<SortedBatch>(&keyspace.cache_epoch, version.number(), &[]);
        keyspace.republish(version)?;
        // The lost extents are free after the next checkpoint.
        self.counters.undurable_bytes.fetch_add(lost.max(1), Ordering::Relaxed);
        Ok(true)
    }
}
