//! Which merges are due at a node.
//!
//! ```text
//!   leaf     [a][b][c][d][ merged ]    all branches become one, if those beside the merged one
//!                                      have enough bytes, or there are more than 3 F
//!   node     [a][b][c][d][e][f]...     the newest branches become one, if there are more than 2 F
//!                                      in a pivot: as many as make the merge worth it
//! ```
//!
//! The paper merges the branches of each flush where they arrive [2.4]. Here they wait until there
//! are many: a branch that is flushed on before was never merged at this height, and the filters of
//! a dozen branches cost a read little.

use crate::base::error::Result;
use crate::buffer_tree::check::damage::Damage;
use crate::buffer_tree::node::Pivot;
use crate::buffer_tree::span::KeySpan;
use crate::engines::splinter::claims::Claims;
use crate::engines::splinter::sizes::Sizes;
use crate::run::Totals;
use crate::structure::KeyView;

/// Divisor: a leaf is merged when this part of its entries are tombstones.
const TOMBSTONES_PART: u64 = 4;

/// A merge that is due: the newest levels of some pivots become one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Due {
    /// Indexes of the pivots, ascending.
    pub pivots: Vec<usize>,
    /// Levels below this number are merged.
    pub levels: usize,
    /// All levels of a leaf are merged.
    pub whole: bool,
    /// Approximate weight of the inputs.
    pub bytes: u64,
}

/// The surroundings of a node, by which its merges are due.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    /// End of its range.
    pub upper: Option<KeyView<'a>>,
    /// Merges of these are not due again.
    pub claims: Option<&'a Claims>,
    /// Unreadable blocks, which are not merged.
    pub damage: Option<&'a Damage>,
}

/// Returns the merges that are due at a node of this height, the most urgent one first.
pub(super) fn all_due(
    height: u8,
    pivots: &[Pivot],
    around: &Around<'_>,
    sizes: &Sizes,
) -> Result<Vec<Due>> {
    let mut due = Vec::new();
    if height == 1 {
        let mut leaves = Vec::new();
        for index in 0..pivots.len() {
            leaves.extend(leaf_due(pivots, index, around, sizes)?);
        }
        leaves.sort_by_key(|(urgency, _)| std::cmp::Reverse(*urgency));
        due.extend(leaves.into_iter().map(|(_, due)| due));
    }
    if due.is_empty() {
        due.extend(gather_due(height, pivots, around, sizes)?);
    }
    Ok(due)
}

/// Returns the range of pivot `index`.
pub(super) fn span_of<'p>(
    pivots: &'p [Pivot],
    index: usize,
    upper: Option<KeyView<'p>>,
) -> KeySpan<'p> {
    let upper = pivots.get(index + 1).map_or(upper, |next| Some(next.key.view()));
    KeySpan { lower: pivots[index].key.view(), upper }
}

/// Returns the number of readable levels of a pivot, from the newest on.
fn readable(pivot: &Pivot, span: KeySpan<'_>, damage: Option<&Damage>) -> Result<usize> {
    let first = damage.map_or(Ok(None), |damage| damage.first_level(pivot, span))?;
    Ok(first.map_or(pivot.levels(), usize::from))
}

/// Returns the merge of leaf `index`, with its urgency in percent, if it is due.
fn leaf_due(
    pivots: &[Pivot],
    index: usize,
    around: &Around<'_>,
    sizes: &Sizes,
) -> Result<Option<(u64, Due)>> {
    let pivot = &pivots[index];
    let all = pivot.levels();
    let Some(last) = pivot.parts.last() else { return Ok(None) };
    let merged: u64 = of_level(pivot, usize::from(last.level));
    let pending = pending_bytes(pivot, sizes);
    let by_bytes = pending.saturating_mul(100) / sizes.pending_max(merged);
    let by_levels = all as u64 * 100 / sizes.levels_max() as u64;
    let totals = pivot.pending();
    // Tombstones take the space of what they hide.
    let by_tombstones =
        totals.tombstones.saturating_mul(TOMBSTONES_PART * 101) / totals.entries.max(1);
    let urgency = by_bytes.max(by_levels).max(by_tombstones);
    if urgency <= 100 || all < 2 && totals.tombstones == 0 {
        return Ok(None);
    }
    let span = span_of(pivots, index, around.upper);
    if around.claims.is_some_and(|claims| claims.meets(1, span)) {
        return Ok(None);
    }
    let levels = readable(pivot, span, around.damage)?;
    let whole = levels == all;
    if !whole && levels <= sizes.fanout {
        return Ok(None);
    }
    let bytes = (0..levels).map(|level| of_level(pivot, level)).sum();
    Ok(Some((urgency, Due { pivots: vec![index], levels, whole, bytes })))
}

