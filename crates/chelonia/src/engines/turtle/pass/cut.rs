//! Cuts of a merge into pieces of similar weight, for several threads: multi-selection over all of
//! its sources [4.2.3].
//!
//! ```text
//!   memtable        . . . . m . . . . m . . . . m . . . .     ranks: weights are exact
//!   run (level 0)   . . . m . . . m . . . m . . . m . . .     separators of the block index:
//!   run (leaf)      . . m . . m . . m . . m . . m . . m .     weights by blocks
//!                                          |
//!   marks by key    --------m-m-mm----m--m-|m--m--m-m----     the weight before a mark is the
//!                                         cut                 sum over all marks before it
//! ```
//!
//! Each source gives *marks*: keys some way apart, with the weight between them. Sorted together,
//! they give the weight of all sources before any of them, without reading an entry. The weight
//! between two marks counts by halves at either, so that the errors of many sources do not add up.
//!
//! A cut is a key of its own, as short as possible: it need not be in any source. Each
//! entry is on one side of it, so only the weight of pieces depends on estimates.

use crate::base::error::{ErrorKind, Result};
use crate::base::keys::{head64, separator};
use crate::buffer_tree::source::{Incoming, Selection};
use crate::buffer_tree::span::KeySpan;
use crate::engines::turtle::pass::geometry::Geometry;
use crate::run::Run;
use crate::structure::{KeyView, SharedKey};
use std::cmp::Ordering;

/// Number of marks that each source gives for a leaf size of its weight.
const MARKS_PER_LEAF: u64 = 16;

/// Minimum number of leaves of a piece: each opens all sources anew, and looks ahead at its end.
const PIECE_LEAVES: u64 = 3;

/// Minimum number of entries in a leaf for a flush to be cut: fewer ones would not fill the leaves
/// of a piece evenly.
const ENTRIES_MIN: u64 = 16;

/// A place where a merge is cut.
#[derive(Debug)]
pub(super) struct Cut {
    /// The first key of the next piece.
    pub key: SharedKey,
    /// Share of all sources that is before it, in parts of [`WHOLE`].
    pub before: u64,
}

/// The share of all sources together.
pub(super) const WHOLE: u64 = 1 << 20;

/// Returns the numbers of leaves of the pieces into which a merge of `leaves` leaves, with entries
/// of `entry` bytes on average, is cut.
pub(super) fn pieces(leaves: u64, entry: u64, geometry: &Geometry) -> Vec<u64> {
    let is_even = entry.saturating_mul(ENTRIES_MIN) <= geometry.leaf;
    let count = if is_even { (leaves / PIECE_LEAVES).max(1) } else { 1 };
    (0..count).map(|piece| leaves * (piece + 1) / count - leaves * piece / count).collect()
}

/// Returns the cuts of a merge of `selection` and `incoming` behind each of `shares`, which ascend,
/// in parts of [`WHOLE`]. There are fewer if several would be at the same key.
pub(super) fn cuts(
    selection: &Selection<'_>,
    incoming: &Incoming<'_>,
    shares: &[u64],
    geometry: &Geometry,
) -> Result<Vec<Cut>> {
    if shares.is_empty() {
        return Ok(Vec::new());
    }
    let step = (geometry.leaf / MARKS_PER_LEAF).max(1);
    let mut marks = Marks { list: Vec::new(), begins: 0, total: 0, clip: selection.clip };
    let mut has_runs = false;
    for (run, live) in selection.runs(incoming) {
        marks.add_run(&run, live, step)?;
        has_runs = true;
    }
    let cuts = if has_runs {
        for span in selection.spans() {
            marks.add_ranks(incoming, span, step);
        }
        marks.select(incoming, shares)
    } else {
        select_ranks(selection, incoming, shares)
    };
    debug_assert!(
        cuts.is_sorted_by(|before, cut| before.key < cut.key && before.before <= cut.before)
            && cuts.iter().all(|cut| selection.clip.contains(cut.key.view())),
        "the pieces of a merge are neighbours within its span"
    );
    Ok(cuts)
}

/// Selects the cuts of a memtable alone: exactly, without marks.
fn select_ranks(selection: &Selection<'_>, incoming: &Incoming<'_>, shares: &[u64]) -> Vec<Cut> {
    let ranks = incoming.ranks_in(selection.clip);
    let total = incoming.weight_of(&ranks);
    let mut cuts: Vec<Cut> = Vec::new();
    let mut last = ranks.start;
    for share in shares {
        let wanted = part_of(total, *share);
        let (mut low, mut high) = (last, ranks.end);
        while low < high {
            let middle = low.midpoint(high);
            if incoming.weight_of(&(ranks.start..middle)) < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low > last && low < ranks.end {
            let before = share_of(incoming.weight_of(&(ranks.start..low)), total);
            cuts.push(Cut { key: key_before(incoming, low), before });
            last = low;
        }
    }
    cuts
}

/// Returns a key between rank `rank` and the one before it.
fn key_before(incoming: &Incoming<'_>, rank: usize) -> SharedKey {
    let [before, key] = [rank - 1, rank].map(|rank| incoming.updates.key(rank));
    SharedKey::whole(&separator(before, key))
}

/// Returns a share of `total`.
pub(super) fn part_of(total: u64, share: u64) -> u64 {
    scaled(total, share, WHOLE)
}

/// Returns the share that `part` is of `total`.
fn share_of(part: u64, total: u64) -> u64 {
    scaled(part.min(total), WHOLE, total.max(1))
}

fn scaled(value: u64, times: u64, by: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(times) / u128::from(by)).unwrap_or(u64::MAX)
}

