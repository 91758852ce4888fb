//! Selection of tables to merge from one level into the next: neighbouring tables with the least
//! overlap below, so that the least is rewritten. Tables without overlap are moved instead. (Level
//! 0: `level0_picker.rs`.)
//!
//! The size of a unit is bounded: a flush must not wait long for it, and rewritten data takes its
//! space twice until the next checkpoint.
//!
//! Tables far smaller than usual are not moved, and are merged with small neighbours below.
//! Otherwise a tree that gets few updates at a time, with keys of their own, would consist of small
//! tables only.

use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::engines::autumn::merge::claims::Avoided;
use crate::engines::autumn::merge::unit::{Goal, Unit};
use crate::engines::autumn::table::{Found, Hole, NodeCache, Sequence, Table};
use crate::engines::autumn::version::AutumnVersion;
use crate::structure::SharedKey;
use std::ops::{Bound, Range};

/// Number of tables of a level that are compared in one selection.
const WINDOW_TABLES: usize = 64;

/// Divisor: a table is small if it weighs less than this part of a usual one.
const SMALL_PART: u64 = 4;

/// A small neighbour is joined if it weighs at most this many times the incoming data: so nothing
/// is rewritten often, and only a few tables of each size remain.
const JOINED_TIMES: u64 = 4;

/// Small neighbours may enlarge a unit to at most this many times its usual size. On a nearly full
/// device nothing else enlarges it.
const LARGE_TIMES: u64 = 2;

/// Number of parts into which a table is split: each takes a few blocks, whatever its contents.
const PARTS: u64 = 8;

/// Divisor: cost of a unit besides rewritten tables (nodes, directory, version), as a part of the
/// bytes of a unit.
const FIXED_PART: u64 = 64;

/// Target size of one unit.
#[derive(Clone, Copy, Debug)]
pub(in crate::engines::autumn) struct Measure {
    /// Approximate number of bytes merged.
    pub unit_bytes: u64,
    /// Number of pieces.
    pub pieces: usize,
    /// The device is nearly full: a table that overlaps far more than a unit is split first.
    pub is_least: bool,
}

impl Measure {
    /// Maximum weight of data that is merged with small neighbours.
    fn joined_max(self) -> u64 {
        LARGE_TIMES * self.unit_bytes
    }
}

/// Selected work for one level.
pub(in crate::engines::autumn) enum Down {
    /// Tables without overlap below, each with the index of its level-0 sequence (0 in other
    /// levels).
    Moves(Vec<(usize, Table)>),
    /// Tables to merge.
    Unit(Unit),
    /// A table of a level below level 0 to be split into several tables of the same level.
    Parted(Unit),
    /// Tables of level 0 to be merged within level 0: from the sequence with this index and the
    /// following ones, into the last of them.
    Within { first: usize, unit: Unit },
    /// Nothing readable is left to merge.
    Stuck,
}

/// Returns the first key after `key`.
pub(in crate::engines::autumn) fn behind(key: &SharedKey) -> SharedKey {
    SharedKey::after(key, key.len(), &[0])
}

/// Returns true if a table can move to a lower level unchanged: all of it is live, it has no
/// tombstones to be dropped, and it is not small.
pub(in crate::engines::autumn) fn may_move(table: &Table, goal: Goal) -> bool {
    table.is_complete() && !(goal.bottom && table.live.tombstones > 0) && !is_small(table, goal)
}

fn is_small(table: &Table, goal: Goal) -> bool {
    table.live.weight() < goal.table_bytes / SMALL_PART
}

/// Returns the tables of `near`, next to the merged tables, that join a merge of weight `coming`.
pub(in crate::engines::autumn) fn joined<'t>(
    near: &'t [Table],
    mut coming: u64,
    (measure, goal): (Measure, Goal),
    avoided: &Avoided<'_>,
) -> &'t [Table] {
    let joins = |table: &&Table| {
        let weight = table.live.weight();
        let is_like = weight <= JOINED_TIMES * coming && coming + weight <= measure.joined_max();
        let joins = is_small(table, goal) && is_like && !avoided.has(table);
        coming += weight;
        joins
    };
    &near[..near.iter().take_while(joins).count()]
}

