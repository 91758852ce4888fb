//! Dividing entries among the pages of a group by a line: page grouping as in the paper [3.2, 4.5].
//!
//! ```text
//!   bytes before   |            . :      an entry is a point: its key, and the bytes of the
//!   an entry       |        . '          entries before it; the line passes each point within
//!                  |   . : '             `epsilon` bytes, and rises by `goal` bytes in a page
//!                  '---|----|----|---
//!                    0   1    2          pages
//! ```
//!
//! Entries are taken while a line fits. Those that it leads beyond the last page of the group stay
//! for the next one. The paper fits positions of records of one size; bytes serve all sizes [6].

use super::updates::GroupUpdates;
use crate::base::limits::KEY_BYTES_MAX;
use crate::base::stream::{LARGE_REF_BYTES_MAX, Update};
use crate::pages::{Fit, Line, POSITION_BYTES};
use crate::structure::SharedKey;

/// Bytes of an entry in a page beside key and value, about.
const OVERHEAD_BYTES: usize = 3;

/// Sizes of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Maximum number of pages.
    pub pages_max: usize,
    /// Bytes of entries in a page, on average.
    pub goal: usize,
    /// Bytes by which a line may pass an entry.
    pub epsilon: usize,
}

/// How the first entries are divided.
#[derive(Debug)]
pub(super) struct Placed {
    /// Number of entries in each page, at least one.
    pub pages: Vec<usize>,
    /// The line that leads to them; `None` for a single page.
    pub line: Option<Line>,
}

/// Divides the first of `entries` among the pages of a group that begins at `first`; the last group
/// if `is_last` and the line fits all of them. There is at least one entry.
pub(super) fn place(
    first: &SharedKey,
    entries: &GroupUpdates,
    sizes: Sizes,
    is_last: bool,
) -> Placed {
    let last = entries.key(entries.len() - 1);
    // A bound is as long as what is shared and a position, and no longer than a key.
    let common = first.common_with(last).min(KEY_BYTES_MAX - POSITION_BYTES);
    let mut fit = Fit::new(u32::try_from(sizes.epsilon).unwrap_or(u32::MAX));
    let (mut bytes, mut count) = (0, 0);
    // The bytes before the entries at the last position.
    let mut at_last = None;
    while count < entries.len() && bytes < sizes.pages_max * sizes.goal {
        let key = entries.key(count);
        let position = Line::position(first, common, &key[common..]);
        match at_last {
            Some((last, before)) if last == position => {
                if bytes - before > sizes.epsilon {
                    break;
                }
            }
            _ => {
                if !fit.add(position, i64::try_from(bytes).unwrap_or(i64::MAX / 2)) {
                    break;
                }
                at_last = Some((position, bytes));
            }
        }
        bytes += size_of_entry(key.len() - common, &entries.update(count));
        count += 1;
    }
    let all = is_last && count == entries.len();
    let pages = if all { bytes.div_ceil(sizes.goal) } else { bytes / sizes.goal };
    let line = fit.line().filter(|_| pages > 1).map(|(slope, base)| {
        let goal = sizes.goal as f64;
        Line::new(first, common, pages.min(sizes.pages_max), (slope / goal, base / goal))
    });
    line.and_then(|line| along(first, entries, count, line))
        .unwrap_or_else(|| alone(entries, sizes))
}

/// Bytes of a value, or what stands for it, at most.
pub(super) fn payload_len(update: &Update<'_>) -> usize {
    match update {
        Update::Put(value) => value.len(),
        Update::PutCompressed(value) => value.value_len(),
        Update::PutLarge(_) => LARGE_REF_BYTES_MAX,
        Update::Delete => 0,
    }
}

/// Bytes of an entry in a page, if `rest` bytes of its key are not shared.
fn size_of_entry(rest: usize, update: &Update<'_>) -> usize {
    const HEAD_BYTES: usize = 4;
    rest.max(HEAD_BYTES) + payload_len(update) + OVERHEAD_BYTES
}

