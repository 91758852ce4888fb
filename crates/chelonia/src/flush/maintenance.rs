//! Maintenance: what engines do on their own, a unit at a time, when nothing waits to be drained.
//!
//! The drain thread does it, unit after unit. Some is for reads: an engine wants what they have
//! paid for, and they pay until it is done. Some is what writes left to be merged: an engine owes
//! it (`debt_bytes`), writers are slowed down as that grows, and all workers take part. What waits
//! to be drained comes first.
//!
//! A unit that fails for lack of space, or since something cannot be read, leaves everything
//! readable and writable. It is *postponed* (`state/postponed.rs`). On a full disk, small units
//! that free space are tried first, each with its checkpoint.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::{Absorbed, Engine, Work};
use crate::memtable::SortedBatch;
use crate::runtime::sync::Ordering;
use crate::runtime::workers::Workers;
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::state::postponed::{Now, Postponed};

/// It makes a checkpoint when so much waits for one to come free, or one of so many parts of the
/// data file: after every unit it would take a good part of the time. (Drains, which are made in a
/// row, let more of it come together.)
const UNDURABLE_BYTES_MAX: u64 = 64 << 20;
const UNDURABLE_DIVISOR: u64 = 32;

/// A full device has room again for a unit if it has so much, or as much as is owed.
const SPACE_BYTES_MIN: u64 = 1 << 20;
const SPACE_BYTES_MAX: u64 = 64 << 20;

impl Core {
    /// True if there may be maintenance to do in `keyspace` that can be done now.
    pub fn wants_maintenance(&self, keyspace: &KeyspaceCore) -> bool {
        keyspace.engine.wants_maintenance() && !self.is_postponed(keyspace)
    }

    fn is_postponed(&self, keyspace: &KeyspaceCore) -> bool {
        let Some(before) = *keyspace.postponed.lock() else { return false };
        let mut postponed = before;
        let lasts = self.with_now(keyspace, |now| postponed.lasts(now));
        // Somebody else may know better meanwhile.
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

    /// Lets every engine do the maintenance that waits, as long as nothing waits to be drained.
    /// What it did is durable then, if it came to the end.
    pub fn maintain_all(&self) -> Result<()> {
        let mut waiting = self.all_keyspaces();
        while !waiting.is_empty() {
            for place in (0..waiting.len()).rev() {
                if self.has_immutable() || self.signals.is_stopping() {
                    // The drain makes a checkpoint; after a close what was done is done again.
                    return Ok(());
                }
                if !self.maintain_unit(&waiting[place])? {
                    waiting.swap_remove(place);
                }
            }
        }
        self.checkpoint_if_undurable(1)
    }

    /// True if memtables wait to be drained.
    pub fn has_immutable(&self) -> bool {
        self.counters.immutable_bytes.load(Ordering::Relaxed) > 0
    }

    /// Lets the engine of `keyspace` do one unit of maintenance; false if there is none that can be
    /// done.
    fn maintain_unit(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        if self.is_postponed(keyspace) {
            return Ok(false);
        }
        let unit = |engine: &dyn Engine, work: &Work<'_>| {
            let _limited = self.keep_for_flush(self.kept_bytes());
            engine.maintain(work)
        };
        match self.maintain(keyspace, unit) {
            Ok(true) => {
                *keyspace.postponed.lock() = None;
                self.checkpoint_if_undurable(self.maintenance_undurable_max())?;
                Ok(true)
            }
            Ok(false) => {
                if !keyspace.engine.wants_maintenance() {
                    // What was postponed was done by a pass that gained space.
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

    /// True if nothing was changed: there was no room, or something could not be read.
    pub fn is_harmless_to_maintenance(&self, error: &Error) -> bool {
        let is_read = error.kind() == ErrorKind::Io && !self.storage.has_failed_write();
        error.is_transient() || error.kind() == ErrorKind::Corrupt || is_read
    }

    /// How much of the data file may wait for the checkpoint after maintenance.
    fn maintenance_undurable_max(&self) -> u64 {
        let in_use = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        (in_use / UNDURABLE_DIVISOR).min(UNDURABLE_BYTES_MAX)
    }

    /// Lets the engine of `keyspace` do `unit`; false if there is none.
    pub fn maintain(
        &self,
        keyspace: &KeyspaceCore,
        unit: impl FnOnce(&dyn Engine, &Work<'_>) -> Result<Option<Absorbed>>,
    ) -> Result<bool> {
        let partial = keyspace.flush.lock();
        if !partial.versions.is_empty() || keyspace.check_exists().is_err() {
            // A drain stopped half way, and its part of the memtable is not published yet; or the
            // keyspace was dropped, and what it has is given back.
            return Ok(false);
        }
        // Writers wait for what is owed. Else nobody waits, and readers want the processors.
        let owes = keyspace.engine.debt_bytes() > 0;
        let workers = if owes { self.workers } else { Workers::inline() };
        let work = Work { workers: &workers, progress: &|_| {} };
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
        // What it no longer needs is free after the next checkpoint.
        self.counters.undurable_bytes.fetch_add(lost.max(1), Ordering::Relaxed);
        Ok(true)
    }
}
