//! Disk headroom: the known state of disk space, and when work for space is worth a retry.
//!
//! The actions are in [`crate::disk_full`]; its head explains their purpose.

use crate::admission::factors::SpaceFactors;
use crate::runtime::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use std::time::Duration;

/// Growth of the pool that is a reason to retry failed work.
pub const POOL_GREW_BYTES: u64 = 64 << 10;

/// Growth of the updates in memtables that is such a reason: twice as many, plus this.
const UPDATES_GREW_BYTES: u64 = 4 << 10;

/// In a stepped database, where no time passes, at least one commit in this many retries.
const SKIPPED_MAX: u32 = 1 << 10;

/// Minimal flushes in a row after a flush at the usual pace found too little space.
const USUAL_SKIPPED_MAX: u32 = 16;

/// How long to wait before work that failed for lack of space is tried again.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The longest such wait. Each failure may have written much for nothing, so the wait doubles.
pub const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(12);

/// The known state of disk space at one moment: a commit that waited compares it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub enough_until: u64,
    forgets: u64,
}

/// The known state of disk space.
///
/// Sequentially consistent, with the counts of commits on their way: either a quota that begins
/// counts a commit, or the commit sees that its knowledge was forgotten.
#[derive(Default)]
pub struct Headroom {
    /// Bytes written, to the log and as large values, up to which no check is needed. Bytes of
    /// memtables would not do: those of flushed memtables are freed with the last reader.
    enough_until: AtomicU64,
    /// How often that was forgotten.
    forgets: AtomicU64,
    /// Bytes of large values that were accepted.
    large_bytes: AtomicU64,
    /// Bytes of large values that are to be accepted, or were and are not written yet.
    pending_large_bytes: AtomicU64,
    /// True if a writer that must not work for space itself requests it from the background.
    pub wanted: AtomicBool,
    /// How often the background worked for space.
    pub works: AtomicU64,
    /// Whether it gained space the last time.
    pub gained: AtomicBool,
    /// Held by the one writer that works for space.
    pub looking: Mutex<()>,
    failed: Mutex<Option<Failed>>,
    /// Size of the pool when memtables could not be flushed the last time.
    pub full_pool: AtomicU64,
    usual: Mutex<Usual>,
    /// Space that updates need.
    pub factors: SpaceFactors,
}

/// Failed flushes at the usual pace.
#[derive(Clone, Copy, Default)]
struct Usual {
    /// Size of the pool at the last flush at the usual pace if that failed; 0 if it succeeded.
    failed_pool: u64,
    /// Minimal flushes since.
    skipped: u32,
}

impl Usual {
    fn has_space(self, pool_bytes: u64) -> bool {
        self.failed_pool == 0 || pool_bytes >= self.failed_pool.saturating_add(self.failed_pool / 4)
    }
}

/// Work for space that did not help, and the state after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Failed {
    state: DiskState,
    /// Failures in a row.
    times: u32,
    /// Commits since then that did not retry.
    skipped: u32,
    /// Time of the next retry, whatever changed.
    until: Duration,
}

/// The disk state that work for space depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskState {
    /// Free bytes on the disk, in the data file, and in recycled log segments.
    pub pool_bytes: u64,
    /// Bytes of updates in memtables.
    pub update_bytes: u64,
    /// End of the log: covers all commits.
    pub written: u64,
    pub flushes: u64,
    pub checkpoints: u64,
    pub snapshots: usize,
}

impl DiskState {
    /// True if work that did not help at `before` may help now.
    fn is_better_than(&self, before: &Self, deletes: bool) -> bool {
        // Without work a put is refused: any delete before it counts. Deletes in a row would each
        // flush without effect.
        let grown = before.update_bytes.saturating_mul(2) + UPDATES_GREW_BYTES;
        let has_more =
            if deletes { self.update_bytes >= grown } else { self.written != before.written };
        has_more
            || self.pool_bytes >= before.pool_bytes.saturating_add(POOL_GREW_BYTES)
            || (self.flushes, self.checkpoints) != (before.flushes, before.checkpoints)
            || self.snapshots < before.snapshots
    }
}

