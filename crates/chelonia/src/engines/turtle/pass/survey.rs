//! Survey of a node before any work: statistics, the plan of the buffer, and the tasks.

use super::cut::{self, Cut};
use super::{BufferPlan, Levels, Pass, Place, StuckPlan, Task};
use crate::base::checksum::{checksum, identity};
use crate::base::error::{Error, Result};
use crate::base::ids::Extent;
use crate::base::keys::Direction;
use crate::base::stream::SortedStream;
use crate::buffer_tree::codec::LEVEL_MAX;
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, Node, Pivot};
use crate::buffer_tree::source::{self, Incoming, Selection};
use crate::buffer_tree::span::{KeySpan, SharedRange};
use crate::engines::turtle::pass::geometry::Pace;
use crate::engines::turtle::pass::levels::{self, LevelMerge};
use crate::engines::turtle::pass::plan::{self, Group, PivotStats, Reason};
use crate::engines::turtle::shape::LeafPlan;
use crate::run::{RunCursor, Totals};
use crate::structure::{KeyView, SharedKey};
use std::collections::BTreeMap;

/// Approximate weight of a piece of a new level, in leaf sizes.
const LEVEL_PIECE_LEAVES: u64 = 4;

/// Maximum number of pivots flushed by one maintenance unit.
const COSTLY_PER_UNIT: usize = 4;

/// Minimum fill, in percent, at which a leaf stays unchanged when entries are appended.
const KEEP_LEAF_PERCENT: u64 = 85;

