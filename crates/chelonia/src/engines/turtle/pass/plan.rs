//! Decisions of a pass at a node, from statistics only, without reads or writes.
//!
//! All sizes are weights (`node.rs`), in bytes. Statistics of incoming updates may be estimates;
//! they affect only the quality of decisions.

use crate::engines::turtle::pass::geometry::{Geometry, NODE_KEY_BYTES, Pace};
use crate::run::Totals;
use std::ops::Range;

/// Divisor: on a full device, a flush is worth it for this part of a leaf.
const WORTH_PART: u64 = 16;

/// Statistics of a pivot before the pass changes anything.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::engines::turtle) struct PivotStats {
    /// Incoming updates.
    pub incoming: u64,
    /// Pending updates.
    pub pending: u64,
    /// Weight of the leaf (height 1), or of everything below (above).
    pub child: u64,
    /// Incoming and pending tombstones.
    pub tombstones: u64,
    /// Entries, and tombstones among them, buffered anywhere below (above height 1).
    pub waiting_below: Totals,
    /// Entries of the leaf, or of everything below.
    pub child_entries: u64,
    /// Pivots of the child (above height 1).
    pub child_pivots: usize,
    /// Dead weight of the runs that a reclaiming unit gets nearer to freeing by a flush: of each
    /// run as large a part as the pivot has of its live entries (height 1).
    pub dead: u64,
    /// Reclaiming units are emptying a buffer below (above height 1).
    pub emptying: bool,
    /// A flush would have to read a damaged block (`damage.rs`).
    pub stuck: bool,
    /// A read-triggered flush is due (`read_cost.rs`).
    pub due: bool,
    /// Changes with the pivot and whenever its child is rewritten.
    pub seed: u64,
}

impl PivotStats {
    /// Returns the maximum size of the leaf after a flush.
    pub fn merged(&self) -> u64 {
        self.incoming + self.pending + self.child
    }

    /// Returns the expected size of the leaf after a flush: updates of existing keys replace
    /// entries.
    pub fn expected(&self, geometry: &Geometry) -> u64 {
        self.child + (self.incoming + self.pending) / 100 * geometry.new_percent
    }

    /// Returns the approximate weight of pending and incoming updates, including data that their
    /// tombstones delete, and dead data that is beside them in their runs.
    fn waiting(&self) -> u64 {
        let arrived = self.incoming + self.pending + self.waiting_below.weight() + self.dead;
        let deletes = self.tombstones + self.waiting_below.tombstones;
        let each = self.child / self.child_entries.max(1) + 1;
        arrived.saturating_add(deletes.saturating_mul(each))
    }

    /// Returns true if the pivot has no entries and no incoming updates.
    fn is_empty(&self) -> bool {
        self.merged() == 0 && self.child_entries == 0 && self.tombstones == 0
    }
}

/// Reason to flush a group of pivots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engines::turtle) enum Reason {
    /// Pending and incoming updates together reach the flush size.
    Full,
    /// Incoming updates alone reach it.
    Narrow,
    /// Much of the child is deleted.
    Tombstones,
    /// The flush is triggered by reads.
    Reads,
    /// A small child is joined with its neighbour.
    Join,
}

/// Neighbouring pivots that are treated alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::engines::turtle) struct Group {
    /// The pivots.
    pub pivots: Range<usize>,
    /// Reason to flush them; `None` if they are not flushed.
    pub flush: Option<Reason>,
}

/// Divides the pivots of a node into groups that are flushed together, and pivots that are not
/// flushed (each a group of its own). Stuck pivots are never flushed.
pub(in crate::engines::turtle) fn groups(
    height: u8,
    stats: &[PivotStats],
    geometry: &Geometry,
) -> Vec<Group> {
    if geometry.pace != Pace::Usual {
        return groups_on_full_device(height, stats, geometry.pace);
    }
    let mut groups: Vec<Group> = Vec::with_capacity(stats.len());
    for (index, pivot_stats) in stats.iter().enumerate() {
        let own = reason(height, pivot_stats, stats.len() == 1, geometry);
        let stuck = pivot_stats.stuck || index.checked_sub(1).is_some_and(|last| stats[last].stuck);
        if let Some(group) = groups.last_mut().filter(|_| !stuck) {
            let before = &stats[group.pivots.clone()];
            let joins = match empty_joins(before, group.flush, pivot_stats, own) {
                Some(joins) => joins && fits(height, before, pivot_stats, geometry),
                None => {
                    let flushed = [group.flush.is_some(), own.is_some()];
                    fits(height, before, pivot_stats, geometry)
                        && is_small(height, before, pivot_stats, flushed, geometry)
                }
            };
            if joins {
                group.pivots.end = index + 1;
                group.flush = Some(Reason::Join);
                continue;
            }
        }
        groups.push(Group { pivots: index..index + 1, flush: own });
    }
    groups
}

