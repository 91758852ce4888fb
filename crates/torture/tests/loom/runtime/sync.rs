//! The locks and atomics of loom, with the interface of the library's.
//!
//! Loom treats sequentially consistent operations as acquire and release; fences around them
//! restore the difference.

use std::ops::{Deref, DerefMut};

pub use loom::hint;
pub use loom::sync::atomic::Ordering;
pub use loom::thread;
pub use std::sync::{Arc, Weak};

pub const SPINS_MAX: u32 = 0;
pub const YIELDS_MAX: u32 = 0;

#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap()
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap()))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap()
    }
}

pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().unwrap();
        guard.0 = Some(self.0.wait(held).unwrap());
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Runs `operation` between fences, if it is sequentially consistent.
fn ordered<T>(order: Ordering, weaker: Ordering, operation: impl FnOnce(Ordering) -> T) -> T {
    if order != Ordering::SeqCst {
        return operation(order);
    }
    loom::sync::atomic::fence(Ordering::SeqCst);
    let result = operation(weaker);
    loom::sync::atomic::fence(Ordering::SeqCst);
    result
}

macro_rules! atomic {
    ($name:ident, $type:ty) => {
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            pub fn new(value: $type) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $type {
                ordered(order, Ordering::Acquire, |order| self.0.load(order))
            }

            pub fn store(&self, value: $type, order: Ordering) {
                ordered(order, Ordering::Release, |order| self.0.store(value, order))
            }

            pub fn swap(&self, value: $type, order: Ordering) -> $type {
                ordered(order, Ordering::AcqRel, |order| self.0.swap(value, order))
            }

            pub fn compare_exchange(
                &self,
                current: $type,
                new: $type,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$type, $type> {
                ordered(success, Ordering::AcqRel, |success| {
                    self.0.compare_exchange(current, new, success, failure)
                })
            }
        }
    };
}

macro_rules! arithmetic {
    ($name:ident, $type:ty) => {
        impl $name {
            pub fn fetch_add(&self, value: $type, order: Ordering) -> $type {
                ordered(order, Ordering::AcqRel, |order| self.0.fetch_add(value, order))
            }

            pub fn fetch_sub(&self, value: $type, order: Ordering) -> $type {
                ordered(order, Ordering::AcqRel, |order| self.0.fetch_sub(value, order))
            }

            pub fn fetch_max(&self, value: $type, order: Ordering) -> $type {
                ordered(order, Ordering::AcqRel, |order| self.0.fetch_max(value, order))
            }

            pub fn fetch_min(&self, value: $type, order: Ordering) -> $type {
                ordered(order, Ordering::AcqRel, |order| self.0.fetch_min(value, order))
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
arithmetic!(AtomicU64, u64);
arithmetic!(AtomicUsize, usize);
