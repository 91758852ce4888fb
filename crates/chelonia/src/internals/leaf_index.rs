//! The index of a leaf alone, for the benchmark that holds it against a trie.

use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::memory::budget::Budget;
use crate::run::block::SortedBlock;
use crate::run::{Blocks, IndexBuilder};
use crate::storage::block::BlockKind;

/// The index blocks of a run.
pub struct LeafIndex {
    blocks: Blocks,
    /// The block of the root.
    root: u32,
    /// Number of levels, with the root.
    levels: u8,
}

impl LeafIndex {
    /// The index of a run whose blocks these separators divide, each a block of its own.
    ///
    /// # Errors
    /// If a separator is too large.
    pub fn new(separators: &[Vec<u8>]) -> Result<Self> {
        let mut blocks = Blocks::new(&Budget::new(1 << 30));
        let mut builder = IndexBuilder::default();
        for (place, separator) in separators.iter().enumerate() {
            builder.add(separator, place, 1)?;
        }
        let (levels, root_blocks) = builder.build(&mut blocks)?;
        let count = u32::try_from(blocks.count()).unwrap_or(u32::MAX);
        if root_blocks != 1 {
            return Err(Error::internal("the root of an index has several blocks"));
        }
        Ok(Self { root: count.saturating_sub(1), levels, blocks })
    }

    /// Bytes of its blocks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.count() * crate::base::limits::BLOCK_BYTES
    }

    /// The block of the run that can have `key`, as a lookup finds it.
    ///
    /// # Errors
    /// If the index is damaged.
    pub fn find(&self, key: &[u8]) -> Result<u32> {
        let mut block = self.root;
        for level in (1..=self.levels).rev() {
            let node = SortedBlock::parse(self.blocks.block(block), BlockKind::Index)?;
            let place = match node.search(key)? {
                Ok(place) => place,
                Err(place) => place.saturating_sub(1),
            };
            let entry = node.entry(place)?;
            let payload = &node.bytes()[entry.payload..entry.end];
            let child = Decoder::new(payload, "index").varint_u32()?;
            if level == 1 {
                return Ok(child);
            }
            // Blocks of the run are counted, but are not here.
            block = child;
        }
        Err(Error::internal("an index without levels"))
    }
}
