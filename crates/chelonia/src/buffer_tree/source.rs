//! Inputs of a pass: ranges of the memtable and of runs, newest first.
//!
//! ```text
//!   Incoming     ranks of the memtable, then runs of the nodes above (their parts for this range)
//!   sources()    Incoming, then the node's own parts level by level, then its leaves:
//!                each clipped to the pivots that take part, and opened when it is merged
//! ```
//!
//! A run may contain entries of pivots that are no longer live there, or do not take part. So a run
//! is not read as a whole but in ranges, one for each span of neighbouring pivots.

use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{LargeRef, SortedStream, SortedUpdates, Update};
use crate::buffer_tree::node::{Child, Node};
use crate::buffer_tree::span::{KeySpan, SharedRange};
use crate::merge::UpdatesStream;
use crate::run::{RangesStream, Run, weight};
use crate::runtime::sync::Arc;
use crate::structure::KeyView;
use std::ops::Range;

/// Incoming updates of a node.
#[derive(Clone)]
pub struct Incoming<'u> {
    /// The memtable.
    pub updates: &'u dyn SortedUpdates,
    /// Incoming ranks of the memtable.
    pub ranks: Range<usize>,
    /// Runs older than the memtable, newest first: all their entries in the node's range.
    pub older: Vec<Arc<Run>>,
}

impl Incoming<'_> {
    /// Returns the ranks within `span`.
    pub fn ranks_in(&self, span: KeySpan<'_>) -> Range<usize> {
        let bound = |key: KeyView<'_>| {
            self.updates.lower_bound(&key.to_bytes()).clamp(self.ranks.start, self.ranks.end)
        };
        let start = bound(span.lower);
        start..span.upper.map_or(self.ranks.end, bound).max(start)
    }

    /// Returns the weight of ranks.
    pub fn weight_of(&self, ranks: &Range<usize>) -> u64 {
        let bytes = self.updates.bytes_before(ranks.end) - self.updates.bytes_before(ranks.start);
        weight(ranks.len() as u64, bytes)
    }

    /// Returns the weight of incoming updates within `span`, and the number of tombstones among
    /// them. Both are estimated from block indexes for runs; of the memtable the weight is exact,
    /// and the tombstones are sampled.
    pub fn arriving_in(&self, span: KeySpan<'_>) -> Result<(u64, u64)> {
        let ranks = self.ranks_in(span);
        let (mut total, mut tombstones) = (self.weight_of(&ranks), self.tombstones_in(&ranks));
        for run in &self.older {
            let share = run.share_in(&span.to_range())?;
            let totals = run.reference().totals();
            total += scaled(totals.weight(), share);
            tombstones += scaled(totals.tombstones, share);
        }
        Ok((total, tombstones))
    }

    /// Estimates the number of tombstones among the ranks from a sample.
    fn tombstones_in(&self, ranks: &Range<usize>) -> u64 {
        const SAMPLES: usize = 16;
        let step = ranks.len().div_ceil(SAMPLES).max(1);
        let sampled = ranks.clone().step_by(step);
        let deletes = sampled.filter(|rank| self.updates.update(*rank).is_delete()).count();
        (deletes * step).min(ranks.len()) as u64
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate of a size: shares are between 0 and 1, sizes far below 2^53"
)]
fn scaled(whole: u64, share: f64) -> u64 {
    (whole as f64 * share.clamp(0.0, 1.0)) as u64
}

/// An input stream of a pass.
#[expect(
    clippy::large_enum_variant,
    reason = "a merge has a dozen sources; a box would cost every entry a step"
)]
pub enum Source<'u> {
    /// A part of the memtable.
    Updates(UpdatesStream<'u>),
    /// A part of a run.
    Run(RangesStream<SharedRange>),
}

impl SortedStream for Source<'_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Source::Updates(stream) => stream.key(),
            Source::Run(stream) => stream.key(),
        }
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        match self {
            Source::Updates(stream) => stream.update(),
            Source::Run(stream) => stream.update(),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        match self {
            Source::Updates(stream) => stream.advance(),
            Source::Run(stream) => stream.advance(),
        }
    }
}

/// Totals counted by sources until they ended.
#[derive(Default)]
pub struct Counted {
    /// Large values that arrived with updates.
    pub large: Vec<LargeRef>,
    /// Bytes read from runs.
    pub bytes_read: u64,
}

/// Ends `sources`: reports the rest of their progress and returns their totals.
pub fn finish(sources: Vec<Source<'_>>) -> Counted {
    let mut counted = Counted::default();
    for source in sources {
        match source {
            Source::Updates(stream) => counted.large.append(&mut stream.finish()),
            Source::Run(stream) => counted.bytes_read += stream.bytes_read(),
        }
    }
    counted
}

