//! Step 1 of a commit: back-pressure, and memory for its entries.

use crate::admission::governor::Admission;
use crate::admission::pacing::Debt;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::SLAB_BYTES;
use crate::options::commit::Deadline;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::write::writes::{Writes, counted_bytes};

/// Memory that a commit may take beyond its own bytes: a slab for the memtable.
const HEADROOM_BYTES: u64 = SLAB_BYTES as u64;

impl Core {
    /// Step 1: delays the commit as the debt demands; fails if the device is full and nothing can
    /// be flushed. `bytes` is the size of the commit, `growth` the memory that its memtables take
    /// for it.
    pub fn admit(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        bytes: u64,
        growth: u64,
        deadline: Deadline,
    ) -> Result<Admission<'_>> {
        let is_unset = |one: &&Arc<KeyspaceCore>| one.distance.load(Ordering::Relaxed) == 0;
        let of_distance = match keyspaces.iter().all(is_unset) {
            true => None,
            false => self.admit_by_distance(keyspaces, deadline)?,
        };
        match self.governor.admit(growth, growth + HEADROOM_BYTES) {
            Some(admission) => {
                let mut debt = Debt {
                    headroom_bytes: self.governor.headroom_bytes(),
                    backlog_bytes: self.counters.backlog_bytes.load(Ordering::Relaxed),
                };
                if let Some(Debt { headroom_bytes, backlog_bytes }) = of_distance {
                    // As for memory, of which a slab is left at least.
                    let headroom_bytes = headroom_bytes.max(HEADROOM_BYTES);
                    debt = debt.tighter(Debt { headroom_bytes, backlog_bytes });
                }
                let left = deadline.left(&self.clock);
                let is_over = || {
                    self.counters.backlog_bytes.load(Ordering::Relaxed) == 0
                        || self.health.check_write().is_err()
                };
                if debt.backlog_bytes > 0 && !self.pacer.admit(bytes, debt, left, is_over) {
                    return Err(self.pacer.refuse());
                }
                Ok(admission)
            }
            None => self.wait_for_memory(growth, deadline),
        }
    }

    /// Waits while memtables are at a distance that was set. Returns the debt that results.
    #[inline(never)]
    fn admit_by_distance(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        deadline: Deadline,
    ) -> Result<Option<Debt>> {
        let debt = self.distance_debt_of(keyspaces);
        if debt.is_none_or(|debt| debt.headroom_bytes > 0) {
            return Ok(debt);
        }
        self.wait_for_flush(keyspaces, deadline)?;
        Ok(self.distance_debt_of(keyspaces))
    }

    /// The [`Core::distance_debt`] of that of `keyspaces` with the least headroom; `None` if no
    /// distance was set, or the device is full, where memtables may take all their memory.
    fn distance_debt_of(&self, keyspaces: &[&Arc<KeyspaceCore>]) -> Option<Debt> {
        if self.counters.out_of_space.load(Ordering::Relaxed) {
            return None;
        }
        let guard = self.storage.epochs().pin();
        let set = keyspaces.iter().filter(|one| one.distance.load(Ordering::Relaxed) != 0);
        let debts = set.filter_map(|keyspace| self.distance_debt(keyspace, &guard));
        debts.min_by_key(|debt| debt.headroom_bytes)
    }

    /// Waits until a memtable of each of `keyspaces` may be rotated.
    fn wait_for_flush(&self, keyspaces: &[&Arc<KeyspaceCore>], deadline: Deadline) -> Result<()> {
        mark(Mark::CommitWaitedForFlush);
        if self.stepped {
            let flushed = self.flush_all_immutable();
            // On a full device memtables may take all their memory.
            return flushed.or_else(|error| if error.is_transient() { Ok(()) } else { Err(error) });
        }
        let _hurry = self.pacer.hurry();
        let in_time = self.pacer.wait_until(deadline.left(&self.clock), || {
            let is_dropped = || keyspaces.iter().any(|keyspace| keyspace.check_exists().is_err());
            self.distance_debt_of(keyspaces).is_none_or(|debt| debt.headroom_bytes > 0)
                || self.health.check_write().is_err()
                || is_dropped()
        });
        if !in_time {
            return Err(self.pacer.refuse());
        }
        self.check_write()
    }

    /// The memory that a commit takes: its bytes; or, if it writes to several keyspaces, the growth
    /// of their memtables, because each grows by a chunk.
    pub fn growth<'a>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        bytes: u64,
    ) -> u64 {
        if keyspaces.len() < 2 {
            return bytes;
        }
        let mut each = vec![0; keyspaces.len()];
        for write in writes.iter() {
            each[write.keyspace] += counted_bytes(write.key, write.value);
        }
        let guard = self.storage.epochs().pin();
        let grown = keyspaces.iter().zip(each).map(|(keyspace, bytes)| {
            keyspace.view.load(&guard).buffers[0].memtable.growth_bytes(bytes)
        });
        bytes.max(grown.sum())
    }

    /// Waits for memtable memory, after making sure that something is being flushed.
    fn wait_for_memory(&self, growth: u64, deadline: Deadline) -> Result<Admission<'_>> {
        mark(Mark::CommitWaitedForMemory);
        let half = self.governor.memtable_bytes_max();
        // A commit to many keyspaces may need more than half: then less may stay in memtables.
        let rest_max = self.governor.write_share().saturating_sub(growth + HEADROOM_BYTES);
        let rest_max = rest_max.clamp(half / 4, half);
        let wanted = (growth + HEADROOM_BYTES).min(self.governor.write_share() - rest_max);
        let refused = || self.counters.out_of_space.load(Ordering::Relaxed);
        let idle = || self.counters.immutable_bytes.load(Ordering::Relaxed) == 0;
        let mut admitted = None;
        let mut is_over = false;
        self.try_again_if_full();
        while !is_over {
            if idle() {
                let _commit = self.commit.lock();
                self.rotate_largest(rest_max);
            }
            if self.stepped {
                self.flush_all_immutable()?;
                return Ok(self.governor.admit_forced(growth));
            }
            let _hurry = self.pacer.hurry();
            let in_time = self.pacer.wait_until(deadline.left(&self.clock), || {
                // Flushed memtables that readers retain may leave no more than half.
                let is_all = || idle() && self.active_bytes() <= rest_max;
                let wanted = if wanted > half && is_all() { half } else { wanted };
                admitted = self.governor.admit(growth, wanted);
                is_over = admitted.is_some() || self.health.check_write().is_err() || refused();
                // Flushed, and still no free memory: rotate more memtables.
                is_over || (idle() && self.active_bytes() > 0)
            });
            if !in_time {
                return Err(self.pacer.refuse());
            }
        }
        self.health.check_write()?;
        let full = "disk full: memtables cannot be flushed; free space and retry";
        admitted.ok_or_else(|| Error::new(ErrorKind::NoSpace, full))
    }
}
