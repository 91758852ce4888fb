//! The space of the data file: extents handed out and taken back, the file grown and shrunk.
//!
//! Growing is where a full device shows: the file is grown by `File::allocate`, so that writes to
//! an extent that was handed out cannot fail for lack of space. The same is done again for free
//! space that may have no blocks of the device behind it (holes): what was punched here, and
//! everything that was free at open.
//!
//! ```text
//!   used --free--> fresh --give_back--> hole --allocate (device blocks again)--> used
//!                    '-----------allocate-----------------------------------------^
//! ```
//!
//! Invariants:
//! 1. An extent is handed out to one owner at a time, with a generation never used before:
//!    `opens << 40 | counter`; the superblock with this count of opens is durable before.
//! 2. The file is never cut below `length_min`, which both superblocks may name.
//! 3. Holes and fresh ranges lie in free space.
//! 4. What was sealed is never handed out.
//!
//! Space is freed by db only when no durable root and no version can reach it
//! (`versions/lifetimes.rs`), so whatever is free here may be overwritten, punched and cut off at
//! once.
//! Thread-safety: guarded by its owner.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::runtime::coverage::{Mark, mark};
use crate::storage::block::DATA_FILE;
use crate::storage::extents::{FreeExtents, RangeSet, range_of};
use crate::storage::io::File;
use std::ops::Range;

/// The file grows by at least this (16 KiB), by at most [`GROWTH_BLOCKS_MAX`] beyond the need, and
/// in between by a sixteenth of its length: small databases stay small, large ones grow seldom.
const GROWTH_BLOCKS_MIN: u64 = 4;

/// 64 MiB; see [`GROWTH_BLOCKS_MIN`].
const GROWTH_BLOCKS_MAX: u64 = 16 << 10;

/// Free extents shorter than this (64 KiB) are not worth a hole: file systems would scatter.
const HOLE_BLOCKS_MIN: u64 = 16;

/// A hole that is used again gets blocks of the device for at least so much (1 MiB) at once.
const REFILL_BLOCKS: u64 = 256;

/// The bits of a generation that count allocations; those above count opens.
const COUNTER_BITS: u32 = 40;

/// An extent handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The blocks.
    pub extent: Extent,
    /// What to seal them with, and to refer to them by.
    pub generation: Generation,
}

/// Figures of the space, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SpaceStats {
    /// The length of the file.
    pub file_blocks: u64,
    /// In use, superblocks included.
    pub used_blocks: u64,
    /// Free within the file.
    pub free_blocks: u64,
    /// The longest free extent.
    pub largest_free_blocks: u64,
    /// Free, and given back to the file system or never asked of it.
    pub hole_blocks: u64,
}

/// Who owns which block.
#[derive(Debug)]
pub struct Space {
    free: FreeExtents,
    /// Free ranges that may have no device blocks behind them.
    holes: RangeSet,
    /// Some of them may have blocks: those that were free at open.
    holes_suspect: bool,
    /// Ranges freed and not looked at by `give_back` yet.
    fresh: RangeSet,
    length_min: u64,
    /// Blocks below this one are not ours to use.
    sealed_end: u64,
    /// What there was of them when they were sealed.
    sealed: Option<SpaceStats>,
    opens: u32,
    allocations: u64,
}

impl Space {
    /// The space of a file with `file_blocks` whole blocks, all free but the superblocks.
    /// `length_min` is what the superblock says of the length.
    #[must_use]
    pub fn new(file_blocks: u64, length_min: u64, opens: u32) -> Self {
        let free = FreeExtents::new(file_blocks);
        let mut holes = RangeSet::default();
        holes.insert(free.tail().unwrap_or(0..0));
        Self {
            free,
            holes,
            holes_suspect: true,
            fresh: RangeSet::default(),
            length_min,
            sealed_end: 0,
            sealed: None,
            opens,
            allocations: 0,
        }
    }

    /// Marks an extent used that a durable root refers to. An extent that overlaps another or
    /// reaches past the file is corruption. Only before the first [`Space::allocate`].
    pub fn mark_used(&mut self, extent: Extent) -> Result<()> {
        if self.allocations > 0 {
            return Err(Error::internal("extents are marked only before the first allocation"));
        }
        let range = range_of(extent);
        if !self.free.take(range.clone()) {
            let reason = if range.is_empty() || range.end > self.free.file_blocks() {
                "an extent is empty or reaches past the end of the file"
            } else {
                "two structures own the same block"
            };
            let place = extent.start.0.saturating_mul(BLOCK_BYTES_U64);
            return Err(Error::corrupt(reason).at(DATA_FILE, place));
        }
        self.holes.remove(&range);
        Ok(())
    }

