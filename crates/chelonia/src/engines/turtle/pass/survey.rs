//! Survey of a node before any work: statistics, the plan of the buffer, and the tasks of flushes
//! into leaves.

use super::{BufferPlan, Levels, Pass, Place, StuckPlan, Task};
use crate::base::checksum::{checksum, identity};
use crate::base::error::{Error, Result};
use crate::base::ids::Extent;
use crate::base::keys::Direction;
use crate::base::stream::SortedStream;
use crate::engines::turtle::codec::LEVEL_MAX;
use crate::engines::turtle::events::Event;
use crate::engines::turtle::node::{Child, Node, Pivot};
use crate::engines::turtle::pass::levels::{self, LevelMerge};
use crate::engines::turtle::pass::plan::{Group, PivotStats, Reason};
use crate::engines::turtle::shape::LeafPlan;
use crate::engines::turtle::source::{self, Incoming, KeySpan, Selection};
use crate::run::{RunCursor, Totals};
use crate::structure::KeyView;
use std::collections::BTreeMap;

/// Size of a piece of a flush, in half leaves: large enough that the unfilled rest of a piece does
/// not matter.
const PIECE_HALF_LEAVES: u64 = 19;

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
            let due = costly_left > 0 && self.read_costs.is_due(pivot);
            costly_left -= usize::from(due);
            stats.push(PivotStats {
                incoming: incoming.weight_in(span)?,
                pending: pending.weight(),
                child: child.weight(),
                tombstones: pending.tombstones + incoming.tombstones_in(&incoming.ranks_in(span)),
                waiting_below,
                child_entries: child.entries,
                child_pivots,
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
        Ok(stats)
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

    /// Creates the tasks of a flush into leaves.
    pub(super) fn cut_flush<'n>(
        &self,
        at: Place<'n>,
        incoming: &Incoming<'u>,
        group: usize,
        of: &Group,
        stats: &[PivotStats],
        tasks: &mut Vec<Task<'n>>,
    ) -> Result<()>
    where
        'u: 'n,
    {
        let pivots: Vec<usize> = of.pivots.clone().collect();
        let total: u64 =
            stats[of.pivots.clone()].iter().map(|f| f.incoming + f.pending + f.child).sum();
        let clip = KeySpan {
            lower: at.span_of(of.pivots.start).lower,
            upper: at.span_of(of.pivots.end - 1).upper,
        };
        let mut plan = LeafPlan { incoming: total, exact: false, packed: false };
        let selection = self.flush_selection(at, &pivots, clip, false);
        let mut skip_leaf = false;
        // A few entries after the last one do not justify a leaf of their own.
        let child = stats[of.pivots.start].child;
        let many = total - child >= self.geometry.leaf_small();
        if many && total > self.geometry.leaf && self.is_append(&selection, incoming)? {
            plan.packed = true;
            skip_leaf = child >= self.geometry.leaf * KEEP_LEAF_PERCENT / 100;
            if skip_leaf {
                plan.incoming -= child;
                tasks.push(Task::Keep { group, pivot: of.pivots.start });
            }
        }
        let mut lower = clip.lower;
        let cuts = self.cut_keys(&selection, incoming, plan.incoming)?;
        let count = cuts.len() as u64 + 1;
        self.events.add(Event::FlushesCut, u64::from(count > 1));
        let packed = std::mem::take(&mut plan.packed);
        plan.incoming /= count;
        for cut in cuts {
            let clip = KeySpan { lower, upper: Some(cut.into()) };
            tasks.push(Task::Leaves { group, pivots: pivots.clone(), clip, plan, skip_leaf });
            lower = cut.into();
        }
        let clip = KeySpan { lower, upper: clip.upper };
        plan.packed = packed;
        tasks.push(Task::Leaves { group, pivots, clip, plan, skip_leaf });
        Ok(())
    }

    pub(super) fn flush_selection<'n>(
        &self,
        at: Place<'n>,
        pivots: &'n [usize],
        clip: KeySpan<'n>,
        skip_leaf: bool,
    ) -> Selection<'n> {
        let levels = at.node.levels();
        Selection { node: at.node, upper: at.upper, pivots, clip, levels, leaves: !skip_leaf }
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

    /// Returns keys that cut a flush into pieces of similar weight: multi-selection over the ranks
    /// of the memtable and the indexes of the runs. Empty if cutting does not pay off.
    fn cut_keys(
        &self,
        selection: &Selection<'_>,
        incoming: &Incoming<'u>,
        total: u64,
    ) -> Result<Vec<&'u [u8]>> {
        let pieces = 2 * total / (PIECE_HALF_LEAVES * self.geometry.leaf).max(1);
        let ranks = incoming.ranks_in(selection.clip);
        let mut cuts: Vec<&'u [u8]> = Vec::new();
        for piece in 1..pieces {
            let wanted = total / pieces * piece;
            let (mut low, mut high) = (ranks.start, ranks.end);
            while low < high {
                let middle = low + (high - low) / 2;
                let key = incoming.updates.key(middle);
                let below = KeySpan { lower: selection.clip.lower, upper: Some(key.into()) };
                if selection.weight_in(incoming, below)? < wanted {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            let Some(key) = (low < ranks.end).then(|| incoming.updates.key(low)) else { break };
            let before = cuts.last().map_or(selection.clip.lower, |cut| (*cut).into());
            if KeyView::from(key) > before {
                cuts.push(key);
            }
        }
        debug_assert!(
            cuts.is_sorted_by(|before, cut| before < cut)
                && cuts.iter().all(|cut| selection.clip.contains((*cut).into())),
            "the pieces of a flush are neighbours within its span"
        );
        Ok(cuts)
    }
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
