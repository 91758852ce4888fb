//! Write-idle periods: reads continue while a keyspace gets almost no writes.
//!
//! The engine is notified of an idle period, because writes will not soon undo the work that it
//! does for reads. The idle memtable does not grow, but it holds memory and every read searches it.
//! So the largest memtable is flushed once reads in idle periods have fetched as many bytes from
//! the device as its memory could have cached; the flush consumes that credit. A database without
//! reads does nothing, and memtables too small to matter stay.
//!
//! Thread-safety: owned by the log thread; called with no lock held.

use crate::base::ids::KeyspaceId;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use std::collections::BTreeMap;

/// Consecutive ticks with almost no writes that make an idle period.
const IDLE_TICKS_MIN: u32 = 10;

/// Bytes of updates per tick that still count as idle: bookkeeping of a read-only workload.
const TICK_BYTES_MAX: u64 = 4 << 10;

/// Memtables smaller than this fraction of the budget are not flushed.
const MEMTABLE_BUDGET_DIVISOR: u64 = 64;

/// Write-idle state of the keyspaces of a database.
#[derive(Default, Debug)]
pub struct IdlePeriods {
    spells: BTreeMap<KeyspaceId, Spell>,
    /// Bytes of entries read from the device in idle periods and not yet spent on a flush.
    read_bytes: u64,
}

/// The run of idle ticks of one keyspace.
#[derive(Clone, Copy, Default, Debug)]
struct Spell {
    ticks: u32,
    /// Bytes of updates in its active memtable at the last tick.
    update_bytes: u64,
}

impl Spell {
    /// The state after a tick that ended with `update_bytes` in the active memtable, which may be
    /// new.
    fn after(self, update_bytes: u64) -> Self {
        let written = update_bytes.checked_sub(self.update_bytes).unwrap_or(update_bytes);
        let ticks = if written > TICK_BYTES_MAX { 0 } else { self.ticks.saturating_add(1) };
        Self { ticks, update_bytes }
    }

    fn is_idle(self) -> bool {
        self.ticks >= IDLE_TICKS_MIN
    }
}

impl IdlePeriods {
    /// Accounts for a tick in which `blocks` blocks of entries were read from the device; returns
    /// which keyspaces of `given` (id, bytes of updates in the active memtable) are write-idle.
    fn tick(&mut self, blocks: u64, given: &[(KeyspaceId, u64)]) -> Vec<bool> {
        let before = std::mem::take(&mut self.spells);
        let spell = |id: &KeyspaceId| before.get(id).copied().unwrap_or_default();
        self.spells = given.iter().map(|(id, bytes)| (*id, spell(id).after(*bytes))).collect();
        let idle_periods: Vec<_> = given.iter().map(|(id, _)| self.spells[id].is_idle()).collect();
        self.read_bytes = match idle_periods.contains(&true) {
            true => self.read_bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES_U64)),
            false => 0,
        };
        idle_periods
    }

    /// Spends read credit on a flush of `bytes` bytes; false if there is too little, or the
    /// memtable is too small to matter.
    fn pay_for(&mut self, bytes: u64, budget: u64) -> bool {
        let paid = bytes >= (budget / MEMTABLE_BUDGET_DIVISOR).max(1) && self.read_bytes >= bytes;
        if paid {
            self.read_bytes -= bytes;
        }
        paid
    }
}

impl Core {
    /// Notifies engines of write-idle periods, and rotates the largest idle memtable if it is worth
    /// it.
    pub fn follow_idle_periods(&self, idle_periods: &mut IdlePeriods, blocks_read: u64) {
        let keyspaces = self.all_keyspaces();
        let given =
            |one: &Arc<KeyspaceCore>| (one.id, one.current_view().buffers[0].update_bytes());
        let given: Vec<_> = keyspaces.iter().map(given).collect();
        let idle = idle_periods.tick(blocks_read, &given);
        let mut largest = None;
        for (keyspace, idle) in keyspaces.iter().zip(idle) {
            keyspace.engine.expect_updates(!idle);
            if idle {
                largest = largest.max(Some((keyspace.memtable_bytes().0, keyspace.id)));
            }
        }
        let Some((bytes, id)) = largest else { return };
        // On a full device a flush would only fail.
        let full = self.counters.out_of_space.load(Ordering::Relaxed);
        if full || !idle_periods.pay_for(bytes, self.storage.budget().limit()) {
            return;
        }
        let _commit = self.commit.lock();
        let keyspace = keyspaces.iter().find(|keyspace| keyspace.id == id);
        let exists = |keyspace: &&Arc<KeyspaceCore>| keyspace.check_exists().is_ok();
        if let Some(keyspace) = keyspace.filter(exists) {
            self.rotate_if_allowed(keyspace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_period_begins_after_a_while_with_hardly_any_writes() {
        let mut spell = Spell::default();
        let mut given = 0;
        for _ in 1..IDLE_TICKS_MIN {
            given += TICK_BYTES_MAX;
            spell = spell.after(given);
            assert!(!spell.is_idle());
        }
        spell = spell.after(given);
        assert!(spell.is_idle());
        // A new memtable with few writes, then one with many.
        spell = spell.after(100);
        assert!(spell.is_idle());
        spell = spell.after(101 + TICK_BYTES_MAX);
        assert!(!spell.is_idle());
    }

    #[test]
    fn bytes_read_in_idle_periods_are_spent_once() {
        let (quiet, busy) = (KeyspaceId(1), KeyspaceId(2));
        let mut idle_periods = IdlePeriods::default();
        for tick in 1..=u64::from(IDLE_TICKS_MIN) {
            let idle = idle_periods.tick(100, &[(quiet, 5), (busy, tick << 20)]);
            assert_eq!(idle, [tick == u64::from(IDLE_TICKS_MIN), false]);
        }
        // Only reads during the idle period count.
        let read = 100 * BLOCK_BYTES_U64;
        assert!(!idle_periods.pay_for(read + 1, 1 << 20), "it would have held more");
        assert!(!idle_periods.pay_for(read, 65 * read), "too small to matter");
        assert!(!idle_periods.pay_for(0, 1));
        assert!(idle_periods.pay_for(read, 64 * read));
        assert!(!idle_periods.pay_for(read, 64 * read), "it was spent");
        // The credit is lost when no keyspace is idle any more.
        idle_periods.tick(100, &[(quiet, 5)]);
        idle_periods.tick(100, &[(quiet, 1 << 20)]);
        assert!(!idle_periods.pay_for(read, 64 * read));
    }
}
