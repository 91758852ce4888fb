//! Large values: each in an extent of its own, passed by reference from merge to merge.
//!
//! ```text
//!   value of n bytes -> ceil(n / 4080) blocks of kind LargeValue
//!   each block: header of 16 bytes, 4080 bytes of the value; the last one ends in zeros
//! ```
//!
//! A value is written and read in pieces of one slab (256 KiB) charged as work memory, so that
//! memory stays bounded by the value that the caller holds anyway. Every block is verified.
//!
//! Invariants:
//! 1. A reference whose extent and length do not match is corruption; it is checked before anything
//!    is allocated.

use super::Storage;
use crate::base::bytes::Value;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::BlockNo;
use crate::base::limits::{BLOCK_BYTES, SLAB_BYTES, VALUE_BYTES_MAX};
use crate::base::stream::LargeRef;
use crate::storage::block::{
    BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockKind, DATA_FILE, expect_kind,
};

/// Blocks of a piece.
const PIECE_BLOCKS: usize = SLAB_BYTES / BLOCK_BYTES;

/// Bytes of the value in a piece.
const PIECE_BYTES: usize = PIECE_BLOCKS * BLOCK_PAYLOAD_BYTES;

impl Storage {
    /// Writes `value` into an extent of its own. `value` must have 1 to [`VALUE_BYTES_MAX`] bytes.
    pub fn write_large(&self, value: &[u8]) -> Result<LargeRef> {
        if value.is_empty() || value.len() > VALUE_BYTES_MAX {
            let text = format!("a value must have 1 to {VALUE_BYTES_MAX} bytes to be large");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let bytes = u32::try_from(value.len()).map_err(|_| Error::internal("a limit is broken"))?;
        let blocks = bytes.div_ceil(payload_u32());
        let allocation = self.allocate_uncounted(blocks)?;
        let reference =
            LargeRef { extent: allocation.extent, generation: allocation.generation, bytes };
        if let Err(error) = self.write_pieces(&reference, value) {
            self.free(allocation.extent)?;
            return Err(error);
        }
        Ok(reference)
    }

    fn write_pieces(&self, reference: &LargeRef, value: &[u8]) -> Result<()> {
        let mut slab = self.budget().take_work_slab()?;
        let mut first = reference.extent.start.0;
        for piece in value.chunks(PIECE_BYTES) {
            let count = piece.len().div_ceil(BLOCK_PAYLOAD_BYTES);
            let blocks = &mut slab.bytes_mut()[..count * BLOCK_BYTES];
            let parts = piece.chunks(BLOCK_PAYLOAD_BYTES);
            for (block, part) in blocks.chunks_exact_mut(BLOCK_BYTES).zip(parts) {
                let (header, payload) = block.split_at_mut(BLOCK_HEADER_BYTES);
                header.fill(0);
                header[8] = BlockKind::LargeValue as u8;
                payload[..part.len()].copy_from_slice(part);
                // Slabs are recycled: clear the rest so that no stale bytes reach the device.
                payload[part.len()..].fill(0);
            }
            self.write_blocks(BlockNo(first), reference.generation, blocks)?;
            first += count as u64;
        }
        Ok(())
    }

    /// Reads and verifies a large value.
    pub fn read_large(&self, reference: &LargeRef) -> Result<Value> {
        let bytes = check(reference)?;
        Value::filled(bytes, |value| {
            let mut rest = value;
            self.read_pieces(reference, |part| {
                let length = part.len().min(rest.len());
                let (head, tail) = std::mem::take(&mut rest).split_at_mut(length);
                head.copy_from_slice(&part[..length]);
                rest = tail;
            })
        })
    }

    /// Reads a large value and checks every block of it; returns the number of blocks.
    pub fn verify_large(&self, reference: &LargeRef) -> Result<u64> {
        check(reference)?;
        self.read_pieces(reference, |_| {})?;
        Ok(u64::from(reference.extent.blocks))
    }

    /// Passes the payload of each block to `take`, in order.
    fn read_pieces(&self, reference: &LargeRef, mut take: impl FnMut(&[u8])) -> Result<()> {
        let mut slab = self.budget().take_work_slab()?;
        let mut first = reference.extent.start.0;
        let end = reference.extent.end().0;
        while first < end {
            let count = usize::try_from(end - first).unwrap_or(PIECE_BLOCKS).min(PIECE_BLOCKS);
            let blocks = &mut slab.bytes_mut()[..count * BLOCK_BYTES];
            self.read_blocks(BlockNo(first), reference.generation, blocks)?;
            for (number, block) in (first..).zip(blocks.chunks_exact(BLOCK_BYTES)) {
                expect_kind(block, BlockKind::LargeValue, BlockNo(number))?;
                take(&block[BLOCK_HEADER_BYTES..]);
            }
            first += count as u64;
        }
        Ok(())
    }
}

/// The length of the value, if the reference is consistent.
fn check(reference: &LargeRef) -> Result<usize> {
    let bytes = reference.bytes as usize;
    let possible = (1..=VALUE_BYTES_MAX).contains(&bytes)
        && reference.extent.blocks == reference.bytes.div_ceil(payload_u32());
    let place = reference.extent.start.0.saturating_mul(BLOCK_BYTES as u64);
    if possible && reference.extent.start.0 < u64::MAX / 2 {
        return Ok(bytes);
    }
    Err(Error::corrupt("reference to a large value: extent and length do not match")
        .at(DATA_FILE, place))
}

const fn payload_u32() -> u32 {
    const PAYLOAD: u32 = {
        assert!(BLOCK_PAYLOAD_BYTES == 4080);
        4080
    };
    PAYLOAD
}
