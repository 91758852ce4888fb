//! Cells whose content is read without a lock: [`EpochCell`] always holds a value and is replaced
//! as a whole, [`EpochSlot`] may be empty.
//!
//! Readers hold a [`Guard`] and get a reference that lives as long as the guard, for two loads; a
//! value that was taken out is dropped when every guard of that time is gone.
//!
//! Thread-safety: anything may be called from any thread. Writers that compute a new value from the
//! old one must order themselves with a lock of their own.

#![expect(unsafe_code, reason = "an island: the one place that dereferences epoch pointers")]

use crate::base::clock::Clock;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crossbeam_epoch::{Atomic, Owned, Shared};
use std::ops::Deref;
use std::time::Duration;

/// As long as it lives, what could be seen when it was made is neither dropped nor used for
/// anything else. Only [`pin`] makes one, so it is of the collector through which everything is
/// retired.
pub struct Guard(crossbeam_epoch::Guard);

/// Pins the epoch for this thread.
#[inline]
#[must_use]
pub fn pin() -> Guard {
    Guard(crossbeam_epoch::pin())
}

impl Deref for Guard {
    type Target = crossbeam_epoch::Guard;

    #[inline]
    fn deref(&self) -> &crossbeam_epoch::Guard {
        &self.0
    }
}

/// Rounds of [`settle`] that are told apart.
const ROUNDS: usize = 64;

/// How often [`settle`] was called: what is taken out now belongs to this round.
static ROUND: AtomicU64 = AtomicU64::new(0);

/// The contents of [`EpochCell`]s that were taken out in each round and are not dropped yet.
static UNDROPPED: [AtomicU64; ROUNDS] = [const { AtomicU64::new(0) }; ROUNDS];

/// The count for a round.
fn undropped(round: u64) -> &'static AtomicU64 {
    &UNDROPPED[usize::try_from(round % ROUNDS as u64).unwrap_or(0)]
}

/// Counts a content that was taken out, from then until it was dropped.
#[derive(Default)]
struct TakenOut {
    /// The round, and one; 0 before it is taken out.
    since: AtomicU64,
}

impl TakenOut {
    fn begin(&self) {
        let round = ROUND.load(Ordering::Acquire);
        undropped(round).fetch_add(1, Ordering::AcqRel);
        self.since.store(round + 1, Ordering::Release);
    }
}

impl Drop for TakenOut {
    fn drop(&mut self) {
        if let Some(round) = self.since.load(Ordering::Acquire).checked_sub(1) {
            undropped(round).fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What a cell holds.
struct Content<T> {
    value: T,
    /// Behind the value: fields are dropped in their order.
    taken_out: TakenOut,
}

impl<T> Content<T> {
    fn new(value: T) -> Self {
        Self { value, taken_out: TakenOut::default() }
    }
}

/// Holds exactly one `T` at any time.
pub struct EpochCell<T: Send + Sync + 'static> {
    current: Atomic<Content<T>>,
}

impl<T: Send + Sync + 'static> EpochCell<T> {
    /// A cell with this content.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { current: Atomic::new(Content::new(value)) }
    }

    /// The content, as long as the guard is held.
    #[inline]
    pub fn load<'guard>(&self, guard: &'guard Guard) -> &'guard T {
        let shared = self.current.load(Ordering::Acquire, guard);
        // SAFETY: the pointer is never null (made non-null, replaced by non-null), and what it
        // points to is destroyed only after every guard pinned before its removal is dropped.
        unsafe { &shared.deref().value }
    }

    /// Replaces the content; the old one is dropped once nobody can see it.
    pub fn replace(&self, value: T) {
        let guard = pin();
        let old = self.current.swap(Owned::new(Content::new(value)), Ordering::AcqRel, &guard);
        // SAFETY: `old` was just unlinked and is not null; nobody can load it any more, and it is
        // unlinked once, so it is destroyed once, when this guard and those before it are dropped.
        unsafe {
            old.deref().taken_out.begin();
            guard.defer_destroy(old);
        }
        drop(guard);
        // The old content must not stay in this thread's own bag of garbage: it may hold the very
        // memory that this thread waits for next.
        collect();
    }
}

impl<T: Send + Sync + 'static> Drop for EpochCell<T> {
    fn drop(&mut self) {
        let current = std::mem::replace(&mut self.current, Atomic::null());
        // SAFETY: `&mut self`: nobody else can reach the cell, and its pointer is not null.
        drop(unsafe { current.into_owned() });
    }
}

/// Drops what was replaced earlier and is out of everyone's sight: garbage does not wait for the
/// next busy time. Each round moves the epoch on by one at most; three make an idle process clean.
///
/// What is dropped may be anybody's, and large. It is dropped under whatever locks the caller
/// holds, so a `Drop` of what lives in these cells takes none but those at the end of every order.
pub fn collect() {
    for _ in 0..3 {
        pin().flush();
    }
}

