//! Division of the read memory between blocks and records, by the marginal benefit of either side.
//!
//! ```text
//!   in memory          | blocks -------------------->|<------------------- records |
//!   gone from there      ghosts of blocks                          ghosts of records
//! ```
//!
//! A cache that evicts something leaves a *ghost*: its name, remembered until another eighth of the
//! budget was evicted. A device read of something that has a ghost would have been saved by a cache
//! larger by that much. Every such read checks both sides; the side that would have saved more gets
//! a larger share. So scans and misses all over the data favor blocks, which are denser and have
//! neighbors; a few hot records among cold ones favor records.
//!
//! The shares are targets. Memory moves when either side needs a slab and the other has more than
//! its share ([`crate::memory::budget::Budget`]).
//!
//! Records that were flushed from memtables leave ghosts too: a read of one would have been saved
//! by larger memtables. These ghosts age with what is written. The division between memtables and
//! caches (`admission/balance.rs`) weighs them against those of the caches.
//!
//! Only a sample of names is remembered, chosen by the names themselves, so that ghosts take the
//! same little memory whatever the budget.
//!
//! Thread-safety: every method may be called from any thread; a race loses a ghost at most.

use crate::runtime::sync::{AtomicU32, AtomicU64, Ordering};

/// One of the two caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Blocks of runs.
    Blocks,
    /// Single records.
    Records,
}

impl Side {
    /// The other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Side::Blocks => Side::Records,
            Side::Records => Side::Blocks,
        }
    }
}

/// Where a block is, and how soon it will be evicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Presence {
    /// On the device only.
    Absent,
    /// In memory, and evicted next if it is not used.
    Fading,
    /// In memory, and not about to be evicted.
    #[default]
    Settled,
}

/// The division of the read memory, and the counters that adjust it.
pub struct Split {
    /// The records' share, in parts of [`WHOLE`].
    records: AtomicU32,
    ghosts: [Ghosts; 2],
    /// Records flushed from memtables.
    flushed: Ghosts,
    /// Reads that either side would have saved since the division last moved.
    saved: [AtomicU64; 2],
    /// Reads that either side, and larger memtables, would have saved since the open.
    totals: [AtomicU64; 3],
    /// The number of ghosts hit since then.
    met: AtomicU32,
}

/// The share that stands for all of the read memory.
const WHOLE: u32 = 1024;

/// The place of memtables in [`Split::totals`], behind the sides.
const MEMTABLES: usize = 2;

/// The step of one decision.
const STEP: u32 = WHOLE / 32;

/// The minimum share of either side.
const LEAST: u32 = WHOLE / 64;

/// A decision is made after this many ghost hits: fewer would be noise.
const GHOSTS_PER_DECISION: u32 = 64;

/// The savings of one side relative to the other, in percent, above which the division moves.
const DIFFERENCE_PERCENT: u64 = 115;

/// A ghost expires after this fraction of the budget was evicted.
pub const WINDOW_PART: u64 = 8;

/// A ghost of a flushed record expires after this fraction of the budget was written.
pub const FLUSHED_WINDOW_PART: u64 = 32;

/// Reads from the device since the open that more memory would have saved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Saved {
    /// With a block cache larger by 1/[`WINDOW_PART`] of the budget.
    pub blocks: u64,
    /// With a record cache larger by as much.
    pub records: u64,
    /// With memtables that are flushed 1/[`FLUSHED_WINDOW_PART`] of the budget later.
    pub memtables: u64,
}