/// Divides the first `count` entries along a line, up to the first page without entries.
fn along(first: &SharedKey, entries: &GroupUpdates, count: usize, line: Line) -> Option<Placed> {
    let mut pages = vec![0];
    for index in 0..count {
        let Some(page) = line.page_within(first, entries.key(index)) else { break };
        if page > pages.len() {
            break;
        }
        if page == pages.len() {
            pages.push(0);
        }
        pages[page] += 1;
    }
    let line = line.cut(first, pages.len())?;
    (pages[0] > 0).then_some(Placed { pages, line: Some(line) })
}

/// As many entries as a page should have.
fn alone(entries: &GroupUpdates, sizes: Sizes) -> Placed {
    let (mut bytes, mut count) = (0, 0);
    while count < entries.len() && bytes < sizes.goal {
        bytes += size_of_entry(entries.key(count).len(), &entries.update(count));
        count += 1;
    }
    Placed { pages: vec![count], line: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    fn entries(keys: &[u64], value: usize) -> GroupUpdates {
        let mut entries = GroupUpdates::default();
        for key in keys {
            entries.push(&key.to_be_bytes(), Update::Put(&vec![1; value]));
        }
        entries
    }

    const SIZES: Sizes = Sizes { pages_max: 16, goal: 3_400, epsilon: 200 };

    #[test]
    fn regular_keys_fill_a_group_along_a_line() {
        let keys: Vec<u64> = (0..2_000).map(|n| (1 << 40) + n * 1_000).collect();
        let first = SharedKey::whole(&keys[0].to_be_bytes());
        let placed = place(&first, &entries(&keys, 120), SIZES, false);
        assert_eq!(placed.pages.len(), 16);
        assert!(placed.pages.iter().all(|count| (25..=28).contains(count)), "{placed:?}");
    }

    #[test]
    fn every_entry_is_where_its_line_leads_and_pages_have_no_more_than_goal_and_slack() {
        let mut rng = Rng::new(8);
        let mut grouped = 0;
        for round in 0..100 {
            let spread = 1 << (10 + round % 50);
            let mut keys: Vec<u64> = (0..600).map(|_| rng.below(spread)).collect();
            keys.sort_unstable();
            keys.dedup();
            let entries = entries(&keys, [8, 50, 120, 700][round % 4]);
            let first = SharedKey::whole(&keys[0].to_be_bytes());
            let placed = place(&first, &entries, SIZES, round % 2 == 0);
            let Some(line) = placed.line else { continue };
            grouped += 1;
            let rest = 8 - line.common;
            let mut at = 0;
            for (page, count) in placed.pages.iter().enumerate() {
                let mut bytes = 0;
                for _ in 0..*count {
                    assert_eq!(line.page_of(&first, entries.key(at)), page);
                    bytes += size_of_entry(rest, &entries.update(at));
                    at += 1;
                }
                let slack = 2 * SIZES.epsilon + size_of_entry(rest, &entries.update(0));
                assert!(bytes <= SIZES.goal + slack, "{bytes} bytes in a page");
            }
        }
        assert!(grouped > 10, "{grouped}");
    }

    #[test]
    fn keys_that_cannot_be_distinguished_are_in_one_page() {
        let mut entries = GroupUpdates::default();
        for n in 0..400_u32 {
            let key = [&b"the same eight bytes "[..], &n.to_be_bytes()].concat();
            entries.push(&key, Update::Put(&[0; 100]));
        }
        // The first group of a tree begins at the least key, which shares nothing with others.
        let placed = place(&SharedKey::LEAST, &entries, SIZES, false);
        assert!(placed.line.is_none() && placed.pages.len() == 1);
        let first = SharedKey::whole(entries.key(0));
        assert_eq!(place(&first, &entries, SIZES, false).pages.len(), 12);
    }
}
