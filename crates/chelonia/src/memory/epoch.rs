//! A collector for each database, and cells whose content is read without a lock: [`EpochCell`]
//! always holds a value and is replaced as a whole, [`EpochSlot`] may be empty, [`EpochSlots`] are
//! many of these.
//!
//! Readers hold a [`Guard`] and get a reference that lives as long as the guard, for two loads; a
//! value that was taken out is dropped when every guard of that time is gone.
//!
//! Every database has [`Epochs`] of its own, so that none waits for readers of another, and so that
//! nothing of the application is ever dropped in the middle of the store: the collector that
//! `crossbeam_epoch::pin` uses is the application's.
//!
//! Why a reference is good as long as its guard:
//! 1. A guard knows the id of its collector. Ids are never used twice. Only [`Epochs::pin`] makes a
//!    guard, of the collector whose id it gives it.
//! 2. Every cell, slot and array of slots knows the id of the collector through which what it held
//!    is retired, and fails (it panics) if it is given a guard of another one. So do those who
//!    retire memory by [`Guard::defer`]: see the block cache and the record cache.
//! 3. So what a reader sees is retired, if at all, through the collector of the reader's guard,
//!    after it was taken out of reach.
//!
//! Life of a collector:
//!
//! ```text
//!   new -> threads register when they pin first -> close (by its owner, or its drop) -> gone with
//!                                                                 the last registration
//! ```
//!
//! After the close it works as before, but threads let go of their registrations with it when they
//! next register with another one (`registrations`).
//!
//! Thread-safety: anything may be called from any thread, also from one that ends. Writers that
//! compute a new value from the old one must order themselves with a lock of their own.

#![expect(unsafe_code, reason = "an island: the one place that dereferences epoch pointers")]

mod registrations;
mod rounds;

use crate::base::error::Result;
use crate::memory::fork::ForkMark;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crossbeam_epoch::{Atomic, Collector, Owned, Shared as Pointer};
use rounds::{Rounds, TakenOut};
use std::time::Duration;

/// The id of the collector that is made next.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// As long as it lives, what could be seen when it was made is neither dropped nor used for
/// anything else, as far as it is retired through the collector that the guard is of.
pub struct Guard {
    guard: crossbeam_epoch::Guard,
    /// The collector.
    of: u64,
}

impl Guard {
    /// Calls `function` when every guard of this time is gone, on any thread of the collector.
    pub fn defer(&self, function: impl FnOnce() + Send + 'static) {
        self.guard.defer(function);
    }

    /// Shows all threads what this one has deferred, and calls what may be called.
    pub fn flush(&self) {
        self.guard.flush();
    }

    /// Panics unless the guard is of the collector with this id: [`Epochs::id`].
    #[inline]
    pub fn check(&self, id: u64) {
        if self.of != id {
            is_of_another();
        }
    }
}

#[cold]
fn is_of_another() -> ! {
    panic!("a guard of the epochs of another database");
}

/// What a collector shares with the threads that are registered with it.
struct Shared {
    id: u64,
    collector: Collector,
    /// Nobody is expected to pin any more.
    is_closed: AtomicBool,
    /// Where it was made.
    process: ForkMark,
}

