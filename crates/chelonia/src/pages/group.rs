//! The reference to a group, and its pages through the cache.
//!
//! ```text
//! group   v  first block of its extent; v slots; v generation of the extent
//!         1  blocks of a page; 1 pages
//!            pages, in key order; each: 1 its slot, v its generation less that of the extent
//!            bounds (`bounds.rs`)
//!            totals; v large values                                  (v: a varint)
//! ```

use super::bounds::Bounds;
use super::image::is_page_size;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::BLOCK_BYTES;
use crate::engine::{ExtentKind, OwnedExtent};
use crate::memory::epoch::Guard;
use crate::run::block::{SortedBlock, join_in_place};
use crate::run::{RunHit, Totals};
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::block::{BlockKind, DATA_FILE};
use crate::storage::cache::{CachedBlock, CachedExtent, Heat, Presence, Priority};
use crate::structure::{Allowance, SharedKey};

/// Maximum number of slots of a group.
pub const SLOTS_MAX: usize = 64;

/// The extent of a group, shared by all versions of the group.
pub struct Place {
    extent: Extent,
    generation: Generation,
    page_blocks: u32,
    cached: CachedExtent,
}

impl Place {
    /// Opens the extent of a group whose pages have `page_blocks` blocks. Does no I/O.
    #[must_use]
    pub fn open(
        storage: &Storage,
        extent: Extent,
        generation: Generation,
        page_blocks: u32,
    ) -> Arc<Self> {
        let cached = storage.rewritable(extent, generation);
        Arc::new(Self { extent, generation, page_blocks, cached })
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        (self.extent.blocks / self.page_blocks.max(1)) as usize
    }

    /// Blocks of a page.
    #[must_use]
    pub fn page_blocks(&self) -> u32 {
        self.page_blocks
    }

    /// Its blocks in the cache.
    #[must_use]
    pub fn cached(&self) -> &CachedExtent {
        &self.cached
    }

    /// The first block of a slot within the extent.
    #[must_use]
    pub fn block_of(&self, slot: u8) -> u32 {
        u32::from(slot) * self.page_blocks
    }

    /// The first block of a slot in the data file.
    #[must_use]
    pub fn number_of(&self, slot: u8) -> BlockNo {
        BlockNo(self.extent.start.0 + u64::from(self.block_of(slot)))
    }

    /// Records that the page in `slot` was written with `generation`: what was cached of the slot
    /// is forgotten.
    pub fn rewritten(&self, slot: u8, generation: Generation) {
        let first = self.block_of(slot);
        for block in first..first + self.page_blocks {
            self.cached.forget(block);
            self.cached.set_generation(block, generation);
        }
    }

    /// Approximate memory beside cached blocks.
    #[must_use]
    pub fn footprint_bytes(&self) -> u64 {
        const OWN_BYTES: u64 = 200;
        OWN_BYTES + 12 * u64::from(self.extent.blocks)
    }
}

/// One version of a group: its pages in key order.
#[derive(Clone)]
pub struct Group {
    /// The extent.
    pub place: Arc<Place>,
    /// The slot of each page.
    pub slots: Box<[u8]>,
    /// The lower bounds of the second and later pages.
    pub bounds: Bounds,
    /// The totals of its entries.
    pub totals: Totals,
    /// Number of large values in it.
    pub large: u32,
}

impl Group {
    /// The extent with its spare slots.
    #[must_use]
    pub fn owned(&self) -> OwnedExtent {
        let Place { extent, generation, .. } = *self.place;
        OwnedExtent { extent, generation, kind: ExtentKind::PageGroup }
    }

    /// Page `page` as a part of the extent.
    #[must_use]
    pub fn owned_page(&self, page: usize) -> OwnedExtent {
        let slot = self.slots[page];
        let extent = Extent::new(self.place.number_of(slot).0, self.place.page_blocks);
        OwnedExtent { extent, generation: self.generation_of(slot), kind: ExtentKind::Page }
    }

