//! The block cache: verified blocks in memory, found without hash table, lock or copy.
//!
//! Memory comes in slabs from the budget, each cut into 64 *frames* of one block. Readers of an
//! extent use a [`CachedExtent`]; it has one *slot* of 32 bits per block: 0, or the number of the
//! frame that holds the block + 1. A hit is slot -> frame. Everything else (misses, evictions,
//! drops) goes through one lock, which is never held during I/O.
//!
//! ```text
//!            miss: take_free            load done: publish
//!    Free ------------------> Loading ---------------------> Cached (its slot names it)
//!     ^  ^                       |                              |
//!     |  '-- load failed, or ----'                              | clock, draining place,
//!     |      another was first                                  | extent dropped: take_away
//!     |                                                         v
//!     '------- epochs passed: release ----------------------- Limbo (no slot names it)
//!
//!    a draining place whose 64 frames are all Free returns its slab to the budget; its hot blocks
//!    are copied to free frames of other places
//! ```
//!
//! Transitions are made by the loading thread (take_free, publish), a thread that misses and finds
//! too few spare frames (the clock), the budget through [`Reclaim`] or `trim` (draining), the last
//! holder of an extent (its drop), and functions deferred to the end of epochs (release). Access by
//! state: in `Loading` only the loader writes the memory; in `Cached` nobody writes it; in `Limbo`
//! earlier readers may still read it, nobody writes it; in `Free` nobody touches it.
//!
//! Why readers are safe: a reader pins an epoch before it loads a slot, and the block it gets
//! borrows both the guard and the [`CachedBlocks`] of the slot. A frame leaves `Limbo` by a
//! function deferred after its slot was cleared; that runs only when every guard of the time is
//! gone. So a frame that a reader found in a slot is not written, and its slab not returned, before
//! the reader unpins. A [`CachedBlocks`] keeps the cache, and so the slabs, alive, also when its
//! extent is gone and its slots are empty. Guards must be of the epochs of this cache: every
//! function that takes one checks that before it loads a slot, returns a block, or defers the end
//! of limbo.
//!
//! Invariants:
//! 1. Lock order: the cache's lock, then the budget's. Under the cache's lock nothing is pinned,
//!    flushed or deferred, because deferred functions take it.
//! 2. Every block that a reader gets was verified after it was read from the file, or passed to
//!    [`CachedExtent::insert`].
//! 3. The cache works with any number of slabs: a read gives its caller a block of its own, of
//!    which a copy is cached if there is a free frame.
//! 4. No guard is held during device reads, and none needs to be: a read returns a copy.
//!
//! Dropping a `CachedExtent` runs no deferred function; a miss may run those of any part, so the
//! caller of a block read must not hold a lock that a deferred function takes.

mod extent;
mod frames;
mod state;

use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::BLOCK_BYTES;
use crate::memory::budget::{Budget, Charge, Reclaim, Reclaimed, Use};
use crate::memory::epoch::{Epochs, Guard};
pub use crate::memory::split::Presence;
use crate::memory::split::Side;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Arc, AtomicU64, Mutex, MutexGuard, OnceLock, Ordering, Weak};
use crate::storage::block::{BlockKind, expect_kind};
use crate::storage::data_file::{BlockRead, DataFile};
use crate::storage::io::AlignedBuffer;
use extent::LoadingFrame;
pub use extent::{CachedBlock, CachedBlocks, CachedExtent};
pub use frames::Heat;
use frames::{FrameNo, Frames, PLACE_FRAMES};
use state::State;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// How many times [`Cache::reclaim_slab`] tries to advance epochs before it gives up.
const RECLAIM_TRIES: usize = 4;

/// The priority of a block: how long the cache keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// Read once by a scan: evicted first unless it is used again.
    Scan,
    /// Entries.
    Data,
    /// A part of a filter.
    Filter,
    /// A part of an index or of an engine's structure.
    Index,
}

impl Priority {
    /// True for blocks that only reads of users load.
    fn is_of_entries(self) -> bool {
        matches!(self, Priority::Data | Priority::Scan)
    }

