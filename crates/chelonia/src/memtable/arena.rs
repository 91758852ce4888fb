//! The memory of one memtable: a bump allocator over slabs of the budget.
//!
//! ```text
//!   lanes (entries 0..4, nodes, large)          seeds, then slabs
//!   [current] ----------------------------> | used | allocated ... | free      |
//!   [current] --- at first all of them ---> | used | allocated ... | free      |
//! ```
//!
//! A lane is a position to allocate from. Threads that insert at the same time have lanes of their
//! own, so that they rarely contend; the nodes of the index share one lane, which keeps them dense;
//! large allocations have one, so that they do not leave the rest of a slab of small ones unused.
//! All lanes begin in a *seed* of one page, which is allocated with the first allocation, and move
//! on together to seeds that double in size, then to the memtable's first slab, and each to a slab
//! of its own when that one is full. So a thousand keyspaces with a few entries each take a
//! thousand pages, not slabs, and no memtable takes more than about twice as much again for its
//! next entry.
//!
//! Invariants:
//! 1. Nothing is freed before the arena is dropped. An address stays valid once it is returned, and
//!    is never returned again.
//! 2. `used` of a chunk only grows; bytes `[before, before + n)` belong to the thread that added
//!    `n` to it, if they end within the chunk. An addition that does not fit is not undone: the
//!    chunk is full then.
//! 3. A lane's `current` is null or points to a seed or a slab in `chunks`; it changes under
//!    `chunks`' lock.
//!
//! A *chunk* is a seed or a slab.
//!
//! Thread-safety: everything may be called from any thread. The lock is taken once per chunk; the
//! budget may request a slab from the cache while it is held.
//!
//! The arena does not run destructors and does not clear memory: a slab has the content of its last
//! use.

#![expect(unsafe_code, reason = "an island: hands out parts of slabs")]

use crate::base::limits::{INLINE_ENTRY_BYTES_MAX, SLAB_BYTES};
use crate::memory::budget::{Budget, Charge, Use};
use crate::memory::pages::{PAGE_BYTES, Pages};
use crate::memory::slab::OwnedSlab;
use crate::runtime::sync::{Arc, AtomicPtr, AtomicU64, AtomicUsize, Mutex, Ordering, thread_local};
use std::cell::Cell;
use std::ptr::{NonNull, null_mut};

/// Alignment of all returned addresses.
pub const ALIGNMENT: usize = 8;

/// Number of lanes for entries; more threads than this share lanes.
const ENTRY_LANES: usize = 4;
const NODE_LANE: usize = ENTRY_LANES;
const LARGE_LANE: usize = ENTRY_LANES + 1;
const LANES: usize = ENTRY_LANES + 2;

/// Size limit of the entry lanes; larger entries go to the lane for large allocations. So the
/// unused end of a slab is at most this long on the other lanes.
const SMALL_BYTES_MAX: usize = 16 << 10;

/// Maximum size of one allocation: the largest entry with its headers.
pub const ALLOCATION_BYTES_MAX: usize = INLINE_ENTRY_BYTES_MAX + 128;

const _: () = assert!(2 * ALLOCATION_BYTES_MAX + size_of::<ChunkHead>() <= SLAB_BYTES);
const _: () = assert!(size_of::<ChunkHead>().is_multiple_of(ALIGNMENT));

/// The first bytes of a chunk, on a cache line of their own.
#[repr(C, align(64))]
struct ChunkHead {
    /// Bytes allocated, including this head. Larger than the chunk: full.
    used: AtomicUsize,
    /// The chunk's size in bytes.
    size: usize,
}

/// Size of the largest seed; the next larger chunk is a slab.
const SEED_BYTES_MAX: usize = 64 << 10;

const _: () = assert!(SEED_BYTES_MAX < SLAB_BYTES && SEED_BYTES_MAX.is_multiple_of(PAGE_BYTES));

/// The memory of a memtable before it has a slab: pages of its own, because a general allocator
/// would keep the freed memory of hundreds of small memtables among smaller allocations.
struct Seed {
    pages: Pages,
    _charge: Charge,
}

impl Seed {
    /// Allocates a seed of `bytes` bytes, complete pages. `None` if the system refuses memory.
    fn new(budget: &Arc<Budget>, bytes: usize) -> Option<Self> {
        let pages = Pages::map(bytes)?;
        Some(Self { pages, _charge: budget.charge(Use::Memtable, bytes as u64) })
    }

    /// Size of the seed after `last` that `bytes` bytes fit into; `None` if it would be a slab.
    fn bytes_after(last: Option<&Seed>, bytes: usize) -> Option<usize> {
        let next = last.map_or(PAGE_BYTES, |last| 2 * last.pages.len());
        let next = next.max((size_of::<ChunkHead>() + bytes).next_power_of_two());
        (next <= SEED_BYTES_MAX).then_some(next)
    }
}

