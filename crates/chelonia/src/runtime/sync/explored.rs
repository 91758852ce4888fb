//! Locks, atomics and threads under a scheduler that tries out orders of events: `shuttle` runs one
//! thread at a time and chooses the next at every lock, and at some of the atomic operations.
//!
//! ```text
//!   crate of ours           shuttle
//!   Mutex, RwLock           those of the machine, tried until they are free, with a choice before
//!   Condvar                 a number that waiters watch, with a choice before each look
//!   AtomicU64, ...          those of the machine, with a choice before one of a few operations
//!   threads                 coroutines of one thread
//! ```
//!
//! Locks and atomics keep the layout that they have, for some of them lie in raw memory. All
//! atomics are sequentially consistent here: what weaker orders allow is for loom to show.
//!
//! Who waits for what never comes takes turns for ever, until the scheduler has had enough. A wait
//! with a time limit ends when it is notified, or after others had many turns.

#![expect(dead_code, reason = "each atomic has the operations that any of them needs")]

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use parking_lot::RwLockReadGuard;
pub use shuttle::hint;
pub use shuttle::thread;
pub use shuttle::thread_local;

/// A waiter sleeps soon: that is the case to be tried out.
pub const SPINS_MAX: u32 = 1;

/// As [`SPINS_MAX`].
pub const YIELDS_MAX: u32 = 1;

/// Turns of others after which a wait with a time limit is over.
const TURNS: u32 = 100;

/// One of so many atomic operations lets the scheduler choose.
const CHOOSES_ONE_IN: u32 = 4;

/// Counts atomic operations: the same in every run of the same schedule.
static OPERATIONS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// To be called when an execution begins.
pub fn begin_execution() {
    OPERATIONS.store(0, Ordering::Relaxed);
}

/// Lets the scheduler choose who goes on, now and then.
fn choose() {
    let number = OPERATIONS.fetch_add(1, Ordering::Relaxed);
    if (number.wrapping_mul(0x9e37_79b9) >> 16).is_multiple_of(CHOOSES_ONE_IN) {
        switch();
    }
}

/// Lets the scheduler choose who goes on. Not a yield: one that goes by priorities would take that
/// for a wish to be the last.
fn switch() {
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
}

/// Tries until it succeeds, with a choice before each try.
fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    switch();
    loop {
        if let Some(got) = attempt() {
            return got;
        }
        thread::yield_now();
    }
}

/// A lock.
#[derive(Default, Debug)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

/// A lock that is held.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    /// `None` only while it waits.
    guard: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { lock: self, guard: Some(wait_for(|| self.0.try_lock())) }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        switch();
        self.0.try_lock().map(|guard| MutexGuard { lock: self, guard: Some(guard) })
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// The value, of who has the lock alone.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> MutexGuard<'_, T> {
    /// Lets go of the lock, lets others go on, and takes it again.
    fn step_back(&mut self) {
        self.guard = None;
        thread::yield_now();
        self.guard = Some(wait_for(|| self.lock.0.try_lock()));
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("it is held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("it is held")
    }
}

/// Whether a wait ended by its time.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// It did.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// Where threads wait for each other.
#[derive(Default, Debug)]
pub struct Condvar {
    notified: std::sync::atomic::AtomicU64,
}

impl Condvar {
    /// Nobody waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets go of the lock until somebody notifies.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let before = self.notified.load(Ordering::Relaxed);
        while self.notified.load(Ordering::Relaxed) == before {
            guard.step_back();
        }
    }

    /// The same, or until time has passed.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        let before = self.notified.load(Ordering::Relaxed);
        for _ in 0..TURNS {
            guard.step_back();
            if self.notified.load(Ordering::Relaxed) != before {
                return WaitTimeoutResult(false);
            }
        }
        WaitTimeoutResult(true)
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.notified.fetch_add(1, Ordering::Relaxed);
    }
}

/// A lock that many may hold to read.
#[derive(Default, Debug)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock around a value.
    pub fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Waits for it, to read.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        wait_for(|| self.0.try_read())
    }

    /// Waits for it, to write.
    pub fn write(&self) -> parking_lot::RwLockWriteGuard<'_, T> {
        wait_for(|| self.0.try_write())
    }
}

/// What every atomic can do.
macro_rules! atomic {
    ($name:ident, $type:ty $(, $parameter:ident)?) => {
        /// As the atomic of the machine, with choices.
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name $(<$parameter>)? (std::sync::atomic::$name $(<$parameter>)?);

        impl $(<$parameter>)? $name $(<$parameter>)? {
            /// With this value.
            pub const fn new(value: $type) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            /// Reads.
            pub fn load(&self, order: Ordering) -> $type {
                choose();
                self.0.load(order)
            }

            /// Writes.
            pub fn store(&self, value: $type, order: Ordering) {
                choose();
                self.0.store(value, order);
            }

            /// Writes, and gives what was there.
            pub fn swap(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.swap(value, order)
            }

            /// Writes if this is there.
            pub fn compare_exchange(
                &self,
                current: $type,
                new: $type,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$type, $type> {
                choose();
                self.0.compare_exchange(current, new, success, failure)
            }

            /// The same; it may fail without reason.
            pub fn compare_exchange_weak(
                &self,
                current: $type,
                new: $type,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$type, $type> {
                choose();
                self.0.compare_exchange_weak(current, new, success, failure)
            }

            /// The value, of who has it alone.
            pub fn get_mut(&mut self) -> &mut $type {
                self.0.get_mut()
            }
        }
    };
}

/// What numbers can do.
macro_rules! arithmetic {
    ($name:ident, $type:ty) => {
        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }

        impl $name {
            /// Adds, and gives what was there.
            pub fn fetch_add(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_add(value, order)
            }

            /// Subtracts, and gives what was there.
            pub fn fetch_sub(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_sub(value, order)
            }

            /// The greater one, and gives what was there.
            pub fn fetch_max(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_max(value, order)
            }

            /// The lesser one, and gives what was there.
            pub fn fetch_min(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_min(value, order)
            }

            /// Sets bits, and gives what was there.
            pub fn fetch_or(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_or(value, order)
            }

            /// Keeps bits, and gives what was there.
            pub fn fetch_and(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_and(value, order)
            }

            /// Changes it until nobody came in between.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($type) -> Option<$type>,
            ) -> Result<$type, $type> {
                choose();
                self.0.fetch_update(set, fetch, change)
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU8, u8);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
atomic!(AtomicPtr, *mut T, T);
arithmetic!(AtomicU8, u8);
arithmetic!(AtomicU32, u32);
arithmetic!(AtomicU64, u64);
arithmetic!(AtomicUsize, usize);

impl Default for AtomicBool {
    fn default() -> Self {
        Self::new(false)
    }
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(std::ptr::null_mut())
    }
}
