//! The memory budget of a database: one limit, with all memory counted.
//!
//! Memory is of two kinds. *Slabs* of [`SLAB_BYTES`] hold large data (memtables, cached blocks,
//! merge buffers) and move between writes and reads (`memory/slab.rs`). *Charges* count memory on
//! the heap or in mapped files (nodes, slot arrays, log segments); they leave less for slabs.
//! Metadata are many small pieces that come and go, and count with what the allocator loses between
//! them.
//!
//! ```text
//!      budget limit
//!      |<------------------------------------------------------------------>|
//!      | charges (heap, mapped log) | slabs in use | free slabs | not taken |
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | here | the limit, the counts, and what caches give up |
//! | `purpose` | the purposes that memory is counted by ([`Use`]) |
//! | `charge` | charges |
//! | `slabs`, `free_slabs` | handing out slabs; the list of unused ones |
//!
//! Invariants:
//! 1. `charges + slabs in use + free slabs <= limit`, except while a limit was just lowered or a
//!    charge or a forced slab just raised the use: then only forced slabs are handed out, and
//!    returned slabs go back to the system until it holds again.
//! 2. A slab is owned by exactly one holder or by the free list.
//!
//! Thread-safety: every method may be called from any thread.

use self::free_slabs::FreeSlabs;
use crate::base::limits::SLAB_BYTES;
use crate::memory::pages::Pages;
use crate::memory::split::{Side, Split};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, Weak, thread};

mod charge;
mod free_slabs;
mod purpose;
mod slabs;
#[cfg(test)]
mod tests;

pub use charge::Charge;
#[cfg(test)]
pub use charge::with_losses;
pub use purpose::{USES, Use};
pub use slabs::Refused;

/// A cache that can give up slabs when others need them.
pub trait Reclaim: Send + Sync {
    /// Gives up a slab if possible.
    fn reclaim_slab(&self) -> Reclaimed;
}

/// The result of asking for a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaimed {
    /// At least one was given up.
    Now,
    /// One will be free when the current readers are gone.
    Soon,
    /// There is none, or another thread is reclaiming.
    Nothing,
}

/// The budget of one database.
pub struct Budget {
    limit: AtomicU64,
    /// Bytes in use by [`Use`], slabs and charges together.
    used: [AtomicU64; USES],
    /// The unused slabs.
    free: Mutex<FreeSlabs>,
    /// Bytes of unused slabs with memory.
    free_bytes: AtomicU64,
    /// The recent peak of work memory; see [`Budget::tick`].
    work_peak: AtomicU64,
    /// The division of the read memory.
    split: Split,
    /// The caches, by [`Side`]; set once, when they are created.
    caches: [OnceLock<Weak<dyn Reclaim>>; 2],
    /// Which of them was refused a slab at its last request.
    wanting: [AtomicBool; 2],
    /// The system refused the last request for memory.
    is_refused: AtomicBool,
}

/// With fewer bytes left than this, a cache above its share takes no more if the other one wants
/// some: memory that becomes free goes to the other one.
const LEFT_FOR_OTHERS: u64 = 4 * SLAB_BYTES as u64;

/// Caches leave at most this fraction of the budget free for future work.
const WORK_PART: u64 = 16;

/// Memory is ample if more than this fraction of the budget is unused.
const AMPLE_PART: u64 = 16;

/// How often a taker of a slab beyond the limit yields, so that slabs on their way back arrive.
const FORCED_PATIENCE: u32 = 64;

/// Up to this fraction of the budget may be used beyond it while a cache has slabs on their way
/// back.
const ON_THE_WAY_PART: u64 = 64;

