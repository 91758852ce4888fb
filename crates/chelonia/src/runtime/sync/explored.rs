//! Locks, atomics and threads under a scheduler that explores orders of events: `shuttle` runs one
//! thread at a time and chooses the next at every lock, and at some of the atomic operations.
//!
//! ```text
//!   this crate              shuttle
//!   Mutex, RwLock           the real ones, retried until they are free, with a choice before
//!   OnceLock                the real one, under a lock of the above while it is filled
//!   Condvar                 a counter that waiters watch, with a choice before each look
//!   AtomicU64, ...          the real ones, with a choice before one of a few operations
//!   threads, thread locals  coroutines of one thread, and theirs
//! ```
//!
//! Locks and atomics keep their layout, for some of them are in raw memory. All atomics are
//! sequentially consistent here: weaker orders are checked by loom.
//!
//! A thread that waits for an event that never occurs takes turns until the scheduler reaches its
//! step limit. A wait with a time limit ends when it is notified, or after many turns of other
//! threads.

#![expect(dead_code, reason = "each atomic has the operations that any of them needs")]

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use parking_lot::RwLockReadGuard;
pub use shuttle::hint;
pub use shuttle::thread;
pub use shuttle::thread_local;

/// A waiter sleeps soon: sleeping is the case to be explored.
pub const SPINS_MAX: u32 = 1;

/// As [`SPINS_MAX`].
pub const YIELDS_MAX: u32 = 1;

/// Turns of other threads after which a wait with a time limit ends.
const TURNS: u32 = 100;

/// One of this many atomic operations lets the scheduler choose.
const CHOOSES_ONE_IN: u32 = 4;

std::thread_local! {
    /// Counts atomic operations of one execution, all of which is on one thread of the system:
    /// other executions on other threads must not change its choices.
    static OPERATIONS: Cell<u32> = const { Cell::new(0) };
}

/// Resets the state at the beginning of an execution.
pub fn begin_execution() {
    OPERATIONS.set(0);
}

/// Lets the scheduler choose the next thread, occasionally.
fn choose() {
    let number = OPERATIONS.get();
    OPERATIONS.set(number.wrapping_add(1));
    if (number.wrapping_mul(0x9e37_79b9) >> 16).is_multiple_of(CHOOSES_ONE_IN) {
        switch();
    }
}

/// Lets the scheduler choose the next thread. Not a yield: a priority scheduler would then move
/// this thread to the end.
fn switch() {
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
}

/// Retries until it succeeds, with a choice before each attempt.
fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    switch();
    loop {
        if let Some(got) = attempt() {
            return got;
        }
        thread::yield_now();
    }
}

/// A mutual exclusion lock.
#[derive(Default, Debug)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

/// A guard of a held lock.
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

    /// Acquires the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { lock: self, guard: Some(wait_for(|| self.0.try_lock())) }
    }

    /// Acquires the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        switch();
        self.0.try_lock().map(|guard| MutexGuard { lock: self, guard: Some(guard) })
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// The value, through exclusive access to the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> MutexGuard<'_, T> {
    /// Releases the lock, lets other threads run, and acquires it again.
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

/// The result of a wait with a time limit.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// True if the wait timed out.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// A condition variable.
#[derive(Default, Debug)]
pub struct Condvar {
    notified: std::sync::atomic::AtomicU64,
}

impl Condvar {
    /// Creates a condition variable without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Releases the lock until notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let before = self.notified.load(Ordering::Relaxed);
        while self.notified.load(Ordering::Relaxed) == before {
            guard.step_back();
        }
    }

    /// Like `wait`, or until the time has passed.
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

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.notified.fetch_add(1, Ordering::Relaxed);
    }
}

/// A reader-writer lock.
#[derive(Default, Debug)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock around a value.
    pub fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Acquires the lock for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        wait_for(|| self.0.try_read())
    }

    /// Acquires the lock for writing.
    pub fn write(&self) -> parking_lot::RwLockWriteGuard<'_, T> {
        wait_for(|| self.0.try_write())
    }
}

/// A value that is set once. The lock of the standard library would block the whole execution if
/// a thread lost its turn while it computes the value.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    /// Held by the thread that computes the value.
    filling: Mutex<()>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    /// Creates it without a value.
    pub const fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), filling: Mutex::new(()) }
    }

    /// The value, if it is set.
    pub fn get(&self) -> Option<&T> {
        choose();
        self.value.get()
    }

    /// Sets the value, or gives it back if there is one.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _filling = self.filling.lock();
        self.value.set(value)
    }

    /// The value; sets it first if necessary.
    pub fn get_or_init(&self, value: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _filling = self.filling.lock();
        if self.value.get().is_none() {
            let value = value();
            assert!(self.value.set(value).is_ok(), "another thread set it under the lock");
        }
        self.value.get().expect("it was just set")
    }
}

/// Operations of every atomic.
macro_rules! atomic {
    ($name:ident, $type:ty $(, $parameter:ident)?) => {
        /// Like the atomic of the standard library, with scheduling choices.
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name $(<$parameter>)? (std::sync::atomic::$name $(<$parameter>)?);

        impl $(<$parameter>)? $name $(<$parameter>)? {
            /// Creates an atomic with this value.
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

            /// Writes, and returns the previous value.
            pub fn swap(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.swap(value, order)
            }

            /// Writes `new` if the value is `current`.
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

            /// Like `compare_exchange`; it may fail spuriously.
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

            /// The value, through exclusive access.
            pub fn get_mut(&mut self) -> &mut $type {
                self.0.get_mut()
            }
        }
    };
}

/// Operations of numeric atomics.
macro_rules! arithmetic {
    ($name:ident, $type:ty) => {
        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }

        impl $name {
            /// Adds, and returns the previous value.
            pub fn fetch_add(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_add(value, order)
            }

            /// Subtracts, and returns the previous value.
            pub fn fetch_sub(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_sub(value, order)
            }

            /// Stores the maximum, and returns the previous value.
            pub fn fetch_max(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_max(value, order)
            }

            /// Stores the minimum, and returns the previous value.
            pub fn fetch_min(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_min(value, order)
            }

            /// Sets bits, and returns the previous value.
            pub fn fetch_or(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_or(value, order)
            }

            /// Keeps bits, and returns the previous value.
            pub fn fetch_and(&self, value: $type, order: Ordering) -> $type {
                choose();
                self.0.fetch_and(value, order)
            }

            /// Updates the value, and retries on concurrent changes.
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
