//! Write-idle periods: a keyspace gets hardly any writes while reads continue.
//!
//! The engine learns of it, because work that it does for reads will not soon be undone by writes.
//! The memtable is not going to grow, but it holds memory and every read searches it. So the
//! largest memtable is flushed once idle periods have read as many bytes from the device as its
//! memory could have cached; the flush consumes that credit. A database without reads does nothing,
//! and memtables too small to matter stay.
//!
//! Thread-safety: the log thread's own; called with no lock held.

use crate::base::ids::KeyspaceId;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use std::collections::BTreeMap;

/// This many ticks with hardly any writes are an idle period.
const IDLE_TICKS_MIN: u32 = 10;

/// Hardly anything, in bytes of updates a tick: what a program that only reads may note.
const TICK_BYTES_MAX: u64 = 4 << 10;

/// Memtables that hold a smaller part of the budget are left alone.
const MEMTABLE_BUDGET_DIVISOR: u64 = 64;

/// What is known of the idle_periods of a database.
#[derive(Default, Debug)]
pub struct IdlePeriods {
    spells: BTreeMap<KeyspaceId, Spell>,
    /// The bytes of entries that were read from the device in idle_periods, and not spent.
    read_bytes: u64,
}

/// How long hardly anything was written to a keyspace.
#[derive(Clone, Copy, Default, Debug)]
struct Spell {
    ticks: u32,
    /// What its active memtable had been given at the last tick, in bytes of updates.
    update_bytes: u64,
}

impl Spell {
    /// After a tick at whose end the active memtable, perhaps a new one, had been given so much.
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
    /// A tick is over in which so many blocks of entries were read from the device: which of the
    /// keyspaces, of whose active memtables it is told what they were given, are in a lull.
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

    /// True if reads would have been better off without a memtable of `bytes` bytes.
    fn pay_for(&mut self, bytes: u64, budget: u64) -> bool {
        let paid = bytes >= (budget / MEMTABLE_BUDGET_DIVISOR).max(1) && self.read_bytes >= bytes;
        if paid {
            self.read_bytes -= bytes;
        }
        paid
    }
}

impl Core {
    /// Tells engines of idle_periods, and finalizes what waits for writes that do not come.
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
        // On a device that is full a drain would only fail.
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
        // A new memtable, that was given little; then much.
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
        // Only what was read in the lull counts.
        let read = 100 * BLOCK_BYTES_U64;
        assert!(!idle_periods.pay_for(read + 1, 1 << 20), "it would have held more");
        assert!(!idle_periods.pay_for(read, 65 * read), "too small to matter");
        assert!(!idle_periods.pay_for(0, 1));
        assert!(idle_periods.pay_for(read, 64 * read));
        assert!(!idle_periods.pay_for(read, 64 * read), "it was spent");
        // The end of all idle_periods forgets.
        idle_periods.tick(100, &[(quiet, 5)]);
        idle_periods.tick(100, &[(quiet, 1 << 20)]);
        assert!(!idle_periods.pay_for(read, 64 * read));
    }
}