/// Returns the merge of the newest levels of a node, if it is due.
fn gather_due(
    height: u8,
    pivots: &[Pivot],
    around: &Around<'_>,
    sizes: &Sizes,
) -> Result<Option<Due>> {
    let most = pivots.iter().map(Pivot::levels).max().unwrap_or(0);
    if most <= sizes.levels_gather() {
        return Ok(None);
    }
    let span = KeySpan { lower: pivots[0].key.view(), upper: around.upper };
    if around.claims.is_some_and(|claims| claims.meets(height, span)) {
        return Ok(None);
    }
    // Of a leaf the merged branch stays, which the last level may be.
    let spared = usize::from(height == 1);
    let taking = |count: usize| -> Result<Vec<usize>> {
        let mut taking = Vec::new();
        for (index, pivot) in pivots.iter().enumerate() {
            let span = span_of(pivots, index, around.upper);
            let readable = readable(pivot, span, around.damage)?;
            if pivot.levels() >= count + spared && readable >= count {
                taking.push(index);
            }
        }
        Ok(taking)
    };
    let weight = |taking: &[usize], level: usize| -> u64 {
        taking.iter().map(|index| of_level(&pivots[*index], level)).sum()
    };
    let mut count = sizes.fanout.max(2);
    let mut chosen = taking(count)?;
    let mut bytes: u64 = (0..count).map(|level| weight(&chosen, level)).sum();
    // Levels that are not heavier than all newer ones together are merged too, so that each entry
    // is merged a logarithmic number of times.
    while count < most {
        let next = taking(count + 1)?;
        let newer: u64 = (0..count).map(|level| weight(&next, level)).sum();
        let heavier = weight(&next, count);
        if next.is_empty() || heavier > newer {
            break;
        }
        (chosen, bytes, count) = (next, newer + heavier, count + 1);
    }
    // A leaf that could be merged for this weight is merged as a whole, when it is due.
    let is_large = height == 1 && bytes > sizes.node_max();
    Ok((!chosen.is_empty() && !is_large).then_some(Due {
        pivots: chosen,
        levels: count,
        whole: false,
        bytes,
    }))
}

/// Returns the bytes that `pending` updates of entries with the totals `settled` hide beyond their
/// own: what tombstones delete, and the longer values that shorter ones replace. Space that weighs
/// nothing above it is not freed by the weight of what waits there.
pub(super) fn hidden_beyond(pending: Totals, settled: Totals, sizes: &Sizes) -> u64 {
    let mean = |totals: Totals| totals.weight() / totals.entries.max(1);
    let longer = mean(settled).saturating_sub(mean(pending));
    let values = pending.entries.saturating_sub(pending.tombstones);
    let updates = values.saturating_mul(100 - sizes.new_percent.min(100)) / 100;
    let hidden = pending.tombstones.saturating_mul(mean(settled));
    hidden.saturating_add(updates.saturating_mul(longer)).min(settled.weight())
}

/// Returns the weight of what a leaf has beside its merged branch, the last level, and of what that
/// hides beyond its own: what a merge may free.
pub(super) fn pending_bytes(leaf: &Pivot, sizes: &Sizes) -> u64 {
    let last = leaf.parts.last();
    let merged = last.map_or_else(Totals::default, |last| totals_of(leaf, usize::from(last.level)));
    let mut beside = leaf.pending();
    beside -= merged;
    beside.weight().saturating_add(hidden_beyond(beside, merged, sizes))
}

/// Returns the weight of one level of a pivot.
fn of_level(pivot: &Pivot, level: usize) -> u64 {
    totals_of(pivot, level).weight()
}

/// Returns the totals of one level of a pivot.
fn totals_of(pivot: &Pivot, level: usize) -> Totals {
    let parts = pivot.parts.iter().filter(|part| usize::from(part.level) == level);
    Totals::sum(parts.map(|part| part.totals))
}
