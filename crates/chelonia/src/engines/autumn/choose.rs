//! Which tables go down, and what they meet.
//!
//! From level 0 it is the next stretch of keys of all sequences that sink; from a level the
//! neighbouring tables for which least is rewritten below. What meets nothing is not rewritten: its
//! tables move.
//!
//! A unit is bounded: so that drains need not wait long for it, and because what is rewritten takes
//! its space twice until the next checkpoint.

use super::AutumnVersion;
use super::damage::Damage;
use super::table::{Residence, Sequence, SharedKey, Table};
use super::unit::{Goal, Unit};
use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::base::sync::Arc;
use std::collections::VecDeque;
use std::ops::{Bound, Range};

/// The tables of a level that are compared when one is chosen.
const WINDOW_TABLES: usize = 64;

/// The most tables that move in one unit.
const MOVES_MAX: usize = 1024;

/// How much goes down in one unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Bytes that are merged, about.
    pub unit_bytes: u64,
    /// Jobs that it is cut into.
    pub jobs: usize,
}

/// What goes down from one level.
pub(super) enum Down {
    /// Tables that meet nothing below, with the sequence of level 0 they are of (0 elsewhere).
    Moves(Vec<(usize, Table)>),
    /// Tables that are merged.
    Unit(Unit),
    /// Nothing that can be read.
    Stuck,
}

/// The first tables of a sinking sequence.
struct Front {
    tables: VecDeque<Table>,
    /// The first key of what follows them, if anything does.
    next: Option<SharedKey>,
}

impl Front {
    /// Tables of `sequence` from `from` on, until they weigh `bytes`.
    fn of(sequence: &Sequence, residence: &Residence, from: &[u8], bytes: u64) -> Result<Self> {
        let mut front = Self { tables: VecDeque::new(), next: None };
        let mut weight = 0;
        let begin = sequence.node_of(from).unwrap_or(0);
        for listed in sequence.nodes.get(begin..).unwrap_or_default() {
            if weight >= bytes {
                front.next = Some(Arc::clone(&listed.first));
                return Ok(front);
            }
            let node = residence.load_owned(&listed.slot)?;
            for table in node.tables.iter().filter(|table| *table.last >= *from) {
                if weight >= bytes {
                    front.next = Some(Arc::clone(&table.first));
                    return Ok(front);
                }
                weight += table.live.weight();
                front.tables.push_back(table.clone());
            }
        }
        Ok(front)
    }
}

/// What of the sinking sequences goes down next.
pub(super) fn from_young(
    version: &AutumnVersion,
    residence: &Residence,
    measure: Measure,
    goal: Goal,
    damage: &Damage,
) -> Result<Down> {
    let first = version.young.len() - version.sinking;
    let sinking = &version.young[first..];
    let mut from: SharedKey =
        match sinking.iter().filter_map(|it| it.nodes.first()).map(|it| &it.first).min() {
            Some(from) => Arc::clone(from),
            None => return Ok(Down::Moves(Vec::new())),
        };
    loop {
        let below = version.levels.first().map(|level| &**level);
        let stretch = Stretch::gather(sinking, below, residence, &from, measure.unit_bytes)?;
        if stretch.fronts.iter().all(|front| front.tables.is_empty()) {
            return Ok(Down::Stuck);
        }
        let moves = stretch.moves(goal, damage);
        if !moves.is_empty() {
            return Ok(Down::Moves(moves.into_iter().map(|(at, it)| (first + at, it)).collect()));
        }
        let unit = stretch.unit(measure, goal);
        if unit.upper.iter().all(Vec::is_empty) {
            return Ok(Down::Stuck);
        }
        if !damage.touches(&unit) {
            return Ok(Down::Unit(unit));
        }
        // What is behind it may go down nevertheless, unless something of it goes through.
        let Some(next) = unit.to.clone() else { return Ok(Down::Stuck) };
        if unit.upper.iter().flatten().any(|table| *table.last >= *next) {
            return Ok(Down::Stuck);
        }
        from = next;
    }
}

/// True if a table can be of a lower level as it is: all of it is live, and there are no tombstones
/// to be dropped.
fn may_move(table: &Table, goal: Goal) -> bool {
    table.is_whole() && !(goal.bottom && table.live.tombstones > 0)
}

/// The next keys of the sinking sequences, and what they meet.
struct Stretch {
    fronts: Vec<Front>,
    below: Front,
}

