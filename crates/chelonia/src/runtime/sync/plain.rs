//! Locks, atomics and threads of the machine.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
pub use std::hint;
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
pub use std::thread;
pub use std::thread_local;

/// Looks before a waiter sleeps: what it waits for takes well under a microsecond, unless its
/// thread lost the processor.
pub const SPINS_MAX: u32 = 64;

/// Times a waiter offers its processor before it sleeps.
pub const YIELDS_MAX: u32 = 16;
