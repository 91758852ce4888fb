//! Read cost of buffered updates, and the flushes that it triggers.
//!
//! Buffers make writes cheap and reads expensive: for each part of a pivot a lookup checks one more
//! filter, sometimes reads a block unnecessarily, and a scan reads a block. Every read adds its
//! extra cost to the *read cost* of the pivot. When that reaches the cost of a flush now instead of
//! later, the next pass flushes the pivot: so reads never pay much more than twice the cost of the
//! best plan for them (the ski rental problem). The paper names query-driven flushing as future
//! work.
//!
//! Buffered updates also take memory twice, where they hide older entries: obsolete entries lie in
//! the same blocks as entries that are read. While memory holds nearly all of the tree, most device
//! reads are caused by that, and each is charged for it ([`ReadCosts::crowding`]).
//!
//! Gets and scans are charged. A `multi_get`, and a get that has to read filters, are charged for
//! filters alone: they cannot attribute other costs to a pivot at once.
//!
//! Buffered updates must be written down once in any case. The extra cost of a flush is the leaf,
//! which is rewritten each time; and the more is pending, the sooner a flush would come anyway. The
//! price assumes that writes continue, so that the next flush is near. During a write-idle period
//! ([`ReadCosts::expect_updates`]) a flush is final, and current reads will probably continue: then
//! the price is reduced.
//!
//! ```text
//!   reads of the range ----> read cost of the pivot ----> >= price: a unit of maintenance is due
//!   flushed, or split, or joined, or read again from disk: the read cost restarts at zero
//! ```
//!
//! A pass that writes a new level anyway also merges older levels that it would leave alone
//! otherwise, as far as reads have paid for it: with filters, unnecessary searches, and sources of
//! scans, which fewer levels would have saved (`pass/levels.rs`). The payment is then spent.
//!
//! Without reads, writes pay nothing for this: read costs stay at zero.
//!
//! Only some lookups are charged for filters, selected by the hash of the key, and at a multiple:
//! so most readers do not write the counter of a pivot.
//!
//! Thread-safety: everything may be called from any thread; a race loses a read cost, no more.

use crate::base::checksum::KeyHash;
use crate::buffer_tree::node::{Child, Pivot};
use crate::memory::epoch::Guard;
use crate::runtime::sync::{AtomicBool, AtomicU64, Ordering};

/// Unit of read cost: 100 ns of a reader's time.
pub type Units = u32;

/// Number of filter checks that cost a reader one unit: filters are checked together, so that each
/// additional one costs half a CPU cache miss.
const FILTERS: Units = 2;

/// Cost of a block read from the device.
pub const BLOCK_READ: Units = 600;

/// Cost of searching a block in memory.
pub const BLOCK_LOOK: Units = 5;

/// Cost of an additional source of a merge.
const SOURCE: Units = 5;

/// One in this many lookups is charged for filters.
pub const SAMPLE: Units = 64;

/// Bytes that a flush reads, merges and writes per unit. A thread takes twice as long, but in the
/// background.
const FLUSHED_PER_UNIT: u64 = 32;

/// Divisor of the flush price during a write-idle period: the flush is final, and reads will
/// probably continue.
const IDLE_DISCOUNT: u64 = 8;

/// Returns true if the lookup of `hash` is charged for the filters it checks.
#[inline]
pub fn is_sampled(hash: KeyHash) -> bool {
    (hash.0 >> 20).is_multiple_of(u64::from(SAMPLE))
}

/// Returns the charge of a sampled lookup for checking `count` filters.
#[inline]
pub fn filters(count: usize) -> Units {
    u32::try_from(count).unwrap_or(Units::MAX / SAMPLE).saturating_mul(SAMPLE / FILTERS)
}

/// Returns the charge of a scan for `count` additional sources, of which `read` must be read from
/// the device.
pub fn sources(count: usize, read: usize) -> Units {
    let units = count.saturating_mul(SOURCE as usize) + read.saturating_mul(BLOCK_READ as usize);
    Units::try_from(units).unwrap_or(Units::MAX)
}

/// Returns the bytes that a flush of a pivot now rewrites, beyond what a later one would; `None` if
/// reads have nothing to gain by it.
pub type Price = fn(&Pivot) -> Option<u64>;

/// Read cost state of a tree: whether maintenance is due anywhere.
pub struct ReadCosts {
    price: Price,
    due: AtomicBool,
    /// No updates are expected (write-idle period).
    idle: AtomicBool,
    // Sizes of the newest version, set by `weigh`.
    tree_bytes: AtomicU64,
    buffered_bytes: AtomicU64,
    hidden_bytes: AtomicU64,
    file_bytes: AtomicU64,
}

impl ReadCosts {
    /// Creates the state of a tree without reads, of an engine with this price of flushes.
    pub fn new(price: Price) -> Self {
        Self {
            price,
            due: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            tree_bytes: AtomicU64::new(0),
            buffered_bytes: AtomicU64::new(0),
            hidden_bytes: AtomicU64::new(0),
            file_bytes: AtomicU64::new(0),
        }
    }

