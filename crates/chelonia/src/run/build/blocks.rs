//! The blocks of a run before they are written, in slabs of the budget.
//!
//! Slabs are aligned, already touched, and shared with all other large allocations, so building a
//! run takes no fresh memory. A run of any size is a list of slabs; each is one write.

use crate::base::error::Result;
use crate::base::ids::BlockNo;
use crate::base::limits::{BLOCK_BYTES, SLAB_BYTES};
use crate::memory::budget::Budget;
use crate::memory::slab::OwnedSlab;
use crate::runtime::sync::Arc;
use crate::storage::{Allocation, Storage};

const BLOCKS_PER_SLAB: usize = SLAB_BYTES / BLOCK_BYTES;

/// Blocks in the order they will have in the extent.
pub struct Blocks {
    budget: Arc<Budget>,
    slabs: Vec<OwnedSlab>,
    count: usize,
}

impl Blocks {
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), slabs: Vec::new(), count: 0 }
    }

    /// Number of blocks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Block `index`; sealed once all were written.
    pub fn block(&self, index: u32) -> &[u8] {
        let (slab, place) = (index as usize / BLOCKS_PER_SLAB, index as usize % BLOCKS_PER_SLAB);
        &self.slabs[slab].bytes()[place * BLOCK_BYTES..(place + 1) * BLOCK_BYTES]
    }

    /// Appends a block.
    pub fn push(&mut self, block: &[u8]) -> Result<()> {
        let (slab, place) = (self.count / BLOCKS_PER_SLAB, self.count % BLOCKS_PER_SLAB);
        if slab == self.slabs.len() {
            self.slabs.push(self.budget.take_work_slab()?);
        }
        let start = place * BLOCK_BYTES;
        self.slabs[slab].bytes_mut()[start..start + BLOCK_BYTES].copy_from_slice(block);
        self.count += 1;
        Ok(())
    }

    /// Seals all blocks and writes them to the start of `allocation`.
    pub fn write(&mut self, storage: &Storage, allocation: &Allocation) -> Result<()> {
        let mut first = allocation.extent.start;
        let mut left = self.count;
        for slab in &mut self.slabs {
            let count = left.min(BLOCKS_PER_SLAB);
            let bytes = &mut slab.bytes_mut()[..count * BLOCK_BYTES];
            storage.write_blocks(first, allocation.generation, bytes)?;
            first = BlockNo(first.0 + count as u64);
            left -= count;
        }
        Ok(())
    }

    /// Removes all blocks and returns the memory except one slab.
    pub fn clear(&mut self) {
        self.slabs.truncate(1);
        self.count = 0;
    }
}