    /// From now on only what is beyond the file as it is now is handed out and taken back. Returns
    /// where that begins. For readers: their open is not counted, so that the generations they hand
    /// out may repeat those of the last writer. Nothing but this keeps the two apart.
    pub fn seal(&mut self) -> BlockNo {
        self.sealed = Some(self.stats());
        self.sealed_end = self.free.file_blocks();
        self.free.take_all();
        self.holes = RangeSet::default();
        self.fresh = RangeSet::default();
        BlockNo(self.sealed_end)
    }

    /// Hands out `blocks` blocks that nobody owns. `NoSpace` changes nothing.
    pub fn allocate(&mut self, file: &dyn File, blocks: u32) -> Result<Allocation> {
        if blocks == 0 || self.allocations >> COUNTER_BITS != 0 {
            return Err(Error::internal("an allocation is empty or one too many"));
        }
        let extent = match self.find(file, blocks) {
            // What is free in pieces that are too small is given back for it: the file has a place
            // for every block, and the device does not care which.
            Err(error) if error.kind() == ErrorKind::NoSpace && self.solid() >= blocks.into() => {
                self.give_all_back(file)?;
                self.find(file, blocks)?
            }
            found => found?,
        };
        let range = range_of(extent);
        if !self.free.take(range.clone()) {
            return Err(Error::internal("the free space contradicts itself"));
        }
        self.fresh.remove(&range);
        self.allocations += 1;
        Ok(Allocation { extent, generation: self.newest_generation() })
    }

    /// Finds free blocks and makes sure that the device has them.
    fn find(&mut self, file: &dyn File, blocks: u32) -> Result<Extent> {
        let start = match self.free.find(blocks) {
            Some(start) => start,
            None => self.grow(file, u64::from(blocks))?,
        };
        let extent = Extent::new(start, blocks);
        self.fill_holes(file, &range_of(extent))?;
        Ok(extent)
    }

    /// The free blocks that the device keeps for the file.
    fn solid(&self) -> u64 {
        self.free.free_blocks() - self.holes.blocks()
    }

    /// Hands an extent that was handed out before to its owner anew, with a new generation, but for
    /// what is beyond its first `blocks` blocks, which is taken back.
    pub fn renew(&mut self, extent: Extent, blocks: u32) -> Result<Allocation> {
        let kept = Extent::new(extent.start.0, blocks.min(extent.blocks));
        if kept.blocks < extent.blocks {
            let start = extent.start.0 + u64::from(kept.blocks);
            self.free(Extent::new(start, extent.blocks - kept.blocks))?;
        }
        self.allocations += 1;
        Ok(Allocation { extent: kept, generation: self.newest_generation() })
    }

    /// The generation of the last allocation; of this open, if there was none yet.
    pub fn newest_generation(&self) -> Generation {
        Generation((u64::from(self.opens) << COUNTER_BITS) | self.allocations)
    }

    /// Grows the file until its free end has `blocks` blocks; returns where that begins.
    fn grow(&mut self, file: &dyn File, blocks: u64) -> Result<u64> {
        let end = self.free.file_blocks();
        let start = self.free.used_end();
        let need = blocks - (end - start).min(blocks);
        let chunk = need.max((end / 16).clamp(GROWTH_BLOCKS_MIN, GROWTH_BLOCKS_MAX));
        let mut grown = chunk;
        let mut result = allocate_range(file, &(end..end + chunk));
        let full = |result: &Result<()>| {
            result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
        };
        if full(&result) && need < chunk {
            mark(Mark::FileGrewExactly);
            grown = need;
            result = allocate_range(file, &(end..end + need));
        }
        if let Err(error) = result {
            // What was grown in vain is cut off again; should that fail too, the file is longer
            // than it needs to be, which the next growth or open puts right.
            let _ = file.set_size(end * BLOCK_BYTES_U64);
            return Err(error);
        }
        self.free.extend(end + grown);
        self.fresh.insert(end..end + grown);
        Ok(start)
    }

    /// Puts device blocks behind the holes of a range that is about to be used.
    fn fill_holes(&mut self, file: &dyn File, range: &Range<u64>) -> Result<()> {
        let Some(first) = self.holes.within(range).into_iter().next() else { return Ok(()) };
        let free_end = self.free.containing(range.start).map_or(range.end, |free| free.end);
        let ahead = first.start..free_end.min(range.end.max(first.start + REFILL_BLOCKS));
        let filled = match allocate_range(file, &ahead) {
            Err(error) if error.kind() == ErrorKind::NoSpace && ahead.end > range.end => {
                mark(Mark::HolesFilledExactly);
                let exact = first.start..range.end;
                allocate_range(file, &exact)?;
                exact
            }
            result => result.map(|()| ahead)?,
        };
        self.holes.remove(&filled);
        let ahead = range.end..filled.end;
        self.fresh.insert(ahead);
        Ok(())
    }

