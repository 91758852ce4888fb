//! An immutable memtable as engines see it: updates in key order, by rank.
//!
//! ```text
//!   cuts (seqnos of snapshots)         c0          c1
//!   seqnos of the memtable    ---------|-----------|------------->
//!   batches                    batch 0     batch 1     batch 2
//! ```
//!
//! A batch holds, of each key, the newest version within its interval: after the cut before it, up
//! to and including its own. Absorbed one after the other, the batches give the engine every state
//! that a snapshot must see, and no other. An interval without writes has no batch, so that a
//! memtable with few entries costs little however many snapshots cut it.
//!
//! A batch is an array of addresses of the memtable's own records: nothing is copied. It has two
//! samples for every [`GROUP`] ranks, the bytes before the group and the head of its first key, so
//! that searches and sums begin in the cache.
//!
//! Invariants:
//! 1. Keys ascend strictly by rank; every entry has a version within the interval.
//! 2. The memtable has no more inserts: chains do not change while batches of it exist.
//!
//! Thread-safety: batches are immutable and may be read from any thread.

use super::art::{Entry, EntryArray, Tree, VersionRef, collect};
use crate::base::ids::SeqNo;
use crate::base::keys::head64;
use crate::base::stream::{LargeRef, SortedUpdates, Update};
use crate::memory::budget::{Charge, Use};
use crate::runtime::sync::Arc;
use std::collections::BTreeMap;

/// Number of ranks between two samples.
const GROUP: usize = 64;

/// The newest version of each key within an interval of seqnos.
pub struct SortedBatch {
    entries: EntryArray,
    after: SeqNo,
    upto: SeqNo,
    samples: Samples,
    bytes: u64,
    _charge: Charge,
}

/// Result of [`super::Memtable::sorted`].
pub struct Sorted {
    /// One for each interval between cuts with at least one write, ascending.
    pub batches: Vec<SortedBatch>,
    /// Large values that no batch refers to, because a newer version in the same interval replaced
    /// them. Only readers of the memtable still refer to them.
    pub superseded: Vec<LargeRef>,
}

/// Samples of a batch, one for every [`GROUP`] ranks.
#[derive(Default)]
struct Samples {
    /// Key and inline value bytes of the ranks before the group.
    bytes_before: Vec<u64>,
    /// The head of the group's first key.
    heads: Vec<u64>,
}

/// A batch under construction, without its array.
#[derive(Default)]
struct Filling {
    samples: Samples,
    len: usize,
    bytes: u64,
}

impl Filling {
    #[inline]
    fn add(&mut self, entry: Entry<'_>, version: VersionRef<'_>) {
        let key = entry.key();
        if self.len.is_multiple_of(GROUP) {
            self.samples.bytes_before.push(self.bytes);
            self.samples.heads.push(head64(key));
        }
        self.len += 1;
        self.bytes += entry_bytes(key, version.update());
    }

    fn finish(self, entries: EntryArray, tree: &Tree, after: SeqNo, upto: SeqNo) -> SortedBatch {
        let Filling { samples, bytes, len } = self;
        debug_assert!(entries.len() == len, "as many entries as were counted");
        let held = samples.bytes_before.capacity() + samples.heads.capacity();
        let charge = tree.budget().charge(Use::Work, (held * size_of::<u64>()) as u64);
        SortedBatch { entries, after, upto, samples, bytes, _charge: charge }
    }
}

impl Sorted {
    pub(super) fn new(tree: &Arc<Tree>, cuts: &[SeqNo]) -> Self {
        assert!(cuts.is_sorted(), "cuts ascend");
        let mut superseded = tree.unlinked_large();
        // Number of the array of each interval, in the order in which they first occur.
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        let mut filling: Vec<Filling> = Vec::new();
        let mut recent = (usize::MAX, 0);
        let arrays = collect(tree, |entry, put| {
            let mut last = None;
            for version in entry.versions() {
                let interval = cuts.partition_point(|cut| *cut < version.seqno());
                if last != Some(interval) {
                    last = Some(interval);
                    if recent.0 != interval {
                        recent = (interval, *numbers.entry(interval).or_insert(filling.len()));
                    }
                    let number = recent.1;
                    if number == filling.len() {
                        filling.push(Filling::default());
                    }
                    put(number);
                    filling[number].add(entry, version);
                } else if let Update::PutLarge(large) = version.update() {
                    superseded.push(large);
                }
            }
        });
        let mut filled: Vec<_> = arrays.into_iter().zip(filling).map(Some).collect();
        let mut batches = Vec::with_capacity(filled.len());
        for (interval, number) in numbers {
            let Some((array, filled)) = filled[number].take() else { continue };
            let after = interval.checked_sub(1).map_or(SeqNo::ZERO, |before| cuts[before]);
            let upto = cuts.get(interval).copied().unwrap_or(SeqNo::MAX);
            batches.push(filled.finish(array, tree, after, upto));
        }
        Self { batches, superseded }
    }
}

impl SortedBatch {
    /// The last seqno of its interval: a cut, or the greatest seqno.
    #[must_use]
    pub fn upto(&self) -> SeqNo {
        self.upto
    }
}

impl SortedUpdates for SortedBatch {
    fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    fn key(&self, index: usize) -> &[u8] {
        self.entries.get(index).key()
    }

    #[inline]
    fn update(&self, index: usize) -> Update<'_> {
        let version = newest_between(self.entries.get(index), self.after, self.upto);
        version.expect("every entry of a batch has a version within its interval").update()
    }

    fn bytes_before(&self, index: usize) -> u64 {
        if index == self.len() {
            return self.bytes;
        }
        let first = index - index % GROUP;
        (first..index).for_each(|rank| self.prefetch(rank));
        let within = (first..index).map(|rank| entry_bytes(self.key(rank), self.update(rank)));
        self.samples.bytes_before[index / GROUP] + within.sum::<u64>()
    }

    fn lower_bound(&self, key: &[u8]) -> usize {
        let heads = &self.samples.heads;
        let head = head64(key);
        // The result may be the first key of the group at `least`; no key of the group at `beyond`
        // is less than `key`.
        let least = heads.partition_point(|sample| *sample < head).saturating_sub(1);
        let beyond = heads.partition_point(|sample| *sample <= head);
        let (mut low, mut high) = (least * GROUP, (beyond * GROUP).min(self.len()));
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    #[inline]
    fn prefetch(&self, index: usize) {
        self.entries.prefetch(index);
    }

    #[inline]
    fn prefetch_rest(&self, index: usize) {
        self.entries.prefetch_rest(index);
    }
}

/// The newest version with `after < seqno <= upto`, despite unlinked ones.
#[inline]
fn newest_between(entry: Entry<'_>, after: SeqNo, upto: SeqNo) -> Option<VersionRef<'_>> {
    entry.versions().find(|version| version.seqno() <= upto).filter(|found| found.seqno() > after)
}

#[inline]
fn entry_bytes(key: &[u8], update: Update<'_>) -> u64 {
    (key.len() + update.inline_bytes()) as u64
}
