//! Free extents of the data file: fast lookup, lowest address first, merged with free neighbors.
//!
//! A free extent is indexed twice: by its start (to merge neighbors) and by its size class and
//! start (to find one that fits). Classes are exact up to 16 blocks, then eight per doubling, so a
//! found extent is at most an eighth too long if its class has any; within a class the lowest
//! address wins. The extent at the end of the file is taken last, so that the end empties and can
//! be truncated.
//!
//! Invariants:
//! 1. Free extents are not empty, do not touch each other, and lie between the superblocks and the
//!    end of the file.
//! 2. Both indexes hold the same extents; `free_blocks` is their sum.
//!
//! Free space is not stored: an open starts with everything free and marks what the roots reach.
//! Thread-safety: guarded by its owner. No I/O here; `crate::storage::space` does that.

use crate::base::ids::Extent;
use crate::storage::data_file::superblock::FIRST_BLOCK;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How many extents of the requested size class are tried before the next larger class.
const SAME_CLASS_TRIES: usize = 16;

/// The free space of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreeExtents {
    /// Length by start, in blocks.
    by_start: BTreeMap<u64, u64>,
    by_class: BTreeSet<(u16, u64)>,
    file_blocks: u64,
    free_blocks: u64,
}

impl FreeExtents {
    /// Creates the free space of a file of `file_blocks` blocks in which only the superblocks are
    /// used.
    #[must_use]
    pub fn new(file_blocks: u64) -> Self {
        let mut free = Self {
            by_start: BTreeMap::new(),
            by_class: BTreeSet::new(),
            file_blocks: FIRST_BLOCK,
            free_blocks: 0,
        };
        free.extend(file_blocks.max(FIRST_BLOCK));
        free
    }

    /// The length of the file in blocks.
    #[must_use]
    pub fn file_blocks(&self) -> u64 {
        self.file_blocks
    }

    /// All free blocks.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// The length of the largest free extent, in blocks.
    #[must_use]
    pub fn largest(&self) -> u64 {
        let Some((class, _)) = self.by_class.last() else { return 0 };
        let members = self.by_class.range((*class, 0)..);
        members.map(|(_, start)| self.by_start[start]).max().unwrap_or(0)
    }

    /// The free extent at the end of the file.
    #[must_use]
    pub fn tail(&self) -> Option<Range<u64>> {
        let (start, length) = self.by_start.last_key_value()?;
        (start + length == self.file_blocks).then_some(*start..self.file_blocks)
    }

    /// All free extents, ordered by address.
    #[must_use]
    pub fn all(&self) -> Vec<Range<u64>> {
        self.by_start.iter().map(|(start, length)| *start..start + length).collect()
    }

    /// The end of the last extent in use.
    #[must_use]
    pub fn used_end(&self) -> u64 {
        self.tail().map_or(self.file_blocks, |tail| tail.start)
    }

    /// The free extent that holds block `number`.
    #[must_use]
    pub fn containing(&self, number: u64) -> Option<Range<u64>> {
        let (start, length) = self.by_start.range(..=number).next_back()?;
        (number < start + length).then(|| *start..start + length)
    }

    /// Finds `blocks` contiguous free blocks.
    #[must_use]
    pub fn find(&self, blocks: u32) -> Option<u64> {
        let blocks = u64::from(blocks);
        let class = class_of(blocks);
        let tail = self.tail().map(|tail| tail.start);
        let own = || self.by_class.range((class, 0)..(class + 1, 0)).map(|(_, start)| *start);
        let fits = |start: &u64| Some(*start) != tail && self.by_start[start] >= blocks;
        let larger = || {
            let mut larger = self.by_class.range((class + 1, 0)..).map(|(_, start)| *start);
            larger.find(|start| Some(*start) != tail)
        };
        own()
            .take(SAME_CLASS_TRIES)
            .find(fits)
            .or_else(larger)
            .or_else(|| own().skip(SAME_CLASS_TRIES).find(fits))
            .or_else(|| tail.filter(|start| self.by_start[start] >= blocks))
    }

    /// Marks a free range as used; returns false, and changes nothing, unless all of it is free.
    #[must_use]
    pub fn take(&mut self, range: Range<u64>) -> bool {
        let Some(whole) = self.containing(range.start) else { return false };
        if range.is_empty() || range.end > whole.end {
            return false;
        }
        self.remove(&whole);
        self.add(whole.start..range.start);
        self.add(range.end..whole.end);
        true
    }

    /// Marks everything as used.
    pub fn take_all(&mut self) {
        *self =
            Self { by_start: BTreeMap::new(), by_class: BTreeSet::new(), free_blocks: 0, ..*self };
    }

