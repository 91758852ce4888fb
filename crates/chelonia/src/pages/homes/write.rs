//! Images of pages to the device, many together.

use super::region::{Region, head_block};
use super::segments::Segments;
use super::{PART_BYTES, PART_START};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::BLOCK_BYTES;
use crate::memory::buffers::Buffer;
use crate::storage::Storage;
use crate::storage::block::BlockKind;
use crate::storage::data_file::BlockWrite;

/// Images that wait to be written.
pub struct Writes {
    memory: Buffer,
    used: usize,
    /// First block, stamp and blocks of each.
    waiting: Vec<(BlockNo, Generation, usize)>,
    /// Places that zeros wait for.
    cleared: Vec<Extent>,
    blocks_written: u64,
}

impl Writes {
    /// Creates an empty list.
    pub fn new(storage: &Storage) -> Result<Self> {
        let memory = storage.buffers().take()?;
        let (waiting, cleared) = (Vec::new(), Vec::new());
        Ok(Self { memory, used: 0, waiting, cleared, blocks_written: 0 })
    }

    /// Blocks written since the last call.
    pub fn take_count(&mut self) -> u64 {
        std::mem::take(&mut self.blocks_written)
    }

    /// Space for `place`, which is written with this stamp.
    fn space(&mut self, storage: &Storage, place: Extent, stamp: Generation) -> Result<&mut [u8]> {
        let blocks = place.blocks as usize;
        if self.used + blocks * BLOCK_BYTES > self.memory.len() {
            self.flush(storage)?;
        }
        let start = self.used;
        self.used += blocks * BLOCK_BYTES;
        self.waiting.push((place.start, stamp, blocks));
        let space = self.memory.get_mut(start..self.used);
        space.ok_or_else(|| Error::internal("a page is larger than the buffer of writes"))
    }

    /// Writes the whole page to slot `place` of a home.
    pub fn page(
        &mut self,
        storage: &Storage,
        (region, home, place): (&Region, u8, u8),
        stamp: Generation,
        page: &[u8],
    ) -> Result<()> {
        let space = self.space(storage, region.place_of(home, place), stamp)?;
        for (block, part) in space.chunks_exact_mut(BLOCK_BYTES).zip(page.chunks(PART_BYTES)) {
            head_block(block, BlockKind::Page, stamp, region.generation());
            block[PART_START..PART_START + part.len()].copy_from_slice(part);
        }
        // A base differs in nothing from itself.
        Segments::default().note(&mut space[PART_START..]);
        Ok(())
    }

    /// Writes the segments `set` of the page to the delta block `place` of a home, over the base
    /// with this stamp and in this slot.
    pub fn delta(
        &mut self,
        storage: &Storage,
        (region, home, place): (&Region, u8, u8),
        (stamp, base, slot): (Generation, Generation, u8),
        (set, segment_bytes): (Segments, usize),
        page: &[u8],
    ) -> Result<()> {
        let block = self.space(storage, region.place_of(home, place), stamp)?;
        head_block(block, BlockKind::Delta, stamp, region.generation());
        set.write(page, (base.0, slot), segment_bytes, &mut block[PART_START..]);
        Ok(())
    }

    /// Overwrites a place that no version needs with zeros, which take no space on storage that
    /// compresses.
    pub fn clear(&mut self, (region, home, place): (&Region, u8, u8)) {
        self.cleared.push(region.place_of(home, place));
    }

    /// Writes what waits.
    pub fn flush(&mut self, storage: &Storage) -> Result<()> {
        // First: an image is never overwritten by zeros that wait for an older one.
        if !self.cleared.is_empty() {
            storage.zero_many(&self.cleared)?;
            let blocks = self.cleared.drain(..).map(|place| u64::from(place.blocks));
            self.blocks_written += blocks.sum::<u64>();
        }
        let mut rest = &mut self.memory[..self.used];
        let mut writes = Vec::with_capacity(self.waiting.len());
        for (first, generation, blocks) in self.waiting.drain(..) {
            let (own, behind) = rest.split_at_mut(blocks * BLOCK_BYTES);
            writes.push(BlockWrite { first, generation, blocks: own });
            rest = behind;
        }
        self.blocks_written += (self.used / BLOCK_BYTES) as u64;
        self.used = 0;
        if writes.is_empty() { Ok(()) } else { storage.write_many(&mut writes) }
    }
}
