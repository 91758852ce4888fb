//! Space management of the data file: allocating and freeing extents, growing and shrinking the
//! file.
//!
//! A full device is detected when the file grows: `File::allocate` reserves device blocks, so that
//! writes to an allocated extent cannot fail for lack of space. The same call is made for free
//! space that may have no device blocks (holes): ranges punched here, and everything that was free
//! at open.
//!
//! ```text
//!   used --free--> fresh --give_back--> hole --allocate (device blocks again)--> used
//!                    '-----------allocate-----------------------------------------^
//! ```
//!
//! Invariants:
//! 1. An extent has one owner at a time, with a generation never used before: `opens << 40 |
//!    counter`; the superblock with this count of opens is durable before. Read-only opens use the
//!    next count.
//! 2. The file is never truncated below `length_min`, which both superblocks may name.
//! 3. Holes and fresh ranges lie in free space.
//! 4. Sealed blocks are never allocated.
//!
//! Space is freed only when no durable root and no version can reach it (`versions/lifetimes.rs`),
//! so free space here may be overwritten, punched and truncated at once.
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
/// in between by a sixteenth of its length: small databases stay small, large ones grow rarely.
const GROWTH_BLOCKS_MIN: u64 = 4;

/// 64 MiB; see [`GROWTH_BLOCKS_MIN`].
const GROWTH_BLOCKS_MAX: u64 = 16 << 10;

/// Free extents shorter than this (64 KiB) are not punched: that would fragment the file.
const HOLE_BLOCKS_MIN: u64 = 16;

/// Most blocks that one call of [`Space::give_back`] returns (4 MiB): the file system lets nobody
/// read the file meanwhile, and the owner's lock is held.
pub const GIVE_BACK_BLOCKS: u64 = 1 << 10;

/// A hole that is reused gets device blocks for at least this many blocks (1 MiB) at once.
const REFILL_BLOCKS: u64 = 256;

/// The bits of a generation that count allocations; those above count opens.
const COUNTER_BITS: u32 = 40;

/// An allocated extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The blocks.
    pub extent: Extent,
    /// The generation to seal its blocks with, and to refer to them by.
    pub generation: Generation,
}

/// Space statistics, in blocks.
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
    /// Free, and returned to the file system or never allocated by it.
    pub hole_blocks: u64,
    /// Frees of extents that were not in use: a bug, or forged metadata that lists one twice or not
    /// at all.
    pub refused_frees: u64,
}

impl SpaceStats {
    /// The free blocks that have device blocks, of a file that has `allocated_bytes` of the device.
    /// Free blocks that were free at open may have some: only the file system knows.
    #[must_use]
    pub fn solid_blocks(&self, allocated_bytes: u64) -> u64 {
        let known = self.free_blocks - self.hole_blocks;
        let allocated = (allocated_bytes / BLOCK_BYTES_U64).saturating_sub(self.used_blocks);
        known.max(allocated.min(self.free_blocks))
    }
}

/// The free space of the data file and its allocator.
#[derive(Debug)]
pub struct Space {
    free: FreeExtents,
    /// Free ranges that may have no device blocks behind them.
    holes: RangeSet,
    /// True if some of them may have device blocks: those that were free at open, or not zeroed.
    holes_suspect: bool,
    /// Ranges freed and not yet processed by `give_back`.
    fresh: RangeSet,
    length_min: u64,
    /// Blocks below this one are sealed: neither allocated nor freed.
    sealed_end: u64,
    /// Statistics of the sealed part at the time of sealing.
    sealed: Option<SpaceStats>,
    opens: u32,
    allocations: u64,
    refused_frees: u64,
}

impl Space {
    /// Creates the space of a file of `file_blocks` complete blocks, all free except the
    /// superblocks. `length_min` is the file length in the superblock.
    #[must_use]
    pub fn new(file_blocks: u64, length_min: u64, opens: u32) -> Self {
        let free = FreeExtents::new(file_blocks);
        let mut holes = RangeSet::default();
        holes.insert(free.tail().unwrap_or(0..0));
        Self {
            free,
            holes_suspect: holes.blocks() > 0,
            holes,
            fresh: RangeSet::default(),
            length_min,
            sealed_end: 0,
            sealed: None,
            opens,
            allocations: 0,
            refused_frees: 0,
        }
    }

    /// Marks an extent that a durable root refers to as used. An extent that overlaps another or
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