impl Shared {
    /// Drops what was retired, as far as guards that live allow that. Registers for the time.
    fn sweep(&self) {
        const ROUNDS_MAX: usize = 100;
        let handle = self.collector.register();
        let is_swept = Arc::new(AtomicBool::new(false));
        handle.pin().defer({
            let is_swept = Arc::clone(&is_swept);
            move || is_swept.store(true, Ordering::Release)
        });
        for _ in 0..ROUNDS_MAX {
            handle.pin().flush();
            // What is retired earlier is dropped earlier.
            if is_swept.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

/// The epochs of one database: what is retired through them, and who may still see it.
pub struct Epochs {
    id: u64,
    shared: Arc<Shared>,
    rounds: Arc<Rounds>,
}

impl Epochs {
    /// A collector without any thread. Fails if the system has no memory.
    pub fn new() -> Result<Arc<Self>> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let shared = Shared {
            id,
            collector: Collector::new(),
            is_closed: AtomicBool::new(false),
            process: ForkMark::new()?,
        };
        Ok(Arc::new(Self { id, shared: Arc::new(shared), rounds: Arc::default() }))
    }

    /// What tells it from all others of this process, of all times.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Pins the epoch for this thread.
    #[inline]
    #[must_use]
    pub fn pin(&self) -> Guard {
        let again = registrations::pin_again(self.id);
        let guard = again.unwrap_or_else(|| registrations::pin(&self.shared));
        Guard { guard, of: self.id }
    }

    /// Drops what was replaced earlier and is out of everyone's sight: garbage does not wait for
    /// the next busy time. Each round moves the epoch on by one at most; three make an idle
    /// database clean.
    ///
    /// What is dropped may be any thread's, and large. It is dropped under whatever locks the
    /// caller holds, so a `Drop` of what lives in these cells takes none but those at the end of
    /// every order.
    pub fn collect(&self) {
        for _ in 0..3 {
            self.pin().flush();
        }
    }

    /// Waits until what was taken out before is dropped, as long as guards of the time allow that
    /// within about a second: a thread may have lost its processor while it held one, or while it
    /// dropped what another one had taken out.
    pub fn settle(&self) {
        const YIELDS_MAX: u32 = 1_000;
        const SLEEPS_MAX: u32 = 1_000;
        let is_dropped = Arc::new(AtomicBool::new(false));
        self.pin().defer({
            let is_dropped = Arc::clone(&is_dropped);
            move || is_dropped.store(true, Ordering::Release)
        });
        let round = self.rounds.begin();
        let clock = Clock::real();
        for attempt in 0..YIELDS_MAX + SLEEPS_MAX {
            self.collect();
            if is_dropped.load(Ordering::Acquire) && self.rounds.are_dropped_before(round) {
                return;
            }
            if attempt < YIELDS_MAX {
                std::thread::yield_now();
            } else {
                clock.sleep(Duration::from_millis(1));
            }
        }
    }

    /// The owner is done with it: drops what was retired, and lets threads forget it.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        self.shared.sweep();
    }

    /// True if this thread holds a guard.
    #[cfg(test)]
    pub fn is_pinned(&self) -> bool {
        registrations::is_pinned(self.id)
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        if self.shared.process.is_this_process() {
            self.close();
        }
    }
}

/// What a cell holds.
struct Content<T> {
    value: T,
    /// Behind the value: fields are dropped in their order.
    taken_out: TakenOut,
}

/// Holds exactly one `T` at any time.
pub struct EpochCell<T: Send + Sync + 'static> {
    current: Atomic<Content<T>>,
    /// The id of `epochs`.
    of: u64,
    epochs: Arc<Epochs>,
}

impl<T: Send + Sync + 'static> EpochCell<T> {
    /// A cell with this content, which is retired through `epochs`.
    #[must_use]
    pub fn new(value: T, epochs: &Arc<Epochs>) -> Self {
        let (of, epochs) = (epochs.id, Arc::clone(epochs));
        Self { current: Atomic::new(Self::content(value, &epochs)), of, epochs }
    }

    fn content(value: T, epochs: &Epochs) -> Content<T> {
        Content { value, taken_out: TakenOut::new(&epochs.rounds) }
    }

    /// The epochs that guards for it are of.
    #[inline]
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// The content, as long as the guard is held.
    #[inline]
    pub fn load<'guard>(&self, guard: &'guard Guard) -> &'guard T {
        guard.check(self.of);
        let shared = self.current.load(Ordering::Acquire, &guard.guard);
        // SAFETY: the pointer is never null (made non-null, replaced by non-null), and what it
        // points to is destroyed only after every guard of the cell's collector that was pinned
        // before its removal is dropped; `guard` is one of that collector.
        unsafe { &shared.deref().value }
    }

    /// Replaces the content; the old one is dropped once nobody can see it.
    pub fn replace(&self, value: T) {
        let guard = self.epochs.pin();
        let new = Owned::new(Self::content(value, &self.epochs));
        let old = self.current.swap(new, Ordering::AcqRel, &guard.guard);
        // SAFETY: `old` was just unlinked and is not null; nobody can load it any more, and it is
        // unlinked once, so it is destroyed once, when this guard, which is of the cell's
        // collector, and those before it are dropped.
        unsafe {
            old.deref().taken_out.begin();
            guard.guard.defer_destroy(old);
        }
        drop(guard);
        // The old content must not stay in this thread's own bag of garbage: it may hold the very
        // memory that this thread waits for next.
        self.epochs.collect();
    }
}

impl<T: Send + Sync + 'static> Drop for EpochCell<T> {
    fn drop(&mut self) {
        let current = std::mem::replace(&mut self.current, Atomic::null());
        // SAFETY: `&mut self`: nobody else can reach the cell, and its pointer is not null.
        drop(unsafe { current.into_owned() });
    }
}

/// Holds a value or none. Readers get a reference for the time of their epoch guard, with one load;
/// a value that is taken out is dropped when no guard of that time is left.
///
/// Any thread may call anything at any time.
pub struct EpochSlot<T> {
    value: Slot<T>,
    /// The id of the collector through which values are retired.
    of: u64,
}

