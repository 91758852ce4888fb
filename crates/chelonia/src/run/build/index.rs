//! Builds the index of a run: sorted blocks of separators, level by level, the root last.
//!
//! ```text
//!   [ data spans ][ level 1 ............ ][ level 2 ... ][ root ]
//!     ^     ^       separator -> span ------^
//!     +-----+------ of the level below
//! ```
//!
//! A separator is greater than every key of the spans before its own and not greater than any key
//! in its own. The first one of all is cut from the run's first key. A run of one span has no
//! index. The payload of an index entry is two varints: the span's first block, counted from the
//! start of the extent, and its number of blocks.
//!
//! A span whose last entry overflows has two index entries: the second one is for this entry alone,
//! and counts the blocks of the overflow too. So a lookup reads them only for that key. (If it is
//! the only entry of the span, there is only the second one.)

use crate::base::codec::put_varint;
use crate::base::error::{Error, Result};
use crate::run::block::EntryKind;
use crate::run::build::blocks::Blocks;
use crate::run::build::sorted::{Added, BlockBuilder};
use crate::storage::block::BlockKind;

/// The first separator is cut to the length of the second, but not below this.
const FIRST_SEPARATOR_BYTES_MIN: usize = 8;

/// Minimum fan-out: an index block that refers to fewer spans would not form a level above them.
const FANOUT_MIN: usize = 2;

/// A separator (a range of the shared byte buffer) and the span that begins with it.
#[derive(Clone, Copy)]
struct Child {
    start: usize,
    len: usize,
    first: u32,
    blocks: u32,
}

/// Collects the separators of one run.
#[derive(Default)]
pub struct IndexBuilder {
    separators: Vec<u8>,
    children: Vec<Child>,
}

impl IndexBuilder {
    /// Adds the data span that begins at block `first`, or its last entry with an overflow;
    /// `separator` divides the keys from those before.
    pub fn add(&mut self, separator: &[u8], first: usize, blocks: u32) -> Result<()> {
        let first = block_number(first)?;
        let start = self.separators.len();
        self.separators.extend_from_slice(separator);
        self.children.push(Child { start, len: separator.len(), first, blocks });
        Ok(())
    }

    /// Heap bytes held.
    pub fn heap_bytes(&self) -> usize {
        self.separators.capacity() + self.children.capacity() * size_of::<Child>()
    }

    /// Removes all separators.
    pub fn clear(&mut self) {
        self.separators.clear();
        self.children.clear();
    }

    /// Appends all levels to `blocks`; returns their number and the blocks of the root.
    pub fn build(&mut self, blocks: &mut Blocks) -> Result<(u8, u8)> {
        if let [first, second, ..] = &mut self.children[..] {
            first.len = first.len.min(second.len.max(FIRST_SEPARATOR_BYTES_MIN));
        }
        let mut children = std::mem::take(&mut self.children);
        let mut levels = 0;
        while children.len() > 1 {
            children = self.build_level(&children, blocks)?;
            levels += 1;
        }
        let root = children.first().and_then(|root| u8::try_from(root.blocks).ok());
        self.children = children;
        root.map(|root| (levels, root)).ok_or_else(|| Error::internal("an index has no root"))
    }

    /// Writes one level over `below`; returns its spans, the children of the next level.
    fn build_level(&self, below: &[Child], blocks: &mut Blocks) -> Result<Vec<Child>> {
        let mut level = Vec::new();
        let mut block = BlockBuilder::new(FANOUT_MIN);
        let mut open: Option<Child> = None;
        let mut payload = Vec::new();
        for child in below {
            let separator = &self.separators[child.start..child.start + child.len];
            payload.clear();
            put_varint(&mut payload, u64::from(child.first));
            put_varint(&mut payload, u64::from(child.blocks));
            if block.add(separator, EntryKind::Value, &payload)? == Added::Full {
                level.extend(close(&mut block, open.take(), blocks)?);
                if block.add(separator, EntryKind::Value, &payload)? == Added::Full {
                    return Err(Error::internal(
                        "an index entry does not fit an empty index block",
                    ));
                }
            }
            open.get_or_insert(*child);
        }
        level.extend(close(&mut block, open, blocks)?);
        Ok(level)
    }
}

/// Lays out an index span that begins with the separator of `open`.
fn close(
    block: &mut BlockBuilder,
    open: Option<Child>,
    blocks: &mut Blocks,
) -> Result<Option<Child>> {
    let Some(open) = open else { return Ok(None) };
    let first = block_number(blocks.count())?;
    let span = block.span()?;
    block.lay_out(BlockKind::Index, &mut |bytes| blocks.push(bytes))?;
    block.clear();
    Ok(Some(Child { first, blocks: span, ..open }))
}

fn block_number(block: usize) -> Result<u32> {
    u32::try_from(block).map_err(|_| Error::internal("a run exceeds the maximum number of blocks"))
}
