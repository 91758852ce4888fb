//! The memory budget: one number, everything counted, and the slabs that move within it.
//!
//! Memory is of two sorts. *Slabs* of [`SLAB_BYTES`] hold what is large (memtables, cached blocks,
//! merge buffers); they are mapped once, touched once, and recycled through one free list, so that
//! memory moves between writes and reads without going back to the system. When it does go back the
//! pages go and the address stays for the next slab that is wanted: an allocator would keep freed
//! slabs among smaller things, and the resident set would grow beyond what is counted. *Charges*
//! count what lives on the heap or in mapped files (nodes, slot arrays, log segments); they leave
//! less for slabs.
//!
//! ```text
//!      budget limit
//!      |<------------------------------------------------------------------>|
//!      | charges (heap, mapped log) | slabs in use | free slabs | not taken |
//! ```
//!
//! Invariants:
//! 1. `charges + slabs in use + free slabs <= limit`, except while a limit was just lowered or a
//!    charge or a forced slab just raised the use: then nothing new is handed out but forced slabs,
//!    and what comes back is returned to the system until it holds again.
//! 2. A slab is owned by exactly one holder or by the free list.
//!
//! Thread-safety: everything may be called from any thread.

#![expect(unsafe_code, reason = "an island: raw memory of slabs, allocated and freed here only")]

use crate::base::limits::SLAB_BYTES;
use crate::base::sync::{Arc, AtomicU64, Mutex, OnceLock, Ordering, Weak};
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

/// What memory is used for: the rows of the memory statistics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Use {
    /// Memtables: entries and their index.
    Memtable,
    /// Cached blocks of runs: data, indexes, filters.
    Cache,
    /// Merge buffers, pages in flight, sorted views of memtables.
    Work,
    /// Tree nodes, slot arrays, open runs and other bookkeeping on the heap.
    Metadata,
    /// Mapped log segments and log buffers.
    Log,
}

/// The number of [`Use`]s.
pub const USES: usize = 5;

impl Use {
    /// All of them, in the order of the statistics.
    pub const ALL: [Use; USES] = [Use::Memtable, Use::Cache, Use::Work, Use::Metadata, Use::Log];
}

/// Something that can give slabs back when writes need them: the block cache.
pub trait Reclaim: Send + Sync {
    /// Gives back at least one slab if it can; returns how many.
    fn reclaim_slab(&self) -> usize;
}