impl<T: Send + Sync + 'static> EpochSlot<T> {
    /// An empty slot, whose values are retired through `epochs`.
    #[must_use]
    pub fn empty(epochs: &Epochs) -> Self {
        Self { value: Slot::empty(), of: epochs.id }
    }

    /// The value, if there is one.
    #[inline]
    pub fn get<'g>(&'g self, guard: &'g Guard) -> Option<&'g T> {
        guard.check(self.of);
        // SAFETY: all guards that this slot is given are of the collector `of`.
        unsafe { self.value.get(guard) }
    }

    /// Puts `value` into an empty slot. If another thread was faster its value stays. Gives what
    /// the slot holds, and whether that is `value`.
    pub fn put<'g>(&'g self, value: T, guard: &'g Guard) -> (&'g T, bool) {
        guard.check(self.of);
        // SAFETY: as in `get`.
        unsafe { self.value.put(value, guard) }
    }

    /// Empties the slot; true if there was a value. It is dropped later.
    pub fn clear(&self, guard: &Guard) -> bool {
        guard.check(self.of);
        // SAFETY: as in `get`.
        unsafe { self.value.clear(guard) }
    }
}

/// Many slots like [`EpochSlot`], of one collector: each takes no more than its pointer.
pub struct EpochSlots<T> {
    slots: Box<[Slot<T>]>,
    /// The id of the collector through which values are retired.
    of: u64,
}

impl<T: Send + Sync + 'static> EpochSlots<T> {
    /// The bytes that each takes.
    pub const SLOT_BYTES: usize = size_of::<Slot<T>>();

    /// `count` empty slots, whose values are retired through `epochs`.
    #[must_use]
    pub fn empty(count: usize, epochs: &Epochs) -> Self {
        Self { slots: (0..count).map(|_| Slot::empty()).collect(), of: epochs.id }
    }

    /// How many there are.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// As [`EpochSlot::get`], of slot number `index`.
    #[inline]
    pub fn get<'g>(&'g self, index: usize, guard: &'g Guard) -> Option<&'g T> {
        guard.check(self.of);
        // SAFETY: all guards that these slots are given are of the collector `of`.
        unsafe { self.slots[index].get(guard) }
    }

    /// As [`EpochSlot::put`], of slot number `index`.
    pub fn put<'g>(&'g self, index: usize, value: T, guard: &'g Guard) -> (&'g T, bool) {
        guard.check(self.of);
        // SAFETY: as in `get`.
        unsafe { self.slots[index].put(value, guard) }
    }

    /// As [`EpochSlot::clear`], of slot number `index`.
    pub fn clear(&self, index: usize, guard: &Guard) -> bool {
        guard.check(self.of);
        // SAFETY: as in `get`.
        unsafe { self.slots[index].clear(guard) }
    }
}

/// A slot that relies on its owner for the collector: every guard that it is given must be of the
/// same one.
struct Slot<T> {
    value: Atomic<T>,
}

impl<T: Send + Sync + 'static> Slot<T> {
    fn empty() -> Self {
        Self { value: Atomic::null() }
    }

    /// See [`EpochSlot::get`].
    ///
    /// # Safety
    /// All guards given to this slot, in all calls, are of one collector.
    #[inline]
    unsafe fn get<'g>(&'g self, guard: &'g Guard) -> Option<&'g T> {
        let shared = self.value.load(Ordering::Acquire, &guard.guard);
        // SAFETY: a pointer in the slot was made from an initialised `Owned` and published with
        // Release. It is destroyed only through `defer_destroy` after it left the slot, which waits
        // for `guard`, for that is of the same collector as the guard that deferred it; or by
        // `Drop`, which the borrow of `self` excludes.
        unsafe { shared.as_ref() }
    }

    /// See [`EpochSlot::put`].
    ///
    /// # Safety
    /// As for `get`.
    unsafe fn put<'g>(&'g self, value: T, guard: &'g Guard) -> (&'g T, bool) {
        let mut owned = Owned::new(value);
        loop {
            let empty = Pointer::null();
            let order = (Ordering::AcqRel, Ordering::Acquire);
            match self.value.compare_exchange(empty, owned, order.0, order.1, &guard.guard) {
                Ok(shared) => {
                    // SAFETY: `shared` is not null, it was just made from `owned`; it lives as in
                    // `get`.
                    return (unsafe { shared.deref() }, true);
                }
                Err(refused) => {
                    // SAFETY: as in `get`.
                    if let Some(value) = unsafe { refused.current.as_ref() } {
                        return (value, false);
                    }
                    owned = refused.new;
                }
            }
        }
    }

    /// See [`EpochSlot::clear`].
    ///
    /// # Safety
    /// As for `get`.
    unsafe fn clear(&self, guard: &Guard) -> bool {
        let shared = self.value.swap(Pointer::null(), Ordering::AcqRel, &guard.guard);
        if shared.is_null() {
            return false;
        }
        // SAFETY: the swap took the pointer out of the slot, so that this is the only call that
        // destroys it and nobody can load it any more; who loaded it before holds a guard of the
        // same collector; `T: Send + 'static` allows any thread to drop it later.
        unsafe { guard.guard.defer_destroy(shared) };
        true
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        let value = std::mem::replace(&mut self.value, Atomic::null());
        // SAFETY: `&mut self` means that no reference from `get` is left and nobody else loads; the
        // pointer, if any, came from an `Owned`.
        drop(unsafe { value.try_into_owned() });
    }
}

#[cfg(test)]
mod tests;
