//! The memory budget of a database: one limit, with all memory counted.
//!
//! Memory is of two kinds. *Slabs* of [`SLAB_BYTES`] hold large data (memtables, cached blocks,
//! merge buffers) and move between writes and reads (`slab.rs`). *Charges* count memory on the heap
//! or in mapped files (nodes, slot arrays, log segments); they leave less for slabs. Metadata are
//! many small pieces that come and go, and count with what the allocator loses between them.
//!
//! ```text
//!      budget limit
//!      |<------------------------------------------------------------------>|
//!      | charges (heap, mapped log) | slabs in use | free slabs | not taken |
//! ```
//!
//! Invariants:
//! 1. `charges + slabs in use + free slabs <= limit`, except while a limit was just lowered or a
//!    charge or a forced slab just raised the use: then only forced slabs are handed out, and
//!    returned slabs go back to the system until it holds again.
//! 2. A slab is owned by exactly one holder or by the free list.
//!
//! Thread-safety: every method may be called from any thread.

use crate::base::error::Error;
use crate::base::limits::SLAB_BYTES;
use crate::memory::pages::Pages;
use crate::memory::slab::{FreeSlabs, OwnedSlab};
use crate::memory::split::{Side, Split};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, Weak, thread};
use std::alloc::{Layout, handle_alloc_error};

/// The purpose of memory: the rows of the memory statistics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Use {
    /// Memtables: entries and their index.
    Memtable,
    /// Cached blocks of runs: data, indexes, filters.
    Cache,
    /// Cached records.
    Records,
    /// Merge buffers, pages in flight, sorted views of memtables.
    Work,
    /// Windows of open cursors; in the statistics a part of the row of work.
    Scans,
    /// Tree nodes, slot arrays, open runs and other bookkeeping on the heap.
    Metadata,
    /// Mapped log segments and log buffers.
    Log,
}

/// The number of [`Use`]s.
pub const USES: usize = 7;

impl Use {
    /// All of them, in the order of the statistics.
    pub const ALL: [Use; USES] =
        [Use::Memtable, Use::Cache, Use::Records, Use::Work, Use::Scans, Use::Metadata, Use::Log];

    /// The side of the read memory, if the purpose is one.
    fn side(self) -> Option<Side> {
        match self {
            Use::Cache => Some(Side::Blocks),
            Use::Records => Some(Side::Records),
            Use::Memtable | Use::Work | Use::Scans | Use::Metadata | Use::Log => None,
        }
    }
}

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

/// Why no slab is available.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// All memory is in use.
    Full,
    /// One will be free when the current readers are gone.
    Yet,
}