    /// Fails if a block read as part of a filter is none: filter probes rely on this.
    fn check(self, block: &[u8], number: BlockNo) -> Result<()> {
        if self == Priority::Filter {
            expect_kind(block, BlockKind::Filter, number)
        } else {
            Ok(())
        }
    }
}

impl From<Priority> for Heat {
    /// The heat of a new block, and the maximum that uses can raise it to.
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Scan => Heat::new(0, 1),
            Priority::Data => Heat::new(1, 2),
            Priority::Filter => Heat::new(5, 6),
            Priority::Index => Heat::new(6, 8),
        }
    }
}

/// Cache statistics.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheStats {
    /// Frames in all states.
    pub frames: u64,
    /// Frames that hold a block.
    pub cached: u64,
    /// Frames that hold no block.
    pub free: u64,
    /// Frames that wait for earlier readers.
    pub limbo: u64,
    /// Blocks that had to be read.
    pub misses: u64,
    /// Of these, blocks of entries: read by users, not by merges.
    pub entry_misses: u64,
    /// Nanoseconds that readers waited for these.
    pub waited_nanos: u64,
    /// Misses for which there was no frame.
    pub uncached_reads: u64,
    /// Blocks evicted for space.
    pub evictions: u64,
    /// Slabs returned to the budget.
    pub slabs_given_back: u64,
}

/// The cache of one data file.
pub struct Cache {
    // Constant after construction.
    this: Weak<Cache>,
    file: Arc<DataFile>,
    budget: Arc<Budget>,
    epochs: Arc<Epochs>,
    /// The id of the epochs, copied here because every hit checks it.
    epochs_id: u64,
    // Their own synchronisation.
    frames: Frames,
    misses: AtomicU64,
    entry_misses: AtomicU64,
    /// Nanoseconds that readers waited for blocks of entries.
    waited_nanos: AtomicU64,
    uncached_reads: AtomicU64,
    /// Set by a database; else no time is measured.
    clock: OnceLock<Clock>,
    // Guarded by the mutexes; `charge` is locked after `state` is unlocked.
    state: Mutex<State>,
    charge: Mutex<Charge>,
}