impl Stretch {
    fn gather(
        sinking: &[Arc<Sequence>],
        below: Option<&Sequence>,
        residence: &Residence,
        from: &[u8],
        bytes: u64,
    ) -> Result<Self> {
        let fronts = sinking.iter().map(|sequence| Front::of(sequence, residence, from, bytes));
        let fronts: Vec<Front> = fronts.collect::<Result<_>>()?;
        let first =
            fronts.iter().filter_map(|front| front.tables.front()).map(|it| &it.first).min();
        let below = match (below, first) {
            (Some(below), Some(first)) => Front::of(below, residence, first, bytes)?,
            _ => Front { tables: VecDeque::new(), next: None },
        };
        Ok(Self { fronts, below })
    }

    /// Where what is known of all sequences ends: the first key that one of them may have beyond
    /// what was gathered.
    fn horizon(&self) -> Option<&SharedKey> {
        let below = &self.below.next;
        self.fronts.iter().filter_map(|front| front.next.as_ref()).chain(below).min()
    }

    /// Whole tables at the beginning that meet nothing: with the place of their sequence.
    fn moves(&self, goal: Goal, damage: &Damage) -> Vec<(usize, Table)> {
        let mut at = vec![0; self.fronts.len()];
        let mut below = 0;
        let mut moves: Vec<(usize, Table)> = Vec::new();
        let horizon = self.horizon();
        while moves.len() < MOVES_MAX {
            let next = |place: usize| self.fronts[place].tables.get(at[place]);
            let least = (0..at.len()).filter_map(|place| Some((&next(place)?.first, place))).min();
            let Some((_, place)) = least else { break };
            let Some(table) = next(place) else { break };
            while self.below.tables.get(below).is_some_and(|it| *it.last < *table.first) {
                below += 1;
            }
            let meets = |other: Option<&Table>| other.is_some_and(|other| other.overlaps(table));
            let alone = !meets(self.below.tables.get(below))
                && (0..at.len()).all(|other| other == place || !meets(next(other)))
                && horizon.is_none_or(|horizon| *table.last < **horizon);
            if !alone || !may_move(table, goal) || damage.has(table) {
                break;
            }
            moves.push((place, table.clone()));
            at[place] += 1;
        }
        moves
    }

    /// As much from the beginning as a unit takes.
    fn unit(&self, measure: Measure, goal: Goal) -> Unit {
        let (cuts, to) = self.cuts(measure);
        let begins = |table: &&Table| to.as_ref().is_none_or(|to| table.first < *to);
        let upper: Vec<Vec<Table>> = self
            .fronts
            .iter()
            .map(|front| front.tables.iter().filter(begins).cloned().collect())
            .collect();
        let lower = self.below.tables.iter().filter(begins).cloned().collect();
        Unit { upper, lower, to, cuts, goal }
    }

    /// Where the unit is cut into jobs, and where it ends.
    fn cuts(&self, measure: Measure) -> (Vec<SharedKey>, Option<SharedKey>) {
        let horizon = self.horizon().cloned();
        let uppers: Vec<&Table> = self.fronts.iter().flat_map(|front| &front.tables).collect();
        let lowers: Vec<&Table> = self.below.tables.iter().collect();
        let known = |key: &SharedKey| horizon.as_ref().is_none_or(|horizon| key < horizon);
        let total: u64 = uppers
            .iter()
            .chain(&lowers)
            .filter(|table| known(&table.first))
            .map(|table| table.live.weight())
            .sum();
        let mut cuts = places_to_cut(&uppers, &lowers, total.min(measure.unit_bytes), measure.jobs);
        cuts.retain(|cut| known(cut));
        if total <= measure.unit_bytes && horizon.is_none() {
            cuts.truncate(measure.jobs.saturating_sub(1));
            return (cuts, None);
        }
        // The last cut is where the unit ends. Without one it ends with what is known.
        match cuts.pop() {
            Some(to) => (cuts, Some(to)),
            None => (cuts, horizon),
        }
    }
}

/// Keys at which `jobs` parts of `bytes` together can be ended: the first of tables, through which
/// no lower table goes.
fn places_to_cut(uppers: &[&Table], lowers: &[&Table], bytes: u64, jobs: usize) -> Vec<SharedKey> {
    let mut begins: Vec<(&SharedKey, u64, Option<&SharedKey>)> = uppers
        .iter()
        .map(|table| (&table.first, table.live.weight(), None))
        .chain(lowers.iter().map(|it| (&it.first, it.live.weight(), Some(&it.last))))
        .collect();
    begins.sort_unstable_by(|one, other| one.0.cmp(other.0));
    let each = (bytes / jobs.max(1) as u64).max(1);
    let Some((mut since, ..)) = begins.first().copied() else { return Vec::new() };
    let (mut gathered, mut cuts) = (0, Vec::new());
    let mut lower_end: Option<&SharedKey> = None;
    for (first, weight, end) in begins {
        let through = lower_end.is_some_and(|end| end >= first);
        // Tables that sank to the same key begin there, many of them: none is a part alone.
        if gathered >= each && !through && first > since {
            cuts.push(Arc::clone(first));
            since = first;
            gathered = 0;
            if cuts.len() == jobs {
                break;
            }
        }
        gathered += weight;
        if let Some(end) = end {
            lower_end = Some(end);
        }
    }
    cuts
}

