//! The blocks of a run that can have entries of a range. The answers come from the index alone,
//! which is read if necessary, so the caller holds no guard.

mod stream;

use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::run::block::KeyBuffer;
use crate::run::read::lookup::Run;
use crate::run::reference::BlockSpan;
use crate::storage::block::BlockKind;
use std::ops::{Bound, Range};
pub use stream::RangesStream;

impl Run {
    /// The data blocks that can have entries within `range`, in complete spans, with the overflows
    /// of these entries: all that a stream reads for it.
    pub fn blocks_in(&self, range: &KeyRange) -> Result<Range<u32>> {
        if range.is_empty() {
            return Ok(0..0);
        }
        let start = self.first_block(&range.lower)?;
        Ok(start..self.end_block(&range.upper)?.max(start))
    }

    /// The first block that can have entries at or after `lower`.
    pub(in crate::run) fn first_block(&self, lower: &Bound<Vec<u8>>) -> Result<u32> {
        match lower {
            Bound::Unbounded => Ok(0),
            Bound::Included(key) | Bound::Excluded(key) => {
                Ok(self.locate(key)?.map_or(0, |span| span.first))
            }
        }
    }

    /// The end of the blocks that can have entries before `upper`.
    pub(in crate::run) fn end_block(&self, upper: &Bound<Vec<u8>>) -> Result<u32> {
        match upper {
            Bound::Unbounded => Ok(self.reference().data_blocks),
            Bound::Included(key) | Bound::Excluded(key) => {
                Ok(self.locate(key)?.map_or(0, |span| span.end()))
            }
        }
    }

    /// The part (0 to 1) of the run's data blocks that can have entries within `range`: an estimate
    /// for decisions that are made before any data is read.
    pub fn share_in(&self, range: &KeyRange) -> Result<f64> {
        let blocks = self.blocks_in(range)?;
        Ok(f64::from(blocks.end - blocks.start) / f64::from(self.reference().data_blocks.max(1)))
    }

    /// Calls `visit` with separators of the index, ascending, at least `step` of the run's data
    /// blocks apart: a key, and the first block that can have entries from it on. Together they
    /// divide the blocks that can have entries within `range`; the key may be the end of `range`.
    /// `visit` must not read from the device.
    pub fn marks_in(
        &self,
        range: &KeyRange,
        step: u32,
        visit: &mut dyn FnMut(&[u8], u32),
    ) -> Result<()> {
        let blocks = self.blocks_in(range)?;
        let mut marks = Marks { next: blocks.start.saturating_add(step.max(1)), step, blocks };
        let levels = self.reference().index_levels;
        if levels == 0 || marks.next >= marks.blocks.end {
            return Ok(());
        }
        self.mark(self.reference().root(), levels, range, &mut marks, visit)
    }

    /// Visits the marks below an index span at `level`.
    fn mark(
        &self,
        parent: BlockSpan,
        level: u8,
        range: &KeyRange,
        marks: &mut Marks,
        visit: &mut dyn FnMut(&[u8], u32),
    ) -> Result<()> {
        let mut below = Vec::new();
        self.read_span(parent, BlockKind::Index, |block, _| {
            let first = match &range.lower {
                Bound::Included(key) | Bound::Excluded(key) => block.search(key)?,
                Bound::Unbounded => Ok(0),
            };
            let first = first.unwrap_or_else(|place| place.saturating_sub(1));
            let mut key = KeyBuffer::default();
            key.set_prefix(&block);
            for place in first..block.layout().count() {
                let child = self.child(&block, place, parent, level)?;
                if level > 1 {
                    below.push(child);
                } else if child.first >= marks.blocks.end {
                    break;
                } else if child.first >= marks.next {
                    key.set(&block, place, &block.entry(place)?);
                    visit(key.as_slice(), child.first);
                    marks.next = child.first.saturating_add(marks.step.max(1));
                }
            }
            Ok(())
        })?;
        for child in below {
            if marks.next >= marks.blocks.end {
                break;
            }
            self.mark(child, level - 1, range, marks, visit)?;
        }
        Ok(())
    }
}

/// The marks of a range that are still to be visited.
struct Marks {
    /// The first block that may be marked.
    next: u32,
    step: u32,
    blocks: Range<u32>,
}
