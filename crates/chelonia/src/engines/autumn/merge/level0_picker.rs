//! Selection of level-0 merges: a key span across all sinking sequences, from the left on. A
//! sequence is *sinking* while it is being merged into level 1.
//!
//! ```text
//!   sinking    [ a ......... ][ b ... ]          newest first
//!              [ c .... ][ x x x ][ d ... ]      x cannot be read: an obstacle
//!   level 1       [ X ... ]    [ Y ... ]
//!                        |        |
//!                     merged    split here (`a` if it spans this), then merged behind it
//! ```
//!
//! Tables newer than an obstacle that have keys in its range stay in level 0: they must not get
//! below older data. Tables before and behind the obstacle are merged as usual; a table that spans
//! its end is split in two, within its sequence. If more and more tables stay, they are merged
//! within level 0, so that reads visit few sequences.

use crate::base::error::Result;
use crate::engines::autumn::merge::choose::{
    Down, Measure, behind, joined, may_move, places_to_cut,
};
use crate::engines::autumn::merge::claims::Avoided;
use crate::engines::autumn::merge::plan::LEVEL0_TRIGGER;
use crate::engines::autumn::merge::unit::{Goal, Unit};
use crate::engines::autumn::table::{Found, Hole, NodeCache, Sequence, Table};
use crate::engines::autumn::version::AutumnVersion;
use crate::runtime::sync::Arc;
use crate::structure::SharedKey;
use std::collections::VecDeque;

/// Maximum number of tables moved by one unit.
const MOVES_MAX: usize = 1024;

/// The next tables of a sequence.
#[derive(Default)]
struct Front {
    tables: VecDeque<Table>,
    /// First key that follows these tables, if any does.
    next: Option<SharedKey>,
    /// Unreadable node that follows these tables, if any.
    hole: Option<Hole>,
}

impl Front {
    /// Collects tables of `sequence` from `from` on, until they weigh `bytes`.
    fn of(
        sequence: &Sequence,
        node_cache: &NodeCache,
        from: &SharedKey,
        bytes: u64,
    ) -> Result<Self> {
        let mut front = Self::default();
        let mut weight = 0;
        for index in sequence.node_of(&from.to_bytes()).unwrap_or(0)..sequence.nodes.len() {
            if weight >= bytes {
                front.next = Some(sequence.nodes[index].first.clone());
                return Ok(front);
            }
            let node = match sequence.node(node_cache, index)? {
                Ok(node) => node,
                Err(hole) => {
                    front.next = Some((&hole.first).max(from).clone());
                    front.hole = Some(hole);
                    return Ok(front);
                }
            };
            for table in node.tables.iter().filter(|table| table.last >= *from) {
                if weight >= bytes {
                    front.next = Some(table.first.clone());
                    return Ok(front);
                }
                weight += table.live.weight();
                front.tables.push_back(table.clone());
            }
        }
        Ok(front)
    }
}

/// Overlap of the fronts in the level below, as far as it was collected.
#[derive(Default)]
struct Below {
    /// Tables that may share keys with those above.
    met: Vec<Table>,
    /// First keys of tables, or of nodes of tables, without overlap: new tables must not span them.
    barriers: Vec<SharedKey>,
    /// First key that follows, if anything follows that may overlap.
    next: Option<SharedKey>,
    /// Unreadable node that follows, if any.
    hole: Option<Hole>,
    /// Tables before these, the nearest first.
    before: Vec<Table>,
    /// Tables behind all tables above, the nearest first.
    behind: Vec<Table>,
}

impl Below {
    /// Collects the overlap of `fronts` in `level`, until it weighs `bytes`.
    fn of(
        level: &Sequence,
        node_cache: &NodeCache,
        fronts: &[Front],
        from: &SharedKey,
        bytes: u64,
    ) -> Result<Self> {
        let reach = Reach::of(fronts);
        let Some(first) = reach.firsts.first() else { return Ok(Self::default()) };
        let mut below = Self { before: level.near(node_cache, first)?.0, ..Self::default() };
        let mut weight = 0;
        for index in level.node_of(&first.max(from).to_bytes()).unwrap_or(0)..level.nodes.len() {
            let listed = &level.nodes[index];
            let next = level.nodes.get(index + 1).map(|next| &next.first);
            if !reach.meets(&listed.first, next) {
                below.barriers.push(listed.first.clone());
                continue;
            }
            if weight >= bytes {
                below.next = Some(listed.first.clone());
                return Ok(below);
            }
            let node = match level.node(node_cache, index)? {
                Ok(node) => node,
                Err(hole) => {
                    below.next = Some((&hole.first).max(from).clone());
                    below.hole = Some(hole);
                    return Ok(below);
                }
            };
            for table in node.tables.iter().filter(|table| table.last >= *from) {
                if !reach.meets(&table.first, Some(&table.last)) {
                    below.barriers.push(table.first.clone());
                } else if weight >= bytes {
                    below.next = Some(table.first.clone());
                    return Ok(below);
                } else {
                    weight += table.live.weight();
                    below.met.push(table.clone());
                }
            }
        }
        if let Some(last) = reach.lasts.last() {
            let last = below.met.last().map_or(last, |table| last.max(&table.last));
            below.behind = level.near(node_cache, last)?.1;
        }
        Ok(below)
    }
}