/// What of level `level` goes down next: of the tables from `from` on those that meet least.
pub(super) fn from_level(
    version: &AutumnVersion,
    residence: &Residence,
    level: usize,
    from: &mut SharedKey,
    measure: Measure,
    goal: Goal,
    damage: &Damage,
) -> Result<Down> {
    let (Some(upper), Some(lower)) = (version.levels.get(level - 1), version.levels.get(level))
    else {
        return Ok(Down::Stuck);
    };
    let mut stuck = 0;
    loop {
        let window = window(upper, residence, from)?;
        let Some(last) = window.last() else { return Ok(Down::Stuck) };
        let next: SharedKey = [&last.last[..], &[0]].concat().into();
        let range = KeyRange {
            lower: Bound::Included(window[0].first.to_vec()),
            upper: Bound::Included(last.last.to_vec()),
        };
        let below = lower.tables_in(residence, &range)?;
        *from = next;
        let alone = |table: &&Table| {
            let place = below.partition_point(|it| *it.last < *table.first);
            let meets = below.get(place).is_some_and(|it| it.overlaps(table));
            !meets && may_move(table, goal) && !damage.has(table)
        };
        let moves: Vec<(usize, Table)> =
            window.iter().filter(alone).map(|table| (0, table.clone())).collect();
        if !moves.is_empty() {
            return Ok(Down::Moves(moves));
        }
        if let Some(unit) = cheapest(&window, &below, measure, goal, damage) {
            return Ok(Down::Unit(unit));
        }
        stuck += window.len() as u64;
        if stuck >= upper.tables() {
            return Ok(Down::Stuck);
        }
    }
}

/// The next tables of a level from `from` on, from the beginning again behind the last.
fn window(upper: &Sequence, residence: &Residence, from: &[u8]) -> Result<Vec<Table>> {
    let mut window = Vec::new();
    for from in [from, b""] {
        let begin = upper.node_of(from).unwrap_or(0);
        for listed in upper.nodes.get(begin..).unwrap_or_default() {
            let node = residence.load_owned(&listed.slot)?;
            let room = WINDOW_TABLES - window.len();
            window.extend(node.tables.iter().filter(|it| *it.first >= *from).take(room).cloned());
            if window.len() == WINDOW_TABLES {
                return Ok(window);
            }
        }
        if !window.is_empty() {
            break;
        }
    }
    Ok(window)
}

/// Neighbouring tables of the window that together meet least for what they weigh.
fn cheapest(
    window: &[Table],
    below: &[Table],
    measure: Measure,
    goal: Goal,
    damage: &Damage,
) -> Option<Unit> {
    let met = |first: &Table, last: &Table| {
        let begin = below.partition_point(|table| *table.last < *first.first);
        let end = below.partition_point(|table| *table.first <= *last.last);
        begin..end.max(begin)
    };
    let mut best: Option<(f64, Range<usize>)> = None;
    for begin in 0..window.len() {
        let mut weight = 0;
        for end in begin..window.len() {
            let lower = &below[met(&window[begin], &window[end])];
            weight += window[end].live.weight();
            let rewritten: u64 = lower.iter().map(|table| table.live.weight()).sum();
            let is_stuck = damage.has(&window[end]) || lower.iter().any(|it| damage.has(it));
            if is_stuck || (end > begin && weight + rewritten > measure.unit_bytes) {
                break;
            }
            let ratio = rewritten as f64 / weight.max(1) as f64;
            if best.as_ref().is_none_or(|(least, _)| ratio < *least) {
                best = Some((ratio, begin..end + 1));
            }
        }
    }
    let (_, chosen) = best?;
    let upper = window[chosen].to_vec();
    let (first, last) = (upper.first()?, upper.last()?);
    let lower = below[met(first, last)].to_vec();
    let bytes = upper.iter().chain(&lower).map(|table| table.live.weight()).sum();
    let mut cuts = places_to_cut(
        &upper.iter().collect::<Vec<_>>(),
        &lower.iter().collect::<Vec<_>>(),
        bytes,
        measure.jobs,
    );
    cuts.truncate(measure.jobs.saturating_sub(1));
    Some(Unit { upper: vec![upper], lower, to: None, cuts, goal })
}