/// The memory that an arena holds.
#[derive(Default)]
struct Chunks {
    /// In order of creation.
    seeds: Vec<Seed>,
    /// In order of acquisition.
    slabs: Vec<OwnedSlab>,
}

/// On two cache lines of its own: processors fetch them in pairs.
#[repr(align(128))]
struct Lane {
    /// The chunk to allocate from; null before the first allocation of the arena.
    current: AtomicPtr<ChunkHead>,
    /// Number of keys inserted by threads of this lane; per lane to avoid contention on one
    /// counter.
    keys: AtomicU64,
}

/// A bump allocator; see the head of the file.
pub struct Arena {
    budget: Arc<Budget>,
    lanes: [Lane; LANES],
    /// Guards the change of a lane's chunk.
    chunks: Mutex<Chunks>,
    chunk_bytes: AtomicU64,
}

impl Arena {
    /// Creates an arena that holds no memory.
    pub fn new(budget: Arc<Budget>) -> Self {
        let lane = |_| Lane { current: AtomicPtr::new(null_mut()), keys: AtomicU64::new(0) };
        Self {
            budget,
            lanes: std::array::from_fn(lane),
            chunks: Mutex::default(),
            chunk_bytes: AtomicU64::new(0),
        }
    }

    /// The budget that the slabs come from.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> u64 {
        self.chunk_bytes.load(Ordering::Relaxed)
    }

    /// Estimates the additional memory for `bytes` more bytes of entries of this thread; the share
    /// of index nodes is a guess.
    pub fn growth_bytes(&self, bytes: usize) -> u64 {
        let current = self.lanes[entry_lane()].current.load(Ordering::Acquire);
        // SAFETY: as in `bump`.
        let left = (!current.is_null()).then(|| unsafe {
            (*current).size.saturating_sub((*current).used.load(Ordering::Relaxed))
        });
        let need = bytes + bytes / 2;
        if left.is_some_and(|left| left >= need) {
            return 0;
        }
        // Seeds double: the next one is as large as all before and one page more.
        let next =
            usize::try_from(self.held_bytes()).unwrap_or(SLAB_BYTES).saturating_add(PAGE_BYTES);
        let next = if next <= SEED_BYTES_MAX { next } else { SLAB_BYTES };
        next.max(need.next_multiple_of(PAGE_BYTES)) as u64
    }

    /// Counts a key that this thread inserted.
    pub fn count_key(&self) {
        self.lanes[entry_lane()].keys.fetch_add(1, Ordering::Relaxed);
    }

    /// The keys counted.
    pub fn keys(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.keys.load(Ordering::Relaxed)).sum()
    }

    /// Allocates `bytes` bytes for an entry: aligned to [`ALIGNMENT`], valid until the arena is
    /// dropped, with arbitrary content, owned by the caller. Panics above [`ALLOCATION_BYTES_MAX`].
    #[inline]
    pub fn entry(&self, bytes: usize) -> NonNull<u8> {
        let lane = if bytes > SMALL_BYTES_MAX { LARGE_LANE } else { entry_lane() };
        self.allocate(&self.lanes[lane], bytes)
    }

    /// As [`Arena::entry`], for a node of the index. Nodes whose sizes are multiples of a cache
    /// line begin at one, except in seeds and in the first slab.
    #[inline]
    pub fn node(&self, bytes: usize) -> NonNull<u8> {
        self.allocate(&self.lanes[NODE_LANE], bytes)
    }

    #[inline]
    fn allocate(&self, lane: &Lane, bytes: usize) -> NonNull<u8> {
        assert!(bytes <= ALLOCATION_BYTES_MAX, "an entry is larger than its limit");
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        bump(lane.current.load(Ordering::Acquire), bytes)
            .unwrap_or_else(|| self.allocate_beyond(lane, bytes))
    }

    /// Allocates from a lane whose chunk is full or missing.
    #[cold]
    fn allocate_beyond(&self, lane: &Lane, bytes: usize) -> NonNull<u8> {
        let mut chunks = self.chunks.lock();
        // Another thread may have installed a chunk while this one waited.
        if let Some(place) = bump(lane.current.load(Ordering::Acquire), bytes) {
            return place;
        }
        let is_shared = chunks.slabs.is_empty();
        let seed_bytes = Seed::bytes_after(chunks.seeds.last(), bytes).filter(|_| is_shared);
        let seed = seed_bytes.and_then(|bytes| Seed::new(&self.budget, bytes));
        let (head, size) = if let Some(seed) = seed {
            let (head, size) = (seed.pages.as_ptr().cast::<ChunkHead>(), seed.pages.len());
            chunks.seeds.push(seed);
            (head, size)
        } else {
            let slab = self.budget.take_slab_forced(Use::Memtable);
            let head = slab.as_ptr().cast::<ChunkHead>();
            chunks.slabs.push(slab);
            (head, SLAB_BYTES)
        };
        // SAFETY: the chunk is ours alone, aligned for a head, and larger than one.
        unsafe { head.write(ChunkHead { used: AtomicUsize::new(size_of::<ChunkHead>()), size }) };
        let place = bump(head, bytes);
        if is_shared {
            self.lanes.iter().for_each(|lane| lane.current.store(head, Ordering::Release));
        } else {
            lane.current.store(head, Ordering::Release);
        }
        self.chunk_bytes.fetch_add(size as u64, Ordering::Relaxed);
        place.expect("a fresh chunk holds what it was brought for")
    }
}