/// Large values of a commit before they are written, until dropped.
#[must_use]
pub struct PendingLarge<'a> {
    headroom: &'a Headroom,
    bytes: u64,
}

impl Drop for PendingLarge<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.headroom.pending_large_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        }
    }
}

impl Headroom {
    /// Counts large values of `bytes` as about to be written.
    #[inline]
    pub fn pending_large(&self, bytes: u64) -> PendingLarge<'_> {
        if bytes > 0 {
            self.pending_large_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
        PendingLarge { headroom: self, bytes }
    }

    /// Bytes of large values that are about to be written.
    pub fn pending_large_bytes(&self) -> u64 {
        self.pending_large_bytes.load(Ordering::SeqCst)
    }

    /// Counts large values of `bytes` as accepted.
    pub fn accepted_large(&self, bytes: u64) {
        self.large_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of large values that were accepted: never decreases.
    #[inline]
    pub fn large_bytes(&self) -> u64 {
        self.large_bytes.load(Ordering::Relaxed)
    }

    /// Bytes written up to which space is known to suffice, and how often that was forgotten.
    #[inline]
    pub fn known(&self) -> Known {
        let forgets = self.forgets.load(Ordering::SeqCst);
        Known { enough_until: self.enough_until.load(Ordering::SeqCst), forgets }
    }

    /// True if a writer waits for the background to work for space.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// False if work for space failed, and nothing has changed since. `time` is `None` in a stepped
    /// database, where no time passes.
    pub fn may_help(&self, now: &DiskState, deletes: bool, time: Option<Duration>) -> bool {
        let mut failed = self.failed.lock();
        let Some(before) = &mut *failed else { return true };
        if now.is_better_than(&before.state, deletes) {
            return true;
        }
        if let Some(time) = time {
            return time >= before.until;
        }
        before.skipped += 1;
        before.skipped >= 1_u32.checked_shl(before.times).unwrap_or(SKIPPED_MAX).min(SKIPPED_MAX)
    }

    /// Records that work for space did not help at `time`, and the state after it.
    pub fn note_failure(&self, state: DiskState, time: Duration) {
        let mut failed = self.failed.lock();
        let times = failed.map_or(0, |before| before.times.saturating_add(1));
        let wait = RETRY_INTERVAL.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX));
        let until = time + wait.min(RETRY_INTERVAL_MAX);
        *failed = Some(Failed { state, times, skipped: 0, until });
    }

    /// Records that space suffices: no check is needed until `enough_until`.
    pub fn note_enough(&self, enough_until: u64) {
        self.enough_until.store(enough_until, Ordering::SeqCst);
        *self.failed.lock() = None;
    }

    /// True if a flush at the usual pace may find space in a pool of `pool_bytes`: the last one
    /// did, or the pool grew much, or many minimal flushes were made since.
    pub fn may_flush_as_usual(&self, pool_bytes: u64) -> bool {
        let mut usual = self.usual.lock();
        usual.skipped += 1;
        usual.skipped > USUAL_SKIPPED_MAX || usual.has_space(pool_bytes)
    }

    /// True if the last flush at the usual pace found space, or the pool grew much since.
    pub fn has_usual_space(&self, pool_bytes: u64) -> bool {
        self.usual.lock().has_space(pool_bytes)
    }

    /// Records the pool at a flush at the usual pace that found too little space; `None` if it
    /// found enough.
    pub fn note_usual_flush(&self, failed_pool: Option<u64>) {
        *self.usual.lock() = Usual { failed_pool: failed_pool.unwrap_or(0), skipped: 0 };
    }

    /// Forgets that space sufficed: the device may have less now.
    pub fn forget(&self) {
        self.enough_until.store(0, Ordering::SeqCst);
        self.forgets.fetch_add(1, Ordering::SeqCst);
    }
}