/// The budget of one database.
pub struct Budget {
    limit: AtomicU64,
    /// Bytes in use by [`Use`], slabs and charges together.
    used: [AtomicU64; USES],
    /// Slabs that nobody uses; guarded by the mutex.
    free: Mutex<FreeSlabs>,
    /// Bytes of those that have memory.
    free_bytes: AtomicU64,
    /// Set once, when the cache exists.
    reclaim: OnceLock<Weak<dyn Reclaim>>,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicU64::new(limit),
            used: std::array::from_fn(|_| AtomicU64::new(0)),
            free: Mutex::default(),
            free_bytes: AtomicU64::new(0),
            reclaim: OnceLock::new(),
        })
    }

    /// Names who gives slabs back under pressure. Only the first call counts.
    pub fn set_reclaim(&self, reclaim: Weak<dyn Reclaim>) {
        let _ = self.reclaim.set(reclaim);
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Lowering it frees unused slabs now and the rest as it comes back.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.release_surplus();
    }

    /// Bytes in use for `purpose`.
    pub fn used_by(&self, purpose: Use) -> u64 {
        self.used[purpose as usize].load(Ordering::Relaxed)
    }

    /// Bytes in use for all purposes, unused slabs not counted.
    pub fn used(&self) -> u64 {
        Use::ALL.iter().map(|purpose| self.used_by(*purpose)).sum()
    }

    /// Bytes this database holds from the system: in use and unused slabs.
    pub fn held(&self) -> u64 {
        self.used() + self.free_bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` of heap or mapped memory that exist whether the budget likes it or not.
    pub fn charge(self: &Arc<Self>, purpose: Use, bytes: u64) -> Charge {
        self.used[purpose as usize].fetch_add(bytes, Ordering::Relaxed);
        self.release_surplus();
        Charge { budget: Arc::clone(self), purpose, bytes }
    }

    /// A slab within the limit: a free one, else a fresh one, else `None`.
    pub fn take_slab(self: &Arc<Self>, purpose: Use) -> Option<OwnedSlab> {
        if self.used() + SLAB_BYTES as u64 > self.limit() {
            return None;
        }
        Some(self.hand_out(purpose))
    }

    /// A slab for writes: within the limit if there is room or the cache gives some up, else beyond
    /// it. Callers bound how often that happens by their own share.
    pub fn take_slab_forced(self: &Arc<Self>, purpose: Use) -> OwnedSlab {
        while self.used() + SLAB_BYTES as u64 > self.limit() {
            let cache = self.reclaim.get().and_then(Weak::upgrade);
            if cache.is_none_or(|cache| cache.reclaim_slab() == 0) {
                break;
            }
        }
        self.hand_out(purpose)
    }

    fn hand_out(self: &Arc<Self>, purpose: Use) -> OwnedSlab {
        self.used[purpose as usize].fetch_add(SLAB_BYTES as u64, Ordering::Relaxed);
        let mut free = self.free.lock();
        let recycled = match free.warm.pop() {
            Some(slab) => {
                self.free_bytes.fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
                Some(slab)
            }
            None => free.cold.pop(),
        };
        drop(free);
        let slab = recycled.unwrap_or_else(Slab::map);
        OwnedSlab { slab: Some(slab), budget: Arc::clone(self), purpose }
    }

    fn give_back(&self, slab: Slab, purpose: Use) {
        self.used[purpose as usize].fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
        self.free_bytes.fetch_add(SLAB_BYTES as u64, Ordering::Relaxed);
        self.free.lock().warm.push(slab);
        self.release_surplus();
    }

    /// Returns unused slabs to the system while more is held than the limit allows.
    fn release_surplus(&self) {
        while self.held() > self.limit() {
            let Some(mut slab) = self.free.lock().warm.pop() else { return };
            self.free_bytes.fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
            slab.give_pages_back();
            self.free.lock().cold.push(slab);
        }
    }
}

/// Counted heap or mapped memory; uncounted when dropped.
pub struct Charge {
    budget: Arc<Budget>,
    purpose: Use,
    bytes: u64,
}

impl Charge {
    /// How much is counted, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts `bytes` instead of what was counted.
    pub fn resize(&mut self, bytes: u64) {
        let used = &self.budget.used[self.purpose as usize];
        used.fetch_add(bytes, Ordering::Relaxed);
        used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
        self.budget.release_surplus();
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used[self.purpose as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Slabs that nobody uses.
#[derive(Default)]
struct FreeSlabs {
    /// With memory behind them.
    warm: Vec<Slab>,
    /// Without: an address only.
    cold: Vec<Slab>,
}

/// [`SLAB_BYTES`] bytes of mapped memory, block-aligned. Zeroed when fresh, stale when recycled.
struct Slab {
    memory: NonNull<u8>,
}

// SAFETY: a slab is plain memory with one owner; the pointer is not tied to a thread.
unsafe impl Send for Slab {}

const _: () = assert!(SLAB_BYTES.is_multiple_of(crate::base::limits::BLOCK_BYTES));

impl Slab {
    #[cfg(not(miri))]
    fn map() -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the place, where nothing is.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), SLAB_BYTES, access, MapFlags::PRIVATE) };
        match mapped.map(|place| NonNull::new(place.cast())) {
            Ok(Some(memory)) => Self { memory },
            _ => handle_alloc_error(SLAB_LAYOUT),
        }
    }

    /// Gives the memory back to the system and keeps the address; what was there reads as zeros. If
    /// the system refuses the memory stays, which only costs it.
    #[cfg(not(miri))]
    fn give_pages_back(&mut self) {
        use rustix::mm::{Advice, madvise};
        // SAFETY: the range was mapped in `map`, is not unmapped yet, and nobody but `self` has it.
        let _ = unsafe { madvise(self.memory.as_ptr().cast(), SLAB_BYTES, Advice::LinuxDontNeed) };
    }

    #[cfg(miri)]
    fn map() -> Self {
        // SAFETY: the layout has a size that is not zero.
        let memory = unsafe { std::alloc::alloc_zeroed(SLAB_LAYOUT) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(SLAB_LAYOUT) };
        Self { memory }
    }

    #[cfg(miri)]
    fn give_pages_back(&mut self) {}
}

const SLAB_LAYOUT: Layout = {
    match Layout::from_size_align(SLAB_BYTES, crate::base::limits::BLOCK_BYTES) {
        Ok(layout) => layout,
        Err(_) => panic!("the slab size is a multiple of its alignment"),
    }
};

impl Drop for Slab {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: mapped in `map` with this size, and unmapped once, here, by the only owner.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), SLAB_BYTES) };
        #[cfg(miri)]
        // SAFETY: allocated in `map` with this layout, and freed once, here.
        unsafe {
            std::alloc::dealloc(self.memory.as_ptr(), SLAB_LAYOUT);
        };
    }
}

/// A slab in use; goes back to its budget when dropped.
pub struct OwnedSlab {
    /// `None` only while dropping.
    slab: Option<Slab>,
    budget: Arc<Budget>,
    purpose: Use,
}

impl OwnedSlab {
    /// The start of the slab's [`SLAB_BYTES`] bytes, aligned to a block. The memory is initialised
    /// (zero or stale bytes), never moves, and stays until the slab is dropped. What is shared
    /// through the pointer is for the holder to order.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.slab.as_ref().map_or(std::ptr::null_mut(), |slab| slab.memory.as_ptr())
    }

    /// The bytes, to a sole owner.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is SLAB_BYTES long and initialised, and lives as long as `self`; safe
        // users only ever write through `bytes_mut`, which needs `&mut self`, and islands that
        // write through `as_ptr` do not call this on parts they write.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), SLAB_BYTES) }
    }

    /// The bytes, to write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), SLAB_BYTES) }
    }
}

impl Drop for OwnedSlab {
    fn drop(&mut self) {
        if let Some(slab) = self.slab.take() {
            self.budget.give_back(slab, self.purpose);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLAB: u64 = SLAB_BYTES as u64;

    #[test]
    fn slabs_stay_within_the_limit_and_are_recycled() {
        let budget = Budget::new(3 * SLAB);
        let mut first = budget.take_slab(Use::Cache).unwrap();
        first.bytes_mut()[0] = 7;
        let place = first.as_ptr();
        let _second = budget.take_slab(Use::Memtable).unwrap();
        let charge = budget.charge(Use::Metadata, SLAB);
        assert!(budget.take_slab(Use::Cache).is_none());
        drop(first);
        assert_eq!(budget.held(), 3 * SLAB);
        let again = budget.take_slab(Use::Memtable).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert_eq!(again.bytes()[0], 7);
        drop(charge);
        assert_eq!(budget.used_by(Use::Memtable), 2 * SLAB);
    }

    #[test]
    fn a_lower_limit_returns_what_is_not_in_use() {
        let budget = Budget::new(8 * SLAB);
        let slabs: Vec<_> = (0..8).map(|_| budget.take_slab(Use::Work).unwrap()).collect();
        budget.set_limit(2 * SLAB);
        assert_eq!(budget.held(), 8 * SLAB);
        drop(slabs);
        assert_eq!(budget.held(), 2 * SLAB);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn forced_slabs_are_always_there() {
        let budget = Budget::new(SLAB);
        let _a = budget.take_slab_forced(Use::Memtable);
        let _b = budget.take_slab_forced(Use::Memtable);
        assert_eq!(budget.used(), 2 * SLAB);
        assert!(budget.take_slab(Use::Cache).is_none());
    }
}
