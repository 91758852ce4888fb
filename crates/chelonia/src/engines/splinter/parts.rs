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

/// Maximum number of blocks of a run in a range that are read to count the entries there.
const COUNTED_BLOCKS: u32 = 2;

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

/// Makes one level of each of the newest `came` levels and the level below it, if the entries of
/// their runs lie side by side. The range of the pivot that has `parts` ends at `upper`. Blocks of
/// older runs may be read; levels stay apart if they cannot be.
pub(super) fn side_by_side(parts: &[Part], came: usize, upper: Option<KeyView<'_>>) -> Vec<Part> {
    let levels = parts.chunk_by(|one, next| one.level == next.level);
    let mut levels: Vec<Vec<Part>> = levels.map(<[Part]>::to_vec).collect();
    for newer in (0..came.min(levels.len().saturating_sub(1))).rev() {
        if let Some(one) = beside(&levels[newer], &levels[newer + 1], upper) {
            levels.splice(newer..=newer + 1, [one]);
        }
    }
    numbered(levels.concat())
}

/// Returns the parts of two levels as one level; `None` if a run has, or seems to have, an entry
/// behind the first key of the next one, or cannot be read.
fn beside(newer: &[Part], older: &[Part], upper: Option<KeyView<'_>>) -> Option<Vec<Part>> {
    let level = older.first()?.level;
    let mut all: Vec<&Part> = newer.iter().chain(older).collect();
    all.sort_by(|one, other| one.segment.first.cmp(&other.segment.first));
    for pair in all.windows(2) {
        let [one, next] = [pair[0], pair[1]];
        if one.level == next.level {
            continue;
        }
        let behind = KeySpan { lower: next.segment.first.view(), upper };
        let is_before = one.segment.first < next.segment.first
            && matches!(share_of(&one.segment.run, one.totals, behind), Ok(None));
        if !is_before {
            return None;
        }
    }
    Some(all.into_iter().map(|part| part.at_level(level)).collect())
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
