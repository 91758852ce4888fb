//! Merging levels of a node into one, with the memtable or without, in pieces on several threads.

use crate::base::error::Result;
use crate::base::keys::{Direction, separator};
use crate::base::stream::SortedStream;
use crate::buffer_tree::level::{LevelOutput, LevelPivot, write_level};
use crate::buffer_tree::node::{Node, Part};
use crate::buffer_tree::output::Output;
use crate::buffer_tree::source::{Incoming, Selection};
use crate::buffer_tree::span::{KeySpan, SharedRange};
use crate::engine::Work;
use crate::engines::splinter::sizes::Sizes;
use crate::kernels::prefix::common_prefix;
use crate::memory::epoch::Guard;
use crate::merge::{Merge, Tombstones};
use crate::runtime::sync::Mutex;
use crate::structure::{KeyView, SharedKey};
use std::collections::BTreeMap;

/// Maximum number of bytes that nodes keep of the least key of a branch, beside those that it
/// shares with the key of its pivot. A prefix of the least key is a lower bound, too.
const FIRST_BYTES_MAX: usize = 64;

/// Minimum number of runs of a piece: each opens all inputs anew.
const PIECE_RUNS: u64 = 4;

/// A merge of levels of a node.
pub(super) struct LevelsMerge<'n, 'u> {
    pub node: &'n Node,
    /// End of the node's range.
    pub upper: Option<KeyView<'n>>,
    /// Indexes of the pivots, ascending.
    pub pivots: &'n [usize],
    /// Levels below this number are merged.
    pub levels: usize,
    /// Nothing older is below: tombstones end here.
    pub whole: bool,
    pub incoming: Incoming<'u>,
    pub sizes: Sizes,
}

impl LevelsMerge<'_, '_> {
    /// Merges and writes; returns the new parts by pivot, each at level 0.
    pub fn run(&self, output: &Output<'_>, work: &Work<'_>) -> Result<BTreeMap<usize, Vec<Part>>> {
        let pieces = self.pieces(work.workers.threads());
        let results: Vec<Mutex<Vec<(usize, Part)>>> =
            pieces.iter().map(|_| Mutex::default()).collect();
        work.workers.run(pieces.len(), &|number| {
            *results[number].lock() = self.piece(pieces[number].span(), output, work)?;
            Ok(())
        })?;
        let mut parts: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
        for (pivot, part) in results.into_iter().flat_map(Mutex::into_inner) {
            parts.entry(pivot).or_default().push(part);
        }
        Ok(parts)
    }

