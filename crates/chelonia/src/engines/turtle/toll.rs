//! What reads pay for updates that wait above them, and when that is enough to take them down.
//!
//! Buffers make writes cheap and reads dear: a lookup asks a filter more for each part of a pivot,
//! now and then reads a block in vain, and a scan reads a block of each. Every read adds what it
//! paid to the *toll* of the pivot. When the toll of a pivot has reached what it costs to flush it
//! now instead of later, the next pass flushes it: so reads never pay much more than twice what the
//! best plan for them would have cost, as who rents skis until he has paid for a pair. The paper
//! names flushing driven by queries as future work.
//!
//! What waits must be written down once in any case. What a flush costs beyond that is the leaf,
//! which is written with it each time; and the more waits, the sooner that would come anyway. If
//! nothing more is written all of it is a cost; so upkeep takes no more time than reads have lost
//! ([`Dues::lost`]).
//!
//! ```text
//!   reads of the range ----> toll of the pivot ----> >= price: a unit of upkeep is due
//!   flushed, or split, or joined, or read again from disk: the toll begins at zero
//! ```
//!
//! Writes pay nothing for it while nobody reads: tolls stay at zero.
//!
//! Only some lookups pay for filters, chosen by the hash of the key, and pay for the others too: so
//! the counter of a pivot is not written by every reader.
//!
//! Thread-safety: everything may be called from any thread; races lose a toll, no more.

use super::node::{Child, Pivot, Totals};
use crate::base::checksum::KeyHash;
use crate::base::epoch::Guard;
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A toll is counted in units of a reader's time.
type Units = u32;

/// The time that is a unit.
const UNIT_NANOS: u64 = 100;

/// Filters that cost a reader one unit: they are asked together, so that each more costs half a
/// miss of the processor's cache.
const FILTERS: Units = 2;

/// A block that had to be read from the device.
pub(super) const BLOCK_READ: Units = 600;

/// A block in memory that was looked at.
pub(super) const BLOCK_LOOK: Units = 5;

/// A source more in a merge.
const SOURCE: Units = 5;

/// One of so many lookups pays for filters.
const SAMPLE: Units = 64;

/// A flush reads, merges and writes so many bytes in one unit. It takes a thread twice as long, but
/// is done in the background.
const FLUSHED_PER_UNIT: u64 = 32;

/// The least part of a leaf that a flush costs, however much waits.
const LEAST_PART: u64 = 16;

/// A flush would come anyway when so many times the leaf wait: about the most that ever does.
const FULL_LEAVES: u64 = 5;

/// What was paid at a pivot. A copy takes over the sum.
#[derive(Default, Debug)]
pub(super) struct Toll(AtomicU32);

impl Clone for Toll {
    fn clone(&self) -> Self {
        Self(AtomicU32::new(self.paid()))
    }
}

impl Toll {
    fn paid(&self) -> Units {
        self.0.load(Ordering::Relaxed)
    }
}

/// True if the lookup of `hash` pays for the filters it asks.
#[inline]
pub(super) fn is_sampled(hash: KeyHash) -> bool {
    (hash.0 >> 20).is_multiple_of(u64::from(SAMPLE))
}

/// What a lookup that pays owes for asking the filters of `parts` parts.
#[inline]
pub(super) fn filters(parts: usize) -> Units {
    u32::try_from(parts).unwrap_or(Units::MAX / SAMPLE).saturating_mul(SAMPLE / FILTERS)
}

/// What a scan owes for so many sources more, so many of which have to be read from the device.
pub(super) fn sources(count: usize, read: usize) -> Units {
    let units = count.saturating_mul(SOURCE as usize) + read.saturating_mul(BLOCK_READ as usize);
    Units::try_from(units).unwrap_or(Units::MAX)
}

/// Whether upkeep is due anywhere in a tree.
#[derive(Default)]
pub(super) struct Dues {
    due: AtomicBool,
    /// The last pass failed: there is none for reads before one for updates has succeeded.
    refused: AtomicBool,
    /// All that was ever paid.
    paid: AtomicU64,
}

impl Dues {
    /// A read paid `units` at `pivot`.
    pub fn pay(&self, pivot: &Pivot, units: Units) {
        if pivot.parts.is_empty() || units == 0 {
            return;
        }
        self.paid.fetch_add(u64::from(units), Ordering::Relaxed);
        let before = pivot.toll.paid();
        pivot.toll.0.store(before.saturating_add(units), Ordering::Relaxed);
        if is_due(pivot) {
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// The time that reads have lost to what waits.
    pub fn lost(&self) -> Duration {
        Duration::from_nanos(self.paid.load(Ordering::Relaxed).saturating_mul(UNIT_NANOS))
    }

    /// True if upkeep may be due.
    pub fn may_be_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) && !self.refused.load(Ordering::Relaxed)
    }

    /// A pass for what reads have paid failed.
    pub fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// A pass succeeded.
    pub fn accept(&self) {
        self.refused.store(false, Ordering::Relaxed);
    }

    /// Nothing is due, until somebody pays.
    pub fn settle(&self) {
        self.due.store(false, Ordering::Relaxed);
    }
}

/// True if reads have paid for a flush of `pivot`.
pub(super) fn is_due(pivot: &Pivot) -> bool {
    if pivot.parts.is_empty() {
        return false;
    }
    let pending = pivot.pending().weight();
    let cost = match &pivot.child {
        Child::Leaf(leaf) => {
            let leaf = Totals::of_run(leaf).weight();
            // What of the leaf would not have been written sooner or later.
            let early = FULL_LEAVES.saturating_sub(pending / leaf.max(1));
            (leaf / LEAST_PART).saturating_add(leaf / FULL_LEAVES * early)
        }
        // What goes into a node may be written once more there.
        Child::Node(..) => pending,
        Child::None => 0,
    };
    u64::from(pivot.toll.paid()) >= (cost / FLUSHED_PER_UNIT).max(1)
}

/// True if upkeep is due at `pivot` or below it, as far as nodes are in memory: reads that paid
/// brought them there.
pub(super) fn is_due_within(pivot: &Pivot, guard: &Guard) -> bool {
    if is_due(pivot) {
        return true;
    }
    let Child::Node(slot, _) = &pivot.child else { return false };
    let Some(node) = slot.node.get(guard) else { return false };
    node.pivots.iter().any(|pivot| is_due_within(pivot, guard))
}
