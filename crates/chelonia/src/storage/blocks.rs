//! Reads and writes of blocks by the layers above storage, bypassing the cache.
//!
//! Writes go to extents that the caller owns: they were allocated with the generation that seals
//! their blocks, and nothing that is durable refers to them yet. Every block read is verified.
//! `data_file` checks the ranges and counts the blocks; reads of the cache are in `cache`.
//!
//! Thread-safety: every method may be called from any thread; writes to the same block must be
//! ordered by the caller.

use super::Storage;
use super::cache::Priority;
use super::data_file::{BlockRead, BlockWrite};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};

impl Storage {
    /// Seals `blocks` (complete blocks of an extent with this generation) and writes them from
    /// block `first` on. The caller owns the extent. After any failure the database must not be
    /// written any more.
    pub fn write_blocks(
        &self,
        first: BlockNo,
        generation: Generation,
        blocks: &mut [u8],
    ) -> Result<()> {
        self.file.write_blocks(first, generation, blocks)
    }

    /// Seals and writes several block ranges together, in no particular order; they must not
    /// overlap. The caller owns their extents. After any failure the database must not be written
    /// any more: any of the ranges may have been written, wholly or partly.
    pub fn write_many(&self, writes: &mut [BlockWrite<'_>]) -> Result<()> {
        self.file.write_many(writes)
    }

    /// Fills `buffer` (whole blocks) from block `first` on, bypassing the cache, and verifies
    /// every block.
    pub fn read_blocks(
        &self,
        first: BlockNo,
        generation: Generation,
        buffer: &mut [u8],
    ) -> Result<()> {
        self.file.read_blocks(first, generation, buffer)
    }

    /// Reads blocks like [`Storage::read_blocks`] and passes each damaged one to `find`.
    pub fn check_blocks(
        &self,
        first: BlockNo,
        generation: Generation,
        buffer: &mut [u8],
        mut find: impl FnMut(Error),
    ) -> Result<()> {
        self.file.read_each(first, generation, buffer, &mut |block| {
            if let Err(error) = block {
                find(error);
            }
        })
    }

    /// Reads and verifies several block ranges together for a scan, bypassing the cache.
    pub fn read_many(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.cache.timed(Priority::Scan, || self.file.read_many(reads))
    }

    /// Writes zeros to several block ranges together, which the caller owns. They are written, not
    /// only noted in the file system, so that a device that compresses knows of them.
    pub fn zero_many(&self, ranges: &[Extent]) -> Result<()> {
        self.file.zero_many(ranges)
    }

    /// Reads several block ranges together, bypassing the cache, for a caller that verifies each
    /// block by [`Storage::verify_block`]: it does not know with which generation they were sealed.
    pub fn read_unverified(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.cache.timed(Priority::Data, || self.file.read_unverified(reads))
    }

    /// Verifies that `block` was sealed with this generation as block `number`.
    pub fn verify_block(
        &self,
        number: BlockNo,
        generation: Generation,
        block: &[u8],
    ) -> Result<()> {
        self.file.verify(number, generation, block)
    }

    /// True if block `number` may be overwritten: not in a file that only a scratch file continues.
    #[must_use]
    pub fn is_writable_block(&self, number: BlockNo) -> bool {
        number >= self.space.lock().sealed_end()
    }
}
