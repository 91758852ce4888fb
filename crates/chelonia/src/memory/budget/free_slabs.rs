//! The unused slabs of a budget: fixed-size pieces of memory for large data.
//!
//! They are mapped once, touched once, and recycled through one free list, so that memory moves
//! between writes and reads without returning to the system. When a slab is released, its pages
//! return to the system and its address is kept for the next slab: an allocator would keep freed
//! slabs among smaller allocations, and the resident set would grow beyond the counted bytes. Slabs
//! are adjacent, and in large budgets on large pages where the system has them, which reduces TLB
//! misses of random accesses.
//!
//! ```text
//!   address only -- without_memory --> in use -- keep_warm --> free, with memory
//!        ^                                ^                         |    |
//!        |                                '------- take_warm -------'    |
//!        '---------------------------- cool -----------------------------'
//! ```
//!
//! Thread-safety: the owner of the free list, the budget, locks it.

use crate::base::limits::{BLOCK_BYTES, SLAB_BYTES};
use crate::memory::pages::{LARGE_PAGE_BYTES, PAGE_BYTES, Pages, Region, Span};

const _: () = assert!(SLAB_BYTES.is_multiple_of(PAGE_BYTES) && BLOCK_BYTES <= PAGE_BYTES);

/// Address space for slabs is reserved in regions of this fraction of the budget ...
const REGION_PART: u64 = 16;

/// ... and at most this much at a time.
const REGION_BYTES_MAX: usize = 64 << 20;

/// Slabs of budgets below this limit are on small pages.
const LARGE_PAGES_LIMIT: u64 = 256 << 20;

/// When more slabs than this are without memory, all slabs are on small pages from then on.
const COLD_MAX: usize = 4096;

const _: () = assert!(LARGE_PAGE_BYTES.is_multiple_of(SLAB_BYTES));

/// The unused slabs.
#[derive(Default)]
pub(super) struct FreeSlabs {
    /// With memory behind them.
    warm: Vec<Pages>,
    /// Without memory: an address only.
    cold: Vec<Pages>,
    /// The source of new slabs, and the span of all of them.
    region: Option<Region>,
    spans: Vec<Span>,
    /// Slabs are on small pages from now on.
    small_pages: bool,
    /// Test hook: the system refuses memory.
    #[cfg(test)]
    pub is_refused: bool,
}

impl FreeSlabs {
    /// Takes a slab with memory, if there is one.
    pub fn take_warm(&mut self) -> Option<Pages> {
        self.warm.pop()
    }

    /// Returns a slab to the free list with its memory.
    pub fn keep_warm(&mut self, slab: Pages) {
        self.warm.push(slab);
    }

    /// An address for a slab, of a budget of `limit` bytes. `None` if the system refuses more.
    pub fn without_memory(&mut self, limit: u64) -> Option<Pages> {
        if let Some(mut slab) = self.cold.pop() {
            if !self.small_pages {
                slab.may_be_large();
            }
            return Some(slab);
        }
        let cut = |region: &mut Region| region.cut(SLAB_BYTES);
        self.region.as_mut().and_then(cut).or_else(|| {
            self.map_region(limit)?;
            self.region.as_mut().and_then(cut)
        })
    }

    /// An address for a single slab: the last resort for callers that must have one.
    pub fn alone(&mut self) -> Option<Pages> {
        Pages::map(SLAB_BYTES)
    }

    /// Ensures that there are addresses for `count` slabs; false if the system refuses.
    pub fn make_ready(&mut self, count: usize, limit: u64) -> bool {
        while self.warm.len() + self.cold.len() + self.slabs_left() < count {
            while let Some(slab) = self.region.as_mut().and_then(|region| region.cut(SLAB_BYTES)) {
                self.cold.push(slab);
            }
            if self.map_region(limit).is_none() {
                return false;
            }
        }
        true
    }

    /// The number of slabs left in the region.
    fn slabs_left(&self) -> usize {
        self.region.as_ref().map_or(0, |region| region.left() / SLAB_BYTES)
    }

    /// Maps the next region after the previous one is used up. `None` if the system refuses.
    fn map_region(&mut self, limit: u64) -> Option<()> {
        #[cfg(test)]
        if self.is_refused {
            return None;
        }
        // In small budgets the unneeded rest of a large page would be a notable part.
        self.small_pages |= limit < LARGE_PAGES_LIMIT;
        let bytes = usize::try_from(limit / REGION_PART).unwrap_or(REGION_BYTES_MAX);
        let bytes = bytes.next_multiple_of(LARGE_PAGE_BYTES);
        let region = Region::map(bytes.clamp(LARGE_PAGE_BYTES, REGION_BYTES_MAX))?;
        region.span().want_large_pages(!self.small_pages);
        self.spans.push(region.span());
        self.region = Some(region);
        Some(())
    }

    /// Returns the memory of a slab to the system.
    pub fn cool(&mut self, mut slab: Pages) {
        if self.cold.len() == COLD_MAX && !self.small_pages {
            // Each cold slab among large pages is a mapping of its own, and the number of mappings
            // is limited.
            self.small_pages = true;
            self.spans.iter().for_each(|span| span.want_large_pages(false));
        }
        slab.give_back(!self.small_pages);
        self.cold.push(slab);
    }
}