    /// Takes an extent back. Freeing what is free already is a bug, told as such.
    pub fn free(&mut self, extent: Extent) -> Result<()> {
        let range = range_of(extent);
        if range.end <= self.sealed_end {
            return Ok(());
        }
        if !self.free.give(range.clone()) {
            return Err(Error::internal(format!("extent {extent:?} is freed and not in use")));
        }
        self.fresh.insert(range);
        Ok(())
    }

    /// Gives free space back to the file system, all but `keep_blocks` of it: cuts the free end of
    /// the file, and punches holes into free extents from high addresses down.
    pub fn give_back(&mut self, file: &dyn File, keep_blocks: u64) -> Result<()> {
        let end = self.free.file_blocks();
        let used_end = self.free.used_end();
        let cut = self.length_min.max(used_end + keep_blocks.min(end - used_end));
        if cut < end {
            file.set_size(cut * BLOCK_BYTES_U64)?;
            self.holes.remove(&(cut..end));
            self.fresh.remove(&(cut..end));
            if !self.free.cut(cut) {
                return Err(Error::internal("the end of the file is not free"));
            }
        }
        while self.solid() > keep_blocks {
            let Some(range) = self.fresh.pop_last() else { break };
            // A fresh range may be a part of a free extent: all of that is looked at.
            let Some(free) = self.free.containing(range.start) else { continue };
            self.fresh.remove(&free);
            if free.end - free.start < HOLE_BLOCKS_MIN {
                continue;
            }
            self.punch(file, &free)?;
        }
        Ok(())
    }

    /// Takes the device blocks from all of a free extent that has some.
    fn punch(&mut self, file: &dyn File, free: &Range<u64>) -> Result<()> {
        for gap in self.holes.gaps(free) {
            let bytes = (gap.end - gap.start) * BLOCK_BYTES_U64;
            file.punch_hole(gap.start * BLOCK_BYTES_U64, bytes)?;
            self.holes.insert(gap);
        }
        Ok(())
    }

    /// Gives all free space back: the end of the file, and every free extent, however small, also
    /// those that may be holes. What was free at open may be none.
    pub fn give_all_back(&mut self, file: &dyn File) -> Result<()> {
        mark(Mark::SpaceAllGivenBack);
        self.give_back(file, 0)?;
        if self.holes_suspect {
            self.holes = RangeSet::default();
        }
        for free in self.free.all() {
            self.fresh.remove(&free);
            self.punch(file, &free)?;
        }
        self.holes_suspect = false;
        Ok(())
    }

    /// A superblock is about to be written: the length it may name. Until
    /// [`Space::superblock_written`] the file keeps what the old and the new one name.
    pub fn superblock_length(&mut self) -> u64 {
        let length = self.free.used_end();
        self.length_min = self.length_min.max(length);
        length
    }

    /// Both copies of the superblock name `length` now.
    pub fn superblock_written(&mut self, length: u64) {
        self.length_min = length;
    }

    /// The length of the file in blocks.
    #[must_use]
    pub fn file_blocks(&self) -> u64 {
        self.free.file_blocks()
    }

    /// Figures of the part that is sealed, as it was before; `None` if nothing is.
    #[must_use]
    pub fn sealed_stats(&self) -> Option<SpaceStats> {
        self.sealed
    }

    /// Figures of the whole.
    #[must_use]
    pub fn stats(&self) -> SpaceStats {
        let file_blocks = self.free.file_blocks();
        let free_blocks = self.free.free_blocks();
        SpaceStats {
            file_blocks,
            used_blocks: file_blocks - free_blocks,
            free_blocks,
            largest_free_blocks: self.free.largest(),
            hole_blocks: self.holes.blocks(),
        }
    }
}

fn allocate_range(file: &dyn File, range: &Range<u64>) -> Result<()> {
    let bytes = (range.end - range.start).checked_mul(BLOCK_BYTES_U64);
    let offset = range.start.checked_mul(BLOCK_BYTES_U64);
    match (offset, bytes) {
        (Some(offset), Some(bytes)) => file.allocate(offset, bytes),
        _ => Err(Error::new(ErrorKind::NoSpace, "the data file would be too long")),
    }
}

#[cfg(test)]
mod tests;
