//! Cached extents and the blocks that readers get from them.
//!
//! The life of a frame, and why a reader may read one without a lock, is explained at the head of
//! `crate::storage::cache`. This file has both ends of it: the hit ([`CachedBlocks::get`]) and the
//! load ([`CachedExtent::load`], `LoadingFrame`, then `CachedExtent::publish`).
//!
//! Invariants:
//! 1. A [`CachedBlock`] borrows the guard under which its slot was read, and the [`CachedBlocks`]
//!    of the slot, which keeps the cache.
//! 2. A `LoadingFrame` is the only holder of the address of its frame.
//!
//! Thread-safety: every method may be called from any thread.

#![expect(unsafe_code, reason = "an island: frames are shared with readers through raw memory")]

use super::frames::{FrameNo, Frames, Heat};
use super::state::{Slots, ghost_of};
use super::{Cache, Priority};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::BLOCK_BYTES;
use crate::memory::budget::{Charge, Use};
use crate::memory::epoch::Guard;
use crate::memory::split::{Presence, Side};
use crate::runtime::sync::{Arc, AtomicU32, AtomicU64, Ordering};
use crate::storage::block::DATA_FILE;
use crate::storage::io::AlignedBuffer;
use std::ops::Deref;

/// While memory is ample, a block is read together with its neighbors in an aligned group of this
/// many blocks: a read of 64 KiB takes about twice as long as one of 4.
const AROUND_BLOCKS: u32 = 16;

/// The cached blocks of an extent, for fast lookups: no other state of the extent is touched. After
/// the extent is dropped nothing is found.
#[derive(Clone)]
pub struct CachedBlocks {
    cache: Arc<Cache>,
    slots: Slots,
}

impl CachedBlocks {
    /// Block `index` of the extent, if it is cached. No I/O, no lock.
    #[inline]
    #[must_use]
    pub fn get<'g>(&'g self, index: u32, guard: &'g Guard) -> Option<CachedBlock<'g>> {
        self.at_address(index, guard, Frames::hit)
    }

    /// Block `index`, at the address that `address` gives for its frame.
    #[inline]
    fn at_address<'g>(
        &'g self,
        index: u32,
        guard: &'g Guard,
        address: impl Fn(&Frames, FrameNo) -> *mut u8,
    ) -> Option<CachedBlock<'g>> {
        guard.check(self.cache.epochs_id);
        // Acquire: the number was published after the block was loaded.
        let number = self.slots.get(index as usize)?.load(Ordering::Acquire);
        let frame = number.checked_sub(1)?;
        let address = address(&self.cache.frames, frame).cast::<[u8; BLOCK_BYTES]>();
        // SAFETY: the frame was Cached after the guard, which is of the cache's epochs, pinned one.
        // So it stays Cached or Limbo while that lives: its memory is initialised, nobody writes
        // it, and its slab stays, as the head of `crate::storage::cache` explains. `'g` is within
        // the life of the guard and of `self`, which keeps the cache.
        let block = unsafe { &*address };
        Some(CachedBlock(Block::Frame(block)))
    }
}

/// An extent with its slots in the cache. Dropping it frees its frames.
pub struct CachedExtent {
    pub(super) blocks: CachedBlocks,
    pub(super) extent: Extent,
    pub(super) generation: Generation,
    /// The generation of each block, if blocks are written again.
    own_generations: Option<Box<[AtomicU64]>>,
    /// The number of its blocks that hold entries, from the first on.
    entry_blocks: u32,
    charge: Charge,
}

impl CachedExtent {
    /// Creates an extent without cached blocks.
    pub(super) fn new(
        cache: Arc<Cache>,
        (extent, generation): (Extent, Generation),
        entry_blocks: u32,
        charge: Charge,
    ) -> Self {
        let slots: Slots = (0..extent.blocks).map(|_| AtomicU32::new(0)).collect();
        let blocks = CachedBlocks { cache, slots };
        let own_generations = None;
        Self { blocks, extent, generation, own_generations, entry_blocks, charge }
    }

    /// Memory that is charged for it, without cached blocks, in bytes.
    #[must_use]
    pub fn charged_bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Gives each block a generation of its own, at first that of the extent. Neighbors of a block
    /// are then not read with it: they may be of another time.
    pub(super) fn with_own_generations(mut self) -> Self {
        let generations = (0..self.extent.blocks).map(|_| AtomicU64::new(self.generation.0));
        self.own_generations = Some(generations.collect());
        self.entry_blocks = 0;
        self
    }

    /// The generation that block `index` is sealed with.
    #[must_use]
    pub fn generation_of(&self, index: u32) -> Generation {
        let own = self.own_generations.as_ref().and_then(|own| own.get(index as usize));
        own.map_or(self.generation, |own| Generation(own.load(Ordering::Relaxed)))
    }

    /// Sets the generation of block `index`. Call it before any version that refers to the block
    /// is published; only for extents whose blocks have generations of their own.
    pub fn set_generation(&self, index: u32, generation: Generation) {
        if let Some(own) = self.own_generations.as_ref().and_then(|own| own.get(index as usize)) {
            own.store(generation.0, Ordering::Relaxed);
        }
    }

