//! The blocks of a run that can have entries of a range. The answers come from the index alone,
//! which is read if necessary, so the caller holds no guard.

mod stream;

use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::run::read::lookup::Run;
use std::ops::{Bound, Range};
pub use stream::RangesStream;

impl Run {
    /// The data blocks that can have entries within `range`, in complete spans: all that a stream
    /// reads for it.
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
}
