//! Lulls: while hardly anything is written, and reads go on, memory and work are the readers'.
//!
//! Engines are told when a lull begins and when it ends: what they do for reads in between need not
//! be done again soon. And a memtable that waits for more gets none: it holds memory, and every
//! read passes it. It is drained once so many blocks had to be read in the lull as its memory would
//! have held: so a database that nobody reads is left alone, and one that is reads no more than
//! twice what it would have if the lull had been known from the beginning.

use crate::base::limits::BLOCK_BYTES_U64;
use crate::db::core::Core;

/// So many ticks in which hardly anything is written make a lull.
const TICKS: u32 = 10;

/// Hardly anything, in a tick: what a program that only reads may note now and then.
const ENTRIES_MAX: u64 = 10;

/// Memtables that hold a smaller part of the budget are left alone.
const BUDGET_DIVISOR: u64 = 64;

/// What is known of the lull.
#[derive(Clone, Copy, Default, Debug)]
pub struct Lull {
    /// For how many ticks hardly anything was written.
    ticks: u32,
    /// The blocks of entries that were read meanwhile.
    read_blocks: u64,
}

impl Lull {
    /// In a tick so many entries were written, and so many blocks read from the device.
    pub fn tick(&mut self, entries: u64, blocks: u64) {
        if entries > ENTRIES_MAX {
            *self = Self::default();
            return;
        }
        self.ticks = self.ticks.saturating_add(1);
        self.read_blocks = self.read_blocks.saturating_add(blocks);
    }

    /// True while it lasts.
    pub fn is_on(&self) -> bool {
        self.ticks >= TICKS
    }

    /// True if reads would have been better off without a memtable of `bytes` bytes.
    fn ends_wait_of(&self, bytes: u64, budget: u64) -> bool {
        self.is_on()
            && bytes >= (budget / BUDGET_DIVISOR).max(1)
            && self.read_blocks.saturating_mul(BLOCK_BYTES_U64) >= bytes
    }
}

impl Core {
    /// Tells the engines of a lull, and finalizes what waits for writes that do not come.
    pub fn follow_lull(&self, lull: &Lull) {
        let budget = self.storage.budget().limit();
        for keyspace in self.all_keyspaces() {
            keyspace.engine.expect_updates(!lull.is_on());
            if lull.ends_wait_of(keyspace.memtable_bytes().0, budget) {
                let _commit = self.commit.lock();
                self.rotate_if_room(&keyspace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lull_lasts_until_something_is_written_and_counts_what_is_read() {
        let mut lull = Lull::default();
        (0..TICKS - 1).for_each(|_| lull.tick(ENTRIES_MAX, 100));
        assert!(!lull.is_on() && !lull.ends_wait_of(1 << 20, 1 << 26));
        lull.tick(0, 100);
        assert!(lull.is_on());
        let read = u64::from(TICKS) * 100 * BLOCK_BYTES_U64;
        assert!(lull.ends_wait_of(read, 64 * read));
        assert!(!lull.ends_wait_of(read + 1, 1 << 26), "it would have held more");
        assert!(!lull.ends_wait_of(read, 64 * (read + 1)), "too small to matter");
        assert!(!lull.ends_wait_of(0, 1));
        lull.tick(ENTRIES_MAX + 1, 100);
        assert!(!lull.is_on());
        (0..TICKS).for_each(|_| lull.tick(0, 0));
        assert!(lull.is_on() && !lull.ends_wait_of(1 << 20, 1 << 26), "nobody reads");
    }
}