/// Key ranges of the tables of several fronts.
struct Reach {
    /// Their first keys, ascending.
    firsts: Vec<SharedKey>,
    /// Greatest last key of the tables up to each position.
    lasts: Vec<SharedKey>,
}

impl Reach {
    fn of(fronts: &[Front]) -> Self {
        let tables = fronts.iter().flat_map(|front| &front.tables);
        let mut ends: Vec<_> = tables.map(|table| (&table.first, &table.last)).collect();
        ends.sort_unstable();
        let mut lasts: Vec<SharedKey> = Vec::with_capacity(ends.len());
        for (_, last) in &ends {
            let greatest = lasts.last().map_or(*last, |before| before.max(*last));
            lasts.push(greatest.clone());
        }
        Self { firsts: ends.into_iter().map(|(first, _)| first.clone()).collect(), lasts }
    }

    /// Returns true if a table may have keys from `first` to `last`.
    fn meets(&self, first: &SharedKey, last: Option<&SharedKey>) -> bool {
        let begun = last
            .map_or(self.firsts.len(), |last| self.firsts.partition_point(|other| other <= last));
        begun.checked_sub(1).is_some_and(|at| self.lasts[at] >= *first)
    }
}

/// Key range of unreadable data.
struct Obstacle {
    /// Its first key.
    first: SharedKey,
    /// First key behind it; `None` if it extends to the end of all keys.
    past: Option<SharedKey>,
}

impl Obstacle {
    fn table(table: &Table) -> Self {
        Self { first: table.first.clone(), past: Some(behind(&table.last)) }
    }

    fn hole(hole: &Hole) -> Self {
        Self { first: hole.first.clone(), past: hole.next.clone() }
    }
}

/// Selects the next work for the sinking sequences.
pub(in crate::engines::autumn) fn from_level0(
    version: &AutumnVersion,
    node_cache: &NodeCache,
    measure: Measure,
    goal: Goal,
    avoided: &Avoided<'_>,
) -> Result<Down> {
    let place = version.level0.len() - version.sinking;
    let sinking = Sinking { sequences: &version.level0[place..], place, node_cache, avoided };
    let firsts = sinking.sequences.iter().filter_map(|it| it.nodes.first()).map(|it| &it.first);
    let Some(mut from) = firsts.min().cloned() else { return Ok(Down::Moves(Vec::new())) };
    let below = version.levels.first().map(|level| &**level);
    loop {
        let picked = Picked::gather(&sinking, below, &from, measure.unit_bytes)?;
        let moves = picked.moves(goal, avoided);
        if !moves.is_empty() {
            return Ok(Down::Moves(moves.into_iter().map(|(at, it)| (place + at, it)).collect()));
        }
        let Some(obstacle) = picked.obstacle(avoided) else {
            let unit = picked.unit(measure, goal, avoided, None);
            let is_empty = unit.upper.iter().all(Vec::is_empty);
            return Ok(if is_empty { Down::Stuck } else { Down::Unit(unit) });
        };
        let unit = picked.unit(measure, goal, avoided, Some(&obstacle.first));
        if !unit.upper.iter().all(Vec::is_empty) {
            return Ok(Down::Unit(unit));
        }
        from = match sinking.pass(&from, obstacle, goal)? {
            Progress::Behind(past) => past,
            Progress::Never => return Ok(Down::Stuck),
            Progress::After { first, unit } => return Ok(Down::Within { first, unit }),
        };
    }
}

/// Result of an attempt to continue behind an obstacle.
enum Progress {
    /// Merging continues at this key.
    Behind(SharedKey),
    /// Nothing lies behind the obstacle.
    Never,
    /// This unit must be merged first, within the sequences from `first` on.
    After { first: usize, unit: Unit },
}

/// The sinking sequences of level 0.
struct Sinking<'v> {
    /// Sequences, newest first.
    sequences: &'v [Arc<Sequence>],
    /// Index of the first of them in level 0.
    place: usize,
    node_cache: &'v NodeCache,
    avoided: &'v Avoided<'v>,
}

