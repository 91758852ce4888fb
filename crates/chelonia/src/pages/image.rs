//! Builds the image of a page.

use crate::base::error::{Error, Result};
use crate::base::limits::{BLOCK_BYTES, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::Update;
use crate::run::block::{EntryKind, PART, SPAN_BLOCKS_MAX};
use crate::run::{Added, BlockBuilder, Totals};
use crate::storage::block::{BLOCK_PAYLOAD_BYTES, BlockKind};

/// Larger pages than this are only used for records that do not fit in them.
const SHARED_BLOCKS_MAX: usize = 6;

/// A page may waste at most this part (a quarter) for the end of the last record.
const WASTE_DIVISOR: usize = 4;

/// The number of blocks of a page for records like one with a key and a payload of these lengths:
/// one if at least three of four bytes of it can be used, otherwise as few as possible.
#[must_use]
pub fn blocks_of_page(key_len: usize, payload_len: usize) -> usize {
    let alone = BlockBuilder::blocks_alone(key_len, payload_len);
    let record = key_len + payload_len;
    let waste = |blocks: &usize| {
        let bytes = blocks * BLOCK_PAYLOAD_BYTES;
        (bytes - bytes / record.max(1) * record) * WASTE_DIVISOR / bytes
    };
    let sizes = alone..=alone.max(SHARED_BLOCKS_MAX);
    sizes.clone().find(|blocks| waste(blocks) == 0).unwrap_or(alone)
}

/// Collects the entries of a page, and lays them out.
pub struct PageBuilder {
    block: BlockBuilder,
    payload: Vec<u8>,
    totals: Totals,
    large: u32,
}

impl PageBuilder {
    /// Creates an empty builder.
    #[must_use]
    pub fn new() -> Self {
        let (payload, totals, large) = (Vec::new(), Totals::default(), 0);
        Self { block: BlockBuilder::new(1), payload, totals, large }
    }

    /// True if it has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// The first key.
    #[must_use]
    pub fn first_key(&self) -> Option<&[u8]> {
        self.block.first_key()
    }

    /// The last key.
    #[must_use]
    pub fn last_key(&self) -> Option<&[u8]> {
        self.block.last_key()
    }

    /// Bytes of the entries when laid out, without headers.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.block.used_bytes()
    }

    /// The totals of the entries, and the number of large values among them.
    #[must_use]
    pub fn totals(&self) -> (Totals, u32) {
        (self.totals, self.large)
    }

    /// Adds an entry if the page then takes at most `bytes_max` bytes in `blocks` blocks; false if
    /// it does not fit. Keys must ascend. Tombstones have no place in pages.
    pub fn add(
        &mut self,
        (blocks, bytes_max): (usize, usize),
        key: &[u8],
        update: Update<'_>,
    ) -> Result<bool> {
        if self.last_key().is_some_and(|last| key <= last) {
            let text = "merged entries do not ascend: a page has keys of others; run \
                        `chelonia verify`";
            return Err(Error::corrupt(text));
        }
        let size = (blocks, bytes_max);
        let added = match update {
            Update::Put(value) if value.len() < LARGE_VALUE_BYTES_MIN => {
                self.block.add_within(size, key, EntryKind::Value, value)?
            }
            Update::PutLarge(large) => {
                self.payload.clear();
                large.encode(&mut self.payload);
                self.block.add_within(size, key, EntryKind::Large, &self.payload)?
            }
            Update::PutCompressed(_) => {
                return Err(Error::internal("a compressed value came to a page"));
            }
            Update::Put(_) => return Err(Error::internal("a value is too large for a page")),
            Update::Delete => return Err(Error::internal("a tombstone came to a page")),
        };
        if added == Added::Full {
            return Ok(false);
        }
        self.totals.add_entry(key, &update);
        self.large += u32::from(update.large().is_some());
        Ok(true)
    }

    /// Lays out the page in `image`, `blocks` complete blocks, unsealed, and removes its entries.
    pub fn lay_out(&mut self, image: &mut [u8]) -> Result<()> {
        let mut rest = &mut *image;
        let mut parts = 0_u16;
        self.block.lay_out(BlockKind::Data, &mut |block| {
            let (head, tail) = std::mem::take(&mut rest)
                .split_at_mut_checked(BLOCK_BYTES)
                .ok_or_else(|| Error::internal("a page is larger than its slot"))?;
            head.copy_from_slice(block);
            rest = tail;
            parts += 1;
            Ok(())
        })?;
        // The blocks of the slot that the entries do not need.
        for block in rest.chunks_exact_mut(BLOCK_BYTES) {
            block.fill(0);
            block[8] = BlockKind::DataMore as u8;
            block[PART..PART + 2].copy_from_slice(&parts.to_le_bytes());
            parts += 1;
        }
        self.clear();
        Ok(())
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.block.clear();
        (self.totals, self.large) = (Totals::default(), 0);
    }
}

/// True if pages may have this many blocks.
#[must_use]
pub fn is_page_size(blocks: u32) -> bool {
    (1..=SPAN_BLOCKS_MAX).contains(&blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_wastes_little() {
        assert_eq!([0, 20, 120, 500, 1000].map(|value| blocks_of_page(8, value)), [1; 5]);
        assert_eq!(blocks_of_page(8, 2040), 2);
        assert_eq!(blocks_of_page(8, 3500), 1);
        for value in (0..LARGE_VALUE_BYTES_MIN).step_by(37) {
            let blocks = blocks_of_page(100, value);
            let bytes = blocks * BLOCK_PAYLOAD_BYTES;
            assert!(bytes / (100 + value) > 0 && blocks <= 9, "{value}: {blocks}");
        }
        assert!(blocks_of_page(65_000, 4_000) <= SPAN_BLOCKS_MAX as usize);
    }
}