    /// Forgets the cached content of block `index`, which is about to be written again: no version
    /// that is held refers to it.
    pub fn forget(&self, index: u32) {
        if let Some(slot) = self.slots().get(index as usize..=index as usize) {
            self.cache().state.lock().detach(slot);
        }
    }

    /// Its cached blocks, for a holder on the lookup path.
    #[must_use]
    pub fn blocks(&self) -> &CachedBlocks {
        &self.blocks
    }

    pub(super) fn cache(&self) -> &Arc<Cache> {
        &self.blocks.cache
    }

    fn slots(&self) -> &Slots {
        &self.blocks.slots
    }

    /// Block `index` of the extent, if it is cached. No I/O, no lock.
    #[inline]
    #[must_use]
    pub fn cached<'g>(&'g self, index: u32, guard: &'g Guard) -> Option<CachedBlock<'g>> {
        self.blocks.get(index, guard)
    }

    /// As [`CachedExtent::cached`], but it does not count as a use.
    #[inline]
    #[must_use]
    pub fn cached_uncounted<'g>(&'g self, index: u32, guard: &'g Guard) -> Option<CachedBlock<'g>> {
        self.blocks.at_address(index, guard, Frames::address)
    }

    /// [`CachedExtent::cached`] for a caller that rewrites the block and will not read it again: it
    /// does not count as a use, and the block is verified again, so that bit rot in memory does not
    /// get a new checksum.
    #[must_use]
    pub fn peek<'g>(&'g self, index: u32, guard: &'g Guard) -> Option<CachedBlock<'g>> {
        self.peek_sealed(index, self.generation_of(index), guard)
    }

    /// [`CachedExtent::peek`] for a block that is in the cache only, sealed with `generation` by
    /// the caller.
    #[must_use]
    pub fn peek_sealed<'g>(
        &'g self,
        index: u32,
        generation: Generation,
        guard: &'g Guard,
    ) -> Option<CachedBlock<'g>> {
        let block = self.blocks.at_address(index, guard, Frames::address)?;
        let number = self.number(index).ok()?;
        self.cache().file.verify(number, generation, &block).is_ok().then_some(block)
    }

    /// Whether block `index` is cached, and for how long. Does not count as a use.
    #[inline]
    #[must_use]
    pub fn presence(&self, index: u32) -> Presence {
        let number =
            self.slots().get(index as usize).map_or(0, |slot| slot.load(Ordering::Relaxed));
        match number.checked_sub(1).map(|frame| self.cache().frames.heat_of(frame).rounds_left()) {
            None => Presence::Absent,
            Some(0) => Presence::Fading,
            Some(_) => Presence::Settled,
        }
    }

    /// The heat of block `index`, if it is cached. Does not count as a use.
    #[must_use]
    pub fn heat(&self, index: u32) -> Option<Heat> {
        let number = self.slots().get(index as usize)?.load(Ordering::Relaxed);
        number.checked_sub(1).map(|frame| self.cache().frames.heat_of(frame))
    }

    /// Copies block `index` of the extent, read and verified if it is not cached. No guard is held
    /// during the read, and the caller should hold none.
    pub fn load(&self, index: u32, priority: Priority) -> Result<CachedBlock<'static>> {
        if let Some(block) = self.copy_of_cached(index) {
            return Ok(block);
        }
        let number = self.number(index)?;
        self.count_ghost(index);
        self.cache().count_miss(priority);
        if priority == Priority::Data
            && index < self.entry_blocks
            && self.cache().budget.is_ample()
            && let Some(buffer) = self.cache().timed(priority, || self.load_around(index))
        {
            return Ok(CachedBlock::owned(buffer));
        }
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
        self.cache().timed(priority, || {
            self.cache().file.read_blocks(number, self.generation_of(index), &mut buffer)
        })?;
        priority.check(&buffer, number)?;
        self.keep(index, &buffer, priority);
        Ok(CachedBlock::owned(buffer))
    }

    /// A copy of block `index`, if it is cached.
    pub(super) fn copy_of_cached(&self, index: u32) -> Option<CachedBlock<'static>> {
        let guard = self.cache().epochs.pin();
        let block = self.cached(index, &guard)?;
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
        buffer.copy_from_slice(&block);
        Some(CachedBlock::owned(buffer))
    }

    /// Caches a copy of block `index`, which was read after a miss, if there is a free frame.
    pub(super) fn keep(&self, index: u32, block: &[u8], priority: Priority) {
        if !self.insert(index, block, priority, &self.cache().epochs.pin()) {
            self.cache().uncached_reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads block `index` and its missing neighbors, and caches them all: large reads fill an
    /// empty cache instead of many small ones. `None` if the block cannot be read that way.
    fn load_around(&self, index: u32) -> Option<AlignedBuffer> {
        let missing = |block: &u32| self.presence(*block) == Presence::Absent;
        let home = index - index % AROUND_BLOCKS;
        let home = home..home.saturating_add(AROUND_BLOCKS).min(self.entry_blocks);
        let before = (home.start..index).rev().take_while(missing).count();
        let after = (index..home.end).take_while(missing).count();
        let first = index - u32::try_from(before).ok()?;
        let bytes = (before + after) * BLOCK_BYTES;
        let _charge = self.cache().budget.charge(Use::Work, bytes as u64);
        let mut blocks = AlignedBuffer::new(bytes);
        let mut found = None;
        let mut place = first..;
        let start = self.number(first).ok()?;
        let read = self.cache().file.read_each(start, self.generation, &mut blocks, &mut |block| {
            let place = place.next().unwrap_or(u32::MAX);
            match block {
                Ok(block) if place == index => {
                    let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
                    buffer.copy_from_slice(block);
                    found = Some(buffer);
                    self.keep(place, block, Priority::Data);
                }
                Ok(block) => {
                    self.insert(place, block, Priority::Data, &self.cache().epochs.pin());
                }
                // Damage is reported to the reader of the damaged block.
                Err(_) => {}
            }
        });
        read.ok()?;
        found
    }

    /// Caches a copy of block `index`, which the caller read around the cache and verified, or
    /// which the caller wrote, if there is a free frame. False if there is none.
    pub fn insert(&self, index: u32, block: &[u8], heat: impl Into<Heat>, guard: &Guard) -> bool {
        if index >= self.extent.blocks || self.cached(index, guard).is_some() {
            return true;
        }
        let Some(mut frame) = self.cache().frame(guard) else { return false };
        frame.bytes_mut().copy_from_slice(block);
        self.publish(index, frame, heat);
        true
    }

    /// Counts a miss of block `index`, which the caller reads around the cache for a scan.
    pub fn count_miss(&self, index: u32) {
        self.cache().count_miss(Priority::Scan);
        self.count_ghost(index);
    }

    /// Records that block `index` has to be read: a larger cache might have had it.
    pub(super) fn count_ghost(&self, index: u32) {
        let name = ghost_of(&self.slots()[index as usize]);
        self.cache().budget.split().missed(Side::Blocks, name);
    }

    /// The block number of block `index` in the file.
    pub(super) fn number(&self, index: u32) -> Result<BlockNo> {
        if index >= self.extent.blocks {
            return Err(Error::corrupt("reference to a block beyond its extent")
                .at(DATA_FILE, self.extent.offset()));
        }
        Ok(BlockNo(self.extent.start.0 + u64::from(index)))
    }

    /// Publishes a loaded block to readers, unless there is one already.
    fn publish(&self, index: u32, loading: LoadingFrame<'_>, heat: impl Into<Heat>) {
        let frame = loading.frame;
        self.cache().frames.set_heat(frame, heat.into());
        // The state owns the frame from here on, whether it is published or not.
        std::mem::forget(loading);
        // If another thread was first, the slot holds its frame, with the same block.
        self.cache().state.lock().publish(frame, self.slots(), index);
    }
}

impl Drop for CachedExtent {
    fn drop(&mut self) {
        // The next thread that needs frames defers the release of those retired here.
        self.cache().state.lock().detach(self.slots());
    }
}

/// A cached block, borrowed for the lifetime of the guard and the extent, or a copy.
pub struct CachedBlock<'g>(Block<'g>);

