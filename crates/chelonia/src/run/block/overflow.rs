//! Values that overflow the block of their key.
//!
//! ```text
//!   head                          overflow blocks, each full        next head
//!   [ 8 | .. entries | value ~ ][ ~~~~~~~~~~~~~~ ][ ~~~~~~~~~ ][ 8 | .. entries |   | ~ end ]
//!                     passes on                                   receives, at its end
//! ```
//!
//! Only the last entry of a block can overflow, and only its payload: keys are complete in the
//! block, so that a search needs nothing else. The end of the payload, when it fills no whole
//! block, is at the end of the next head; if nothing more fits there, it has an overflow block of
//! its own, at the end of it too. So a get of such a value reads these blocks and no others, and
//! heads and slots of every block are in its first cache lines.
//!
//! A head in which an overflow begins or ends has eight bytes more in its header, before the heads
//! of its entries:
//!
//! ```text
//! offset size
//!     16    2  received: bytes at the end of this block of an entry in an earlier one
//!     18    2  zero
//!     20    4  passed on: bytes of this block's last entry in the blocks after it
//! ```
//!
//! An overflow block (`DataOverflow`):
//!
//! ```text
//! offset size
//!      0    9  checksum, kind
//!      9    1  zero
//!     10    2  distance from the head, in blocks
//!     12    2  zero
//!     14    2  received: bytes at the end of this block; 4080 unless it is the last
//! ```

use super::{EXTENDED, Entry, HEADS, PART, SPAN, USED, damaged, is_of, span_of};
use super::{u16_at, u32_at};
use crate::base::error::Result;
use crate::base::limits::{BLOCK_BYTES, LARGE_VALUE_BYTES_MIN};
use crate::storage::block::{BLOCK_PAYLOAD_BYTES, BlockKind};

/// The eight bytes more in the header.
pub(in crate::run) const EXTENSION_BYTES: usize = 8;

/// Their field about the overflow that ends in the block.
pub(in crate::run) const RECEIVED: usize = HEADS;
/// Their field about the overflow that begins in it.
pub(in crate::run) const PASSED: usize = HEADS + 4;

/// The overflows of a block.
pub(super) struct Overflow {
    /// Where the heads of the block's entries begin.
    pub heads: usize,
    /// Bytes at the end of the block.
    pub received: usize,
    /// Bytes after the block.
    pub passed: usize,
}

impl Overflow {
    /// Reads the header of the head `block`.
    #[inline]
    pub fn of(block: &[u8]) -> Result<Self> {
        if block.get(SPAN).is_none_or(|span| span & EXTENDED == 0) {
            return Ok(Self { heads: HEADS, received: 0, passed: 0 });
        }
        let received = usize::from(u16_at(block, RECEIVED));
        let passed = u32_at(block, PASSED) as usize;
        let right = block.get(SPAN).is_some_and(|span| span & !EXTENDED == 1)
            && (received > 0 || passed > 0)
            && passed < LARGE_VALUE_BYTES_MIN;
        if !right {
            return Err(damaged("what it says of overflows is impossible"));
        }
        Ok(Self { heads: HEADS + EXTENSION_BYTES, received, passed })
    }
}

/// Number of blocks of an overflow of `bytes` bytes.
#[inline]
pub(in crate::run) fn blocks_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK_PAYLOAD_BYTES)).unwrap_or(u32::MAX)
}

/// Number of blocks of the overflow that begins in the head `block`.
#[inline]
pub fn overflow_blocks(block: &[u8]) -> Result<u32> {
    Overflow::of(block).map(|overflow| blocks_of(overflow.passed))
}

/// True if an overflow ends in the head `block`.
pub fn receives(block: &[u8]) -> Result<bool> {
    Overflow::of(block).map(|overflow| overflow.received > 0)
}

/// The bytes of an overflow in `block`, which comes `part` blocks after its head.
fn received(block: &[u8], part: usize) -> Result<&[u8]> {
    let bytes = if is_of(block, BlockKind::DataOverflow) && usize::from(u16_at(block, PART)) == part
    {
        usize::from(u16_at(block, USED))
    } else if span_of(block, BlockKind::Data).is_ok() {
        Overflow::of(block)?.received
    } else {
        0
    };
    if bytes == 0 || bytes > BLOCK_PAYLOAD_BYTES {
        return Err(damaged("the overflow of an entry is not continued by its next block"));
    }
    Ok(&block[BLOCK_BYTES - bytes..BLOCK_BYTES])
}

impl Entry {
    /// Appends the payload of an entry of the head `block` that overflows to `out`. `blocks` are
    /// those of the overflow, as they were read.
    pub fn gather<'b>(
        &self,
        block: &[u8],
        blocks: impl Iterator<Item = &'b [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.reserve_exact(self.end - self.payload + self.overflow);
        out.extend_from_slice(&block[self.payload..self.end]);
        let mut left = self.overflow;
        for (place, block) in blocks.take(blocks_of(self.overflow) as usize).enumerate() {
            let bytes = received(block, place + 1)?;
            if bytes.len() != left.min(BLOCK_PAYLOAD_BYTES) {
                return Err(damaged("a part of an overflow has another length than its head says"));
            }
            out.extend_from_slice(bytes);
            left -= bytes.len();
        }
        if left > 0 {
            return Err(damaged("an entry goes on in blocks that its index entry does not name"));
        }
        Ok(())
    }
}