/// Returns true if the groups contain each of `count` pivots once, in order.
pub(in crate::engines::turtle) fn is_partition(groups: &[Group], count: usize) -> bool {
    let mut end = 0;
    let is_next = |group: &Group| {
        let is_next = group.pivots.start == end && group.pivots.end > end;
        end = group.pivots.end;
        is_next
    };
    groups.iter().all(is_next) && end == count
}

/// Groups the pivots on a full device, where at most one is flushed. It is the first one with at
/// least half the average of pending updates: so pivots are flushed one after the other, the runs
/// they share are freed, and newer updates do not lead back to pivots that were flushed. Above
/// height 1 the one over a buffer that is being emptied goes first: until its runs are freed, each
/// flush takes more space than it frees, and half emptied buffers would add up.
fn groups_on_full_device(height: u8, stats: &[PivotStats], pace: Pace) -> Vec<Group> {
    let waiting =
        |pivot_stats: &PivotStats| if pivot_stats.stuck { 0 } else { pivot_stats.waiting() };
    let (total, count) = stats
        .iter()
        .map(waiting)
        .filter(|weight| *weight > 0)
        .fold((0, 0), |(total, count): (u64, u64), weight| {
            (total.saturating_add(weight), count + 1)
        });
    let enough = (total / count.max(1) / 2).max(1);
    let emptying = stats.iter().position(|one| one.emptying && waiting(one) > 0);
    let first = || stats.iter().position(|pivot_stats| waiting(pivot_stats) >= enough);
    let first = emptying.or_else(first);
    let first = first.filter(|_| pace == Pace::OneLeaf);
    // Only a root has a single child for long: see `reason`.
    let alone = (height > 1 && stats.len() == 1 && !stats[0].stuck).then_some(0);
    let flushed = first.or(alone);
    let group = |pivot: usize| Group {
        pivots: pivot..pivot + 1,
        flush: (flushed == Some(pivot)).then_some(Reason::Full),
    };
    (0..stats.len()).map(group).collect()
}

/// Returns true if a buffer has updates of pivots other than the flushed one that are worth a flush
/// on a full device, with the dead data beside them.
pub(in crate::engines::turtle) fn is_emptying(
    stats: &[PivotStats],
    groups: &[Group],
    geometry: &Geometry,
) -> bool {
    let staying = groups.iter().filter(|group| group.flush.is_none());
    let mut staying = staying.flat_map(|group| &stats[group.pivots.clone()]);
    let least = (geometry.leaf / WORTH_PART).max(1);
    staying.any(|one| !one.stuck && one.waiting() >= least)
}

/// Returns the reason to flush a pivot for its own sake, if any.
fn reason(
    height: u8,
    pivot_stats: &PivotStats,
    alone: bool,
    geometry: &Geometry,
) -> Option<Reason> {
    let arrived = pivot_stats.incoming + pivot_stats.pending;
    if pivot_stats.stuck {
        return None;
    }
    if height > 1 && alone {
        // Only a root has a single child for long: without a buffer it can be removed.
        return Some(Reason::Full);
    }
    if pivot_stats.due {
        return Some(Reason::Reads);
    }
    if arrived == 0 && pivot_stats.tombstones == 0 {
        return None;
    }
    // Without jitter all leaves of a uniform load would be flushed, and split, in the same pass.
    let jitter = 600 + pivot_stats.seed % 801;
    let mut size = geometry.flush_basis(height, pivot_stats.child) / 1000
        * (geometry.percent_at(height) * jitter / 100);
    if pivot_stats.child < geometry.leaf / 2 {
        // A small child is cheap to rewrite: let it grow before updates pile up above it.
        size = size.min(pivot_stats.child);
    }
    // The updates outweigh the existing data so much that a flush writes little else.
    let outweighs = geometry.leaf.max(2 * (pivot_stats.child + pivot_stats.pending));
    if pivot_stats.incoming >= size.min(outweighs) && pivot_stats.incoming > 0 {
        return Some(Reason::Narrow);
    }
    if arrived >= size {
        return Some(Reason::Full);
    }
    let many = pivot_stats.tombstones > 0
        && pivot_stats.tombstones >= pivot_stats.child_entries.div_ceil(4);
    many.then_some(Reason::Tombstones)
}

