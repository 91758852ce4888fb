//! Steps through the entries of one span, in either direction, within a range.
//!
//! Shared by cursors and streams: the span's bytes stay with the caller and are passed with every
//! call; this module holds the position, the assembled key, and the assembled payload of an entry
//! that overflows.

use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{Dictionary, LargeRef, Update};
use crate::run::block::{Entry, EntryKind, KeyBuffer, Layout, SortedBlock};
use crate::storage::block::BlockKind;
use std::ops::Bound;

/// A position in a span.
#[derive(Default)]
pub struct Steps {
    key: KeyBuffer,
    place: Option<Place>,
    /// The large reference of the current entry, decoded.
    large: Option<LargeRef>,
    /// The payload of the current entry, if it overflows.
    overflowing: Vec<u8>,
}

struct Place {
    layout: Layout,
    /// Index of the current entry.
    index: usize,
    /// First entry of the span within the range.
    low: usize,
    /// End of the entries within the range (exclusive).
    high: usize,
    entry: Entry,
}

/// Relation of a span to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entered {
    /// The position is on an entry.
    pub found: bool,
    /// The span extends past the end of the range in this direction: no further span can have
    /// entries within.
    pub last: bool,
}

impl Steps {
    /// The current key.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        self.place.as_ref().map(|_| self.key.as_slice())
    }

    /// Heap bytes held.
    pub fn heap_bytes(&self) -> usize {
        self.key.capacity() + self.overflowing.capacity()
    }

    /// The current update, in a run with this dictionary; a tombstone if there is no current entry.
    #[inline]
    pub fn update<'a>(&'a self, bytes: &'a [u8], dictionary: Option<&'a Dictionary>) -> Update<'a> {
        let Some(place) = &self.place else { return Update::Delete };
        let payload = || match place.entry.overflow {
            0 => &bytes[place.entry.payload..place.entry.end],
            _ => &self.overflowing[..],
        };
        match (place.entry.kind, self.large) {
            (EntryKind::Value, _) => Update::Put(payload()),
            // Checked when the position came here.
            (EntryKind::Compressed, _) => {
                place.entry.update_with(payload(), dictionary).unwrap_or(Update::Delete)
            }
            (EntryKind::Large, Some(large)) => Update::PutLarge(large),
            (EntryKind::Large | EntryKind::Tombstone, _) => Update::Delete,
        }
    }

    /// Fails if the current entry has an inline value that is too large for a run.
    pub fn check_value(&self) -> Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place.entry.check_value())
    }

    /// Clears the position.
    pub fn leave(&mut self) {
        self.place = None;
    }

    /// Moves to the first entry (in `direction`) of the joined span `bytes` that lies in `range`.
    /// Behind the span are the blocks of its last entry's overflow, unless the range ends before.
    pub fn enter(
        &mut self,
        (bytes, dictionary): (&[u8], Option<&Dictionary>),
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Entered> {
        self.place = None;
        let block = SortedBlock::parse(bytes, BlockKind::Data)?;
        let layout = block.layout();
        let low = match &range.lower {
            Bound::Unbounded => 0,
            Bound::Included(key) => block.search(key)?.unwrap_or_else(|place| place),
            Bound::Excluded(key) => block.search(key)?.map_or_else(|place| place, |at| at + 1),
        };
        let high = match &range.upper {
            Bound::Unbounded => layout.count(),
            Bound::Included(key) => block.search(key)?.map_or_else(|place| place, |at| at + 1),
            Bound::Excluded(key) => block.search(key)?.unwrap_or_else(|place| place),
        };
        let last = match direction {
            Direction::Ascending => high < layout.count(),
            Direction::Descending => low > 0,
        };
        if low >= high {
            return Ok(Entered { found: false, last });
        }
        let index = if direction == Direction::Ascending { low } else { high - 1 };
        self.key.set_prefix(&block);
        let entry = self.stand_on(&block, index, dictionary)?;
        self.place = Some(Place { layout, index, low, high, entry });
        Ok(Entered { found: true, last })
    }

    /// Moves to the next entry of the same span. False if there is none; the position is then
    /// unchanged.
    #[inline]
    pub fn step(
        &mut self,
        (bytes, dictionary): (&[u8], Option<&Dictionary>),
        direction: Direction,
    ) -> Result<bool> {
        let Some(place) = &self.place else { return Ok(false) };
        let index = match direction {
            Direction::Ascending if place.index + 1 < place.high => place.index + 1,
            Direction::Descending if place.index > place.low => place.index - 1,
            _ => return Ok(false),
        };
        let block = place.layout.over(bytes);
        let entry = self.stand_on(&block, index, dictionary)?;
        if let Some(place) = &mut self.place {
            place.index = index;
            place.entry = entry;
        }
        Ok(true)
    }

    /// Moves to the next entry, ascending, and fails if its key is not greater than the one before.
    #[inline]
    pub fn step_checked(
        &mut self,
        (bytes, dictionary): (&[u8], Option<&Dictionary>),
    ) -> Result<bool> {
        let Some(Place { entry: before, .. }) = self.place else { return Ok(false) };
        if !self.step((bytes, dictionary), Direction::Ascending)? {
            return Ok(false);
        }
        if let Some(place) = &self.place {
            let block = place.layout.over(bytes);
            block.check_ascends(place.index, &before, &place.entry)?;
            place.entry.check_value()?;
        }
        Ok(true)
    }

    #[inline]
    fn stand_on(
        &mut self,
        block: &SortedBlock<'_>,
        index: usize,
        dictionary: Option<&Dictionary>,
    ) -> Result<Entry> {
        let entry = block.entry(index)?;
        self.key.set(block, index, &entry);
        if entry.overflow > 0 {
            let behind = block.bytes().get(BLOCK_BYTES..).unwrap_or_default();
            self.overflowing.clear();
            entry.gather(block.bytes(), behind.chunks_exact(BLOCK_BYTES), &mut self.overflowing)?;
        }
        if entry.kind != EntryKind::Value {
            let update = match entry.overflow {
                0 => entry.update(block.bytes(), dictionary)?,
                _ => entry.update_with(&self.overflowing, dictionary)?,
            };
            self.large = match update {
                Update::PutLarge(large) => Some(large),
                Update::Put(_) | Update::PutCompressed(_) | Update::Delete => None,
            };
        }
        Ok(entry)
    }
}