    /// Adds `units` to the read cost of `pivot`, of which fewer levels would have saved
    /// `by_levels`.
    pub fn pay(&self, pivot: &Pivot, units: Units, by_levels: Units) {
        if pivot.parts.is_empty() || units == 0 {
            return;
        }
        pivot.read_cost.pay(units, by_levels);
        if self.is_due(pivot) {
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the sizes of the newest version: entries of `tree` bytes, of which `buffered` are
    /// buffered; newer entries hide about `hidden` of them; the data file uses `file` bytes. All
    /// are zero after an open: the hidden share is learned from incoming updates.
    pub fn weigh(&self, tree: u64, buffered: u64, hidden: u64, file: u64) {
        self.tree_bytes.store(tree, Ordering::Relaxed);
        self.buffered_bytes.store(buffered, Ordering::Relaxed);
        self.hidden_bytes.store(hidden, Ordering::Relaxed);
        self.file_bytes.store(file, Ordering::Relaxed);
    }

    /// Returns the charge to `pivot` for a block read from the device, while `cached` bytes of the
    /// data file are in memory: the price of a read times the share of reads that would be saved if
    /// nothing were hidden. Less if the pivot has fewer pending updates than average.
    pub fn crowding(&self, pivot: &Pivot, cached: u64) -> Units {
        let pending = pivot.pending().bytes;
        self.crowding_at(pending, pending + pivot.settled_bytes(), cached)
    }

    /// Returns the charge of `crowding` for a pivot of `whole` bytes, of which `pending` are
    /// pending.
    fn crowding_at(&self, pending: u64, whole: u64, cached: u64) -> Units {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let (tree, hidden) = (load(&self.tree_bytes), load(&self.hidden_bytes));
        // Assume that the cached share of the tree equals that of the whole file.
        let cached = scaled(cached, tree, load(&self.file_bytes).max(tree));
        let units = u64::from(crowding(tree, hidden, cached));
        let usual = scaled(load(&self.buffered_bytes), whole, tree);
        Units::try_from(scaled(units, pending.min(usual), usual)).unwrap_or(BLOCK_READ)
    }

    /// Returns true if maintenance may be due.
    pub fn may_be_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Marks maintenance as not due, until the next charge that reaches a price.
    pub fn settle(&self) {
        self.due.store(false, Ordering::Relaxed);
    }

    /// Sets whether updates are expected.
    pub fn expect_updates(&self, expected: bool) {
        self.idle.store(!expected, Ordering::Relaxed);
    }

    /// Returns the bytes that a flush rewrites for one unit of read cost.
    pub fn bytes_per_unit(&self) -> u64 {
        match self.idle.load(Ordering::Relaxed) {
            true => FLUSHED_PER_UNIT * IDLE_DISCOUNT,
            false => FLUSHED_PER_UNIT,
        }
    }

    /// Returns true if the read cost of `pivot` has reached the price of a flush.
    pub fn is_due(&self, pivot: &Pivot) -> bool {
        if pivot.parts.is_empty() {
            return false;
        }
        let Some(cost) = (self.price)(pivot) else { return false };
        u64::from(pivot.read_cost.paid()) >= (cost / self.bytes_per_unit()).max(1)
    }

    /// Returns true if maintenance is due at `pivot` or below it, as far as nodes are in memory:
    /// reads that were charged loaded them.
    pub fn is_due_within(&self, pivot: &Pivot, guard: &Guard) -> bool {
        if self.is_due(pivot) {
            return true;
        }
        let Child::Node(slot, _) = &pivot.child else { return false };
        let Some(node) = slot.peek(guard) else { return false };
        node.pivots.iter().any(|pivot| self.is_due_within(pivot, guard))
    }
}

/// Returns `number * part / whole`; 0 if `whole` is 0.
fn scaled(number: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(number) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Returns the part of [`BLOCK_READ`] that the `hidden` bytes of a `tree` cost each device read. A
/// share of `1 - cached / tree` of the lookups reads from the device; without hidden bytes it would
/// be `1 - cached / (tree - hidden)`.
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

/// Sum of the read costs at `pivot` and below it.
#[cfg(test)]
pub fn paid_within(pivot: &Pivot, guard: &Guard) -> u64 {
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
        // All live entries would fit.
        assert_eq!(crowding(1000, 100, 900), BLOCK_READ);
        // A tenth of the lookups reads, and half as many would.
        assert_eq!(crowding(1000, 53, 900), BLOCK_READ * 53 * 9 / 947);
        // Little is in memory: hidden bytes cause hardly any additional reads.
        assert_eq!(crowding(1000, 100, 100), BLOCK_READ / 81);
        // Nothing is hidden, or everything fits.
        assert_eq!([crowding(1000, 0, 900), crowding(1000, 100, 1000), crowding(0, 0, 0)], [0; 3]);
        assert_eq!(crowding(1000, 2000, 0), BLOCK_READ);
    }

    #[test]
    fn the_cache_is_shared_with_other_trees_and_pivots_owe_as_they_hold() {
        let read_costs = ReadCosts::new(|_| None);
        assert_eq!(read_costs.crowding_at(10, 100, u64::MAX), 0);
        // This tree is half of the file, and of the cached bytes. A fifth of it is buffered.
        read_costs.weigh(1000, 200, 53, 2000);
        let full = crowding(1000, 53, 900);
        assert_eq!(read_costs.crowding_at(20, 100, 1800), full);
        assert_eq!(read_costs.crowding_at(90, 100, 1800), full);
        assert_eq!(read_costs.crowding_at(5, 100, 1800), full / 4);
        assert_eq!(read_costs.crowding_at(20, 100, u64::MAX), 0);
    }
}
