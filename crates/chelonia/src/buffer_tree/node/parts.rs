//! The pending parts of a pivot.

use crate::base::keys::head64;
use crate::buffer_tree::node::Segment;
use crate::run::{RunFilter, Totals};
use crate::runtime::sync::Arc;
use std::ops::Deref;

/// The live entries of a segment in the range of one pivot.
#[derive(Clone)]
pub struct Part {
    /// Level in the buffer; 0 is the newest.
    pub level: u8,
    /// The segment with the run.
    pub segment: Arc<Segment>,
    /// Totals of the live entries.
    pub totals: Totals,
    /// The totals are an estimate: the part was divided between pivots, and not read.
    pub estimated: bool,
    /// Numeric prefix of the segment's first key, and the filter of its run: most lookups need
    /// nothing else of the run.
    head: u64,
    pub filter: RunFilter,
}

impl Part {
    /// Creates a part: the live entries of `segment` in the range of a pivot, with these totals.
    pub fn new(level: u8, segment: Arc<Segment>, totals: Totals) -> Self {
        let filter = segment.run.filter().clone();
        Self { level, head: segment.first.head(), filter, segment, totals, estimated: false }
    }

    /// Returns the same part with estimated `totals`, for a range within its own.
    pub fn within(&self, totals: Totals) -> Self {
        Self { totals, estimated: true, ..self.clone() }
    }

    /// Returns true if all entries of the run are live in the range of the pivot.
    pub fn is_whole(&self) -> bool {
        !self.estimated && self.totals == self.segment.run.reference().totals()
    }

    /// Returns the same part at another level.
    pub fn at_level(&self, level: u8) -> Self {
        Self { level, ..self.clone() }
    }

    /// Returns true if the segment begins at or before `key`, whose numeric prefix is `head`.
    #[inline]
    fn begins_by(&self, key: &[u8], head: u64) -> bool {
        match self.head.cmp(&head) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.segment.first <= *key,
            std::cmp::Ordering::Greater => false,
        }
    }
}

/// The parts of a pivot, ordered by level, and in each level by key.
#[derive(Clone, Default)]
pub struct Parts {
    list: Vec<Part>,
    /// For each level that has parts, the index after its last one: a lookup need not pass all
    /// parts, of which a level may have many.
    level_ends: Box<[usize]>,
}

impl Parts {
    /// Takes the parts in `list`, which are in order.
    pub fn new(list: Vec<Part>) -> Self {
        let levels = list.chunk_by(|one, next| one.level == next.level);
        let ends = levels.scan(0, |end, level| {
            *end += level.len();
            Some(*end)
        });
        let level_ends = ends.collect();
        Self { list, level_ends }
    }

    /// Returns the number of levels that have parts: a lookup checks the filter of one part of
    /// each.
    pub fn filters(&self) -> usize {
        self.level_ends.len()
    }

    /// Returns the parts that can contain `key`, which is in the pivot's range, newest first: of
    /// each level the last one that begins at or before the key.
    #[inline]
    pub fn candidates(&self, key: &[u8]) -> impl Iterator<Item = &Part> {
        let head = head64(key);
        let mut begin = 0;
        self.level_ends.iter().filter_map(move |end| {
            let level = &self.list[std::mem::replace(&mut begin, *end)..*end];
            let begun = level.partition_point(|part| part.begins_by(key, head));
            begun.checked_sub(1).map(|last| &level[last])
        })
    }

    /// Returns its heap bytes, without the segments.
    pub fn heap_bytes(&self) -> usize {
        self.list.len() * size_of::<Part>() + size_of_val(&*self.level_ends)
    }

    /// Changes the list.
    #[cfg(test)]
    pub fn edit(&mut self, change: impl FnOnce(&mut Vec<Part>)) {
        change(&mut self.list);
        *self = Self::new(std::mem::take(&mut self.list));
    }
}

impl Deref for Parts {
    type Target = [Part];

    fn deref(&self) -> &[Part] {
        &self.list
    }
}

impl<'p> IntoIterator for &'p Parts {
    type Item = &'p Part;
    type IntoIter = std::slice::Iter<'p, Part>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}
