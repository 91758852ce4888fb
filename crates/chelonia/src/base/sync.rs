//! The one door to locks and atomics, so that a schedule explorer can stand in for them.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
pub use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
pub use std::sync::{Arc, OnceLock, Weak};

use std::ops::Deref;

/// What threads write often, on cache lines of its own: whoever reads its neighbours does not wait
/// for them. Two lines, for processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default, Debug)]
pub struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
