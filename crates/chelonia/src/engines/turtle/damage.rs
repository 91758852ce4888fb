//! Blocks of old runs that a pass could not read, and what that does to the pass.
//!
//! One rotten block must not stop an absorb, nor hide anything but what it holds. So no pass needs
//! an old run to succeed: what it cannot read stays where it is.
//!
//! ```text
//!   pass -> a read of a run fails with Corrupt -> the block is met; the other tasks go on, so that
//!           as many as possible are met at once -> the pass fails, what it wrote is given back
//!        -> what was met is known; the pass begins anew -> ... until nothing new is met
//! ```
//!
//! A pivot is *stuck* if what a pass would read for it holds a block that is known: its leaf, or
//! a part of it within the pivot's range. A stuck pivot is not flushed, joined or merged with its
//! neighbours. What comes in for it becomes a level of its own; the levels above the first that
//! cannot be read are merged by size as elsewhere ([`super::plan::levels_to_merge`]), those from
//! there on move by reference. So damage costs a pivot at most `levels_max` levels more, however
//! long it lasts. What lies in those levels grows with what is written there, in runs of leaf size.
//!
//! Invariants:
//! 1. What is known changes between passes only: how a pass is planned does not depend on threads.
//! 2. Whatever read meets a block, no pass that knows it makes that read again. So every failure
//!    for this reason leaves more known, and the passes of an absorb come to an end.
//!
//! Nothing of this is kept on disk: after the next open a pass tries once more. A node that cannot
//! be read is beyond this, and fails the absorb.

use super::node::{Child, Pivot};
use super::source::KeySpan;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::BlockNo;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::run::Run;
use crate::runtime::sync::Mutex;
use crate::storage::block::DATA_FILE;
use std::collections::BTreeSet;

/// The damage that the passes of one tree have come to.
#[derive(Default)]
pub(super) struct Damage {
    known: BTreeSet<BlockNo>,
    /// Met by the pass that is under way.
    met: Mutex<BTreeSet<BlockNo>>,
}

impl Damage {
    /// Takes note of `error` if it is a damaged block; else gives it back.
    pub fn meet(&self, error: Error) -> Result<Error> {
        let block = error.offset().map(|offset| BlockNo(offset / BLOCK_BYTES_U64));
        match block {
            Some(block) if error.kind() == ErrorKind::Corrupt && is_in_data(&error) => {
                self.met.lock().insert(block);
                Ok(error)
            }
            _ => Err(error),
        }
    }

    /// Makes what was met known; false if nothing of it is new.
    pub fn learn(&mut self) -> bool {
        let known = self.known.len();
        self.known.append(self.met.get_mut());
        self.known.len() > known
    }

    /// True if any damage is known.
    pub fn is_known(&self) -> bool {
        !self.known.is_empty()
    }

    /// True if a pass must not flush `pivot`, whose range is `span`.
    pub fn sticks(&self, pivot: &Pivot, span: KeySpan<'_>) -> Result<bool> {
        if self.known.is_empty() {
            return Ok(false);
        }
        if let Child::Leaf(leaf) = &pivot.child
            && self.is_within(leaf, 0..leaf.reference().filter_start())
        {
            return Ok(true);
        }
        Ok(self.first_level(pivot, span)?.is_some())
    }

    /// The newest level of a pivot that cannot be read, if there is one.
    pub fn first_level(&self, pivot: &Pivot, span: KeySpan<'_>) -> Result<Option<u8>> {
        for part in &pivot.parts {
            let run = &part.segment.run;
            let reference = run.reference();
            if !self.is_within(run, 0..reference.filter_start()) {
                continue;
            }
            // Without its index nothing of a run can be found.
            if self.is_within(run, reference.data_blocks..reference.filter_start())
                || self.is_within(run, run.blocks_in(&span.to_range())?)
            {
                return Ok(Some(part.level));
            }
        }
        Ok(None)
    }

    /// True if a block of `run` among `blocks` of its extent is known.
    fn is_within(&self, run: &Run, blocks: std::ops::Range<u32>) -> bool {
        let start = run.reference().extent.start.0;
        let block = |index: u32| BlockNo(start + u64::from(index));
        self.known.range(block(blocks.start)..block(blocks.end)).next().is_some()
    }
}

fn is_in_data(error: &Error) -> bool {
    error.file() == Some(DATA_FILE)
}