/// Decides whether an empty pivot joins its neighbour; `None` if neither is empty. An empty pivot
/// is no reason to rewrite anything, but joins a rewrite at no cost.
fn empty_joins(
    before: &[PivotStats],
    before_flush: Option<Reason>,
    next: &PivotStats,
    next_flush: Option<Reason>,
) -> Option<bool> {
    let before_empty = before.iter().all(PivotStats::is_empty);
    match (before_empty, next.is_empty()) {
        (false, false) => None,
        (true, true) => Some(true),
        (true, false) => Some(next_flush.is_some()),
        (false, true) => Some(before_flush.is_some()),
    }
}

/// Returns true if the result of both together is not too large for one child.
fn fits(height: u8, before: &[PivotStats], next: &PivotStats, geometry: &Geometry) -> bool {
    if height == 1 {
        let size: u64 = before.iter().map(|pivot_stats| pivot_stats.expected(geometry)).sum();
        return size + next.expected(geometry) <= geometry.leaf_joined();
    }
    let pivots: usize = before.iter().map(|pivot_stats| pivot_stats.child_pivots).sum();
    pivots + next.child_pivots <= geometry.pivots_joined()
}

/// Returns true if either is so small that it should be joined, given which of them are flushed
/// anyway. A leaf less than half full joins a neighbour that is rewritten with it [3.2.1]; a small
/// one also where only one of the two is. Where neither is, a join would cost writes: after a
/// change of the leaf size, the first pass would rewrite the whole tree.
fn is_small(
    height: u8,
    before: &[PivotStats],
    next: &PivotStats,
    flushed: [bool; 2],
    geometry: &Geometry,
) -> bool {
    if height == 1 {
        let size: u64 = before.iter().map(|pivot_stats| pivot_stats.expected(geometry)).sum();
        let limit = match flushed {
            [true, true] => geometry.leaf_half(),
            [false, false] => 0,
            _ => geometry.leaf_small(),
        };
        return size.min(next.expected(geometry)) < limit;
    }
    let pivots: usize = before.iter().map(|pivot_stats| pivot_stats.child_pivots).sum();
    pivots.min(next.child_pivots) <= geometry.pivots_small()
}

/// Cuts `count` pivots into nodes and returns the size of each. `appended` means that all growth
/// was at the end, where further growth is expected, too.
pub(in crate::engines::turtle) fn node_sizes(
    count: usize,
    appended: bool,
    geometry: &Geometry,
) -> Vec<usize> {
    if count <= geometry.pivots_max {
        return vec![count];
    }
    if appended {
        let packed = geometry.pivots_packed();
        let mut sizes = vec![packed; count / packed];
        let rest = count % packed;
        if rest > 0 {
            sizes.push(rest);
        }
        return sizes;
    }
    let nodes = count.div_ceil((geometry.pivots_max * 9 / 10).max(1));
    (0..nodes).map(|node| count * (node + 1) / nodes - count * node / nodes).collect()
}

/// Cuts `count` pivots, whose keys take `key_bytes` bytes in memory, into nodes: a node of long
/// keys has fewer pivots, but not so few that it is small.
pub(in crate::engines::turtle) fn node_sizes_by_keys(
    count: usize,
    key_bytes: usize,
    appended: bool,
    geometry: &Geometry,
) -> Vec<usize> {
    let sizes = node_sizes(count, appended, geometry);
    let nodes = key_bytes.div_ceil(NODE_KEY_BYTES).min(count / (geometry.pivots_small() + 1));
    if nodes <= sizes.len() {
        return sizes;
    }
    (0..nodes).map(|node| count * (node + 1) / nodes - count * node / nodes).collect()
}

