//! The parts of a pivot: their order, and their division among pivots.

use crate::base::error::{ErrorKind, Result};
use crate::base::keys::KeyRange;
use crate::base::stream::SortedStream;
use crate::buffer_tree::node::{Part, Segment};
use crate::buffer_tree::span::KeySpan;
use crate::run::{Run, RunStream, Totals};
use crate::runtime::sync::{Arc, AtomicBool, Ordering};
use crate::structure::{KeyView, SharedKey};
use std::collections::BTreeSet;

/// Maximum number of blocks of a run in a range that are read to count the entries there: two
/// spans of small entries. A range behind the last key has the last span.
const COUNTED_BLOCKS: u32 = 12;

/// Number of runs of a level that lie between none of the next level's, after which the other runs
/// of that level stay, too. Keys in random order have no others.
const OVERLAPPING_MAX: usize = 8;

/// Returns `parts`, which are in order, with levels numbered from 0 without gaps.
pub(super) fn numbered(mut parts: Vec<Part>) -> Vec<Part> {
    let (mut before, mut next) = (None, 0);
    for part in &mut parts {
        if before.is_some_and(|before| before != part.level) {
            next += 1;
        }
        before = Some(part.level);
        part.level = next;
    }
    parts
}

/// Returns true if `parts` have levels from 0 without gaps, of one level the runs begin at keys of
/// their own, and no run is in two.
pub(super) fn is_ordered(parts: &[Part]) -> bool {
    let mut runs = BTreeSet::new();
    if !parts.iter().all(|part| runs.insert(part.segment.run.reference().extent)) {
        return false;
    }
    let mut before: Option<&Part> = None;
    parts.iter().all(|part| match before.replace(part) {
        None => part.level == 0,
        Some(before) if before.level == part.level => before.segment.first < part.segment.first,
        Some(before) => before.level + 1 == part.level,
    })
}

/// Returns the same part of a segment that begins at `key`, if the segment may begin before it.
pub(super) fn begin_at(part: &Part, key: &SharedKey) -> Part {
    if part.segment.first >= *key {
        return part.clone();
    }
    let shared = AtomicBool::new(part.segment.shared.load(Ordering::Relaxed));
    let segment = Segment { run: Arc::clone(&part.segment.run), first: key.clone(), shared };
    Part::new(part.level, Arc::new(segment), part.totals)
}

/// Returns those of `parts` that may have entries in `span`, a piece of their range, with estimated
/// totals.
pub(super) fn share(parts: &[Part], span: KeySpan<'_>) -> Result<Vec<Part>> {
    let mut shares = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let next = parts.get(index + 1).filter(|next| next.level == part.level);
        let begins: KeyView<'_> = part.segment.first.view();
        let is_before = next.is_some_and(|next| next.segment.first.view() <= span.lower);
        if is_before || span.upper.is_some_and(|upper| begins >= upper) {
            continue;
        }
        let run = &part.segment.run;
        match share_of(run, part.totals, span)? {
            Some(Share::Exact(totals)) => {
                shares.push(Part::new(part.level, Arc::clone(&part.segment), totals));
            }
            Some(Share::Estimated(totals)) => shares.push(part.within(totals)),
            None => {}
        }
    }
    Ok(shares)
}

/// Moves runs of the newest `came` levels down, each through all levels between whose runs its
/// entries lie: so keys that are inserted in order come to be in one level. The range of the pivot
/// that has `parts` ends at `upper`. Returns the parts, with the number of runs that were moved.
/// Blocks of runs may be read; a run stays where it is if they cannot be.
pub(super) fn sink(parts: &[Part], came: usize, upper: Option<KeyView<'_>>) -> (Vec<Part>, u64) {
    let levels = parts.chunk_by(|one, next| one.level == next.level);
    let mut levels: Vec<Vec<Part>> = levels.map(<[Part]>::to_vec).collect();
    let mut moved = 0;
    for newest in (0..came.min(levels.len())).rev() {
        let mut overlapping = 0;
        for part in std::mem::take(&mut levels[newest]) {
            let mut depth = newest;
            while overlapping < OVERLAPPING_MAX
                && levels.get(depth + 1).is_some_and(|older| lies_between(&part, older, upper))
            {
                depth += 1;
            }
            moved += u64::from(depth > newest);
            overlapping += usize::from(depth == newest);
            let at = levels[depth].partition_point(|one| one.segment.first < part.segment.first);
            levels[depth].insert(at, part);
        }
    }
    let numbers = (0..=u8::MAX)
        .zip(levels)
        .flat_map(|(number, level)| level.into_iter().map(move |part| part.at_level(number)));
    (numbered(numbers.collect()), moved)
}

/// Returns true if the entries of `part` lie before, behind or between those of the runs of a
/// level; false if they do not, seem not to, or cannot be read.
fn lies_between(part: &Part, level: &[Part], upper: Option<KeyView<'_>>) -> bool {
    let first = &part.segment.first;
    let ends_before = |one: &Part, key: &SharedKey| {
        let behind = KeySpan { lower: key.view(), upper };
        matches!(share_of(&one.segment.run, one.totals, behind), Ok(None))
    };
    let next = level.partition_point(|one| one.segment.first <= *first);
    let before = next.checked_sub(1).map(|before| &level[before]);
    before.is_none_or(|one| one.segment.first < *first && ends_before(one, first))
        && level.get(next).is_none_or(|one| ends_before(part, &one.segment.first))
}

/// How much of a run is in a range.
enum Share {
    Exact(Totals),
    Estimated(Totals),
}

/// Returns how much of a run, of which `live` is live in a wider range, is in `span`; `None` if
/// nothing is. A few blocks are read; more are estimated.
fn share_of(run: &Arc<Run>, live: Totals, span: KeySpan<'_>) -> Result<Option<Share>> {
    let reference = run.reference();
    let all = u64::from(reference.data_blocks.max(1));
    let range = span.to_range();
    let blocks = match run.blocks_in(&range) {
        Ok(blocks) if blocks.end - blocks.start <= COUNTED_BLOCKS => {
            return match count(run, range) {
                Ok(totals) => Ok((totals.entries > 0).then_some(Share::Exact(totals))),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    Ok(Some(Share::Estimated(live)))
                }
                Err(error) => Err(error),
            };
        }
        Ok(blocks) => u64::from(blocks.end - blocks.start),
        // Reads report the damage; a move by reference does not depend on it.
        Err(error) if error.kind() == ErrorKind::Corrupt => all,
        Err(error) => return Err(error),
    };
    let part = |whole: u64, most: u64| {
        let part = u128::from(whole) * u128::from(blocks.min(all)) / u128::from(all);
        u64::try_from(part).unwrap_or(u64::MAX).min(most)
    };
    let entries = part(reference.entries, live.entries).max(1);
    let tombstones = part(reference.tombstones, live.tombstones).min(entries);
    let bytes = part(reference.user_bytes, live.bytes);
    Ok(Some(Share::Estimated(Totals { entries, tombstones, bytes })))
}

/// Counts the entries of a run in `range`.
fn count(run: &Arc<Run>, range: KeyRange) -> Result<Totals> {
    let mut stream = RunStream::new(run, range)?;
    let mut totals = Totals::default();
    while let Some(key) = stream.key() {
        totals.add_entry(key, &stream.update());
        stream.advance()?;
    }
    Ok(totals)
}
