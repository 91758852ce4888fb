//! What is known of the space on the disk, and which work for space is worth another try.
//!
//! The actions are in [`crate::disk_full`]; its head says what they are for.

use crate::runtime::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use std::time::Duration;

/// So much more in the pool is a reason to try again what failed.
pub const POOL_GREW_BYTES: u64 = 64 << 10;

/// The same of updates in memtables: twice as many, and these.
const UPDATES_GREW_BYTES: u64 = 4 << 10;

/// In a stepped database, where no time passes, at least one commit in this many tries again.
const SKIPPED_MAX: u32 = 1 << 10;

/// The flushes in a row that are tight after one at the usual pace found too little space.
const USUAL_SKIPPED_MAX: u32 = 16;

/// How long to wait before work that failed for lack of space is tried again.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The longest such wait. Each failure may have written much for nothing, so the wait doubles.
pub const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(12);

/// What is known of the space on the device.
#[derive(Default)]
pub struct Headroom {
    /// Until so many bytes were written, to the log and as large values, nobody has to look. Not
    /// bytes of memtables: those of what was flushed go when the last reader lets go of it.
    pub enough_until: AtomicU64,
    /// Bytes of large values that were let in.
    pub large_bytes: AtomicU64,
    /// Writers that may not work for space themselves want the background to.
    pub wanted: AtomicBool,
    /// How often the background did.
    pub works: AtomicU64,
    /// Whether it gained something the last time.
    pub gained: AtomicBool,
    /// Held by the one writer that works for space.
    pub looking: Mutex<()>,
    failed: Mutex<Option<Failed>>,
    /// The pool when memtables could not be flushed the last time.
    pub full_pool: AtomicU64,
    usual: Mutex<Usual>,
}

/// Flushes at the usual pace that found too little space.
#[derive(Clone, Copy, Default)]
struct Usual {
    /// The pool at the last one; 0 if it found enough.
    failed_pool: u64,
    /// Minimal ones since.
    skipped: u32,
}

/// Work for space that did not help, and how things were afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Failed {
    state: DiskState,
    /// How often in a row.
    times: u32,
    /// Commits that did not try again since.
    skipped: u32,
    /// When to try again, whatever changed.
    until: Duration,
}

/// What work for space depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskState {
    /// Free on the disk, in the data file, and in log segments that wait.
    pub pool_bytes: u64,
    /// Updates in memtables.
    pub update_bytes: u64,
    /// Where the log ends: what was committed.
    pub written: u64,
    pub flushes: u64,
    pub checkpoints: u64,
    pub snapshots: usize,
}

impl DiskState {
    /// Whether work that did not help `before` may help now.
    fn is_better_than(&self, before: &Self, deletes: bool) -> bool {
        // A put is refused if nothing is done: whatever was deleted before it counts. Of deletes in
        // a row each would flush in vain.
        let grown = before.update_bytes.saturating_mul(2) + UPDATES_GREW_BYTES;
        let has_more =
            if deletes { self.update_bytes >= grown } else { self.written != before.written };
        has_more
            || self.pool_bytes >= before.pool_bytes.saturating_add(POOL_GREW_BYTES)
            || (self.flushes, self.checkpoints) != (before.flushes, before.checkpoints)
            || self.snapshots < before.snapshots
    }
}

impl Headroom {
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

    /// Remembers that work for space did not help at `time`, and the state that it left.
    pub fn note_failure(&self, state: DiskState, time: Duration) {
        let mut failed = self.failed.lock();
        let times = failed.map_or(0, |before| before.times.saturating_add(1));
        let wait = RETRY_INTERVAL.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX));
        let until = time + wait.min(RETRY_INTERVAL_MAX);
        *failed = Some(Failed { state, times, skipped: 0, until });
    }

    /// Remembers that there is enough: nobody has to look until `enough_until`.
    pub fn note_enough(&self, enough_until: u64) {
        self.enough_until.store(enough_until, Ordering::Relaxed);
        *self.failed.lock() = None;
    }

    /// True if a flush at the usual pace may find space in a pool of `pool_bytes`: the last one
    /// did, or there is much more now, or many were tight since.
    pub fn may_flush_as_usual(&self, pool_bytes: u64) -> bool {
        let mut usual = self.usual.lock();
        usual.skipped += 1;
        usual.skipped > USUAL_SKIPPED_MAX
            || usual.failed_pool == 0
            || pool_bytes >= usual.failed_pool.saturating_add(usual.failed_pool / 4)
    }

    /// Remembers the pool at a flush at the usual pace that found too little space; `None` if it
    /// found enough.
    pub fn note_usual_flush(&self, failed_pool: Option<u64>) {
        *self.usual.lock() = Usual { failed_pool: failed_pool.unwrap_or(0), skipped: 0 };
    }

    /// The device may have less space than it had.
    pub fn forget(&self) {
        self.enough_until.store(0, Ordering::Relaxed);
    }
}