    /// Seals the current file: from now on only blocks beyond its end are allocated and freed.
    /// Returns the first of them. For read-only opens, whose blocks are in a scratch file: they are
    /// not counted, so the next writer uses the same generations.
    pub fn seal(&mut self) -> BlockNo {
        self.sealed = Some(self.stats());
        self.sealed_end = self.free.file_blocks();
        self.free.take_all();
        self.holes = RangeSet::default();
        self.fresh = RangeSet::default();
        BlockNo(self.sealed_end)
    }

    /// Allocates `blocks` blocks. `NoSpace` changes nothing.
    pub fn allocate(&mut self, file: &dyn File, blocks: u32) -> Result<Allocation> {
        if blocks == 0 || self.allocations >> COUNTER_BITS != 0 {
            return Err(Error::internal("allocation of zero blocks, or generations exhausted"));
        }
        let extent = match self.find(file, blocks) {
            // Free space in pieces that are too small is returned to the file system first: the
            // file has an address for every block, and any device block will do.
            Err(error)
                if error.kind() == ErrorKind::NoSpace && self.may_have(file, blocks.into()) =>
            {
                self.give_all_back(file)?;
                self.find(file, blocks)?
            }
            found => found?,
        };
        let range = range_of(extent);
        if !self.free.take(range.clone()) {
            return Err(Error::internal("free space indexes are inconsistent"));
        }
        self.fresh.remove(&range);
        self.allocations += 1;
        Ok(Allocation { extent, generation: self.newest_generation() })
    }

    /// Finds free blocks and makes sure that they have device blocks.
    fn find(&mut self, file: &dyn File, blocks: u32) -> Result<Extent> {
        let start = match self.free.find(blocks) {
            Some(start) => start,
            None => self.grow(file, u64::from(blocks))?,
        };
        let extent = Extent::new(start, blocks);
        self.fill_holes(file, &range_of(extent))?;
        Ok(extent)
    }

    /// True if as many free blocks have device blocks, or may have.
    fn may_have(&self, file: &dyn File, blocks: u64) -> bool {
        let allocated = || file.allocated_bytes().map_or(0, |it| self.stats().solid_blocks(it));
        self.solid() >= blocks || (self.holes_suspect && allocated() >= blocks)
    }

    /// The free blocks that are known to have device blocks.
    fn solid(&self) -> u64 {
        self.free.free_blocks() - self.holes.blocks()
    }

    /// Reallocates an extent to its owner with a new generation, and frees what is beyond its first
    /// `blocks` blocks.
    pub fn renew(&mut self, extent: Extent, blocks: u32) -> Result<Allocation> {
        let kept = Extent::new(extent.start.0, blocks.min(extent.blocks));
        if kept.blocks < extent.blocks {
            let start = extent.start.0 + u64::from(kept.blocks);
            self.free(Extent::new(start, extent.blocks - kept.blocks))?;
        }
        self.allocations += 1;
        Ok(Allocation { extent: kept, generation: self.newest_generation() })
    }

    /// A generation that no block was sealed with, for blocks that are written again within an
    /// extent.
    pub fn new_generation(&mut self) -> Result<Generation> {
        if self.allocations >> COUNTER_BITS != 0 {
            return Err(Error::internal("generations exhausted"));
        }
        self.allocations += 1;
        Ok(self.newest_generation())
    }

    /// The first block that may be written: blocks below it are sealed.
    pub fn sealed_end(&self) -> BlockNo {
        BlockNo(self.sealed_end)
    }

    /// The generation of the last allocation, or of this open if there was none yet.
    pub fn newest_generation(&self) -> Generation {
        Generation((u64::from(self.opens) << COUNTER_BITS) | self.allocations)
    }