impl Sinking<'_> {
    /// Determines what lies between `from` and the end of an obstacle, and which tables span that
    /// end.
    fn pass(&self, from: &SharedKey, obstacle: Obstacle, goal: Goal) -> Result<Progress> {
        let goal = Goal { bottom: false, ..goal };
        let (found, past) = self.find(from, obstacle.past)?;
        if let Some(past) = &past {
            for (at, Found { tables, .. }) in found.iter().enumerate() {
                if let Some(through) = tables.last().filter(|table| table.last >= *past) {
                    let upper = vec![vec![through.clone()]];
                    let cuts = vec![past.clone()];
                    let unit = Unit { upper, cuts, goal, ..Unit::default() };
                    return Ok(Progress::After { first: self.place + at, unit });
                }
            }
        }
        if let Some((at, upper)) = self.gathered(&found) {
            let unit = Unit { upper, goal, ..Unit::default() };
            return Ok(Progress::After { first: self.place + at, unit });
        }
        Ok(past.map_or(Progress::Never, Progress::Behind))
    }

    /// Collects the tables of each sequence from `from` to the end of an obstacle, and everything
    /// unreadable in that range.
    fn find(
        &self,
        from: &SharedKey,
        mut past: Option<SharedKey>,
    ) -> Result<(Vec<Found>, Option<SharedKey>)> {
        loop {
            let range = from.range_to(past.as_ref());
            let found = self.sequences.iter().map(|it| it.tables_in(self.node_cache, &range));
            let found: Vec<Found> = found.collect::<Result<_>>()?;
            let mut end = past.clone();
            for Found { tables, holes } in &found {
                let damaged = tables.iter().filter(|table| self.avoided.has(table));
                let ends = damaged.map(|table| Some(behind(&table.last)));
                for other in ends.chain(holes.iter().map(|hole| hole.next.clone())) {
                    end = end.zip(other).map(|(end, other)| end.max(other));
                }
            }
            if end == past {
                return Ok((found, past));
            }
            past = end;
        }
    }

    /// Finds adjacent sequences of similar size whose tables stay before an obstacle, if there are
    /// enough to be merged into one. None is far larger than those before it together, so that
    /// nothing is merged repeatedly.
    fn gathered(&self, found: &[Found]) -> Option<(usize, Vec<Vec<Table>>)> {
        let mut first = 0;
        while first < found.len() {
            let (mut sum, mut some, mut end) = (0, 0, first);
            for (at, Found { tables, holes }) in found.iter().enumerate().skip(first) {
                let weight: u64 = tables.iter().map(|table| table.live.weight()).sum();
                let is_read = holes.is_empty() && !tables.iter().any(|it| self.avoided.has(it));
                if !is_read || (some > 0 && weight > 2 * sum) {
                    break;
                }
                if weight > 0 {
                    (some, end) = (some + 1, at + 1);
                }
                sum += weight;
            }
            if some >= LEVEL0_TRIGGER {
                return Some((
                    first,
                    found[first..end].iter().map(|it| it.tables.clone()).collect(),
                ));
            }
            first = end.max(first + 1);
        }
        None
    }
}

/// The next keys of the sinking sequences, and their overlap below.
struct Picked {
    fronts: Vec<Front>,
    below: Below,
}

impl Picked {
    fn gather(
        sinking: &Sinking<'_>,
        below: Option<&Sequence>,
        from: &SharedKey,
        bytes: u64,
    ) -> Result<Self> {
        let node_cache = sinking.node_cache;
        let fronts = sinking.sequences.iter().map(|it| Front::of(it, node_cache, from, bytes));
        let fronts: Vec<Front> = fronts.collect::<Result<_>>()?;
        let below = match below {
            Some(below) => Below::of(below, node_cache, &fronts, from, bytes)?,
            None => Below::default(),
        };
        Ok(Self { fronts, below })
    }

    /// Returns the end of the collected key range: the first key that a sequence may have beyond
    /// its collected tables.
    fn horizon(&self) -> Option<&SharedKey> {
        self.fronts.iter().filter_map(|front| front.next.as_ref()).chain(&self.below.next).min()
    }

    /// Returns the first unreadable key range.
    fn obstacle(&self, avoided: &Avoided<'_>) -> Option<Obstacle> {
        let tables = self.fronts.iter().flat_map(|front| &front.tables).chain(&self.below.met);
        let damaged = tables.filter(|table| avoided.has(table)).map(Obstacle::table);
        let holes = self.fronts.iter().filter_map(|front| front.hole.as_ref());
        let holes = holes.chain(&self.below.hole).map(Obstacle::hole);
        damaged.chain(holes).min_by(|one, other| one.first.cmp(&other.first))
    }

