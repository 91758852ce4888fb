//! What an engine asks before it moves anything: how much of a run lies in a range. The answer
//! comes from the index alone and is an estimate by blocks.

use crate::base::epoch::Guard;
use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::run::read::lookup::Run;
use crate::run::read::stream::blocks_of;
use std::ops::Range;

impl Run {
    /// The data blocks that can have entries within `range`: all that a stream reads for it.
    pub fn blocks_in(&self, range: &KeyRange, guard: &Guard) -> Result<Range<u32>> {
        blocks_of(self, range, guard)
    }

    /// The part (0 to 1) of the run's data blocks that can have entries within `range`.
    pub fn share_in(&self, range: &KeyRange, guard: &Guard) -> Result<f64> {
        let blocks = blocks_of(self, range, guard)?;
        Ok(f64::from(blocks.end - blocks.start) / f64::from(self.reference().data_blocks.max(1)))
    }
}