impl Split {
    /// Creates an even division, for a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let split = Self {
            records: AtomicU32::new(WHOLE / 2),
            ghosts: [Ghosts::new(4096), Ghosts::new(128)],
            flushed: Ghosts::new(128),
            saved: [AtomicU64::new(0), AtomicU64::new(0)],
            totals: std::array::from_fn(|_| AtomicU64::new(0)),
            met: AtomicU32::new(0),
        };
        split.set_limit(limit);
        split
    }

    /// Sets the budget's new limit.
    pub fn set_limit(&self, limit: u64) {
        self.ghosts.iter().for_each(|ghosts| ghosts.set_window(limit / WINDOW_PART));
        self.flushed.set_window(limit / FLUSHED_WINDOW_PART);
    }

    /// The bytes of `whole` that belong to `side`.
    pub fn share(&self, side: Side, whole: u64) -> u64 {
        let records = whole / u64::from(WHOLE) * u64::from(self.records.load(Ordering::Relaxed));
        match side {
            Side::Records => records,
            Side::Blocks => whole - records,
        }
    }

    /// True if records are at their minimum share: blocks are worth more.
    pub fn prefers_blocks(&self) -> bool {
        self.records.load(Ordering::Relaxed) <= LEAST
    }

    /// Records that `side` evicted `name`, of `bytes` bytes.
    pub fn evicted(&self, side: Side, name: u64, bytes: u64) {
        self.ghosts[side as usize].advance(bytes);
        self.ghosts[side as usize].remember(name);
    }

    /// Records that the record `name` was flushed from a memtable and is not cached.
    pub fn flushed(&self, name: u64) {
        self.flushed.remember(name);
    }

    /// Records that memtables grew by `bytes`.
    pub fn wrote(&self, bytes: u64) {
        self.flushed.advance(bytes);
    }

    /// Reads that more memory would have saved.
    pub fn saved(&self) -> Saved {
        let [blocks, records, memtables] =
            [0, 1, 2].map(|of: usize| self.totals[of].load(Ordering::Relaxed));
        Saved { blocks, records, memtables }
    }

    /// Records that `name` of `side` had to be read from the device.
    pub fn missed(&self, side: Side, name: u64) {
        if side == Side::Records
            && let Some(saved) = self.flushed.recall(name)
        {
            self.totals[MEMTABLES].fetch_add(saved, Ordering::Relaxed);
        }
        let Some(saved) = self.ghosts[side as usize].recall(name) else { return };
        self.saved[side as usize].fetch_add(saved, Ordering::Relaxed);
        self.totals[side as usize].fetch_add(saved, Ordering::Relaxed);
        let met = self.met.fetch_add(1, Ordering::Relaxed) + 1;
        if met == GHOSTS_PER_DECISION {
            self.decide();
        }
    }

    /// Moves the division towards the side that would have saved more.
    fn decide(&self) {
        let [blocks, records] =
            [0, 1].map(|side: usize| self.saved[side].swap(0, Ordering::Relaxed));
        let more = |one: u64, other: u64| one * 100 > other * DIFFERENCE_PERCENT;
        let now = self.records.load(Ordering::Relaxed);
        let next = if more(records, blocks) {
            (now + STEP).min(WHOLE - LEAST)
        } else if more(blocks, records) {
            now.saturating_sub(STEP).max(LEAST)
        } else {
            now
        };
        self.records.store(next, Ordering::Relaxed);
        self.met.store(0, Ordering::Relaxed);
    }
}

/// Names of recently evicted items.
struct Ghosts {
    /// Upper half: from the name; lower half: the time of the eviction.
    slots: Box<[AtomicU64]>,
    /// Units of [`UNIT`] bytes evicted, or written, so far.
    passed: AtomicU64,
    /// Units after which a ghost expires.
    window: AtomicU64,
    /// One of this many names is remembered: a power of two.
    sample: AtomicU64,
    /// The typical size of a named item, in bytes.
    usual_bytes: u64,
}

/// Slots of a table; the sample aims to fill at most half of them.
const SLOTS: usize = 1 << 14;

/// The unit in which evicted bytes are counted.
const UNIT: u64 = 64;

