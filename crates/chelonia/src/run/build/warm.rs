//! Keeps the cache warm across a merge: caches the blocks of a new run whose entries were cached.
//!
//! A merge replaces runs by new ones, and the cached blocks of the old ones become useless. So the
//! blocks of the new run that hold the keys of cached blocks are put into the cache at once, with
//! the same heat, and the next read of these keys hits. They are still in the builder's memory when
//! the run was written; nothing is read.

use crate::base::error::Result;
use crate::memory::epoch::Guard;
use crate::run::block::overflow::receives;
use crate::run::block::{KeyBuffer, SortedBlock, is_of, span_of};
use crate::run::build::blocks::Blocks;
use crate::run::read::Run;
use crate::storage::block::BlockKind;
use crate::storage::cache::Heat;

/// Returns the heat of the block that had a key before, if it was in memory.
pub type WasCached<'a> = dyn Fn(&[u8], &Guard) -> Option<Heat> + 'a;

/// Puts those data blocks of `run`, just written from `blocks`, into the cache for whose first key
/// the old block was cached, and the overflows of the values whose old block was. Spans of several
/// blocks are skipped.
pub fn keep_warm(run: &Run, blocks: &Blocks, was_cached: &WasCached<'_>) -> Result<()> {
    let mut key = KeyBuffer::default();
    // The heat of the value whose overflow comes next.
    let mut overflowing = None;
    for place in 0..run.reference().data_blocks {
        // A new guard for each block: a guard must not be held while a complete run is copied.
        let guard = run.pin();
        let bytes = blocks.block(place);
        let heat = if is_of(bytes, BlockKind::DataOverflow) {
            overflowing
        } else if span_of(bytes, BlockKind::Data).is_ok_and(|span| span == 1) {
            let block = SortedBlock::parse(bytes, BlockKind::Data)?;
            key.set_prefix(&block);
            let mut heat_of = |index: usize| -> Result<Option<Heat>> {
                key.set(&block, index, &block.entry(index)?);
                Ok(was_cached(key.as_slice(), &guard))
            };
            let received = if receives(bytes)? { overflowing } else { None };
            let last = block.layout().count() - 1;
            let overflows = block.layout().overflow_blocks() > 0;
            overflowing = if overflows { heat_of(last)? } else { None };
            heat_of(0)?.or(received)
        } else {
            None
        };
        if let Some(heat) = heat {
            run.cached().insert(place, bytes, heat, &guard);
        }
    }
    Ok(())
}