/// Waits until what was taken out before is dropped, as long as guards of the time allow that
/// within about a second: a thread may have lost its processor while it held one, or while it
/// dropped what another one had taken out.
pub fn settle() {
    const YIELDS_MAX: u32 = 1_000;
    const SLEEPS_MAX: u32 = 1_000;
    let is_dropped = Arc::new(AtomicBool::new(false));
    pin().defer({
        let is_dropped = Arc::clone(&is_dropped);
        move || is_dropped.store(true, Ordering::Release)
    });
    let round = ROUND.fetch_add(1, Ordering::AcqRel);
    let others_are = || {
        let mut earlier = (0..ROUNDS as u64 - 1).map(|back| undropped(round.wrapping_sub(back)));
        earlier.all(|count| count.load(Ordering::Acquire) == 0)
    };
    let clock = Clock::real();
    for attempt in 0..YIELDS_MAX + SLEEPS_MAX {
        collect();
        if is_dropped.load(Ordering::Acquire) && others_are() {
            return;
        }
        if attempt < YIELDS_MAX {
            std::thread::yield_now();
        } else {
            clock.sleep(Duration::from_millis(1));
        }
    }
}

/// Holds a value or none. Readers get a reference for the time of their epoch guard, with one load;
/// a value that is taken out is dropped when no guard of that time is left.
///
/// Any thread may call anything at any time.
pub struct EpochSlot<T> {
    value: Atomic<T>,
}

impl<T: Send + Sync + 'static> EpochSlot<T> {
    /// An empty cell.
    #[must_use]
    pub fn empty() -> Self {
        Self { value: Atomic::null() }
    }

    /// The value, if there is one.
    #[inline]
    pub fn get<'g>(&'g self, guard: &'g Guard) -> Option<&'g T> {
        let shared = self.value.load(Ordering::Acquire, guard);
        // SAFETY: a pointer in the cell was made from an initialised `Owned` and published with
        // Release. It is destroyed only through `defer_destroy` after it left the cell, which waits
        // for `guard`, or by `Drop`, which the borrow of `self` excludes.
        unsafe { shared.as_ref() }
    }

    /// Puts `value` into an empty cell. If another thread was faster its value stays. Gives what
    /// the cell holds, and whether that is `value`.
    pub fn put<'g>(&'g self, value: T, guard: &'g Guard) -> (&'g T, bool) {
        let mut owned = Owned::new(value);
        loop {
            let empty = Shared::null();
            let order = (Ordering::AcqRel, Ordering::Acquire);
            match self.value.compare_exchange(empty, owned, order.0, order.1, guard) {
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

    /// Empties the cell; true if there was a value. It is dropped later.
    pub fn clear(&self, guard: &Guard) -> bool {
        let shared = self.value.swap(Shared::null(), Ordering::AcqRel, guard);
        if shared.is_null() {
            return false;
        }
        // SAFETY: the swap took the pointer out of the cell, so that this is the only call that
        // destroys it and nobody can load it any more; `T: Send + 'static` allows any thread to
        // drop it later.
        unsafe { guard.defer_destroy(shared) };
        true
    }
}

impl<T> Drop for EpochSlot<T> {
    fn drop(&mut self) {
        let value = std::mem::replace(&mut self.value, Atomic::null());
        // SAFETY: `&mut self` means that no reference from `get` is left and nobody else loads; the
        // pointer, if any, came from an `Owned`.
        drop(unsafe { value.try_into_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::Arc;

    #[test]
    fn old_contents_live_as_long_as_their_guards() {
        let first = Arc::new(1);
        let cell = EpochCell::new(Arc::clone(&first));
        let guard = pin();
        let seen = cell.load(&guard);
        cell.replace(Arc::new(2));
        assert_eq!(**seen, 1);
        assert_eq!(Arc::strong_count(&first), 2);
        assert_eq!(**cell.load(&guard), 2);
        drop(guard);
        drop(cell);
    }

    /// Takes its time to be dropped.
    struct Slow(Arc<AtomicBool>);

    impl Drop for Slow {
        fn drop(&mut self) {
            Clock::real().sleep(Duration::from_millis(2));
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn what_another_thread_is_dropping_is_waited_for() {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Acquire) {
                        collect();
                    }
                });
            }
            for _ in 0..100 {
                let dropped = Arc::new(AtomicBool::new(false));
                let cell = EpochCell::new(Some(Slow(Arc::clone(&dropped))));
                cell.replace(None);
                settle();
                let was_dropped = dropped.load(Ordering::Acquire);
                is_over.store(!was_dropped, Ordering::Release);
                assert!(was_dropped, "it returned while the content was dropped elsewhere");
            }
            is_over.store(true, Ordering::Release);
        });
    }

    #[test]
    fn a_value_outlives_its_cell_for_those_who_hold_a_guard() {
        let cell: EpochSlot<Arc<u64>> = EpochSlot::empty();
        let value = Arc::new(7);
        let guard = pin();
        assert!(cell.get(&guard).is_none());
        assert!(cell.put(Arc::clone(&value), &guard).1);
        let (held, mine) = cell.put(Arc::new(8), &guard);
        assert!(!mine);
        assert!(cell.clear(&guard) && !cell.clear(&guard));
        assert_eq!(**held, 7);
        assert!(cell.get(&guard).is_none());
        assert!(cell.put(Arc::clone(&value), &guard).1);
        drop(guard);
        drop(cell);
        assert!(Arc::strong_count(&value) <= 2);
    }

    #[test]
    fn readers_and_writers_meet() {
        let cell: EpochSlot<Vec<u64>> = EpochSlot::empty();
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let cell = &cell;
                scope.spawn(move || {
                    for round in 0..2_000 {
                        let guard = pin();
                        if let Some(value) = cell.get(&guard) {
                            assert!(value.iter().all(|item| *item == value[0]));
                        }
                        if round % 3 == thread {
                            cell.clear(&guard);
                        }
                        cell.put(vec![round; 16], &guard);
                    }
                });
            }
        });
    }
}
