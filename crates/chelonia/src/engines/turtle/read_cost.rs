//! What reads pay for updates that wait above them, and when that is enough to take them down.
//!
//! Buffers make writes cheap and reads dear: a lookup asks a filter more for each part of a pivot,
//! now and then reads a block in vain, and a scan reads a block of each. Every read adds what it
//! paid to the *toll* of the pivot. When the toll of a pivot has reached what it costs to flush it
//! now instead of later, the next pass flushes it: so reads never pay much more than twice what the
//! best plan for them would have cost, as who rents skis until he has paid for a pair. The paper
//! names flushing driven by queries as future work.
//!
//! What waits also takes memory twice, where it hides older entries: what nobody reads lies in the
//! blocks of what is read. While the memory holds nearly all of the tree most reads from the device
//! come from that, and each pays for it ([`ReadCosts::crowding`]).
//!
//! Gets and scans pay. A `multi_get`, and a get that has to read filters, pay for filters alone:
//! they do not know at once which pivot is to blame.
//!
//! What waits must be written down once in any case. What a flush costs beyond that is the leaf,
//! which is written with it each time; and the more waits, the sooner that would come anyway. The
//! price takes it that writes go on, so that the next flush is not far. While none are expected
//! ([`ReadCosts::expect_updates`]) a flush is final, and reads that have begun will probably go
//! on: then it is made for a part of the price.
//!
//! ```text
//!   reads of the range ----> toll of the pivot ----> >= price: a unit of maintenance is due
//!   flushed, or split, or joined, or read again from disk: the toll begins at zero
//! ```
//!
//! Writes pay nothing for it while nobody reads: tolls stay at zero.
//!
//! Only some lookups pay for filters, chosen by the hash of the key, and pay for the others too: so
//! the counter of a pivot is not written by every reader.
//!
//! Thread-safety: everything may be called from any thread; a race loses a read cost, no more.

use super::node::{Child, Pivot};
use super::overlap::FLUSH_PERCENT_NEW;
use crate::base::checksum::KeyHash;
use crate::memory::epoch::Guard;
use crate::run::Totals;
use crate::runtime::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A toll is counted in units of a reader's time, of 100 ns.
pub(super) type Units = u32;

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

/// While no updates are expected a flush is for good, and who reads will probably go on: it is made
/// for so much less.
const IDLE_DISCOUNT: u64 = 8;

/// The least part of a leaf that a flush costs, however much waits.
const LEAST_PART: u64 = 16;

/// A flush would come anyway when so many times the leaf wait: the most that ever does, jitter
/// apart.
const FULL_LEAVES: u64 = FLUSH_PERCENT_NEW / 100;

/// What was paid at a pivot. A copy takes over the sum.
#[derive(Default, Debug)]
pub(super) struct ReadCost(AtomicU32);

impl Clone for ReadCost {
    fn clone(&self) -> Self {
        Self(AtomicU32::new(self.paid()))
    }
}

