//! Group commit: of the threads that need a sync, one syncs for all that were written before.
//!
//! One of the threads becomes the leader and syncs everything written so far. The others wait; most
//! find what they need synced when the leader is done. The owner chooses the number that says how
//! far: a position in one log, or the seqno of a write in several. It only grows.
//!
//! Thread-safety: shared. The lock is never held together with another lock or during I/O.

use crate::base::error::Result;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{AtomicU64, Condvar, Mutex, Ordering};

/// How far everything is durable, and whether a thread is syncing more.
pub struct Group {
    /// Everything before or up to this survives a power failure.
    durable: AtomicU64,
    syncs: AtomicU64,
    syncs_shared: AtomicU64,
    /// True while a leader is syncing.
    is_led: Mutex<bool>,
    changed: Condvar,
}

/// Held by the leader; wakes the waiting threads when it is dropped, also on error.
pub struct Lead<'a> {
    group: &'a Group,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        *self.group.is_led.lock() = false;
        self.group.changed.notify_all();
    }
}

impl Group {
    /// Creates a group for which everything up to `durable` is durable.
    pub fn new(durable: u64) -> Self {
        Self {
            durable: AtomicU64::new(durable),
            syncs: AtomicU64::new(0),
            syncs_shared: AtomicU64::new(0),
            is_led: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// How far everything survives a power failure.
    #[inline]
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Raises [`Group::durable`].
    pub fn raise(&self, durable: u64) {
        self.durable.fetch_max(durable, Ordering::AcqRel);
    }

    /// Returns `None` once everything up to `wanted` is durable, or else makes this thread the
    /// leader, who must make it so. `check` fails if nobody can any more.
    pub fn join(&self, wanted: u64, check: impl Fn() -> Result<()>) -> Result<Option<Lead<'_>>> {
        if self.durable() >= wanted {
            return Ok(None);
        }
        let mut is_led = self.is_led.lock();
        loop {
            if self.durable() >= wanted {
                self.syncs_shared.fetch_add(1, Ordering::Relaxed);
                mark(Mark::LogSyncShared);
                return Ok(None);
            }
            check()?;
            if !*is_led {
                *is_led = true;
                return Ok(Some(Lead { group: self }));
            }
            self.changed.wait(&mut is_led);
        }
    }

    /// True while a leader is syncing.
    #[cfg(test)]
    pub fn is_led(&self) -> bool {
        *self.is_led.lock()
    }

    /// Counts a sync that reached the device.
    pub fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// The syncs that reached the device.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// The calls that were satisfied by another thread's sync.
    pub fn syncs_shared(&self) -> u64 {
        self.syncs_shared.load(Ordering::Relaxed)
    }
}