    /// All extents: its own, and its pages.
    pub fn all_owned(&self) -> impl Iterator<Item = OwnedExtent> {
        let pages = (0..self.slots.len()).map(|page| self.owned_page(page));
        std::iter::once(self.owned()).chain(pages)
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    fn generation_of(&self, slot: u8) -> Generation {
        self.place.cached.generation_of(self.place.block_of(slot))
    }

    /// The slots that a new page may be written to.
    #[must_use]
    pub fn free_slots(&self, storage: &Storage) -> Vec<u8> {
        let count = u8::try_from(self.place.slots()).unwrap_or(u8::MAX);
        let unused = (0..count).filter(|slot| !self.slots.contains(slot));
        let unused: Vec<(u8, BlockNo)> =
            unused.map(|slot| (slot, self.place.number_of(slot))).collect();
        let writable = storage.writable_slots(unused.iter().map(|(_, number)| *number));
        let is_writable = |(_, number): &(u8, BlockNo)| writable.contains(number);
        unused.into_iter().filter(is_writable).map(|(slot, _)| slot).collect()
    }

    /// The blocks of page `page` within the extent.
    fn blocks_of(&self, page: usize) -> std::ops::Range<u32> {
        let first = self.place.block_of(self.slots[page]);
        first..first + self.place.page_blocks
    }

    /// Whether page `page` is in memory, and for how long.
    #[must_use]
    pub fn presence(&self, page: usize) -> Presence {
        let blocks = self.blocks_of(page).map(|block| self.place.cached.presence(block));
        blocks.min().unwrap_or_default()
    }

    /// The heat of page `page`, if it is cached.
    #[must_use]
    pub fn heat(&self, page: usize) -> Option<Heat> {
        self.place.cached.heat(self.blocks_of(page).start)
    }

    /// The entry of `key` in page `page`, if that is in memory.
    pub fn find_cached(
        &self,
        page: usize,
        key: &[u8],
        guard: &Guard,
    ) -> Result<Option<Option<RunHit>>> {
        let cached = &self.place.cached;
        if self.place.page_blocks == 1 {
            let Some(block) = cached.cached(self.blocks_of(page).start, guard) else {
                return Ok(None);
            };
            return self.find_in(page, key, &[block]).map(Some);
        }
        let blocks = self.blocks_of(page).map(|block| cached.cached(block, guard));
        let Some(blocks) = blocks.collect::<Option<Vec<_>>>() else { return Ok(None) };
        self.find_in(page, key, &blocks).map(Some)
    }

    /// The entry of `key` in page `page`. Reads missing blocks; the caller holds no guard.
    pub fn find(&self, storage: &Storage, page: usize, key: &[u8]) -> Result<Option<RunHit>> {
        let cached = &self.place.cached;
        if self.place.page_blocks == 1 {
            let block = cached.load(self.blocks_of(page).start, Priority::Data)?;
            return self.find_in(page, key, &[block]);
        }
        let wanted: Vec<_> = self.blocks_of(page).map(|block| (cached, block)).collect();
        let blocks = storage.load_many(&wanted, Priority::Data)?;
        self.find_in(page, key, &blocks)
    }

    /// The blocks of page `page`, to be loaded together with those of other pages.
    pub fn wanted(&self, page: usize) -> impl Iterator<Item = (&CachedExtent, u32)> {
        self.blocks_of(page).map(|block| (&self.place.cached, block))
    }

    /// The entry of `key` in the blocks of page `page`.
    pub fn find_in(
        &self,
        page: usize,
        key: &[u8],
        blocks: &[CachedBlock<'_>],
    ) -> Result<Option<RunHit>> {
        let find = |bytes: &[u8]| -> Result<Option<RunHit>> {
            let block = SortedBlock::parse(bytes, BlockKind::Data)?;
            let Some(entry) = block.find(key)? else { return Ok(None) };
            entry.update(block.bytes(), None)?.try_into().map(Some)
        };
        let found = match blocks {
            [block] => find(block),
            blocks => {
                let mut bytes = Vec::with_capacity(blocks.len() * BLOCK_BYTES);
                blocks.iter().for_each(|block| bytes.extend_from_slice(block));
                join_in_place(&mut bytes).and_then(|()| find(&bytes))
            }
        };
        found.map_err(|error| self.blame(page, error))
    }

    /// Adds the location of page `page` to an error.
    #[must_use]
    pub fn blame(&self, page: usize, error: Error) -> Error {
        error.at(DATA_FILE, self.owned_page(page).extent.offset())
    }

    /// Heap memory in bytes, without its extent.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.slots.len() + self.bounds.heap_bytes()
    }

    /// Appends the encoded reference.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Place { extent, generation, page_blocks, .. } = *self.place;
        put_varint(out, extent.start.0);
        put_varint(out, self.place.slots() as u64);
        put_varint(out, generation.0);
        put_varint(out, u64::from(page_blocks));
        put_varint(out, self.slots.len() as u64);
        for slot in &self.slots {
            out.push(*slot);
            put_varint(out, self.generation_of(*slot).0.saturating_sub(generation.0));
        }
        self.bounds.encode(out);
        self.totals.encode(out);
        put_varint(out, u64::from(self.large));
    }

    /// Decodes the reference to a group that begins at `first`, and opens it.
    pub fn decode(
        decoder: &mut Decoder<'_>,
        first: &SharedKey,
        storage: &Storage,
        allowance: &mut Allowance,
    ) -> Result<Self> {
        let (start, slots) = (decoder.varint()?, decoder.length(SLOTS_MAX)?);
        let generation = Generation(decoder.varint()?);
        let page_blocks = decoder.varint_u32()?;
        let pages = decoder.length(slots)?;
        if pages == 0 || !is_page_size(page_blocks) {
            return Err(decoder.damaged("the number or size of the pages of a group is impossible"));
        }
        let extent = Extent::new(start, u32::try_from(slots).unwrap_or(0) * page_blocks);
        if !storage.holds(extent) {
            return Err(decoder.damaged("a group of pages lies beyond the data file"));
        }
        allowance.take(12 * extent.blocks as usize);
        let place = Place::open(storage, extent, generation, page_blocks);
        let (mut in_order, mut seen) = (Vec::with_capacity(pages), 0_u64);
        for _ in 0..pages {
            let slot = decoder.u8()?;
            let since = decoder.varint()?;
            if usize::from(slot) >= slots || seen & (1 << slot) != 0 {
                return Err(decoder.damaged("two pages of a group are in one slot, or in none"));
            }
            let Some(written) = generation.0.checked_add(since) else {
                return Err(decoder.damaged("the generation of a page is out of range"));
            };
            seen |= 1 << slot;
            let first = place.block_of(slot);
            for block in first..first + page_blocks {
                place.cached.set_generation(block, Generation(written));
            }
            in_order.push(slot);
        }
        let bounds = Bounds::decode(decoder, first, pages - 1, allowance)?;
        let totals = Totals::decode(decoder)?;
        let large = decoder.varint_u32()?;
        if totals.entries < pages as u64 || totals.tombstones > 0 {
            return Err(decoder.damaged("the totals of a group are impossible"));
        }
        if u64::from(large) > totals.entries {
            return Err(decoder.damaged("a group has more large values than entries"));
        }
        Ok(Self { place, slots: in_order.into(), bounds, totals, large })
    }
}