    /// Grows the file until its free end has `blocks` blocks; returns the start of the free end.
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
            // Undo the partial growth; should that fail too, the file is longer than needed, which
            // the next growth or open corrects.
            let _ = file.set_size(end * BLOCK_BYTES_U64);
            return Err(error);
        }
        self.free.extend(end + grown);
        self.fresh.insert(end..end + grown);
        Ok(start)
    }

    /// Allocates device blocks for the holes of a range that is about to be used.
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

    /// Frees an extent. Freeing a free extent is a bug and reported as an internal error.
    pub fn free(&mut self, extent: Extent) -> Result<()> {
        let range = range_of(extent);
        if range.end <= self.sealed_end {
            return Ok(());
        }
        if !self.free.give(range.clone()) {
            self.refused_frees += 1;
            return Err(Error::internal(format!("extent {extent:?} was freed but is not in use")));
        }
        self.fresh.insert(range);
        Ok(())
    }

    /// Frees an extent that may have lost device blocks.
    pub fn free_as_hole(&mut self, extent: Extent) -> Result<()> {
        self.free(extent)?;
        let range = range_of(extent);
        if range.end > self.sealed_end {
            self.fresh.remove(&range);
            self.holes.insert(range);
            self.holes_suspect = true;
        }
        Ok(())
    }

    /// Returns free space to the file system, except `keep_blocks` of it: truncates the free end of
    /// the file, and punches holes into free extents from high addresses down. At most
    /// [`GIVE_BACK_BLOCKS`] with each of the two; true if a further call will return more.
    pub fn give_back(&mut self, file: &dyn File, keep_blocks: u64) -> Result<bool> {
        let end = self.free.file_blocks();
        let used_end = self.free.used_end();
        let wanted = self.length_min.max(used_end + keep_blocks.min(end - used_end));
        let cut = wanted.max(end.saturating_sub(GIVE_BACK_BLOCKS));
        if cut < end {
            file.set_size(cut * BLOCK_BYTES_U64)?;
            self.holes.remove(&(cut..end));
            self.fresh.remove(&(cut..end));
            if !self.free.cut(cut) {
                return Err(Error::internal("the end of the file is not free"));
            }
            if cut > wanted {
                return Ok(true);
            }
        }
        let mut left = GIVE_BACK_BLOCKS;
        while self.solid() > keep_blocks {
            let Some(range) = self.fresh.pop_last() else { break };
            // A fresh range may be part of a larger free extent: all of it is considered.
            let Some(free) = self.free.containing(range.start) else { continue };
            self.fresh.remove(&free);
            if free.end - free.start < HOLE_BLOCKS_MIN {
                continue;
            }
            if !self.punch(file, &free, &mut left)? {
                self.fresh.insert(free);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Punches a free extent that has some device blocks, from its end, as long as `left` lasts;
    /// true if all of it is a hole then.
    fn punch(&mut self, file: &dyn File, free: &Range<u64>, left: &mut u64) -> Result<bool> {
        for gap in self.holes.gaps(free).into_iter().rev() {
            let start = gap.start.max(gap.end.saturating_sub(*left));
            let blocks = gap.end - start;
            if blocks > 0 {
                file.punch_hole(start * BLOCK_BYTES_U64, blocks * BLOCK_BYTES_U64)?;
                self.holes.insert(start..gap.end);
                *left -= blocks;
            }
            if start > gap.start {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns all free space: the end of the file, and every free extent, however small, including
    /// those that may be holes. Extents free at open may have device blocks.
    pub fn give_all_back(&mut self, file: &dyn File) -> Result<()> {
        mark(Mark::SpaceAllGivenBack);
        while self.give_back(file, 0)? {}
        if self.holes_suspect {
            self.holes = RangeSet::default();
        }
        let mut all = u64::MAX;
        for free in self.free.all() {
            self.fresh.remove(&free);
            self.punch(file, &free, &mut all)?;
        }
        self.holes_suspect = false;
        Ok(())
    }

    /// Returns the length that the superblock about to be written may name. Until
    /// [`Space::superblock_written`] the file keeps what the old and the new one name.
    pub fn superblock_length(&mut self) -> u64 {
        let length = self.free.used_end();
        self.length_min = self.length_min.max(length);
        length
    }

    /// Records that both copies of the superblock name `length`.
    pub fn superblock_written(&mut self, length: u64) {
        self.length_min = length;
    }

    /// The length of the file in blocks.
    #[must_use]
    pub fn file_blocks(&self) -> u64 {
        self.free.file_blocks()
    }

    /// Statistics of the sealed part, as of the sealing; `None` if nothing is sealed.
    #[must_use]
    pub fn sealed_stats(&self) -> Option<SpaceStats> {
        self.sealed
    }

    /// Statistics of the entire file.
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
            refused_frees: self.refused_frees,
        }
    }
}

fn allocate_range(file: &dyn File, range: &Range<u64>) -> Result<()> {
    let bytes = (range.end - range.start).checked_mul(BLOCK_BYTES_U64);
    let offset = range.start.checked_mul(BLOCK_BYTES_U64);
    match (offset, bytes) {
        (Some(offset), Some(bytes)) => file.allocate(offset, bytes),
        _ => Err(Error::new(ErrorKind::NoSpace, "the data file would exceed its maximum length")),
    }
}

mod shared;
#[cfg(test)]
mod tests;
