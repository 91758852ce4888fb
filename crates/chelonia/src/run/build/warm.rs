//! Keeping in memory what was there: the blocks of a new run whose entries were cached before.
//!
//! A merge replaces runs by new ones, and the cached blocks of the old ones go with them. So of the
//! new ones those are cached at once that hold the keys of cached blocks, as hot as these were: who
//! asks for them next finds them. They are still in the builder's memory when the run was written;
//! nothing is read.

use super::Blocks;
use crate::base::error::Result;
use crate::memory::epoch::Guard;
use crate::run::block::{KeyBuffer, SortedBlock, span_of};
use crate::run::read::Run;
use crate::storage::block::BlockKind;
use crate::storage::cache::Heat;

/// Tells how hot the block that had a key before was, if it was in memory.
pub type WasCached<'a> = dyn Fn(&[u8], &Guard) -> Option<Heat> + 'a;

/// Puts those data blocks of `run`, just written from `blocks`, into the cache whose first key's
/// block was cached before. Spans of several blocks are left out.
pub fn keep_warm(run: &Run, blocks: &Blocks, was_cached: &WasCached<'_>) -> Result<()> {
    let mut key = KeyBuffer::default();
    let mut place = 0;
    while place < run.reference().data_blocks {
        // For each block anew: a guard must not be held while a whole run is copied.
        let guard = run.pin();
        let bytes = blocks.block(place);
        let span = span_of(bytes, BlockKind::Data)?;
        if span == 1 {
            let block = SortedBlock::parse(bytes, BlockKind::Data)?;
            key.set_prefix(&block);
            key.set(&block, 0, &block.entry(0)?);
            if let Some(heat) = was_cached(key.as_slice(), &guard) {
                run.cached().insert(place, bytes, heat, &guard);
            }
        }
        place += span;
    }
    Ok(())
}