impl Cache {
    /// Creates an empty cache, which takes slabs from `budget` on use and returns them when the
    /// budget asks.
    #[must_use]
    pub fn new(file: Arc<DataFile>, budget: &Arc<Budget>, epochs: &Arc<Epochs>) -> Arc<Self> {
        let charge = Mutex::new(budget.charge(Use::Metadata, 0));
        let cache = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            file,
            budget: Arc::clone(budget),
            epochs: Arc::clone(epochs),
            epochs_id: epochs.id(),
            frames: Frames::new(),
            misses: AtomicU64::new(0),
            entry_misses: AtomicU64::new(0),
            waited_nanos: AtomicU64::new(0),
            clock: OnceLock::new(),
            uncached_reads: AtomicU64::new(0),
            state: Mutex::new(State::default()),
            charge,
        });
        let reclaim: Weak<dyn Reclaim> = Weak::<Cache>::clone(&cache.this);
        budget.set_reclaim(Side::Blocks, reclaim);
        cache
    }

    /// The blocks of an extent, none of them cached yet. The first `entry_blocks` of them hold
    /// entries: a read of one may read its neighbors too.
    #[must_use]
    pub fn extent(
        self: &Arc<Self>,
        extent: Extent,
        generation: Generation,
        entry_blocks: u32,
    ) -> CachedExtent {
        let bytes = u64::from(extent.blocks) * 4 + size_of::<CachedExtent>() as u64 + 32;
        let charge = self.budget.charge(Use::Metadata, bytes);
        CachedExtent::new(Arc::clone(self), (extent, generation), entry_blocks, charge)
    }

    /// As [`Cache::extent`], for an extent whose blocks are written again: each has a generation of
    /// its own.
    #[must_use]
    pub fn rewritable_extent(
        self: &Arc<Self>,
        extent: Extent,
        generation: Generation,
    ) -> CachedExtent {
        let bytes = u64::from(extent.blocks) * 12 + size_of::<CachedExtent>() as u64 + 32;
        let charge = self.budget.charge(Use::Metadata, bytes);
        CachedExtent::new(Arc::clone(self), (extent, generation), 0, charge).with_own_generations()
    }

    /// Copies blocks of several extents, in the order requested; all missing ones are read
    /// together, each once however often it is requested, and those that follow each other with one
    /// read. No guard is held during the read, and the caller should hold none. The caller bounds
    /// the number of requests: all blocks are in memory at once. `meanwhile` is called once, during
    /// the read if possible.
    pub fn load_many_while(
        &self,
        requests: &[(&CachedExtent, u32)],
        priority: Priority,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Vec<CachedBlock<'static>>> {
        let mut found: Vec<Option<CachedBlock<'static>>> = Vec::with_capacity(requests.len());
        let mut missing = Vec::new();
        // The first request for each missing block; and repeated requests.
        let (mut first, mut again) = (BTreeMap::new(), Vec::new());
        for (position, (extent, index)) in requests.iter().enumerate() {
            if !std::ptr::eq(Arc::as_ptr(extent.cache()), self) {
                return Err(Error::internal("an extent of another cache is asked for"));
            }
            found.push(extent.copy_of_cached(*index));
            if found[position].is_some() {
                continue;
            }
            let number = extent.number(*index)?;
            match first.entry((number, extent.generation_of(*index))) {
                Entry::Occupied(before) => again.push((position, *before.get())),
                Entry::Vacant(place) => {
                    place.insert(position);
                    extent.count_ghost(*index);
                    self.count_miss(priority);
                    missing.push((position, number));
                }
            }
        }
        let generation = |position: usize| requests[position].0.generation_of(requests[position].1);
        let follows = |one: &(usize, BlockNo), next: &(usize, BlockNo)| {
            next.1.0 == one.1.0 + 1 && generation(next.0) == generation(one.0)
        };
        let mut buffers: Vec<AlignedBuffer> = missing
            .chunk_by(follows)
            .map(|blocks| AlignedBuffer::new(blocks.len() * BLOCK_BYTES))
            .collect();
        let mut reads: Vec<BlockRead<'_>> = missing
            .chunk_by(follows)
            .zip(&mut buffers)
            .map(|(blocks, buffer)| {
                let (position, first) = blocks[0];
                BlockRead { first, generation: generation(position), buffer }
            })
            .collect();
        if reads.is_empty() {
            meanwhile();
        } else {
            self.timed(priority, || self.file.read_many_while(&mut reads, meanwhile))?;
        }
        drop(reads);
        for (blocks, buffer) in missing.chunk_by(follows).zip(buffers) {
            let buffer = Arc::new(buffer);
            for (place, (position, number)) in blocks.iter().enumerate() {
                let block = CachedBlock::part_of(&buffer, place);
                priority.check(&block, *number)?;
                let (extent, index) = requests[*position];
                extent.keep(index, &block, priority);
                found[*position] = Some(block);
            }
        }
        for (position, before) in again {
            found[position] = found[before].as_ref().map(CachedBlock::share);
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Cache statistics.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let state = self.state.lock();
        let counts = state.counts();
        CacheStats {
            frames: (counts.places * PLACE_FRAMES) as u64,
            cached: counts.cached as u64,
            free: counts.free as u64,
            limbo: counts.limbo as u64,
            misses: self.misses.load(Ordering::Relaxed),
            entry_misses: self.entry_misses.load(Ordering::Relaxed),
            waited_nanos: self.waited_nanos.load(Ordering::Relaxed),
            uncached_reads: self.uncached_reads.load(Ordering::Relaxed),
            evictions: state.evictions,
            slabs_given_back: state.withdrawn,
        }
    }

    /// Measures from now on how long readers wait.
    pub fn set_clock(&self, clock: Clock) {
        let _ = self.clock.set(clock);
    }

    /// Reads blocks of this priority, and counts the time if a reader waits for entries.
    pub fn timed<T>(&self, priority: Priority, read: impl FnOnce() -> T) -> T {
        let clock = self.clock.get().filter(|_| priority.is_of_entries());
        let Some(clock) = clock else { return read() };
        let start = clock.now();
        let outcome = read();
        let waited = clock.now().saturating_sub(start).as_nanos();
        let waited = u64::try_from(waited).unwrap_or(u64::MAX);
        self.waited_nanos.fetch_add(waited, Ordering::Relaxed);
        outcome
    }

    /// Counts a miss of this priority.
    fn count_miss(&self, priority: Priority) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        if priority.is_of_entries() {
            self.entry_misses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a frame for a block, if there is one.
    fn frame(&self, guard: &Guard) -> Option<LoadingFrame<'_>> {
        self.acquire(guard).map(|frame| LoadingFrame { cache: self, frame })
    }

    /// Takes a frame in state Loading, if there is one.
    fn acquire(&self, guard: &Guard) -> Option<FrameNo> {
        let mut state = self.state.lock();
        if state.spare() < state.reserve() {
            state = self.make_room(state);
        }
        let frame = state.take_free();
        let retired = state.take_retired();
        let counts = state.counts();
        let waiting = counts.limbo > 0 || counts.draining > 0;
        let wait = waiting && counts.free * 2 < state.reserve();
        drop(state);
        if !retired.is_empty() || wait {
            self.retire(retired, guard);
        }
        frame.or_else(|| self.state.lock().take_free())
    }

    /// Adds a slab if the budget has one, else runs the clock; if the budget is over its limit the
    /// cache shrinks.
    fn make_room<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        drop(state);
        let slab = self.budget.take_slab(Use::Cache);
        let shrink = slab.is_err() && self.budget.used() > self.budget.limit();
        let mut state = self.state.lock();
        let mut leaving = None;
        match slab {
            Ok(slab) => leaving = state.install(slab, &self.frames),
            Err(_) => {
                if shrink {
                    leaving = state.drain(&self.frames, self.budget.split());
                }
                let wanted = state.reserve() / 2 + 1;
                state.evict(wanted, &self.frames, self.budget.split());
            }
        }
        let bytes = state.heap_bytes();
        drop(state);
        drop(leaving);
        self.count_bytes(bytes);
        self.state.lock()
    }

    fn count_bytes(&self, bytes: u64) {
        let mut charge = self.charge.lock();
        if charge.bytes() != bytes {
            charge.resize(bytes);
        }
    }

    /// Defers the end of limbo of frames that lost their slots before, and advances epochs.
    fn retire(&self, retired: Vec<FrameNo>, guard: &Guard) {
        guard.check(self.epochs_id);
        if !retired.is_empty() {
            let this = Weak::clone(&self.this);
            guard.defer(move || {
                if let Some(cache) = this.upgrade() {
                    cache.release(&retired);
                }
            });
        }
        guard.flush();
    }

    fn release(&self, retired: &[FrameNo]) {
        let mut state = self.state.lock();
        let leaving = state.release(retired, &self.frames);
        let bytes = state.heap_bytes();
        drop(state);
        if !leaving.is_empty() {
            drop(leaving);
            self.count_bytes(bytes);
        }
    }
}

impl Reclaim for Cache {
    fn reclaim_slab(&self) -> Reclaimed {
        let before = self.state.lock().withdrawn;
        for attempt in 0..RECLAIM_TRIES {
            let guard = self.epochs.pin();
            let mut state = self.state.lock();
            let split = self.budget.split();
            let leaving = if attempt == 0 {
                // Hot blocks of the leaving place need other frames: those of cold blocks, which
                // will be free for the next place.
                if state.spare() < state.reserve() + PLACE_FRAMES {
                    state.evict(PLACE_FRAMES, &self.frames, split);
                }
                state.drain(&self.frames, split)
            } else {
                None
            };
            let retired = state.take_retired();
            let (counts, bytes) = (state.counts(), state.heap_bytes());
            let done = state.withdrawn > before;
            drop(state);
            drop(leaving);
            self.count_bytes(bytes);
            self.retire(retired, &guard);
            if done {
                return Reclaimed::Now;
            }
            if counts.draining == 0 {
                return Reclaimed::Nothing;
            }
        }
        let state = self.state.lock();
        if state.withdrawn > before { Reclaimed::Now } else { Reclaimed::Soon }
    }
}

#[cfg(test)]
mod tests;