impl Budget {
    /// Creates a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicU64::new(limit),
            used: std::array::from_fn(|_| AtomicU64::new(0)),
            free: Mutex::default(),
            free_bytes: AtomicU64::new(0),
            work_peak: AtomicU64::new(0),
            split: Split::new(limit),
            caches: [OnceLock::new(), OnceLock::new()],
            wanting: [AtomicBool::new(false), AtomicBool::new(false)],
            is_refused: AtomicBool::new(false),
        })
    }

    /// Registers the cache that gives up slabs of `side` under pressure. Only the first call
    /// counts.
    pub fn set_reclaim(&self, side: Side, reclaim: Weak<dyn Reclaim>) {
        let _ = self.caches[side as usize].set(reclaim);
    }

    /// The division of the read memory.
    pub fn split(&self) -> &Split {
        &self.split
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Lowering it frees unused slabs now and the rest as they are returned.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.split.set_limit(limit);
        self.release_surplus();
    }

    /// Bytes in use for `purpose`.
    pub fn used_by(&self, purpose: Use) -> u64 {
        self.used[purpose as usize].load(Ordering::Relaxed)
    }

    /// Bytes in use for all purposes, without unused slabs.
    pub fn used(&self) -> u64 {
        Use::ALL.iter().map(|purpose| self.used_by(*purpose)).sum()
    }

    /// Bytes this database holds from the system: in use and unused slabs.
    pub fn held(&self) -> u64 {
        self.used() + self.free_bytes.load(Ordering::Relaxed)
    }

    /// Makes caches give up slabs while a further slab exceeds the limit.
    fn make_room(&self) {
        self.make_room_for(SLAB_BYTES as u64);
    }

    /// Makes caches give up slabs while `bytes` more exceed the limit. A caller that is about to
    /// take much calls this before it pins an epoch: its own guard delays every slab that a cache
    /// gives up later.
    pub fn make_room_for(&self, bytes: u64) {
        let mut patience = FORCED_PATIENCE;
        while self.used() + bytes > self.limit() {
            match self.reclaim_any() {
                Reclaimed::Now => {}
                // A reader that delays the slab may wait for a processor.
                Reclaimed::Soon if patience > 0 && self.is_far_over() => {
                    patience -= 1;
                    thread::yield_now();
                }
                Reclaimed::Soon | Reclaimed::Nothing => break,
            }
        }
    }

    /// True if the use beyond the limit exceeds the slabs on their way back.
    fn is_far_over(&self) -> bool {
        self.used() > self.limit() + self.limit() / ON_THE_WAY_PART
    }

    /// Takes slabs from the caches while more is in use than the limit allows; true if it is within
    /// the limit now. False while readers hold slabs: call again later.
    pub fn trim(&self) -> bool {
        while self.used() > self.limit() {
            if self.reclaim_any() != Reclaimed::Now {
                return false;
            }
        }
        true
    }

    /// Decays the recent peak of work memory; called periodically. Caches leave the peak free,
    /// because more work is expected: evicting for it each time would cost more than caching in
    /// between gains.
    pub fn tick(&self) {
        let (peak, now) = (self.work_peak.load(Ordering::Relaxed), self.used_by(Use::Work));
        self.work_peak.store((peak - peak.div_ceil(16)).max(now), Ordering::Relaxed);
    }

    /// The memory that caches leave free for work.
    fn left_for_work(&self) -> u64 {
        let most = self.limit() / WORK_PART;
        let peak = self.work_peak.load(Ordering::Relaxed).min(most);
        peak.saturating_sub(self.used_by(Use::Work))
    }

    /// True if much memory is unused: a cache may take it without demand.
    pub fn is_ample(&self) -> bool {
        let room = (self.limit() / AMPLE_PART).max(LEFT_FOR_OTHERS);
        self.used() + room + self.left_for_work() <= self.limit()
    }

    /// Makes the cache above its share give up a slab, or else the other one. While a slab is on
    /// its way back, the shortage is small enough to wait for it.
    fn reclaim_any(&self) -> Reclaimed {
        let larger = self.larger_side().unwrap_or(Side::Blocks);
        let first = self.reclaim(larger);
        let missing = self.used().saturating_sub(self.limit());
        match first {
            Reclaimed::Now => Reclaimed::Now,
            Reclaimed::Soon if missing < self.limit() / ON_THE_WAY_PART => Reclaimed::Soon,
            Reclaimed::Soon => match self.reclaim(larger.other()) {
                Reclaimed::Nothing => Reclaimed::Soon,
                second => second,
            },
            Reclaimed::Nothing => self.reclaim(larger.other()),
        }
    }

    /// True if a slab and `left` bytes exceed the limit.
    fn is_short(&self, left: u64) -> bool {
        self.used() + SLAB_BYTES as u64 + left > self.limit()
    }

    /// The cache that exceeds its share of their common memory by a slab at least.
    fn larger_side(&self) -> Option<Side> {
        let (blocks, records) = (self.used_by(Use::Cache), self.used_by(Use::Records));
        let share = self.split.share(Side::Records, blocks + records);
        let slab = SLAB_BYTES as u64;
        if records >= share + slab {
            Some(Side::Records)
        } else if share >= records + slab {
            Some(Side::Blocks)
        } else {
            None
        }
    }

    /// Asks a cache to give up a slab.
    fn reclaim(&self, side: Side) -> Reclaimed {
        let cache = self.caches[side as usize].get().and_then(Weak::upgrade);
        cache.map_or(Reclaimed::Nothing, |cache| cache.reclaim_slab())
    }

    /// Takes back an unused slab.
    pub(in crate::memory) fn give_back(&self, slab: Pages, purpose: Use) {
        self.used[purpose as usize].fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
        self.free_bytes.fetch_add(SLAB_BYTES as u64, Ordering::Relaxed);
        self.free.lock().keep_warm(slab);
        self.release_surplus();
    }

    /// Test hook: makes the system refuse memory for slabs, or stop refusing.
    #[cfg(test)]
    pub fn refuse_memory(&self, is_refused: bool) {
        self.free.lock().is_refused = is_refused;
    }

    /// Returns unused slabs to the system while more is held than the limit allows.
    fn release_surplus(&self) {
        while self.held() > self.limit() {
            let mut free = self.free.lock();
            let Some(slab) = free.take_warm() else { return };
            self.free_bytes.fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
            free.cool(slab);
        }
    }
}
