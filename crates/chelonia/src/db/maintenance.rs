//! Maintenance: what engines do for reads, a unit at a time, when nothing waits to be drained.
//!
//! The drain thread does it. Nobody waits for it, so it leaves processors and device to those who
//! work: after each unit it rests, until readers have lost to what is still to be done anywhere as
//! much time as the unit took from them, or for a multiple of its time.
//!
//! What cannot be done for want of room, or because of damage, is left: it is not needed, and who
//! needs what is damaged is told.

use crate::base::error::{ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::sync::{Arc, Ordering};
use crate::base::workers::Workers;
use crate::db::core::Core;
use crate::db::keyspace_core::KeyspaceCore;
use crate::engine::Work;
use crate::memtable::SortedBatch;
use std::time::Duration;

/// It rests at most so many times as long as it worked: if nobody reads there is time.
const REST_FACTOR_MAX: u32 = 15;

/// It makes a checkpoint when so much waits for one to come free, or one of so many parts of the
/// data file: after every unit it would take a good part of the time. (Drains, which are made in a
/// row, let more of it come together.)
const UNDURABLE_BYTES_MAX: u64 = 64 << 20;
const UNDURABLE_DIVISOR: u64 = 32;

/// Readers lose so many times less than the time that it works: they share processors and device
/// with it. On two processors gets that wait for the device became a twentieth slower when it did
/// not rest at all, gets from memory more than a third.
const READERS_LOSE_DIVISOR: u32 = 2;

/// So often it looks how much reads have lost since it worked.
const REST_SLICE: Duration = Duration::from_millis(5);

impl Core {
    /// Lets every engine do the maintenance that waits, as long as nothing waits to be drained.
    /// What it did is durable then, if it came to the end.
    pub fn maintain_all(&self) -> Result<()> {
        let mut waiting = self.all_keyspaces();
        let mut lost = lost_by_readers(&waiting);
        while !waiting.is_empty() {
            for place in (0..waiting.len()).rev() {
                if self.has_finalized() || self.signals.is_stopping() {
                    // The drain makes a checkpoint; after a close what was done is done again.
                    return Ok(());
                }
                let begin = self.clock.now();
                if !self.maintain_unit(&waiting[place])? {
                    lost = lost.saturating_sub(lost_by_readers(&waiting[place..=place]));
                    waiting.swap_remove(place);
                } else if !self.stepped {
                    lost = self.rest_after_maintenance(&waiting, begin, lost);
                }
            }
        }
        self.checkpoint_if_undurable(1)
    }

    /// Rests after a unit that began at `begin`, when readers had lost `lost` in `waiting`. Gives
    /// what they have lost when the next one may begin.
    fn rest_after_maintenance(
        &self,
        waiting: &[Arc<KeyspaceCore>],
        begin: Duration,
        lost: Duration,
    ) -> Duration {
        let end = self.clock.now();
        let took = end.saturating_sub(begin);
        let wanted = || {
            waiting.iter().any(|one| one.engine.wants_maintenance() && one.check_exists().is_ok())
        };
        loop {
            let now = lost_by_readers(waiting);
            let rested = self.clock.now().saturating_sub(end);
            let called = self.has_finalized() || self.signals.is_stopping();
            if called || !wanted() || has_rested(took, rested, now.saturating_sub(lost)) {
                return now;
            }
            self.signals.rest_from_maintenance(REST_SLICE, || self.has_finalized());
        }
    }

    /// True if memtables wait to be drained.
    pub fn has_finalized(&self) -> bool {
        self.counters.finalized_bytes.load(Ordering::Relaxed) > 0
    }

    /// Lets the engine of `keyspace` do one unit of maintenance; false if there is none that can be
    /// done.
    fn maintain_unit(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        match self.maintain(keyspace) {
            Ok(true) => {
                self.checkpoint_if_undurable(self.maintenance_undurable_max())?;
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) if error.is_passing() || error.kind() == ErrorKind::Corrupt => Ok(false),
            Err(error) => Err(self.health.stop(error)),
        }
    }

    /// How much of the data file may wait for the checkpoint after maintenance.
    fn maintenance_undurable_max(&self) -> u64 {
        let in_use = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        (in_use / UNDURABLE_DIVISOR).min(UNDURABLE_BYTES_MAX)
    }

    /// Lets the engine of `keyspace` do one unit of maintenance; false if there is none.
    fn maintain(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        let partial = keyspace.drain.lock();
        if !partial.versions.is_empty() || keyspace.check_exists().is_err() {
            // A drain stopped half way, and its part of the memtable is not published yet; or the
            // keyspace was dropped, and what it has is given back.
            return Ok(false);
        }
        // One thread: nobody waits for it, and readers want the processors.
        let work = Work { workers: &Workers::inline(), progress: &|_| {} };
        let Some(absorbed) = keyspace.engine.maintain(&work)? else { return Ok(false) };
        let lost = absorbed.lost.iter().map(|owned| owned.extent.bytes()).sum::<u64>();
        let version = keyspace.lifetimes.hold(absorbed.version, absorbed.lost);
        self.records.refresh::<SortedBatch>(&keyspace.fresh, version.number(), &[]);
        keyspace.republish(version)?;
        // What it no longer needs is free after the next checkpoint.
        self.counters.undurable_bytes.fetch_add(lost.max(1), Ordering::Relaxed);
        Ok(true)
    }
}

/// The time that readers of all of these have lost to what maintenance would spare them.
fn lost_by_readers(keyspaces: &[Arc<KeyspaceCore>]) -> Duration {
    keyspaces.iter().map(|keyspace| keyspace.engine.lost_by_reads()).sum()
}

/// True if a unit that took `took` may be followed by the next one: after `rested`, when readers
/// have `lost` so much since the one before.
fn has_rested(took: Duration, rested: Duration, lost: Duration) -> bool {
    lost >= took / READERS_LOSE_DIVISOR || rested >= took * REST_FACTOR_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_until_readers_lost_what_it_took_from_them_or_for_long() {
        let rested = |took, rested, lost| {
            let [took, rested, lost] = [took, rested, lost].map(Duration::from_millis);
            has_rested(took, rested, lost)
        };
        assert!(!rested(40, 0, 19) && rested(40, 0, 20));
        assert!(!rested(40, 599, 0) && rested(40, 600, 0));
    }
}