/// Returns keys at which `bytes` can be cut into `pieces` parts: first keys of tables that no lower
/// table spans.
pub(in crate::engines::autumn) fn places_to_cut(
    uppers: &[&Table],
    lowers: &[&Table],
    bytes: u64,
    pieces: usize,
) -> Vec<SharedKey> {
    let mut begins: Vec<(&SharedKey, u64, Option<&SharedKey>)> = uppers
        .iter()
        .map(|table| (&table.first, table.live.weight(), None))
        .chain(lowers.iter().map(|it| (&it.first, it.live.weight(), Some(&it.last))))
        .collect();
    begins.sort_unstable_by(|one, other| one.0.cmp(other.0));
    let each = (bytes / pieces.max(1) as u64).max(1);
    let Some((mut since, ..)) = begins.first().copied() else { return Vec::new() };
    let (mut gathered, mut cuts) = (0, Vec::new());
    let mut lower_end: Option<&SharedKey> = None;
    for (first, weight, end) in begins {
        let through = lower_end.is_some_and(|end| end >= first);
        // Many tables may begin at the same key, where they sank to: no cut goes between them.
        if gathered >= each && !through && first > since {
            cuts.push(first.clone());
            since = first;
            gathered = 0;
            if cuts.len() == pieces {
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

/// Selects the tables of level `level` to merge next: among those from `from` on, the ones with the
/// least overlap below.
pub(in crate::engines::autumn) fn from_level(
    version: &AutumnVersion,
    node_cache: &NodeCache,
    level: usize,
    from: &mut SharedKey,
    measure: Measure,
    goal: Goal,
    avoided: &Avoided<'_>,
) -> Result<Down> {
    let (Some(upper), Some(lower)) = (version.levels.get(level - 1), version.levels.get(level))
    else {
        return Ok(Down::Stuck);
    };
    let mut passed = 0;
    loop {
        let window = window(upper, node_cache, from)?;
        let (Some(first), Some(last)) = (window.tables.first(), window.tables.last()) else {
            return Ok(Down::Stuck);
        };
        let range = KeyRange {
            lower: Bound::Included(first.first.to_bytes().into_owned()),
            upper: Bound::Included(last.last.to_bytes().into_owned()),
        };
        let below = lower.tables_in(node_cache, &range)?;
        *from = behind(&last.last);
        let alone = |table: &&Table| {
            let place = below.tables.partition_point(|it| it.last < table.first);
            let meets = below.tables.get(place).is_some_and(|it| it.overlaps(table));
            let meets = meets || below.holes.iter().any(|it| it.meets(&table.first, &table.last));
            !meets && may_move(table, goal) && !avoided.has(table)
        };
        let moves: Vec<(usize, Table)> =
            window.tables.iter().filter(alone).map(|table| (0, table.clone())).collect();
        if !moves.is_empty() {
            return Ok(Down::Moves(moves));
        }
        if let Some(chosen) = cheapest(&window.tables, &below, measure, avoided) {
            let uppers = window.tables[chosen].to_vec();
            if let Some(parted) = parted(&uppers, &below.tables, measure, goal) {
                return Ok(Down::Parted(parted));
            }
            return unit(uppers, below.tables, lower, node_cache, (measure, goal), avoided)
                .map(Down::Unit);
        }
        passed += window.tables.len() as u64 + window.unread;
        if passed >= upper.tables() {
            return Ok(Down::Stuck);
        }
    }
}

/// Tables considered together.
#[derive(Default)]
struct Window {
    tables: Vec<Table>,
    /// Number of tables skipped because the nodes that list them are damaged.
    unread: u64,
}

/// Returns the next tables of a level from `from` on, wrapping around at the end.
fn window(upper: &Sequence, node_cache: &NodeCache, from: &SharedKey) -> Result<Window> {
    let mut window = Window::default();
    for from in [from, &SharedKey::LEAST] {
        for index in upper.node_of(&from.to_bytes()).unwrap_or(0)..upper.nodes.len() {
            match upper.node(node_cache, index)? {
                Ok(node) => {
                    let room = WINDOW_TABLES - window.tables.len();
                    let next = node.tables.iter().filter(|it| it.first >= *from).take(room);
                    window.tables.extend(next.cloned());
                }
                Err(Hole { tables, .. }) => window.unread += tables,
            }
            if window.tables.len() == WINDOW_TABLES {
                return Ok(window);
            }
        }
        if !window.tables.is_empty() {
            break;
        }
    }
    Ok(window)
}

/// Returns the tables that lie between the first and the last key of the given ones.
fn met(below: &[Table], first: &Table, last: &Table) -> Range<usize> {
    let begin = below.partition_point(|table| table.last < first.first);
    let end = below.partition_point(|table| table.first <= last.last);
    begin..end.max(begin)
}

/// Returns neighbouring tables of the window with the least overlap relative to their weight.
fn cheapest(
    window: &[Table],
    below: &Found,
    measure: Measure,
    avoided: &Avoided<'_>,
) -> Option<Range<usize>> {
    let fixed = measure.unit_bytes / FIXED_PART;
    let mut best: Option<(f64, Range<usize>)> = None;
    for (begin, first) in window.iter().enumerate() {
        let mut weight = 0;
        for (end, last) in window.iter().enumerate().skip(begin) {
            let lower = &below.tables[met(&below.tables, first, last)];
            weight += last.live.weight();
            let rewritten: u64 = lower.iter().map(|table| table.live.weight()).sum();
            let is_stuck = avoided.has(last)
                || lower.iter().any(|it| avoided.has(it))
                || below.holes.iter().any(|it| it.meets(&first.first, &last.last));
            if is_stuck || (end > begin && weight + rewritten > measure.unit_bytes) {
                break;
            }
            let ratio = (rewritten + fixed) as f64 / weight.max(1) as f64;
            if best.as_ref().is_none_or(|(least, _)| ratio < *least) {
                best = Some((ratio, begin..end + 1));
            }
        }
    }
    best.map(|(_, chosen)| chosen)
}

/// Splits the only table of `upper` where tables of `below` begin, so that each part overlaps less,
/// if both together are too large for a nearly full device.
fn parted(upper: &[Table], below: &[Table], measure: Measure, goal: Goal) -> Option<Unit> {
    let [table] = upper else { return None };
    let lower = &below[met(below, table, table)];
    let rewritten: u64 = lower.iter().map(|table| table.live.weight()).sum();
    let is_large = table.live.weight() + rewritten > LARGE_TIMES * measure.unit_bytes;
    if !measure.is_least || !is_large || table.live.entries < 2 {
        return None;
    }
    let each = rewritten / PARTS;
    let (mut gathered, mut cuts) = (0, Vec::new());
    for below in lower {
        if gathered > each && below.first > table.first {
            cuts.push(below.first.clone());
            gathered = 0;
        }
        gathered += below.live.weight();
    }
    let goal = Goal { bottom: false, ..goal };
    (!cuts.is_empty()).then(|| Unit { upper: vec![upper.to_vec()], cuts, goal, ..Unit::default() })
}

/// Builds a unit of these tables, their overlap in `below`, and small neighbours in the level
/// below.
fn unit(
    upper: Vec<Table>,
    mut below: Vec<Table>,
    level: &Sequence,
    node_cache: &NodeCache,
    (measure, goal): (Measure, Goal),
    avoided: &Avoided<'_>,
) -> Result<Unit> {
    let mut lower = Vec::new();
    if let (Some(first), Some(last)) = (upper.first(), upper.last()) {
        lower = below.drain(met(&below, first, last)).collect();
        let ends = |table: &Table, lower: Option<&Table>, is_last: bool| match (lower, is_last) {
            (Some(lower), true) => (&table.last).max(&lower.last).clone(),
            (Some(lower), false) => (&table.first).min(&lower.first).clone(),
            (None, true) => table.last.clone(),
            (None, false) => table.first.clone(),
        };
        let from = ends(first, lower.first(), false);
        let to = ends(last, lower.last(), true);
        let coming = upper.iter().chain(&lower).map(|table| table.live.weight()).sum();
        let (before, _) = level.near(node_cache, &from)?;
        let (_, behind) = level.near(node_cache, &to)?;
        let how = (measure, goal);
        let before = joined(&before, coming, how, avoided);
        let behind = joined(&behind, coming, how, avoided);
        lower.splice(..0, before.iter().rev().cloned());
        lower.extend_from_slice(behind);
    }
    let bytes = upper.iter().chain(&lower).map(|table| table.live.weight()).sum();
    let mut cuts = places_to_cut(
        &upper.iter().collect::<Vec<_>>(),
        &lower.iter().collect::<Vec<_>>(),
        bytes,
        measure.pieces,
    );
    cuts.truncate(measure.pieces.saturating_sub(1));
    Ok(Unit { upper: vec![upper], lower, cuts, goal, ..Unit::default() })
}
