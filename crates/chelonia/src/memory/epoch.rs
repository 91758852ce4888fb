//! Epoch-based reclamation: a collector for each database, and cells that are read without a lock.
//! [`EpochCell`] always holds a value and is replaced as a whole, [`EpochSlot`] may be empty,
//! [`EpochSlots`] is an array of slots.
//!
//! Readers hold a [`Guard`] and get a reference that lives as long as the guard, for two loads; a
//! removed value is dropped when every guard of that time is gone.
//!
//! Every database has [`Epochs`] of its own, so that none waits for readers of another, and so that
//! no value of the application is dropped inside the store: the collector that
//! `crossbeam_epoch::pin` uses is the application's.
//!
//! Why a reference is valid as long as its guard:
//! 1. A guard has the id of its collector. Ids are never reused. Only [`Epochs::pin`] makes a
//!    guard, of the collector whose id it gives it.
//! 2. Every cell, slot and array of slots has the id of the collector through which its values are
//!    retired, and panics if it is given a guard of another one. Other users of [`Guard::defer`]
//!    check the same: see the block cache and the record cache.
//! 3. So a value seen by a reader is retired, if at all, through the collector of the reader's
//!    guard, after it was unlinked.
//!
//! Life of a collector:
//!
//! ```text
//!   new -> threads register on their first pin -> close (by its owner, or its drop) -> gone with
//!                                                                 the last registration
//! ```
//!
//! After the close it works as before, but threads drop their registrations with it when they next
//! register with another one (`registrations`).
//!
//! Thread-safety: every method may be called from any thread, including one that ends. Writers that
//! compute a new value from the old one must order themselves with a lock of their own.

#![expect(unsafe_code, reason = "an island: the one place that dereferences epoch pointers")]

mod registrations;
mod rounds;

use crate::base::error::Result;
use crate::memory::fork::ForkMark;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Ordering, thread};
use crossbeam_epoch::{Atomic, Collector, Owned, Shared as Pointer};
use rounds::{Rounds, TakenOut};
use std::time::Duration;

/// The id of the next collector.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A pinned epoch. While it lives, values visible when it was made are neither dropped nor reused,
/// if they are retired through the guard's collector.
pub struct Guard {
    guard: crossbeam_epoch::Guard,
    /// The id of the collector.
    of: u64,
}

impl Guard {
    /// Calls `function` when every guard of this time is gone, on any thread of the collector.
    pub fn defer(&self, function: impl FnOnce() + Send + 'static) {
        self.guard.defer(function);
    }

    /// Publishes this thread's deferred functions to all threads, and calls those that are due.
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

/// The state that a collector shares with its registered threads.
struct Shared {
    id: u64,
    collector: Collector,
    /// The collector was closed; no further pins are expected.
    is_closed: AtomicBool,
    /// The process that made it.
    process: ForkMark,
}

impl Shared {
    /// Drops retired values as far as live guards allow. Registers temporarily.
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
            // Values retired earlier are dropped earlier.
            if is_swept.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

/// The epoch collector of one database.
pub struct Epochs {
    id: u64,
    shared: Arc<Shared>,
    rounds: Arc<Rounds>,
}

impl Epochs {
    /// Creates a collector without threads. Fails if the system has no memory.
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

    /// The id of the collector, unique within this process for all time.
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

    /// Drops values that were replaced earlier and that no reader can see any more, so that garbage
    /// does not wait for the next busy time. Each round advances the epoch by at most one; three
    /// rounds clean up an idle database.
    ///
    /// Dropped values may be any thread's, and large. They are dropped under whatever locks the
    /// caller holds, so a `Drop` of a value in these cells takes only locks at the end of every
    /// order.
    pub fn collect(&self) {
        for _ in 0..3 {
            self.pin().flush();
        }
    }

    /// Waits until everything removed before is dropped, if the guards of the time are gone within
    /// about a second: a thread may have been preempted while it held a guard, or while it dropped
    /// what another one had removed.
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
                thread::yield_now();
            } else {
                clock.sleep(Duration::from_millis(1));
            }
        }
    }

    /// Closes the collector: drops retired values, and lets threads drop their registrations.
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

