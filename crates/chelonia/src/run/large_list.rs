//! The list of large values that a run refers to: free space is derived without reading data.
//!
//! ```text
//! offset size
//!      0   16  block header; kind LargeRefs, bytes 9 to 15 zero but for
//!     10    2  count of references in this block, at least 1
//!     16       references, one after the other (`LargeRef::encode`), in key order
//! ```

use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::LargeRef;
use crate::run::build::blocks::Blocks;
use crate::storage::block::{BLOCK_HEADER_BYTES, BlockKind};

const KIND: usize = 8;
const COUNT: usize = 10;

/// Appends the list to `blocks` and returns the number of blocks it takes.
pub fn encode(large: &[LargeRef], blocks: &mut Blocks) -> Result<u32> {
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut encoded = Vec::new();
    let mut count = 0_u16;
    let mut written = 0;
    for reference in large {
        encoded.clear();
        reference.encode(&mut encoded);
        if count > 0 && block.len() + encoded.len() > BLOCK_BYTES {
            put(&mut block, count, blocks)?;
            written += 1;
            count = 0;
        }
        if count == 0 {
            block.clear();
            block.resize(BLOCK_HEADER_BYTES, 0);
        }
        block.extend_from_slice(&encoded);
        count += 1;
    }
    if count > 0 {
        put(&mut block, count, blocks)?;
        written += 1;
    }
    u32::try_from(written)
        .map_err(|_| Error::internal("a run exceeds the maximum number of blocks"))
}

fn put(block: &mut Vec<u8>, count: u16, blocks: &mut Blocks) -> Result<()> {
    block.resize(BLOCK_BYTES, 0);
    block[KIND] = BlockKind::LargeRefs as u8;
    block[COUNT..COUNT + 2].copy_from_slice(&count.to_le_bytes());
    blocks.push(block)
}

/// Visits the references of one block, whose kind was checked.
pub fn decode(block: &[u8], visit: &mut dyn FnMut(LargeRef) -> Result<()>) -> Result<()> {
    let mut header = Decoder::new(block, "a list of large values");
    header.take(COUNT)?;
    let count = header.u16()?;
    header.take(BLOCK_HEADER_BYTES - COUNT - 2)?;
    if count == 0 {
        return Err(header.damaged("the list is empty"));
    }
    for _ in 0..count {
        visit(LargeRef::decode(&mut header)?)?;
    }
    Ok(())
}