enum Block<'g> {
    Frame(&'g [u8; BLOCK_BYTES]),
    /// A copy: the memory of one or more blocks, and the place in it.
    Owned(Arc<AlignedBuffer>, usize),
}

impl CachedBlock<'static> {
    /// A block in memory of its own.
    pub(super) fn owned(buffer: AlignedBuffer) -> Self {
        Self(Block::Owned(Arc::new(buffer), 0))
    }

    /// Block `place` of the memory of several.
    pub(super) fn part_of(buffer: &Arc<AlignedBuffer>, place: usize) -> Self {
        Self(Block::Owned(Arc::clone(buffer), place))
    }
}

impl CachedBlock<'_> {
    /// The same block for another holder.
    pub(super) fn share(&self) -> Self {
        Self(match &self.0 {
            Block::Frame(block) => Block::Frame(block),
            Block::Owned(buffer, place) => Block::Owned(Arc::clone(buffer), *place),
        })
    }
}

impl Deref for CachedBlock<'_> {
    type Target = [u8];

    /// The block, all [`BLOCK_BYTES`] of it.
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Block::Frame(block) => *block,
            Block::Owned(buffer, place) => &buffer[place * BLOCK_BYTES..(place + 1) * BLOCK_BYTES],
        }
    }
}

/// A frame in state Loading, owned by its loader. Dropping it frees the frame.
pub(super) struct LoadingFrame<'c> {
    pub(super) cache: &'c Cache,
    pub(super) frame: FrameNo,
}

impl LoadingFrame<'_> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        let address = self.cache.frames.address(self.frame);
        // SAFETY: in state Loading the frame is this loader's alone: no slot names it, and readers
        // of the time before are gone since it left Limbo. Its slab stays while it is Loading, and
        // slabs are initialised. `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(address, BLOCK_BYTES) }
    }
}

impl Drop for LoadingFrame<'_> {
    fn drop(&mut self) {
        self.cache.state.lock().release_loading(self.frame);
    }
}
