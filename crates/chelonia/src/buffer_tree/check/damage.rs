//! Unreadable blocks of old runs, and their effect on passes.
//!
//! A single unreadable block must not stop an absorb, nor hide more than its own contents.
//! Therefore no pass depends on old runs: unreadable runs stay in place.
//!
//! ```text
//!   pass -> a read of a run fails with Corrupt -> the block is recorded; the other tasks go on, so
//!           that one pass meets as many blocks as possible -> the pass fails, its output is freed
//!        -> recorded blocks become known; the pass starts again -> ... until no new block is met
//! ```
//!
//! A pivot is *stuck* if a pass would have to read a known damaged block for it: in its leaf, or in
//! a part within the pivot's range. A stuck pivot is not flushed, joined or merged with its
//! neighbours. Its incoming updates become a level of its own; the levels above the first
//! unreadable one are merged by size as usual, those from there
//! on move by reference. So damage costs a pivot at most `levels_max` more levels, however long it
//! lasts. The contents of those levels grow with the updates written there, in runs of leaf size.
//!
//! Invariants:
//! 1. Known damage changes only between passes: the plan of a pass does not depend on threads.
//! 2. Once any read has met a block, no pass that knows it repeats that read. So every failure for
//!    this reason adds to the known damage, and the retries of an absorb end.
//!
//! Damage is not stored on disk: after the next open a pass tries again. An unreadable node is not
//! handled here, and fails the absorb.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::BlockNo;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::buffer_tree::node::{Child, Pivot};
use crate::buffer_tree::span::KeySpan;
use crate::run::Run;
use crate::runtime::sync::Mutex;
use crate::storage::block::DATA_FILE;
use std::collections::BTreeSet;

/// Damage met by the passes of one tree.
#[derive(Default)]
pub struct Damage {
    known: BTreeSet<BlockNo>,
    /// Blocks met by the current pass.
    met: Mutex<BTreeSet<BlockNo>>,
}

impl Damage {
    /// Records the block if `error` is a damaged block; otherwise returns the error.
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

    /// Makes the recorded blocks known; returns false if none of them is new.
    pub fn learn(&mut self) -> bool {
        let known = self.known.len();
        self.known.append(self.met.get_mut());
        self.known.len() > known
    }

    /// Adds what another pass learned.
    pub fn adopt(&mut self, other: &mut Self) {
        self.known.append(&mut other.known);
    }

    /// Returns the number of blocks that are known to be unreadable.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns true if any damage is known.
    pub fn is_known(&self) -> bool {
        !self.known.is_empty()
    }

    /// Returns true if a pass must not flush `pivot`, whose range is `span`.
    pub fn sticks(&self, pivot: &Pivot, span: KeySpan<'_>) -> Result<bool> {
        if self.known.is_empty() {
            return Ok(false);
        }
        if let Child::Leaf(leaf) = &pivot.child
            && (self.is_within(leaf, 0..leaf.reference().filter_start())
                || self.has_damaged_dictionary(leaf))
        {
            return Ok(true);
        }
        Ok(self.first_level(pivot, span)?.is_some())
    }

    /// Returns the newest unreadable level of a pivot, if any.
    pub fn first_level(&self, pivot: &Pivot, span: KeySpan<'_>) -> Result<Option<u8>> {
        for part in &pivot.parts {
            let run = &part.segment.run;
            let reference = run.reference();
            // Merges cannot read a run without its dictionary, whatever the range.
            if self.has_damaged_dictionary(run) {
                return Ok(Some(part.level));
            }
            if !self.is_within(run, 0..reference.filter_start()) {
                continue;
            }
            // Without its index a run cannot be read.
            if self.is_within(run, reference.data_blocks..reference.filter_start()) {
                return Ok(Some(part.level));
            }
            let is_unreadable = match run.blocks_in(&span.to_range()) {
                Ok(blocks) => self.is_within(run, blocks),
                // A block of the index that no pass has met yet.
                Err(error) if error.kind() == ErrorKind::Corrupt => true,
                Err(error) => return Err(error),
            };
            if is_unreadable {
                return Ok(Some(part.level));
            }
        }
        Ok(None)
    }

    fn has_damaged_dictionary(&self, run: &Run) -> bool {
        let start = run.reference().dictionary_start();
        self.is_within(run, start..start + run.reference().dictionary_blocks())
    }

    /// Returns true if a known damaged block is among `blocks` of the extent of `run`.
    fn is_within(&self, run: &Run, blocks: std::ops::Range<u32>) -> bool {
        let start = run.reference().extent.start.0;
        let block = |index: u32| BlockNo(start + u64::from(index));
        self.known.range(block(blocks.start)..block(blocks.end)).next().is_some()
    }
}

fn is_in_data(error: &Error) -> bool {
    error.file() == Some(DATA_FILE)
}