    /// Returns the tables at the beginning that have no overlap, each with the index of its
    /// sequence.
    fn moves(&self, goal: Goal, avoided: &Avoided<'_>) -> Vec<(usize, Table)> {
        let mut at = vec![0; self.fronts.len()];
        let mut below = 0;
        let mut moves: Vec<(usize, Table)> = Vec::new();
        let horizon = self.horizon();
        while moves.len() < MOVES_MAX {
            let next = |place: usize| self.fronts[place].tables.get(at[place]);
            let least = (0..at.len()).filter_map(|place| Some((&next(place)?.first, place))).min();
            let Some((_, place)) = least else { break };
            let Some(table) = next(place) else { break };
            while self.below.met.get(below).is_some_and(|it| it.last < table.first) {
                below += 1;
            }
            let meets = |other: Option<&Table>| other.is_some_and(|other| other.overlaps(table));
            let alone = !meets(self.below.met.get(below))
                && (0..at.len()).all(|other| other == place || !meets(next(other)))
                && horizon.is_none_or(|horizon| table.last < *horizon);
            if !alone || !may_move(table, goal) || avoided.has(table) {
                break;
            }
            moves.push((place, table.clone()));
            at[place] += 1;
        }
        moves
    }

    /// Builds a unit from the beginning of the range, of usual size and before `end`.
    fn unit(
        &self,
        measure: Measure,
        goal: Goal,
        avoided: &Avoided<'_>,
        end: Option<&SharedKey>,
    ) -> Unit {
        let (mut cuts, mut to) = self.cuts(measure);
        if let Some(end) = end.filter(|end| to.as_ref().is_none_or(|to| *end < to)) {
            // No table below may span the end.
            let through = self.below.met.iter().find(|it| it.first < *end && it.last >= *end);
            let end = through.map_or(end, |table| &table.first);
            cuts.retain(|cut| cut < end);
            to = Some(end.clone());
        }
        let begins = |table: &&Table| to.as_ref().is_none_or(|to| table.first < *to);
        let upper: Vec<Vec<Table>> = self
            .fronts
            .iter()
            .map(|front| front.tables.iter().filter(begins).cloned().collect())
            .collect();
        let mut lower: Vec<Table> = self.below.met.iter().filter(begins).cloned().collect();
        let mut barriers = self.below.barriers.clone();
        let coming = upper.iter().flatten().chain(&lower).map(|table| table.live.weight()).sum();
        let before = joined(&self.below.before, coming, (measure, goal), avoided);
        let last = upper.iter().flatten().chain(&lower).map(|table| &table.last).max().cloned();
        lower.splice(..0, before.iter().rev().cloned());
        // The first table behind everything that is merged.
        let all = self
            .fronts
            .iter()
            .zip(&upper)
            .all(|(front, upper)| front.next.is_none() && front.tables.len() == upper.len());
        let ends = |last: &SharedKey| to.as_ref().is_none_or(|to| last < to);
        if all && last.as_ref().is_some_and(ends) {
            let near = self.below.behind.iter().take_while(begins).cloned();
            let near: Vec<Table> = near.collect();
            let behind = joined(&near, coming, (measure, goal), avoided);
            barriers.retain(|barrier| behind.iter().all(|it| it.first != *barrier));
            lower.extend_from_slice(behind);
        }
        Unit { upper, lower, to, cuts, barriers, goal }
    }

    /// Returns the cuts between the pieces of the unit, and its end.
    fn cuts(&self, measure: Measure) -> (Vec<SharedKey>, Option<SharedKey>) {
        let horizon = self.horizon().cloned();
        let uppers: Vec<&Table> = self.fronts.iter().flat_map(|front| &front.tables).collect();
        let lowers: Vec<&Table> = self.below.met.iter().collect();
        let known = |key: &SharedKey| horizon.as_ref().is_none_or(|horizon| key < horizon);
        let total: u64 = uppers
            .iter()
            .chain(&lowers)
            .filter(|table| known(&table.first))
            .map(|table| table.live.weight())
            .sum();
        let mut cuts =
            places_to_cut(&uppers, &lowers, total.min(measure.unit_bytes), measure.pieces);
        cuts.retain(|cut| known(cut));
        if total <= measure.unit_bytes && horizon.is_none() {
            cuts.truncate(measure.pieces.saturating_sub(1));
            return (cuts, None);
        }
        // The last cut is the end of the unit. Without cuts the unit ends at the end of the
        // collected keys.
        match cuts.pop() {
            Some(to) => (cuts, Some(to)),
            None => (cuts, horizon),
        }
    }
}