enum MarkKey<'k> {
    /// A rank of the memtable, and its key.
    Rank(usize, &'k [u8]),
    /// The beginning or end of a source.
    Bound(KeyView<'k>),
    /// A separator of a block index.
    Separator(SharedKey),
}

impl MarkKey<'_> {
    fn view(&self) -> KeyView<'_> {
        match self {
            MarkKey::Rank(_, key) => (*key).into(),
            MarkKey::Bound(key) => *key,
            MarkKey::Separator(key) => key.view(),
        }
    }

    fn head(&self) -> u64 {
        match self {
            MarkKey::Rank(_, key) => head64(key),
            MarkKey::Bound(key) => key.head(),
            MarkKey::Separator(key) => key.head(),
        }
    }
}

/// A key of a source, and the halves of the weights up to the mark before and the one behind.
struct Mark<'k> {
    head: u64,
    key: MarkKey<'k>,
    weight: u64,
}

impl Mark<'_> {
    fn compare(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.key.view().cmp(&other.key.view()))
    }
}

/// The marks of all sources of a merge.
struct Marks<'k> {
    list: Vec<Mark<'k>>,
    /// Weight that counts before the first mark.
    begins: u64,
    /// Weight of all sources.
    total: u64,
    clip: KeySpan<'k>,
}

/// The last mark of a source, while the weight behind it is not known. Without a key it is the
/// beginning of the merge.
struct Open<'k> {
    key: Option<MarkKey<'k>>,
    weight: u64,
}

impl<'k> Marks<'k> {
    /// Begins a source that is live in `span`.
    fn begin(&self, span: KeySpan<'k>) -> Open<'k> {
        let is_inside = span.lower > self.clip.lower;
        Open { key: is_inside.then_some(MarkKey::Bound(span.lower)), weight: 0 }
    }

    /// Adds the part of a source from its `open` mark to `key`.
    fn add(&mut self, open: &mut Open<'k>, weight: u64, key: Option<MarkKey<'k>>) {
        self.total += weight;
        let half = weight / 2;
        let before = std::mem::replace(open, Open { key, weight: weight - half });
        match before.key {
            Some(key) => {
                let weight = before.weight + half;
                self.list.push(Mark { head: key.head(), key, weight });
            }
            None => self.begins += before.weight + half,
        }
    }

    /// Ends a source with its part from the `open` mark to the end of `span`.
    fn end(&mut self, mut open: Open<'k>, weight: u64, span: KeySpan<'k>) {
        self.add(&mut open, weight, span.upper.map(MarkKey::Bound));
        if open.key.is_some() {
            self.add(&mut open, 0, None);
        }
    }

    /// Adds the ranks of the memtable within `span`.
    fn add_ranks(&mut self, incoming: &Incoming<'k>, span: KeySpan<'k>, step: u64) {
        let ranks = incoming.ranks_in(span);
        let parts = usize::try_from(incoming.weight_of(&ranks) / step).unwrap_or(usize::MAX);
        let distance = (ranks.len() / parts.max(1)).max(1);
        let mut open = self.begin(span);
        let mut last = ranks.start;
        for rank in ranks.clone().step_by(distance).skip(1) {
            let key = MarkKey::Rank(rank, incoming.updates.key(rank));
            self.add(&mut open, incoming.weight_of(&(last..rank)), Some(key));
            last = rank;
        }
        self.end(open, incoming.weight_of(&(last..ranks.end)), span);
    }

    /// Adds a run that is live in `span`. Its index may be damaged where no merge reads it: then
    /// the run has no marks, and its merge reports the damage if it meets it.
    fn add_run(&mut self, run: &Run, span: KeySpan<'k>, step: u64) -> Result<()> {
        let reference = run.reference();
        let block = (reference.totals().weight() / u64::from(reference.data_blocks.max(1))).max(1);
        let distance = u32::try_from(step / block).unwrap_or(u32::MAX).max(1);
        let range = span.to_range();
        let blocks = match run.blocks_in(&range) {
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(()),
            blocks => blocks?,
        };
        let mut open = self.begin(span);
        let mut last = blocks.start;
        // Neighbours share most of their bytes where separators are long.
        let mut before = SharedKey::LEAST;
        let visited = run.marks_in(&range, distance, &mut |key, first| {
            let key = SharedKey::whole(key).beside(&before);
            before = key.clone();
            let weight = block * u64::from(first.saturating_sub(last));
            self.add(&mut open, weight, Some(MarkKey::Separator(key)));
            last = first;
        });
        if let Err(error) = visited
            && error.kind() != ErrorKind::Corrupt
        {
            return Err(error);
        }
        self.end(open, block * u64::from(blocks.end.saturating_sub(last)), span);
        Ok(())
    }

    /// Selects the marks nearest to each of `shares`.
    fn select(mut self, incoming: &Incoming<'_>, shares: &[u64]) -> Vec<Cut> {
        self.list.sort_by(Mark::compare);
        let (mut weight, mut cuts, mut shares) = (self.begins, Vec::<Cut>::new(), shares.iter());
        let Some(mut share) = shares.next() else { return cuts };
        for mark in &self.list {
            weight += mark.weight;
            if weight < part_of(self.total, *share) {
                continue;
            }
            let key = match &mark.key {
                MarkKey::Rank(rank, _) => key_before(incoming, *rank),
                MarkKey::Bound(key) => key.to_shared(),
                MarkKey::Separator(key) => key.clone(),
            };
            let lower = cuts.last().map_or(self.clip.lower, |cut| cut.key.view());
            if key.view() > lower && self.clip.contains(key.view()) {
                cuts.push(Cut { key, before: share_of(weight, self.total) });
                // Several shares may lie before one mark.
                loop {
                    let Some(next) = shares.next() else { return cuts };
                    share = next;
                    if weight < part_of(self.total, *share) {
                        break;
                    }
                }
            }
        }
        cuts
    }
}