impl<'u> Pass<'_, 'u> {
    pub(super) fn stats(&self, at: Place<'_>, incoming: &Incoming<'u>) -> Result<Vec<PivotStats>> {
        let mut stats = Vec::with_capacity(at.node.pivots.len());
        // Passes with updates do no read-triggered flushes: maintenance units do.
        let mut costly_left =
            if self.maintenance && at.node.height == 1 { COSTLY_PER_UNIT } else { 0 };
        for (index, pivot) in at.node.pivots.iter().enumerate() {
            let span = at.span_of(index);
            let pending = pivot.pending();
            let mut waiting_below = Totals::default();
            let (child, child_pivots) = match &pivot.child {
                Child::None => (Totals::default(), 0),
                Child::Leaf(run) => (run.reference().totals(), 0),
                Child::Node(_, summary) => {
                    let mut below = summary.leaf;
                    below += summary.buffered;
                    waiting_below = summary.buffered;
                    (below, usize::try_from(summary.pivots).unwrap_or(usize::MAX))
                }
            };
            let (arriving, tombstones) = incoming.arriving_in(span)?;
            let due = costly_left > 0 && self.read_costs.is_due(pivot);
            costly_left -= usize::from(due);
            stats.push(PivotStats {
                incoming: arriving,
                pending: pending.weight(),
                child: child.weight(),
                tombstones: pending.tombstones + tombstones,
                waiting_below,
                child_entries: child.entries,
                child_pivots,
                dead: 0,
                emptying: false,
                stuck: self.damage.sticks(pivot, span)?,
                due,
                // The seed must not depend on the order in which threads work.
                seed: identity([checksum(&pivot.key.to_bytes(), 0), child.entries, child.bytes]),
            });
        }
        if self.maintenance && at.node.height > 1 {
            // Follow one path down, so that the data rewritten by a maintenance unit is bounded.
            let guard = self.node_cache.storage().epochs().pin();
            let due = |pivot: &Pivot| self.read_costs.is_due_within(pivot, &guard);
            if let Some(first) = at.node.pivots.iter().position(due) {
                stats[first].due = true;
            }
        }
        if self.geometry.pace == Pace::OneLeaf {
            self.survey_dead(at, &mut stats);
        }
        Ok(stats)
    }

    /// Finds what reclaiming units prefer: pivots whose flush frees runs that are mostly dead, and
    /// the node that they are emptying.
    fn survey_dead(&self, at: Place<'_>, stats: &mut [PivotStats]) {
        if at.node.height > 1 {
            let emptying = self.emptying.lock();
            for (index, pivot_stats) in stats.iter_mut().enumerate() {
                let is_within = |key: &SharedKey| at.span_of(index).contains(key.view());
                pivot_stats.emptying = emptying.as_ref().is_some_and(is_within);
            }
            return;
        }
        let all: Vec<usize> = (0..stats.len()).collect();
        let alive = alive_weights(at.node, &all);
        for (pivot_stats, pivot) in stats.iter_mut().zip(&at.node.pivots) {
            let dead = pivot.parts.iter().map(|part| {
                let run = part.segment.run.reference();
                let alive = alive[&run.extent];
                let dead = u128::from(run.totals().weight().saturating_sub(alive));
                let share = dead * u128::from(part.totals.weight()) / u128::from(alive.max(1));
                u64::try_from(share).unwrap_or(u64::MAX)
            });
            pivot_stats.dead = dead.sum();
        }
    }

    /// Records the node that the next reclaiming unit goes on with.
    pub(super) fn note_emptying(&self, at: Place<'_>, stats: &[PivotStats], groups: &[Group]) {
        if self.geometry.pace == Pace::OneLeaf && at.node.height == 1 {
            let is_emptying = plan::is_emptying(stats, groups, &self.geometry);
            *self.emptying.lock() = is_emptying.then(|| at.node.pivots[0].key.clone());
        }
    }

    pub(super) fn count_flushes(&self, node: &Node, groups: &[Group]) {
        for group in groups {
            let Some(reason) = group.flush else { continue };
            self.events.add(Event::Flushes, group.pivots.len() as u64);
            match reason {
                Reason::Narrow => self.events.add(Event::PassThrough, 1),
                Reason::Tombstones => self.events.add(Event::TombstoneFlushes, 1),
                Reason::Reads => self.events.add(Event::ReadFlushes, group.pivots.len() as u64),
                Reason::Full | Reason::Join => {}
            }
            let pivots = &node.pivots[group.pivots.clone()];
            let leaves = pivots.iter().filter(|pivot| matches!(pivot.child, Child::Leaf(_)));
            self.events.add(Event::JoinsLeaf, (leaves.count() as u64).saturating_sub(1));
        }
    }

    /// Decides the contents of a new top level: incoming updates of pivots that are not flushed,
    /// and the levels merged with them.
    pub(super) fn plan_buffer(
        &self,
        at: Place<'_>,
        incoming: &Incoming<'u>,
        stats: &[PivotStats],
        groups: &[Group],
    ) -> Result<BufferPlan> {
        let staying = groups.iter().filter(|group| group.flush.is_none());
        let staying = staying.flat_map(|group| group.pivots.clone());
        let (stuck, staying): (Vec<usize>, Vec<usize>) =
            staying.partition(|pivot| stats[*pivot].stuck);
        let mut sizes: BTreeMap<u8, u64> = BTreeMap::new();
        for part in staying.iter().flat_map(|pivot| &at.node.pivots[*pivot].parts) {
            *sizes.entry(part.level).or_default() += part.totals.weight();
        }
        // Whether a run from above has entries for a pivot is not known without reading it.
        let above = !incoming.older.is_empty();
        let enters = |pivot: usize| above || !incoming.ranks_in(at.span_of(pivot)).is_empty();
        let mut buffer = BufferPlan::default();
        for pivot in stuck {
            let plan = self.plan_stuck(at, pivot, &stats[pivot], enters(pivot))?;
            buffer.stuck.insert(pivot, plan);
        }
        let levels: Vec<u8> = sizes.keys().copied().collect();
        let arriving = staying.iter().any(|pivot| enters(*pivot));
        let (mut merge, mut first) = (LevelMerge::default(), 0);
        if arriving {
            let incoming = staying.iter().map(|pivot| stats[*pivot].incoming).sum();
            let sizes: Vec<u64> = sizes.values().copied().collect();
            let costs = staying.iter().map(|pivot| &at.node.pivots[*pivot].read_cost);
            let paid: u64 = costs.map(|cost| u64::from(cost.by_levels())).sum();
            let paid_bytes = paid.saturating_mul(self.read_costs.bytes_per_unit());
            merge = levels::levels_to_merge(incoming, &sizes, &self.geometry, paid_bytes);
            let permille = u128::from(merge.paid_bytes) * 1000 / u128::from(paid_bytes.max(1));
            buffer.spent_permille = u32::try_from(permille).unwrap_or(1000);
            first = 1;
            self.events.add(Event::LevelsAdded, 1);
            self.events.add(Event::MergesLevel, merge.levels as u64);
            self.events.add(Event::MergesForced, merge.forced as u64);
            self.events.add(Event::MergedForReads, merge.paid_bytes);
        }
        buffer.levels = Levels::new(&levels, merge.levels, first);
        let alive = alive_weights(at.node, &staying);
        for pivot in staying {
            let parts = &at.node.pivots[pivot].parts;
            let merging: Vec<_> = parts
                .iter()
                .filter(|part| usize::from(part.level) < buffer.levels.cutoff)
                .collect();
            let mixed = merging.iter().any(|part| part.level != merging[0].level);
            let mut rewrite = enters(pivot) || mixed;
            if !rewrite && !merging.is_empty() {
                // Little of its run is live: rewriting it frees the rest.
                rewrite = merging.iter().any(|part| {
                    let whole = part.segment.run.reference().totals().weight();
                    alive[&part.segment.run.reference().extent] < whole / 4
                });
                let event = if rewrite { Event::Rewrites } else { Event::TrivialMoves };
                self.events.add(event, merging.len() as u64);
            }
            if rewrite {
                let own: u64 = merging.iter().map(|part| part.totals.weight()).sum();
                buffer.written.push((pivot, stats[pivot].incoming + own));
            }
        }
        Ok(buffer)
    }

    /// Plans the buffer of one stuck pivot: merges levels above the first unreadable one.
    fn plan_stuck(
        &self,
        at: Place<'_>,
        pivot: usize,
        pivot_stats: &PivotStats,
        enters: bool,
    ) -> Result<StuckPlan> {
        let old = &at.node.pivots[pivot];
        let unread = self.damage.first_level(old, at.span_of(pivot))?;
        let mut sizes: BTreeMap<u8, u64> = BTreeMap::new();
        for part in &old.parts {
            *sizes.entry(part.level).or_default() += part.totals.weight();
        }
        let levels: Vec<u8> = sizes.keys().copied().collect();
        if levels.len() >= usize::from(LEVEL_MAX) {
            return Err(Error::corrupt("too many unreadable levels are buffered at one pivot"));
        }
        self.events.add(Event::PivotsStuck, 1);
        if !enters {
            return Ok(StuckPlan { levels: Levels::new(&levels, 0, 0), written: false });
        }
        let readable = |level: &u8| unread.is_none_or(|unread| *level < unread);
        let sizes: Vec<u64> =
            sizes.iter().filter(|(level, _)| readable(level)).map(|(_, size)| *size).collect();
        let merge = levels::levels_to_merge(pivot_stats.incoming, &sizes, &self.geometry, 0);
        Ok(StuckPlan { levels: Levels::new(&levels, merge.levels, 1), written: true })
    }

    /// Creates the tasks of a node.
    pub(super) fn tasks(
        &self,
        at: Place<'_>,
        incoming: &Incoming<'u>,
        stats: &[PivotStats],
        groups: &[Group],
        buffer: &BufferPlan,
    ) -> Result<Vec<Task>> {
        let mut tasks = Vec::new();
        for (number, group) in groups.iter().enumerate().filter(|(_, group)| group.flush.is_some())
        {
            if at.node.height == 1 {
                self.cut_flush(at, incoming, number, group, stats, &mut tasks)?;
                continue;
            }
            tasks.extend(group.pivots.clone().map(|pivot| Task::Child { pivot }));
        }
        let size = LEVEL_PIECE_LEAVES * self.geometry.leaf;
        for pivots in plan::pieces(&buffer.written, size) {
            self.cut_level(at, incoming, stats, (pivots, buffer.levels.cutoff), &mut tasks)?;
        }
        for (pivot, plan) in buffer.stuck.iter().filter(|(_, plan)| plan.written) {
            self.cut_level(at, incoming, stats, (vec![*pivot], plan.levels.cutoff), &mut tasks)?;
        }
        Ok(tasks)
    }

    /// Creates the tasks of a new level over neighbouring `pivots`, which takes in the levels below
    /// `cutoff`: one, unless it is heavy.
    fn cut_level(
        &self,
        at: Place<'_>,
        incoming: &Incoming<'u>,
        stats: &[PivotStats],
        (pivots, cutoff): (Vec<usize>, usize),
        tasks: &mut Vec<Task>,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (pivots.first(), pivots.last()) else { return Ok(()) };
        let clip = KeySpan { lower: at.span_of(*first).lower, upper: at.span_of(*last).upper };
        let own =
            |pivot: &usize| stats[*pivot].incoming + super::merged_weight(at.node, *pivot, cutoff);
        let total: u64 = pivots.iter().map(own).sum();
        let size = (LEVEL_PIECE_LEAVES * self.geometry.leaf).max(1);
        let count = ((total + size / 2) / size).max(1);
        let shares: Vec<u64> = (1..count).map(|piece| cut::WHOLE / count * piece).collect();
        let (node, upper) = (at.node, at.upper);
        let selection =
            Selection { node, upper, pivots: &pivots, clip, levels: 0..cutoff, leaves: false };
        let cuts = cut::cuts(&selection, incoming, &shares, &self.geometry)?;
        self.events.add(Event::LevelsCut, u64::from(!cuts.is_empty()));
        for (clip, share) in split(clip, cuts) {
            let incoming = cut::part_of(total, share);
            tasks.push(Task::Level { pivots: pivots.clone(), clip, cutoff, incoming });
        }
        Ok(())
    }

    /// Creates the tasks of a flush into leaves.
    fn cut_flush(
        &self,
        at: Place<'_>,
        incoming: &Incoming<'u>,
        group: usize,
        of: &Group,
        stats: &[PivotStats],
        tasks: &mut Vec<Task>,
    ) -> Result<()> {
        let pivots: Vec<usize> = of.pivots.clone().collect();
        let stats = &stats[of.pivots.clone()];
        let mut total: u64 = stats.iter().map(PivotStats::merged).sum();
        let clip = KeySpan {
            lower: at.span_of(of.pivots.start).lower,
            upper: at.span_of(of.pivots.end - 1).upper,
        };
        let (mut packed, mut skip_leaf) = (false, false);
        // A few entries after the last one do not justify a leaf of their own.
        let child = stats[0].child;
        let many = total - child >= self.geometry.leaf_small();
        let selection = flush_selection(at, &pivots, clip, false);
        if many && total > self.geometry.leaf && self.is_append(&selection, incoming)? {
            packed = true;
            skip_leaf = child >= self.geometry.leaf * KEEP_LEAF_PERCENT / 100;
            if skip_leaf {
                total -= child;
                tasks.push(Task::Keep { group, pivot: of.pivots.start });
            }
        }
        let of_pivot = |pivot: &usize| {
            let updates = incoming.ranks_in(at.span_of(*pivot)).len() as u64;
            updates + at.node.pivots[*pivot].pending().entries
        };
        let arrived: u64 = pivots.iter().map(of_pivot).sum();
        let entries = arrived + stats.iter().map(|it| it.child_entries).sum::<u64>();
        let expected = match packed {
            true => total,
            false => stats.iter().map(|it| it.expected(&self.geometry)).sum(),
        };
        let shares = self.shares(entries, total, expected, packed);
        let selection = flush_selection(at, &pivots, clip, skip_leaf);
        let cuts = cut::cuts(&selection, incoming, &shares, &self.geometry)?;
        let piece = !cuts.is_empty();
        self.events.add(Event::FlushesCut, u64::from(piece));
        let last = cuts.len();
        for (number, (clip, share)) in split(clip, cuts).into_iter().enumerate() {
            let incoming = cut::part_of(total, share);
            let packed = packed && number == last;
            let plan = LeafPlan { incoming, exact: false, packed, piece };
            let pivots = pivots.clone();
            tasks.push(Task::Leaves { group, pivots, clip, plan, skip_leaf });
        }
        Ok(())
    }

    /// Returns the shares of its sources behind which a flush that reads `total` is cut, so that
    /// each piece has a whole number of leaves.
    fn shares(&self, entries: u64, total: u64, expected: u64, packed: bool) -> Vec<u64> {
        let geometry = &self.geometry;
        let filled = if packed { geometry.leaf_packed() } else { geometry.leaf_filled() };
        let leaves = expected.div_ceil(filled.max(1));
        let mut pieces = cut::pieces(leaves, total / entries.max(1), geometry);
        pieces.pop();
        let ends = pieces.into_iter().scan(0, |before, piece| {
            *before += piece;
            Some(*before)
        });
        ends.map(|end| cut::WHOLE * end / leaves).collect()
    }

    /// Returns true if everything written to a single leaf comes after its entries.
    fn is_append(&self, selection: &Selection<'_>, incoming: &Incoming<'u>) -> Result<bool> {
        let [pivot] = selection.pivots else { return Ok(false) };
        let pivot = &selection.node.pivots[*pivot];
        let Child::Leaf(leaf) = &pivot.child else { return Ok(false) };
        let ranks = incoming.ranks_in(selection.clip);
        let Some(last) = source::last_key(leaf)? else { return Ok(false) };
        if !ranks.is_empty() && *incoming.updates.key(ranks.start) <= *last {
            return Ok(false);
        }
        let own = pivot.parts.iter().map(|part| &part.segment.run);
        for run in incoming.older.iter().chain(own) {
            let range = selection.clip.to_range();
            let cursor = RunCursor::new(run, range, Direction::Ascending)?;
            if cursor.key().is_some_and(|first| *first <= *last) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the sources of a flush into leaves.
pub(super) fn flush_selection<'n>(
    at: Place<'n>,
    pivots: &'n [usize],
    clip: KeySpan<'n>,
    skip_leaf: bool,
) -> Selection<'n> {
    let levels = 0..at.node.levels();
    Selection { node: at.node, upper: at.upper, pivots, clip, levels, leaves: !skip_leaf }
}