/// Cuts the pivots `chosen` into pieces of neighbours of about `size` each, for tasks.
pub(in crate::engines::turtle) fn pieces(chosen: &[(usize, u64)], size: u64) -> Vec<Vec<usize>> {
    let total: u64 = chosen.iter().map(|(_, weight)| weight).sum();
    let count = (total / size.max(1)).max(1);
    let mut pieces: Vec<Vec<usize>> = Vec::new();
    let (mut gathered, mut next_cut) = (0, 0);
    for (pivot, weight) in chosen {
        if gathered >= next_cut {
            pieces.push(Vec::new());
            next_cut = total * pieces.len() as u64 / count;
        }
        gathered += weight;
        if let Some(piece) = pieces.last_mut() {
            piece.push(*pivot);
        }
    }
    debug_assert!(
        pieces.iter().flatten().eq(chosen.iter().map(|(pivot, _)| pivot)),
        "each pivot is in one piece"
    );
    pieces
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::engines::turtle::pass::geometry::SHORT_RUN_MIN;

    pub const GEOMETRY: Geometry = Geometry {
        leaf: 100_000,
        pivots_max: 64,
        levels_max: 6,
        levels_read: 3,
        flush_percent: 100,
        new_percent: 100,
        pace: Pace::Usual,
    };

    fn leaf(child: u64, pending: u64, incoming: u64) -> PivotStats {
        PivotStats {
            incoming,
            pending,
            child,
            child_entries: child / 100,
            seed: 400,
            ..PivotStats::default()
        }
    }

    fn flushed(groups: &[Group]) -> Vec<(usize, usize, Option<Reason>)> {
        groups.iter().map(|group| (group.pivots.start, group.pivots.end, group.flush)).collect()
    }

    #[test]
    fn full_narrow_and_small_pivots_are_flushed_and_others_wait() {
        let stats = [
            leaf(90_000, 60_000, 50_000),
            leaf(90_000, 60_000, 30_000),
            leaf(90_000, 0, 120_000),
            leaf(30_000, 20_000, 11_000),
            leaf(90_000, 0, 0),
        ];
        let groups = groups(1, &stats, &GEOMETRY);
        assert_eq!(
            flushed(&groups),
            [
                (0, 1, Some(Reason::Full)),
                (1, 2, None),
                (2, 3, Some(Reason::Narrow)),
                (3, 4, Some(Reason::Full)),
                (4, 5, None)
            ]
        );
    }

    #[test]
    fn runs_of_buffers_are_short_where_what_waits_hides_older_entries() {
        let new = Geometry { leaf: 4 << 20, flush_percent: 400, ..GEOMETRY };
        let known = Geometry { flush_percent: 32, ..new };
        assert_eq!(new.buffer_run(), 4 << 20);
        assert_eq!(known.buffer_run(), 512 << 10);
        // Neither so short that index and filter dominate, nor longer than a leaf.
        assert_eq!(Geometry { leaf: 256 << 10, ..known }.buffer_run(), SHORT_RUN_MIN);
        assert_eq!(Geometry { leaf: 16 << 10, ..known }.buffer_run(), 16 << 10);
        // The existing leaf limits the pending updates as well.
        assert_eq!(known.flush_basis(1, 2 << 20), 2 << 20);
        assert_eq!(known.flush_basis(2, 2 << 20), 4 << 20);
        assert_eq!(new.flush_basis(1, 2 << 20), 4 << 20);
    }

    #[test]
    fn tombstones_and_small_neighbours_are_reasons() {
        let mut deleted = leaf(90_000, 2_000, 0);
        deleted.tombstones = 225;
        let stats = [
            deleted,
            leaf(20_000, 0, 0),
            leaf(12_000, 12_000, 0),
            leaf(80_000, 0, 0),
            leaf(0, 0, 0),
        ];
        let groups = groups(1, &stats, &GEOMETRY);
        assert_eq!(
            flushed(&groups),
            [
                (0, 1, Some(Reason::Tombstones)),
                (1, 3, Some(Reason::Join)),
                (3, 4, None),
                (4, 5, None)
            ]
        );
        let node =
            |child_pivots| PivotStats { child: 90_000, child_pivots, ..PivotStats::default() };
        let groups = super::groups(2, &[node(10), node(30), node(40)], &GEOMETRY);
        assert_eq!(flushed(&groups), [(0, 2, Some(Reason::Join)), (2, 3, None)]);
    }

    #[test]
    fn leaves_join_where_a_rewrite_is_due_anyway() {
        let joined =
            |stats: [PivotStats; 2], geometry: &Geometry| groups(1, &stats, geometry).len() == 1;
        // Neither is flushed, one is, both are.
        assert!(!joined([leaf(10_000, 0, 0), leaf(20_000, 0, 0)], &GEOMETRY));
        assert!(joined([leaf(10_000, 0, 0), leaf(20_000, 20_000, 0)], &GEOMETRY));
        assert!(!joined([leaf(30_000, 0, 0), leaf(20_000, 20_000, 0)], &GEOMETRY));
        assert!(joined([leaf(17_000, 0, 17_000), leaf(20_000, 20_000, 0)], &GEOMETRY));
        // Updates of existing keys do not make a leaf larger.
        let stats = [leaf(30_000, 0, 30_000), leaf(30_000, 30_000, 0)];
        assert!(!joined(stats, &GEOMETRY));
        assert!(joined(stats, &Geometry { new_percent: 0, ..GEOMETRY }));
    }

    #[test]
    fn on_a_full_device_one_pivot_is_flushed_over_which_much_waits() {
        let first = |stats: &[PivotStats]| {
            let geometry = Geometry { pace: Pace::OneLeaf, ..GEOMETRY };
            let groups = groups(1, stats, &geometry);
            groups.iter().position(|group| group.flush.is_some())
        };
        // The first one got a few entries after it was flushed.
        let waits = [leaf(90_000, 100, 0), leaf(90_000, 20_000, 0), leaf(90_000, 30_000, 0)];
        assert_eq!(first(&waits), Some(1));
        // Tombstones count with the data they delete.
        let mut deleted = leaf(90_000, 2_000, 0);
        deleted.tombstones = 200;
        assert_eq!(first(&[deleted, waits[1], waits[2]]), Some(0));
        assert_eq!(first(&[leaf(90_000, 1, 0)]), Some(0));
        assert_eq!(first(&[leaf(90_000, 0, 0)]), None);
    }

    #[test]
    fn on_a_full_device_a_buffer_is_emptied_before_the_next() {
        let geometry = Geometry { pace: Pace::OneLeaf, ..GEOMETRY };
        let first = |height, stats: &[PivotStats]| {
            let groups = groups(height, stats, &geometry);
            let first = groups.iter().position(|group| group.flush.is_some());
            (first, is_emptying(stats, &groups, &geometry))
        };
        // A pivot that was passed over holds runs that are dead but for its own updates.
        let mut holds = leaf(90_000, 4_000, 0);
        holds.dead = 20_000;
        let waits = [holds, leaf(90_000, 0, 0), leaf(90_000, 30_000, 0)];
        assert_eq!(first(1, &waits), (Some(0), true));
        // Updates that arrived since are not worth a flush.
        assert_eq!(first(1, &[leaf(90_000, 100, 0), waits[2]]), (Some(1), false));
        // The buffer that was begun goes first, however little is left in it.
        let below = |pending, emptying| PivotStats { emptying, ..leaf(90_000, pending, 0) };
        assert_eq!(first(2, &[below(30_000, false), below(500, true)]).0, Some(1));
        assert_eq!(first(2, &[below(30_000, false), below(0, true)]).0, Some(0));
    }

    #[test]
    fn nodes_and_pieces_are_cut_evenly() {
        assert_eq!(node_sizes(64, false, &GEOMETRY), [64]);
        assert_eq!(node_sizes(65, false, &GEOMETRY), [32, 33]);
        assert_eq!(node_sizes(125, true, &GEOMETRY), [60, 60, 5]);
        assert_eq!(node_sizes(130, false, &GEOMETRY).iter().sum::<usize>(), 130);
        let chosen: Vec<_> = (0..10).map(|pivot| (pivot, 10)).collect();
        assert_eq!(pieces(&chosen, 50), [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9]]);
        assert_eq!(pieces(&chosen, 1000).len(), 1);
        assert!(pieces(&[], 10).is_empty());
    }
}
