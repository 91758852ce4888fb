//! Filter lookups of an open run.

use crate::base::checksum::KeyHash;
use crate::filters::FilterSpec;
use crate::memory::epoch::Guard;
use crate::run::reference::RunRef;
use crate::storage::cache::{CachedBlocks, CachedExtent};

/// Result of a filter lookup in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterState {
    /// The run does not have the key.
    No,
    /// The run may have the key.
    Maybe,
    /// This block of the run's extent must be loaded first.
    Missing(u32),
}

/// The filter of an open run. A tree keeps a copy beside its reference to the run: most lookups
/// need only the filter of a run, and each step on the way to it is a cache miss.
#[derive(Clone)]
pub struct RunFilter {
    spec: FilterSpec,
    /// First filter block in the extent.
    start: u32,
    blocks: CachedBlocks,
}

impl RunFilter {
    pub(in crate::run) fn new(reference: &RunRef, cached: &CachedExtent) -> Self {
        let blocks = cached.blocks().clone();
        Self { spec: reference.filter, start: reference.filter_start(), blocks }
    }

    /// Prefetches the memory that answers for `hash`.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash, guard: &Guard) {
        if let Some(bytes) = self.block_of(hash).and_then(|block| self.blocks.get(block, guard)) {
            self.spec.prefetch(&bytes, hash);
        }
    }

    /// Asks the filter without reading from the device.
    #[inline]
    pub fn state(&self, hash: KeyHash, guard: &Guard) -> FilterState {
        let Some(block) = self.block_of(hash) else { return FilterState::Maybe };
        match self.blocks.get(block, guard) {
            None => FilterState::Missing(block),
            Some(bytes) if self.spec.may_contain(&bytes, hash) => FilterState::Maybe,
            Some(_) => FilterState::No,
        }
    }

    /// The block of the extent that answers for `hash`; `None` without a filter.
    #[inline]
    pub fn block_of(&self, hash: KeyHash) -> Option<u32> {
        Some(self.start.saturating_add(self.spec.block_of(hash)?))
    }

    /// False if the key of `hash` is certainly not there. `bytes` is the block that
    /// [`RunFilter::block_of`] names, as returned by `load_many`. (A full cache may not keep a
    /// loaded block, so asking it again would not always help.)
    pub fn may_contain_in(&self, hash: KeyHash, bytes: &[u8]) -> bool {
        self.block_of(hash).is_none() || self.spec.may_contain(bytes, hash)
    }
}