impl ReadCost {
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

/// Whether maintenance is due anywhere in a tree.
#[derive(Default)]
pub(super) struct ReadCosts {
    due: AtomicBool,
    /// No updates are expected.
    idle: AtomicBool,
    // What the newest version was weighed at.
    tree_bytes: AtomicU64,
    buffered_bytes: AtomicU64,
    hidden_bytes: AtomicU64,
    file_bytes: AtomicU64,
}

impl ReadCosts {
    /// A read paid `units` at `pivot`.
    pub fn pay(&self, pivot: &Pivot, units: Units) {
        if pivot.parts.is_empty() || units == 0 {
            return;
        }
        let before = pivot.read_cost.paid();
        pivot.read_cost.0.store(before.saturating_add(units), Ordering::Relaxed);
        if self.is_due(pivot) {
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// The newest version has entries of `tree` bytes, of which `buffered` wait; newer ones hide
    /// about `hidden` of them. It lies in a data file of which `file` bytes are in use. A tree that
    /// was just opened weighs nothing: how much is hidden in it is learned from what comes in.
    pub fn weigh(&self, tree: u64, buffered: u64, hidden: u64, file: u64) {
        self.tree_bytes.store(tree, Ordering::Relaxed);
        self.buffered_bytes.store(buffered, Ordering::Relaxed);
        self.hidden_bytes.store(hidden, Ordering::Relaxed);
        self.file_bytes.store(file, Ordering::Relaxed);
    }

    /// What a lookup owes `pivot` for a block that it had to read from the device, while `cached`
    /// bytes of the data file are in memory: by so much the price of a read as fewer would be
    /// needed if nothing were hidden. Less where less waits than elsewhere.
    pub fn crowding(&self, pivot: &Pivot, cached: u64) -> Units {
        let pending = pivot.pending().bytes;
        self.crowding_at(pending, pending + pivot.settled_bytes(), cached)
    }

    /// The same for a pivot of `whole` bytes, of which `pending` wait.
    fn crowding_at(&self, pending: u64, whole: u64, cached: u64) -> Units {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let (tree, hidden) = (load(&self.tree_bytes), load(&self.hidden_bytes));
        // As much of the tree is in memory as of the whole file.
        let cached = scaled(cached, tree, load(&self.file_bytes).max(tree));
        let units = u64::from(crowding(tree, hidden, cached));
        let usual = scaled(load(&self.buffered_bytes), whole, tree);
        Units::try_from(scaled(units, pending.min(usual), usual)).unwrap_or(BLOCK_READ)
    }

    /// True if maintenance may be due.
    pub fn may_be_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Nothing is due, until somebody pays.
    pub fn settle(&self) {
        self.due.store(false, Ordering::Relaxed);
    }

    /// Says whether updates are expected.
    pub fn expect_updates(&self, expected: bool) {
        self.idle.store(!expected, Ordering::Relaxed);
    }

    /// The bytes that a flush rewrites for one unit of read_cost.
    fn bytes_per_unit(&self) -> u64 {
        match self.idle.load(Ordering::Relaxed) {
            true => FLUSHED_PER_UNIT * IDLE_DISCOUNT,
            false => FLUSHED_PER_UNIT,
        }
    }

    /// True if reads have paid for a flush of `pivot`.
    pub fn is_due(&self, pivot: &Pivot) -> bool {
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
        u64::from(pivot.read_cost.paid()) >= (cost / self.bytes_per_unit()).max(1)
    }

    /// True if maintenance is due at `pivot` or below it, as far as nodes are in memory: reads that
    /// paid brought them there.
    pub fn is_due_within(&self, pivot: &Pivot, guard: &Guard) -> bool {
        if self.is_due(pivot) {
            return true;
        }
        let Child::Node(slot, _) = &pivot.child else { return false };
        let Some(node) = slot.peek(guard) else { return false };
        node.pivots.iter().any(|pivot| self.is_due_within(pivot, guard))
    }
}

/// `number * part / whole`; 0 of nothing.
fn scaled(number: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(number) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The part of [`BLOCK_READ`] that the `hidden` bytes of a `tree` cost each read from the device. A
/// share of `1 - cached / tree` of the lookups reads from the device; it would be
/// `1 - cached / (tree - hidden)`.
fn crowding(tree: u64, hidden: u64, cached: u64) -> Units {
    let alive = tree.saturating_sub(hidden);
    if hidden == 0 || cached >= tree {
        return 0;
    }
    if cached >= alive {
        return BLOCK_READ;
    }
    let part = u128::from(cached) * u128::from(hidden) * u128::from(BLOCK_READ);
    let units = part / (u128::from(alive) * u128::from(tree - cached));
    Units::try_from(units).unwrap_or(BLOCK_READ).min(BLOCK_READ)
}

/// All that was paid at `pivot` and below it.
#[cfg(test)]
pub(super) fn paid_within(pivot: &Pivot, guard: &Guard) -> u64 {
    let node = match &pivot.child {
        Child::Node(slot, _) => slot.peek(guard),
        Child::Leaf(_) | Child::None => None,
    };
    let below = node.into_iter().flat_map(|node| &node.pivots);
    u64::from(pivot.read_cost.paid()) + below.map(|pivot| paid_within(pivot, guard)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_costs_most_where_memory_nearly_suffices() {
        // All that is alive would fit.
        assert_eq!(crowding(1000, 100, 900), BLOCK_READ);
        // A tenth of the lookups reads, and half as many would.
        assert_eq!(crowding(1000, 53, 900), BLOCK_READ * 53 * 9 / 947);
        // Little is in memory: what is hidden makes hardly more reads.
        assert_eq!(crowding(1000, 100, 100), BLOCK_READ / 81);
        // Nothing is hidden, or all fits.
        assert_eq!([crowding(1000, 0, 900), crowding(1000, 100, 1000), crowding(0, 0, 0)], [0; 3]);
        assert_eq!(crowding(1000, 2000, 0), BLOCK_READ);
    }

    #[test]
    fn the_cache_is_shared_with_other_trees_and_pivots_owe_as_they_hold() {
        let read_costs = ReadCosts::default();
        assert_eq!(read_costs.crowding_at(10, 100, u64::MAX), 0);
        // Half of the file is this tree's; so is half of what is cached. A fifth of it waits.
        read_costs.weigh(1000, 200, 53, 2000);
        let full = crowding(1000, 53, 900);
        assert_eq!(read_costs.crowding_at(20, 100, 1800), full);
        assert_eq!(read_costs.crowding_at(90, 100, 1800), full);
        assert_eq!(read_costs.crowding_at(5, 100, 1800), full / 4);
        assert_eq!(read_costs.crowding_at(20, 100, u64::MAX), 0);
    }
}
