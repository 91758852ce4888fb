//! What goes down next: decisions, and the units they lead to.
//!
//! | what | when | how much |
//! | --- | --- | --- |
//! | level 0 | it has [`YOUNG_TRIGGER`] sequences; then all there are *sink*, from the left to the right | a stretch of keys |
//! | level i | it holds more than its capacity | neighbouring tables, where what they meet below is least |
//!
//! Whatever is most beyond its measure comes first: level 0 by the count of its sequences, other
//! levels by their size. What meets nothing below is not rewritten: its tables move.
//!
//! A unit is bounded: so that drains need not wait long for it, and because what is rewritten takes
//! its space twice until the next checkpoint.

use super::AutumnVersion;
use super::damage::Damage;
use super::garnering::{Garnering, LEVELS_MAX, Sizing};
use super::table::{Residence, Sequence, Table};
use super::unit::{Goal, Unit};
use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::base::sync::Arc;
use std::collections::VecDeque;
use std::ops::Bound;

/// Sequences of level 0 that go down together.
pub(super) const YOUNG_TRIGGER: usize = 4;

/// The tables of a level that are compared when one is chosen.
const WINDOW_TABLES: usize = 64;

/// Tombstones go down early if they are so many-th of the entries of the level below.
const TOMBSTONES_PART: u64 = 4;

/// The most tables that move in one unit.
const MOVES_MAX: usize = 1024;

/// A level may hold so much more than its capacity (in percent of it) before it counts as debt.
const SLACK_PERCENT: u64 = 150;

/// What is to be done next.
pub(super) enum Step {
    /// All sequences of level 0 begin to sink.
    Sink,
    /// An empty level is put in at this place (0 is level 1).
    AddLevel(usize),
    /// The empty level at this place is taken out.
    RemoveLevel(usize),
    /// Tables go down, from level 0 or from the level of this number.
    Down(usize),
}

/// How much goes down in one unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Bytes that are merged, about.
    pub unit_bytes: u64,
    /// Jobs that it is cut into.
    pub jobs: usize,
}

/// The sizes that decisions go by.
pub(super) struct Sizes {
    /// The sequences of level 0, newest first, in bytes.
    pub young: Vec<u64>,
    /// How many of them, the oldest, are sinking.
    pub sinking: usize,
    /// The levels, in bytes.
    pub levels: Vec<u64>,
    /// Tombstones of all level 0 and of each level, and the entries of each level.
    pub tombstones: Vec<u64>,
    /// See `tombstones`.
    pub entries: Vec<u64>,
}

impl Sizes {
    /// Those of a version.
    pub fn of(version: &AutumnVersion) -> Self {
        let weights = |sequences: &[Arc<Sequence>]| -> Vec<u64> {
            sequences.iter().map(|sequence| sequence.weight()).collect()
        };
        let tombstones = |sequence: &Arc<Sequence>| sequence.totals().tombstones;
        let young = version.young.iter().map(tombstones).sum();
        Self {
            young: weights(&version.young),
            sinking: version.sinking,
            levels: weights(&version.levels),
            tombstones: [young].into_iter().chain(version.levels.iter().map(tombstones)).collect(),
            entries: version.levels.iter().map(|level| level.totals().entries).collect(),
        }
    }

    /// True if so many tombstones are in `level` (0: level 0) that much of the next one is deleted
    /// by them: then they go down, for the sake of the space.
    fn deletes_much(&self, level: usize) -> bool {
        let (tombstones, below) = (self.tombstones[level], self.entries.get(level));
        tombstones > 0 && below.is_some_and(|below| tombstones >= below.div_ceil(TOMBSTONES_PART))
    }

    /// True if the last level could be merged with the one above it and still be half empty: there
    /// is a level too many.
    fn is_too_deep(&self, policy: &Garnering) -> bool {
        let [.., above, last] = self.levels[..] else { return false };
        let fewer = self.levels.len() - 1;
        above + last <= policy.capacity(fewer, fewer) / 2
    }

    /// What is to be done next, if anything. `eager` asks for what only reads gain from.
    pub fn step(&self, policy: &Garnering, eager: bool) -> Option<Step> {
        if let Some(step) = self.shape(policy) {
            return Some(step);
        }
        let early = eager || (!self.levels.is_empty() && self.deletes_much(0));
        let trigger = if early { 1 } else { YOUNG_TRIGGER };
        if self.sinking == 0 && self.young.len() >= trigger {
            let has_level = !self.levels.is_empty();
            return Some(if has_level { Step::Sink } else { Step::AddLevel(0) });
        }
        // A thousandth of what is allowed: the first of equals is the highest level.
        let mut most = (0, None);
        if self.sinking > 0 {
            most = ((1000 * self.young.len() / YOUNG_TRIGGER).max(1000) as u64, Some(0));
        }
        for (place, excess) in self.permille(policy).into_iter().enumerate() {
            if excess > most.0.max(1000) {
                most = (excess, Some(place + 1));
            }
        }
        most.1.map(Step::Down)
    }