    /// Marks a used range of the file as free; returns false, and changes nothing, if any of it is
    /// free already, a superblock, or outside the file.
    #[must_use]
    pub fn give(&mut self, range: Range<u64>) -> bool {
        let inside = FIRST_BLOCK <= range.start && range.end <= self.file_blocks;
        if range.is_empty() || !inside {
            return false;
        }
        let before = self.by_start.range(..range.end).next_back().map(|(s, l)| *s..s + l);
        if before.as_ref().is_some_and(|before| before.end > range.start) {
            return false;
        }
        let after = self.by_start.get(&range.end).map(|length| range.end..range.end + length);
        let mut joined = range;
        if let Some(before) = before.filter(|before| before.end == joined.start) {
            self.remove(&before);
            joined.start = before.start;
        }
        if let Some(after) = after {
            self.remove(&after);
            joined.end = after.end;
        }
        self.add(joined);
        true
    }

    /// Records that the file was grown to `file_blocks`: the new end is free.
    pub fn extend(&mut self, file_blocks: u64) {
        let grown = self.file_blocks..file_blocks;
        self.file_blocks = self.file_blocks.max(file_blocks);
        let _ = self.give(grown);
    }

    /// Records that the file was truncated to `file_blocks`; returns false, and changes nothing,
    /// unless everything beyond is free.
    #[must_use]
    pub fn cut(&mut self, file_blocks: u64) -> bool {
        let fits = self.tail().is_some_and(|tail| tail.contains(&file_blocks));
        if fits && self.take(file_blocks..self.file_blocks) {
            self.file_blocks = file_blocks;
            return true;
        }
        false
    }

    fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let length = range.end - range.start;
        self.by_start.insert(range.start, length);
        self.by_class.insert((class_of(length), range.start));
        self.free_blocks += length;
    }

    fn remove(&mut self, range: &Range<u64>) {
        let length = range.end - range.start;
        self.by_start.remove(&range.start);
        self.by_class.remove(&(class_of(length), range.start));
        self.free_blocks -= length;
    }
}

/// The size class of a length: itself up to 16, then eight to a doubling; grows with the length.
fn class_of(length: u64) -> u16 {
    if length < 8 {
        return u16::try_from(length).unwrap_or(u16::MAX);
    }
    let shift = length.ilog2() - 3;
    // At most 60 * 8 + 15.
    u16::try_from(u64::from(shift) * 8 + (length >> shift)).unwrap_or(u16::MAX)
}

/// The blocks of an extent as a range.
#[must_use]
pub fn range_of(extent: Extent) -> Range<u64> {
    extent.start.0..extent.start.0.saturating_add(u64::from(extent.blocks))
}

/// A set of block numbers, kept as ranges that do not touch each other.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RangeSet {
    /// End by start.
    ends: BTreeMap<u64, u64>,
    blocks: u64,
}

impl RangeSet {
    /// The number of blocks in the set.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The parts of `range` that are in the set.
    #[must_use]
    pub fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.ends.range(..range.start).next_back();
        let inside = self.ends.range(range.start..range.end.max(range.start));
        let clip = |(start, end): (&u64, &u64)| (*start).max(range.start)..(*end).min(range.end);
        before.into_iter().chain(inside).map(clip).filter(|part| !part.is_empty()).collect()
    }

    /// The parts of `range` that are not in the set.
    #[must_use]
    pub fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for part in self.within(range) {
            if at < part.start {
                gaps.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.remove(&range);
        self.blocks += range.end - range.start;
        let mut joined = range;
        let before = self.ends.range(..joined.start).next_back().map(|(s, e)| *s..*e);
        if let Some(before) = before.filter(|before| before.end == joined.start) {
            joined.start = before.start;
        }
        if let Some(end) = self.ends.remove(&joined.end) {
            joined.end = end;
        }
        self.ends.insert(joined.start, joined.end);
    }

    /// Removes a range, whether it is in the set or not.
    pub fn remove(&mut self, range: &Range<u64>) {
        for part in self.within(range) {
            let whole = self.ends.range(..=part.start).next_back().map(|(s, e)| *s..*e);
            let Some(whole) = whole else { continue };
            self.ends.remove(&whole.start);
            if whole.start < part.start {
                self.ends.insert(whole.start, part.start);
            }
            if part.end < whole.end {
                self.ends.insert(part.end, whole.end);
            }
            self.blocks -= part.end - part.start;
        }
    }

    /// Takes out the range with the highest start.
    pub fn pop_last(&mut self) -> Option<Range<u64>> {
        let (start, end) = self.ends.pop_last()?;
        self.blocks -= end - start;
        Some(start..end)
    }
}

#[cfg(test)]
mod tests;