    /// Merges what is in `clip`.
    fn piece(
        &self,
        clip: KeySpan<'_>,
        output: &Output<'_>,
        work: &Work<'_>,
    ) -> Result<Vec<(usize, Part)>> {
        let (node, upper) = (self.node, self.upper);
        let levels = 0..self.levels;
        let selection = Selection { node, upper, pivots: self.pivots, clip, levels, leaves: false };
        let sources = selection.open(&self.incoming, work.progress)?;
        let tombstones = if self.whole { Tombstones::Drop } else { Tombstones::Keep };
        let mut merge = Merge::new(sources, Direction::Ascending, tombstones)?;
        let target = |index: &usize| {
            let span = node.span_of(*index, upper);
            span.clip(clip)?;
            let incoming = self.weight_of(*index);
            let key = &node.pivots[*index].key;
            Some(LevelPivot { index: *index, key, upper: span.upper, incoming })
        };
        let targets: Vec<_> = self.pivots.iter().filter_map(target).collect();
        let begins = targets.first().filter(|first| first.key.view() < clip.lower);
        let begins = begins.map(|first| clip.lower.to_shared().beside(first.key));
        // A branch of a memtable shall be seen to lie beside older ones, if it does.
        let first = merge.key().filter(|_| self.levels == 0).map(|key| {
            let pivot = &node.pivots[node.pivot_of(key)].key;
            let kept = (common_prefix(&pivot.to_bytes(), key) + FIRST_BYTES_MAX).min(key.len());
            SharedKey::whole(&key[..kept]).beside(pivot)
        });
        let begins = first.max(begins);
        let was_cached = |key: &[u8], guard: &Guard| {
            let pivot = &node.pivots[node.pivot_of(key)];
            let last = pivot.parts.last()?.level;
            let mut merged = pivot.parts.iter().rev().take_while(|part| part.level == last);
            merged.find(|part| part.segment.first <= *key)?.segment.run.heat(key, guard)
        };
        let writer = if self.whole { output.leaf_writer() } else { output.level_writer() };
        let was_cached = self.whole.then_some(&was_cached as &crate::run::WasCached<'_>);
        let level = LevelOutput { writer, run_max: self.sizes.run, was_cached };
        let parts = write_level(level, &mut merge, &targets, begins)?;
        output.count_merge(merge, parts.iter().map(|(_, part)| part.totals));
        Ok(parts)
    }

    /// Returns the weight of what is merged in the range of a pivot.
    fn weight_of(&self, pivot: usize) -> u64 {
        let parts = self.node.pivots[pivot].parts.iter();
        let merged = parts.filter(|part| usize::from(part.level) < self.levels);
        let ranks = self.incoming.ranks_in(self.node.span_of(pivot, self.upper));
        merged.map(|part| part.totals.weight()).sum::<u64>() + self.incoming.weight_of(&ranks)
    }

    /// Cuts the merge into pieces for this many threads: at first keys of runs, or of pivots, or
    /// between ranks of the memtable.
    fn pieces(&self, threads: usize) -> Vec<SharedRange> {
        let total: u64 = self.pivots.iter().map(|pivot| self.weight_of(*pivot)).sum();
        let most = total / self.sizes.run.saturating_mul(PIECE_RUNS).max(1);
        let count = most.min(threads as u64 * 2).max(1);
        let first = self.pivots.first().copied().unwrap_or(0);
        let last = self.pivots.last().copied().unwrap_or(0);
        let whole = KeySpan {
            lower: self.node.pivots[first].key.view(),
            upper: self.node.upper_of(last, self.upper),
        };
        let mut pieces = Vec::new();
        let mut lower = whole.lower.to_shared();
        for cut in self.cuts(total, count) {
            if cut > lower && whole.contains(cut.view()) {
                pieces.push(SharedRange::new(lower, Some(cut.clone())));
                lower = cut;
            }
        }
        pieces.push(SharedRange::new(lower, whole.upper.map(KeyView::to_shared)));
        pieces
    }

    /// Returns keys that divide the inputs, of `total` weight, into about `count` equal parts.
    fn cuts(&self, total: u64, count: u64) -> Vec<SharedKey> {
        let Incoming { updates, ranks, .. } = &self.incoming;
        if self.levels == 0 && !ranks.is_empty() {
            // Few heavy updates may be fewer than the pieces.
            let count = usize::try_from(count).unwrap_or(1).min(ranks.len());
            let cut = |piece: usize| {
                let rank = ranks.start + ranks.len() * piece / count;
                let [before, key] = [rank.max(1) - 1, rank].map(|rank| updates.key(rank));
                SharedKey::whole(&separator(before, key))
            };
            return (1..count).map(cut).collect();
        }
        // Of each pivot the level with the most parts shows where its entries are.
        let mut marks: Vec<(SharedKey, u64)> = Vec::new();
        for index in self.pivots {
            let pivot = &self.node.pivots[*index];
            let of_level = |level: usize| {
                pivot.parts.iter().filter(move |part| usize::from(part.level) == level)
            };
            let finest = (0..self.levels).max_by_key(|level| of_level(*level).count());
            let parts: Vec<&Part> = finest.into_iter().flat_map(of_level).collect();
            let share = self.weight_of(*index) / (parts.len() as u64).max(1);
            for (number, part) in parts.into_iter().enumerate() {
                let first = &part.segment.first;
                let key = if number == 0 { &pivot.key } else { first };
                marks.push((key.clone(), share));
            }
        }
        let (mut passed, mut cuts) = (0, Vec::new());
        for (key, weight) in marks {
            if passed >= total / count * (cuts.len() as u64 + 1) {
                cuts.push(key);
            }
            passed += weight;
        }
        cuts
    }
}