/// Takes `bytes` (a multiple of [`ALIGNMENT`]) from the chunk at `head`; `None` if there is no
/// chunk or too little space.
#[inline]
fn bump(head: *mut ChunkHead, bytes: usize) -> Option<NonNull<u8>> {
    if head.is_null() {
        return None;
    }
    // SAFETY: a head that is not null was written before its address was stored (with release
    // order), and its chunk lives as long as the arena.
    let (before, size) =
        unsafe { ((*head).used.fetch_add(bytes, Ordering::Relaxed), (*head).size) };
    if before + bytes > size {
        return None;
    }
    // SAFETY: `before + bytes` lies within the chunk that `head` begins, and `head` was made from
    // the pointer to the whole chunk.
    Some(unsafe { NonNull::new_unchecked(head.cast::<u8>().add(before)) })
}

/// The lane of the calling thread: assigned round-robin on first use.
#[inline]
fn entry_lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LANE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    LANE.with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT.fetch_add(1, Ordering::Relaxed) % ENTRY_LANES);
        }
        lane.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiny_arena_holds_a_page_and_lanes_part_when_a_slab_is_full() {
        let budget = Budget::new(64 << 20);
        let arena = Arena::new(Arc::clone(&budget));
        assert_eq!((arena.held_bytes(), budget.used()), (0, 0));
        let (_, _) = (arena.entry(100), arena.node(64));
        let page = PAGE_BYTES as u64;
        assert_eq!((arena.held_bytes(), budget.used()), (page, page));
        assert_eq!((arena.growth_bytes(100), arena.growth_bytes(4000)), (0, 2 * page));
        for seeds in [3, 7, 15] {
            while arena.held_bytes() < seeds * page {
                arena.entry(1000);
            }
            assert_eq!((arena.held_bytes(), budget.used()), (seeds * page, seeds * page));
        }
        arena.entry(60_000);
        let seeds = (15 + 16) * page;
        assert_eq!(arena.held_bytes(), seeds);
        assert_eq!(arena.growth_bytes(60_000), SLAB_BYTES as u64);
        arena.entry(60_000);
        assert_eq!(arena.held_bytes(), seeds + SLAB_BYTES as u64);
        for _ in 0..SLAB_BYTES / 1000 {
            arena.entry(1000);
        }
        assert_eq!(arena.held_bytes(), seeds + 2 * SLAB_BYTES as u64);
        let node = arena.node(64);
        assert_eq!(arena.held_bytes(), seeds + 3 * SLAB_BYTES as u64);
        assert!(node.addr().get().is_multiple_of(64), "nodes begin at cache lines");
        drop(arena);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn threads_never_share_bytes() {
        const THREADS: u8 = 6;
        const EACH: usize = if cfg!(miri) { 40 } else { 4000 };
        let budget = Budget::new(64 << 20);
        let arena = Arena::new(budget);
        let fill = |mark: u8| {
            let size = |index: usize| 1 + (index * 37) % 600;
            let mine: Vec<_> = (0..EACH)
                .map(|index| {
                    let place = arena.entry(size(index));
                    // SAFETY: the arena gave these bytes to this thread alone.
                    unsafe { place.write_bytes(mark, size(index)) };
                    place
                })
                .collect();
            for (index, place) in mine.iter().enumerate() {
                assert!(place.addr().get().is_multiple_of(ALIGNMENT));
                // SAFETY: as above; they were written before.
                let bytes = unsafe { NonNull::slice_from_raw_parts(*place, size(index)).as_ref() };
                assert!(bytes.iter().all(|byte| *byte == mark));
            }
        };
        std::thread::scope(|scope| {
            for mark in 1..=THREADS {
                scope.spawn(move || fill(mark));
            }
        });
    }
}