/// The content of a cell.
struct Content<T> {
    value: T,
    /// After the value: fields are dropped in declaration order.
    taken_out: TakenOut,
}

/// A cell that holds exactly one `T` at any time.
pub struct EpochCell<T: Send + Sync + 'static> {
    current: Atomic<Content<T>>,
    /// The id of `epochs`.
    of: u64,
    epochs: Arc<Epochs>,
}

impl<T: Send + Sync + 'static> EpochCell<T> {
    /// Creates a cell with this content, which is retired through `epochs`.
    #[must_use]
    pub fn new(value: T, epochs: &Arc<Epochs>) -> Self {
        let (of, epochs) = (epochs.id, Arc::clone(epochs));
        Self { current: Atomic::new(Self::content(value, &epochs)), of, epochs }
    }

    fn content(value: T, epochs: &Epochs) -> Content<T> {
        Content { value, taken_out: TakenOut::new(&epochs.rounds) }
    }

    /// The epochs whose guards this cell accepts.
    #[inline]
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// The content, valid as long as the guard is held.
    #[inline]
    pub fn load<'guard>(&self, guard: &'guard Guard) -> &'guard T {
        guard.check(self.of);
        let shared = self.current.load(Ordering::Acquire, &guard.guard);
        // SAFETY: the pointer is never null (made non-null, replaced by non-null), and what it
        // points to is destroyed only after every guard of the cell's collector that was pinned
        // before its removal is dropped; `guard` is one of that collector.
        unsafe { &shared.deref().value }
    }

    /// Replaces the content; the old one is dropped once no reader can see it.
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

/// A slot that holds a value or none. Readers get a reference for the lifetime of their epoch
/// guard, with one load; a removed value is dropped when no guard of that time is left.
///
/// Thread-safety: every method may be called from any thread.
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

    /// Puts `value` into an empty slot. If another thread was faster its value stays. Returns the
    /// value in the slot, and whether it is `value`.
    pub fn put<'g>(&'g self, value: T, guard: &'g Guard) -> (&'g T, bool) {
        guard.check(self.of);
        // SAFETY: as in `get`.
        unsafe { self.value.put(value, guard) }
    }

    /// Empties the slot; true if there was a value. The value is dropped later.
    pub fn clear(&self, guard: &Guard) -> bool {
        guard.check(self.of);
        // SAFETY: as in `get`.
        unsafe { self.value.clear(guard) }
    }
}

/// An array of slots like [`EpochSlot`], of one collector: each takes only its pointer.
pub struct EpochSlots<T> {
    slots: Box<[Slot<T>]>,
    /// The id of the collector through which values are retired.
    of: u64,
}

impl<T: Send + Sync + 'static> EpochSlots<T> {
    /// The bytes of each slot.
    pub const SLOT_BYTES: usize = size_of::<Slot<T>>();

    /// `count` empty slots, whose values are retired through `epochs`.
    #[must_use]
    pub fn empty(count: usize, epochs: &Epochs) -> Self {
        Self { slots: (0..count).map(|_| Slot::empty()).collect(), of: epochs.id }
    }

    /// The number of slots.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Like [`EpochSlot::get`], for slot `index`.
    #[inline]
    pub fn get<'g>(&'g self, index: usize, guard: &'g Guard) -> Option<&'g T> {
        guard.check(self.of);
        // SAFETY: all guards that these slots are given are of the collector `of`.
        unsafe { self.slots[index].get(guard) }
    }

    /// Like [`EpochSlot::put`], for slot `index`.
    pub fn put<'g>(&'g self, index: usize, value: T, guard: &'g Guard) -> (&'g T, bool) {
        guard.check(self.of);
        // SAFETY: as in `get`.
        unsafe { self.slots[index].put(value, guard) }
    }

    /// Like [`EpochSlot::clear`], for slot `index`.
    pub fn clear(&self, index: usize, guard: &Guard) -> bool {
        guard.check(self.of);
        // SAFETY: as in `get`.
        unsafe { self.slots[index].clear(guard) }
    }
}

/// A slot that relies on its owner to pass only guards of one collector.
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
        // destroys it and nobody can load it any more; earlier readers hold a guard of the
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