impl Ghosts {
    fn new(usual_bytes: u64) -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            passed: AtomicU64::new(0),
            window: AtomicU64::new(0),
            sample: AtomicU64::new(1),
            usual_bytes,
        }
    }

    fn set_window(&self, bytes: u64) {
        let names = bytes / self.usual_bytes;
        let sample = (names / (SLOTS as u64 / 2)).max(1).next_power_of_two();
        self.window.store(bytes / UNIT, Ordering::Relaxed);
        self.sample.store(sample, Ordering::Relaxed);
    }

    /// The slot of a name and the half of it that is kept; `None` if it is not in the sample.
    fn slot(&self, name: u64) -> Option<(&AtomicU64, u64)> {
        let sample = self.sample.load(Ordering::Relaxed);
        let sampled = (name >> 40) & (sample - 1) == 0;
        // Never 0, which an empty slot has.
        let kept = (name & 0xffff_ffff) | 1;
        let index = (name >> 16) as usize & (SLOTS - 1);
        sampled.then(|| (&self.slots[index], kept))
    }

    /// Ages all ghosts by `bytes`.
    fn advance(&self, bytes: u64) {
        self.passed.fetch_add(bytes.div_ceil(UNIT), Ordering::Relaxed);
    }

    fn remember(&self, name: u64) {
        if let Some((slot, kept)) = self.slot(name) {
            let now = self.passed.load(Ordering::Relaxed);
            slot.store((kept << 32) | (now & 0xffff_ffff), Ordering::Relaxed);
        }
    }

    /// How many reads this one represents, if the name is remembered. Removes the ghost.
    fn recall(&self, name: u64) -> Option<u64> {
        let (slot, kept) = self.slot(name)?;
        let found = slot.load(Ordering::Relaxed);
        if found >> 32 != kept {
            return None;
        }
        slot.store(0, Ordering::Relaxed);
        // Only the lower half of the time is stored: ghosts older than 256 GiB of evictions may
        // look recent.
        let age = self.passed.load(Ordering::Relaxed).wrapping_sub(found) & 0xffff_ffff;
        (age < self.window.load(Ordering::Relaxed)).then(|| self.sample.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::checksum::identity;

    fn name(number: u64) -> u64 {
        identity([number, 0, 0])
    }

    impl Ghosts {
        fn evict(&self, number: u64, bytes: u64) {
            self.advance(bytes);
            self.remember(name(number));
        }
    }

    #[test]
    fn a_ghost_is_met_once_and_only_within_the_window() {
        let ghosts = Ghosts::new(4096);
        ghosts.set_window(100 * 4096);
        (0..150).for_each(|number| ghosts.evict(number, 4096));
        assert_eq!(ghosts.recall(name(149)), Some(1));
        assert_eq!(ghosts.recall(name(149)), None);
        assert_eq!(ghosts.recall(name(10)), None);
        assert_eq!(ghosts.recall(name(1000)), None);
        let met = (0..150).filter(|number| ghosts.recall(name(*number)).is_some()).count();
        assert!((90..=99).contains(&met), "{met}");
    }

    #[test]
    fn a_sample_stands_for_all() {
        let ghosts = Ghosts::new(128);
        ghosts.set_window(100 << 20);
        let names = (100 << 20) / 128;
        (0..names).for_each(|number| ghosts.evict(number, 128));
        let saved: u64 = (0..names).filter_map(|number| ghosts.recall(name(number))).sum();
        assert!(saved > names * 7 / 10 && saved < names * 12 / 10, "{saved} of {names}");
    }

    #[test]
    fn memory_moves_to_the_side_that_would_have_saved_more() {
        let split = Split::new(64 << 20);
        let share = || split.share(Side::Records, 1 << 20);
        assert_eq!(share(), 512 << 10);
        for number in 0..20_000 {
            split.evicted(Side::Records, name(number), 128);
            split.evicted(Side::Blocks, name(number), 4096);
            split.missed(Side::Records, name(number));
        }
        assert_eq!(share(), (1 << 20) - (16 << 10));
        for number in 0..20_000 {
            split.evicted(Side::Blocks, name(number), 4096);
            split.missed(Side::Blocks, name(number));
        }
        assert_eq!(share(), 16 << 10);
        assert_eq!(split.share(Side::Blocks, 1 << 20), (1 << 20) - (16 << 10));
    }

    #[test]
    fn flushed_records_age_with_what_is_written() {
        let split = Split::new(32 << 20);
        (0..1000).for_each(|number| split.flushed(name(number)));
        let reads = |numbers: std::ops::Range<u64>| {
            let before = split.saved().memtables;
            numbers.for_each(|number| split.missed(Side::Records, name(number)));
            split.saved().memtables - before
        };
        // Some share a slot.
        assert!((900..=500 * 2).contains(&(2 * reads(0..500))));
        assert_eq!(reads(0..500), 0, "each counts once");
        split.wrote((1 << 20) - 64);
        assert!(reads(500..700) > 180);
        split.wrote(64);
        assert_eq!(reads(700..1000), 0);
        assert_eq!((split.saved().blocks, split.saved().records), (0, 0));
    }
}
