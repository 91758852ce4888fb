//! Self-verifying blocks of 4 KiB.
//!
//! ```text
//! offset size
//!      0    8  checksum: XXH3-64 of bytes 8..4096, seeded with the block's identity
//!      8    1  kind ([`BlockKind`])
//!      9    7  for the structure in the block
//!     16 4080  for the structure in the block
//! ```
//!
//! All integers of the store are little-endian. The *identity* is the database's salt, the
//! generation of the extent and the block's number in the data file, mixed by
//! [`crate::base::checksum::identity`]. References to an extent carry its generation, so a block is
//! accepted only if it was written to this place, in this use of the place, in this database: one
//! check detects damaged, stale (lost writes) and misdirected blocks.

use crate::base::checksum::{checksum, identity};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Generation};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};

/// Offset of the structure in the block (after checksum and kind; bytes 9 to 15 may be used too).
pub const BLOCK_HEADER_BYTES: usize = 16;

/// The space after the header.
pub const BLOCK_PAYLOAD_BYTES: usize = BLOCK_BYTES - BLOCK_HEADER_BYTES;

/// The name of the data file, for errors.
pub const DATA_FILE: &str = "data";

/// The content type of a block. The numbers are on disk and never change their meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BlockKind {
    /// Entries of a run.
    Data = 1,
    /// The continuation of a span of entries that began in an earlier block.
    DataMore = 2,
    /// Separators of a run.
    Index = 3,
    /// A part of a run's filter.
    Filter = 4,
    /// The large values that a run refers to.
    LargeRefs = 5,
    /// A part of a large value.
    LargeValue = 6,
    /// A part of an engine's structure (nodes).
    Engine = 7,
    /// A part of the catalog.
    Catalog = 8,
    /// A part of a page that is updated in its home.
    Page = 9,
    /// The delta of such a page.
    Delta = 10,
    /// The continuation of a value whose key is in an earlier block of a run.
    DataOverflow = 11,
    /// The dictionary of a run's compressed values.
    Dictionary = 12,
}

/// The seed of a block's checksum.
#[inline]
#[must_use]
pub fn block_seed(salt: u64, generation: Generation, number: BlockNo) -> u64 {
    identity([salt, generation.0, number.0])
}

/// Writes the checksum of `block`, whose content is complete. Panics unless it is one full block.
pub fn seal(block: &mut [u8], salt: u64, generation: Generation, number: BlockNo) {
    assert_eq!(block.len(), BLOCK_BYTES, "only whole blocks are sealed");
    let sum = checksum(&block[8..], block_seed(salt, generation, number));
    block[..8].copy_from_slice(&sum.to_le_bytes());
}

/// Seals consecutive blocks from `first` on.
pub fn seal_all(blocks: &mut [u8], salt: u64, generation: Generation, first: BlockNo) {
    for (index, block) in blocks.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        seal(block, salt, generation, BlockNo(first.0 + index as u64));
    }
}

/// Verifies that `block` was sealed under this identity.
pub fn verify(block: &[u8], salt: u64, generation: Generation, number: BlockNo) -> Result<()> {
    let stored = block.first_chunk::<8>().map(|sum| u64::from_le_bytes(*sum));
    let right = block.len() == BLOCK_BYTES
        && stored == Some(checksum(&block[8..], block_seed(salt, generation, number)));
    if right {
        return Ok(());
    }
    Err(Error::corrupt("block checksum mismatch")
        .at(DATA_FILE, number.0.saturating_mul(BLOCK_BYTES_U64)))
}

/// Verifies consecutive blocks from `first` on.
pub fn verify_all(blocks: &[u8], salt: u64, generation: Generation, first: BlockNo) -> Result<()> {
    for (index, block) in blocks.chunks_exact(BLOCK_BYTES).enumerate() {
        verify(block, salt, generation, BlockNo(first.0 + index as u64))?;
    }
    Ok(())
}

/// Fails unless `block` (verified before) holds `kind`.
pub fn expect_kind(block: &[u8], kind: BlockKind, number: BlockNo) -> Result<()> {
    if block.get(8) == Some(&(kind as u8)) {
        return Ok(());
    }
    Err(Error::corrupt(format!("block is not of kind {kind:?}"))
        .at(DATA_FILE, number.0.saturating_mul(BLOCK_BYTES_U64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_believed_only_in_its_place_and_time() {
        let mut block = vec![5_u8; BLOCK_BYTES];
        seal(&mut block, 1, Generation(2), BlockNo(3));
        assert!(verify(&block, 1, Generation(2), BlockNo(3)).is_ok());
        for (salt, generation, number) in [(9, 2, 3), (1, 9, 3), (1, 2, 9)] {
            let error = verify(&block, salt, Generation(generation), BlockNo(number)).unwrap_err();
            assert_eq!(error.offset(), Some(number * BLOCK_BYTES_U64));
        }
        for place in [0, 8, 100, BLOCK_BYTES - 1] {
            block[place] ^= 0x40;
            assert!(verify(&block, 1, Generation(2), BlockNo(3)).is_err());
            block[place] ^= 0x40;
        }
    }
}
