//! The one door to locks and atomics, so that a schedule explorer can stand in for them.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
pub use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
pub use std::sync::{Arc, OnceLock, Weak};