/// Slabs that one commit or flush takes beyond those its bytes fill: one for each part that it is
/// divided into.
const READY_SLABS: usize = 8;

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

    /// Counts `bytes` of heap or mapped memory, even beyond the limit.
    pub fn charge(self: &Arc<Self>, purpose: Use, bytes: u64) -> Charge {
        self.used[purpose as usize].fetch_add(with_losses(purpose, bytes), Ordering::Relaxed);
        self.release_surplus();
        Charge { budget: Arc::clone(self), purpose, bytes }
    }

    /// Takes a slab within the limit: a free one, else a new one. When memory is short, a cache
    /// below its share gets slabs that the other can give up; memory that becomes free meanwhile
    /// does not go to the cache above its share.
    pub fn take_slab(self: &Arc<Self>, purpose: Use) -> Result<OwnedSlab, Refused> {
        let Some(side) = purpose.side() else {
            let slab = if self.is_short(0) { None } else { self.hand_out(purpose) };
            return slab.ok_or(Refused::Full);
        };
        let larger = self.larger_side();
        let [own, other] = [side, side.other()].map(|side| &self.wanting[side as usize]);
        let yields = larger == Some(side) && other.load(Ordering::Relaxed);
        let left = self.left_for_work();
        let mut refused = Refused::Full;
        if self.is_short(left)
            && larger == Some(side.other())
            && self.reclaim(side.other()) == Reclaimed::Soon
        {
            refused = Refused::Yet;
        }
        let is_short = self.is_short(left + if yields { LEFT_FOR_OTHERS } else { 0 });
        own.store(is_short, Ordering::Relaxed);
        if is_short { Err(refused) } else { self.hand_out(purpose).ok_or(Refused::Full) }
    }

    /// Takes a slab for writes: within the limit if possible or if a cache gives one up, else
    /// beyond it. Callers bound how often that happens by their own share. A refusal of memory by
    /// the system aborts the process, so callers use [`Budget::make_ready`] before.
    pub fn take_slab_forced(self: &Arc<Self>, purpose: Use) -> OwnedSlab {
        self.make_room();
        let slab = self.hand_out(purpose).or_else(|| {
            let alone = self.free.lock().alone()?;
            self.count_slab(purpose);
            Some(OwnedSlab::new(alone, Arc::clone(self), purpose))
        });
        slab.unwrap_or_else(|| handle_alloc_error(Layout::new::<[u8; SLAB_BYTES]>()))
    }

    /// Like [`Budget::take_slab_forced`], for work; fails if the system refuses memory.
    pub fn take_work_slab(self: &Arc<Self>) -> Result<OwnedSlab, Error> {
        self.make_room();
        self.hand_out(Use::Work).ok_or_else(Error::out_of_memory)
    }

    /// Fails if the system refuses memory for `bytes` bytes of entries plus one slab for each
    /// part that takes them; call it where an error can be returned. Unless the system refused
    /// memory before, small requests are not checked.
    #[inline]
    pub fn make_ready(&self, bytes: u64) -> Result<(), Error> {
        let is_little = bytes < SLAB_BYTES as u64;
        if is_little && !self.is_refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.map_ahead(bytes)
    }

    #[cold]
    fn map_ahead(&self, bytes: u64) -> Result<(), Error> {
        let slabs = bytes.saturating_mul(2).div_ceil(SLAB_BYTES as u64);
        let count = usize::try_from(slabs).unwrap_or(usize::MAX).saturating_add(READY_SLABS);
        let is_ready = self.free.lock().make_ready(count, self.limit());
        self.is_refused.store(!is_ready, Ordering::Relaxed);
        if is_ready { Ok(()) } else { Err(Error::out_of_memory()) }
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

    /// Hands out a slab; `None` if the system refuses memory.
    fn hand_out(self: &Arc<Self>, purpose: Use) -> Option<OwnedSlab> {
        self.count_slab(purpose);
        let mut free = self.free.lock();
        let warm = free.take_warm();
        if warm.is_some() {
            self.free_bytes.fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
        }
        let slab = warm.or_else(|| free.without_memory(self.limit()));
        drop(free);
        if slab.is_none() {
            self.used[purpose as usize].fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
            self.is_refused.store(true, Ordering::Relaxed);
        }
        Some(OwnedSlab::new(slab?, Arc::clone(self), purpose))
    }

    fn count_slab(&self, purpose: Use) {
        let used = &self.used[purpose as usize];
        let before = used.fetch_add(SLAB_BYTES as u64, Ordering::Relaxed);
        if purpose == Use::Work {
            self.work_peak.fetch_max(before + SLAB_BYTES as u64, Ordering::Relaxed);
        }
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

/// Of small pieces of the heap, a quarter is lost between them: measured with hundreds of
/// keyspaces and snapshots.
const LOSSES_PART: u64 = 4;

/// What `bytes` of charged memory count.
pub fn with_losses(purpose: Use, bytes: u64) -> u64 {
    if purpose == Use::Metadata { bytes + bytes / LOSSES_PART } else { bytes }
}

/// A count of heap or mapped memory; subtracted when dropped.
pub struct Charge {
    budget: Arc<Budget>,
    purpose: Use,
    bytes: u64,
}

impl Charge {
    /// The counted bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the count to `bytes`.
    pub fn resize(&mut self, bytes: u64) {
        // Wraps around to the right sum, with one update of the shared counter.
        let [before, now] = [self.bytes, bytes].map(|bytes| with_losses(self.purpose, bytes));
        let change = now.wrapping_sub(before);
        self.budget.used[self.purpose as usize].fetch_add(change, Ordering::Relaxed);
        self.bytes = bytes;
        self.budget.release_surplus();
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let counted = with_losses(self.purpose, self.bytes);
        self.budget.used[self.purpose as usize].fetch_sub(counted, Ordering::Relaxed);
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
        let charge = budget.charge(Use::Log, SLAB);
        assert_eq!(budget.take_slab(Use::Cache).err(), Some(Refused::Full));
        drop(first);
        assert_eq!(budget.held(), 3 * SLAB);
        let again = budget.take_slab(Use::Memtable).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert_eq!(again.bytes()[0], 7);
        drop(charge);
        assert_eq!(budget.used_by(Use::Memtable), 2 * SLAB);
    }

    #[test]
    fn charges_of_metadata_count_with_what_the_allocator_loses() {
        let budget = Budget::new(8 * SLAB);
        let mut charge = budget.charge(Use::Metadata, 1_000);
        assert_eq!((budget.used_by(Use::Metadata), charge.bytes()), (1_250, 1_000));
        charge.resize(101);
        assert_eq!(budget.used(), 126);
        drop(charge);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn room_is_made_ahead_of_what_is_about_to_be_taken() {
        struct Reserve(Mutex<Vec<OwnedSlab>>);

        impl Reclaim for Reserve {
            fn reclaim_slab(&self) -> Reclaimed {
                let slab = self.0.lock().pop();
                if slab.is_some() { Reclaimed::Now } else { Reclaimed::Nothing }
            }
        }

        let budget = Budget::new(8 * SLAB);
        let slabs = (0..6).map(|_| budget.take_slab(Use::Cache).unwrap()).collect();
        let reserve = Arc::new(Reserve(Mutex::new(slabs)));
        let weak: Weak<dyn Reclaim> = Arc::downgrade(&reserve) as _;
        budget.set_reclaim(Side::Blocks, weak);
        budget.make_room_for(5 * SLAB);
        assert_eq!(budget.used(), 3 * SLAB);
        budget.make_room_for(100 * SLAB);
        assert_eq!(budget.used(), 0);
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
    fn what_the_system_refuses_is_told_and_costs_nothing() {
        let budget = Budget::new(64 * SLAB);
        budget.refuse_memory(true);
        assert_eq!(budget.take_slab(Use::Cache).err(), Some(Refused::Full));
        assert!(budget.take_work_slab().is_err_and(|error| error.is_transient()));
        assert_eq!((budget.used(), budget.held()), (0, 0));
        // After a refusal small requests are checked too.
        assert!(budget.make_ready(1).is_err());
        let _last = budget.take_slab_forced(Use::Memtable);
        assert_eq!(budget.used(), SLAB);
        budget.refuse_memory(false);
        budget.make_ready(10 * SLAB).unwrap();
        budget.refuse_memory(true);
        let ready = (0..20 + READY_SLABS).map(|_| budget.take_work_slab());
        let mut held: Vec<_> = ready.collect::<Result<_, _>>().unwrap();
        while let Ok(slab) = budget.take_work_slab() {
            held.push(slab);
        }
        assert!(budget.make_ready(1).is_err());
        drop(held);
        budget.make_ready(1).unwrap();
    }

    #[test]
    fn forced_slabs_are_always_there() {
        let budget = Budget::new(SLAB);
        let _a = budget.take_slab_forced(Use::Memtable);
        let _b = budget.take_slab_forced(Use::Memtable);
        assert_eq!(budget.used(), 2 * SLAB);
        assert_eq!(budget.take_slab(Use::Cache).err(), Some(Refused::Full));
    }
}