    /// How full each level but the last is, in thousandths of its capacity.
    fn permille(&self, policy: &Garnering) -> Vec<u64> {
        let last = self.levels.len().saturating_sub(1);
        let mut full: Vec<u64> = self.levels[..last]
            .iter()
            .zip(policy.capacities(&self.levels))
            .map(|(size, capacity)| size.saturating_mul(1000) / capacity.max(1))
            .collect();
        for (place, full) in full.iter_mut().enumerate() {
            if self.levels[place] > 0 && self.deletes_much(place + 1) {
                *full = (*full).max(1001);
            }
        }
        if let Some(above) = full.last_mut()
            && self.is_too_deep(policy)
            && self.levels[last - 1] > 0
        {
            *above = 2000;
        }
        full
    }

    /// Whether a level is to be added or taken out.
    fn shape(&self, policy: &Garnering) -> Option<Step> {
        let count = self.levels.len();
        let &last = self.levels.last()?;
        if last > policy.capacity(count, count) && count < LEVELS_MAX {
            return Some(Step::AddLevel(match policy.sizing {
                // All capacities follow from the last level: it stays the last.
                Sizing::Relative => 0,
                // The last level has room again, and nothing moves [3.1].
                Sizing::Absolute if policy.grows() => count,
                // Capacities stay, and the full last level moves down.
                Sizing::Absolute => count - 1,
            }));
        }
        if !self.is_too_deep(policy) {
            return None;
        }
        // The one above the last goes down into it (`permille`) until it is empty.
        [count - 1, count - 2].into_iter().find(|at| self.levels[*at] == 0).map(Step::RemoveLevel)
    }

    /// Bytes to be rewritten until nothing is far beyond its measure.
    pub fn debt(&self, policy: &Garnering) -> u64 {
        let below = |at: usize| self.levels.get(at).copied().unwrap_or(0);
        let young: u64 = self.young.iter().sum();
        let most = YOUNG_TRIGGER + YOUNG_TRIGGER / 2;
        let mut debt = 0;
        if self.young.len() > most {
            let each = young / self.young.len() as u64;
            let over = (self.young.len() - most) as u64;
            let rewritten = below(0) * over / YOUNG_TRIGGER as u64;
            debt += each * over + rewritten.min(each * over * 8);
        }
        for (at, capacity) in policy.capacities(&self.levels).into_iter().enumerate() {
            let allowed = capacity / 100 * SLACK_PERCENT;
            if at + 1 < self.levels.len() && self.levels[at] > allowed {
                let over = self.levels[at] - allowed;
                debt += over + scaled(over, below(at + 1), self.levels[at]);
            }
        }
        debt
    }
}

/// `number * part / whole`.
fn scaled(number: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(number) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
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
    next: Option<Arc<[u8]>>,
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
    let mut from: Arc<[u8]> =
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
    fn horizon(&self) -> Option<&Arc<[u8]>> {
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
    fn cuts(&self, measure: Measure) -> (Vec<Arc<[u8]>>, Option<Arc<[u8]>>) {
        let horizon = self.horizon().cloned();
        let uppers: Vec<&Table> = self.fronts.iter().flat_map(|front| &front.tables).collect();
        let lowers: Vec<&Table> = self.below.tables.iter().collect();
        let known = |key: &Arc<[u8]>| horizon.as_ref().is_none_or(|horizon| key < horizon);
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
fn places_to_cut(uppers: &[&Table], lowers: &[&Table], bytes: u64, jobs: usize) -> Vec<Arc<[u8]>> {
    let mut begins: Vec<(&Arc<[u8]>, u64, Option<&Arc<[u8]>>)> = uppers
        .iter()
        .map(|table| (&table.first, table.live.weight(), None))
        .chain(lowers.iter().map(|it| (&it.first, it.live.weight(), Some(&it.last))))
        .collect();
    begins.sort_unstable_by(|one, other| one.0.cmp(other.0));
    let each = (bytes / jobs.max(1) as u64).max(1);
    let (mut gathered, mut cuts) = (0, Vec::new());
    let mut lower_end: Option<&Arc<[u8]>> = None;
    for (first, weight, end) in begins {
        let through = lower_end.is_some_and(|end| end >= first);
        if gathered >= each && !through {
            cuts.push(Arc::clone(first));
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
    from: &mut Arc<[u8]>,
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
        let next: Arc<[u8]> = [&last.last[..], &[0]].concat().into();
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
    let mut best: Option<(f64, std::ops::Range<usize>)> = None;
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