/// Splits a span at the cuts, into pieces with their shares of the whole.
fn split(clip: KeySpan<'_>, cuts: Vec<Cut>) -> Vec<(SharedRange, u64)> {
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    let (mut lower, mut begins) = (clip.lower.to_shared(), 0);
    for Cut { key, before } in cuts {
        let piece = SharedRange::new(std::mem::replace(&mut lower, key.clone()), Some(key));
        pieces.push((piece, before.saturating_sub(begins)));
        begins = before;
    }
    let upper = clip.upper.map(KeyView::to_shared);
    pieces.push((SharedRange::new(lower, upper), cut::WHOLE.saturating_sub(begins)));
    pieces
}

impl Levels {
    /// Creates the level changes: the first `merged` of `levels`, newest first, are merged; the
    /// remaining ones are numbered from `first` on.
    fn new(levels: &[u8], merged: usize, first: u8) -> Self {
        let cutoff = merged.checked_sub(1).map_or(0, |last| usize::from(levels[last]) + 1);
        let renumbered = levels[merged..].iter().copied().zip(first..).collect();
        Self { cutoff, renumbered }
    }
}

/// Returns the live weight of each segment in the pivots `staying`.
fn alive_weights(node: &Node, staying: &[usize]) -> BTreeMap<Extent, u64> {
    let mut alive = BTreeMap::new();
    for part in staying.iter().flat_map(|pivot| &node.pivots[*pivot].parts) {
        *alive.entry(part.segment.run.reference().extent).or_default() += part.totals.weight();
    }
    alive
}