/// The part of a node that a task works on.
pub struct Selection<'n> {
    /// The node.
    pub node: &'n Node,
    /// End of the node's range.
    pub upper: Option<KeyView<'n>>,
    /// Indexes of the pivots, ascending.
    pub pivots: &'n [usize],
    /// Span to which their ranges are clipped.
    pub clip: KeySpan<'n>,
    /// Parts of these levels take part.
    pub levels: Range<usize>,
    /// Leaves take part.
    pub leaves: bool,
}

impl<'n> Selection<'n> {
    /// Returns the clipped range of one pivot.
    fn span_of(&self, pivot: usize) -> Option<KeySpan<'n>> {
        let lower = self.node.pivots[pivot].key.view();
        KeySpan { lower, upper: self.node.upper_of(pivot, self.upper) }.clip(self.clip)
    }

    /// Returns the ranges of the pivots; adjacent ranges are joined.
    pub fn spans(&self) -> Vec<KeySpan<'n>> {
        let mut spans: Vec<KeySpan<'n>> = Vec::new();
        for pivot in self.pivots {
            let Some(next) = self.span_of(*pivot) else { continue };
            match spans.last_mut() {
                Some(last) if last.upper == Some(next.lower) => last.upper = next.upper,
                _ => spans.push(next),
            }
        }
        spans
    }

    /// Returns the node's own sources that take part, newest first: one per level, then the leaves.
    /// Each is a list of runs with the ranges they are live in, in key order.
    fn own(&self) -> Vec<Ranges<'n>> {
        let mut sources: Vec<Ranges<'n>> = Vec::new();
        for level in self.levels.clone() {
            let mut ranges = Vec::new();
            for pivot in self.pivots {
                let parts = &self.node.pivots[*pivot].parts;
                for part in parts.iter().filter(|part| usize::from(part.level) == level) {
                    self.append(&mut ranges, &part.segment.run, *pivot);
                }
            }
            sources.push(ranges);
        }
        let mut leaves = Vec::new();
        for pivot in self.pivots.iter().filter(|_| self.leaves) {
            if let Child::Leaf(run) = &self.node.pivots[*pivot].child {
                self.append(&mut leaves, run, *pivot);
            }
        }
        sources.push(leaves);
        sources.retain(|ranges| !ranges.is_empty());
        sources
    }

    /// Appends the range of `pivot` in `run`; extends the preceding span if possible.
    fn append(&self, ranges: &mut Ranges<'n>, run: &Arc<Run>, pivot: usize) {
        let Some(next) = self.span_of(pivot) else { return };
        match ranges.last_mut() {
            Some((last, span)) if Arc::ptr_eq(last, run) && span.upper == Some(next.lower) => {
                span.upper = next.upper;
            }
            _ => ranges.push((Arc::clone(run), next)),
        }
    }

    /// Returns the incoming runs with the ranges `spans`.
    fn above(incoming: &Incoming<'_>, spans: &[KeySpan<'n>]) -> impl Iterator<Item = Ranges<'n>> {
        let ranges = |run| spans.iter().map(|span| (Arc::clone(run), *span)).collect();
        incoming.older.iter().map(ranges)
    }

    /// Returns all runs that take part, each with a span in which it is live.
    pub fn runs(&self, incoming: &Incoming<'_>) -> Ranges<'n> {
        let all = self.spans();
        Self::above(incoming, &all).chain(self.own()).flatten().collect()
    }

    /// Opens all sources that take part: incoming updates, then the node's own, newest first.
    pub fn open<'u>(
        &self,
        incoming: &Incoming<'u>,
        progress: &'u (dyn Fn(u64) + Sync),
    ) -> Result<Vec<Source<'u>>> {
        let mut sources = Vec::new();
        let all = self.spans();
        let ranks: Vec<_> = all
            .iter()
            .map(|span| incoming.ranks_in(*span))
            .filter(|ranks| !ranks.is_empty())
            .collect();
        if !ranks.is_empty() {
            sources.push(Source::Updates(UpdatesStream::new(incoming.updates, ranks, progress)));
        }
        for ranges in Self::above(incoming, &all).chain(self.own()) {
            let owned = ranges.into_iter().map(|(run, span)| (run, span.to_shared()));
            sources.push(Source::Run(RangesStream::new(owned.collect())?));
        }
        Ok(sources)
    }
}

/// Runs, each with a range, in key order.
type Ranges<'n> = Vec<(Arc<Run>, KeySpan<'n>)>;

/// Returns the last key of a run.
pub fn last_key(run: &Arc<Run>) -> Result<Option<Vec<u8>>> {
    let cursor = crate::run::RunCursor::new(run, KeyRange::all(), Direction::Descending)?;
    Ok(cursor.key().map(<[u8]>::to_vec))
}
