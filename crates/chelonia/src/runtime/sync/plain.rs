//! Locks, atomics and threads of the system.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
pub use std::hint;
pub use std::sync::OnceLock;
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
pub use std::thread;
pub use std::thread_local;

/// Spins of a waiter before it yields: the awaited event takes well under a microsecond, unless its
/// thread was preempted.
pub const SPINS_MAX: u32 = 64;

/// Yields of a waiter before it sleeps.
pub const YIELDS_MAX: u32 = 16;
