//! Division of the memory budget between memtables, caches and the rest.
//!
//! ```text
//!   budget B
//!   |<-- write share: 4/16 to 13/16 of B ---->|<-- everything else ------------------------->|
//!   | active memtables | immutable, flushing  | log 1/32 | merge work | metadata | cache ... |
//! ```
//!
//! The write share is a ceiling, not a reservation: memory that memtables do not use holds cached
//! blocks and records. It moves in small steps to where memory saves more time
//! (`admission/balance.rs`). Memory that caches cannot give up, such as that of many pins, leaves
//! up to a quarter less of it.
//!
//! A keyspace's memtable is rotated when its updates reach the keyspace's checkpoint distance, or
//! its memory reaches half of the write share, so that one memtable can fill while the other is
//! flushed. If the active memtables of all keyspaces together reach that half, the largest are
//! rotated until they are below it. A memtable that gets almost no writes while there are reads is
//! rotated earlier (`flush/idle.rs`). A commit to several keyspaces is admitted with the growth of
//! their memtables, because each grows by a chunk.

use crate::admission::balance::{Division, STEPS, Step};
use crate::base::error::{Error, Result};
use crate::base::limits::{BATCH_BYTES_MAX, MEMORY_BYTES_MIN};
use crate::memory::budget::{Budget, Use};
use crate::options::database::Internals;
use crate::runtime::sync::{Arc, AtomicU64, Ordering};

/// Divides the budget between memtables and everything else.
pub struct Governor {
    budget: Arc<Budget>,
    /// Log segment size set by tests that want tiny segments.
    log_segment_override: Option<u64>,
    /// Write share set by tests that want tiny memtables; else 0.
    write_share_override: AtomicU64,
    /// The write share in sixteenths of the budget.
    sixteenths: AtomicU64,
    /// Bytes of large commits that were admitted and are not in their memtables yet.
    admitted: AtomicU64,
}

/// The initial write share, in sixteenths of the budget.
const SIXTEENTHS: u64 = 9;

/// The maximum write share, without reads.
const SIXTEENTHS_MOST: u64 = 13;

/// The minimum write share, with many reads or no writes.
const SIXTEENTHS_LEAST: u64 = 4;

/// Lower bound of the write share: half of it holds the largest batch.
const SHARE_BYTES_MIN: u64 = MEMORY_BYTES_MIN / 16 * SIXTEENTHS;

const _: () = assert!(SHARE_BYTES_MIN / 2 >= BATCH_BYTES_MAX as u64);

/// Least memory for everything else when the write share is above its initial value: merges, the
/// log, nodes, indexes.
const ELSE_BYTES_MIN: u64 = 64 << 20;

/// Memory that neither caches nor flushes make room in.
const FIXED_USES: [Use; 4] = [Use::Work, Use::Scans, Use::Metadata, Use::Log];

/// Smaller commits are not counted between admission and insertion: there are never enough of them
/// at a time to matter.
const ADMITTED_BYTES_MIN: u64 = 64 << 10;

/// Memtable memory reserved for one commit, until dropped: concurrent commits do not count on the
/// same memory.
#[must_use]
pub struct Admission<'a> {
    governor: &'a Governor,
    bytes: u64,
}

impl Admission<'_> {
    /// Bytes of the commit if it is large enough to be counted in [`Governor::admitted_bytes`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.governor.admitted.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Governor {
    /// Creates a governor of `budget`.
    pub fn new(budget: Arc<Budget>, internals: &Internals) -> Self {
        Self {
            budget,
            log_segment_override: internals.log_segment_bytes,
            write_share_override: AtomicU64::new(internals.write_share.unwrap_or(0)),
            sixteenths: AtomicU64::new(SIXTEENTHS),
            admitted: AtomicU64::new(0),
        }
    }

    /// Fails if `bytes` is below the minimum, which the error names.
    pub fn check(bytes: u64) -> Result<()> {
        if bytes >= MEMORY_BYTES_MIN {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a memory budget of {bytes} bytes is below the minimum of {MEMORY_BYTES_MIN} bytes"
        )))
    }

    /// Bytes that all memtables together may take.
    pub fn write_share(&self) -> u64 {
        match self.write_share_override.load(Ordering::Relaxed) {
            0 => self.share_of(self.sixteenths.load(Ordering::Relaxed)),
            share => share,
        }
    }

    /// The given sixteenths of the budget, less what everything else needs at least.
    fn share_of(&self, sixteenths: u64) -> u64 {
        let limit = self.budget.limit();
        let usual = limit / 16 * SIXTEENTHS;
        let most = limit.saturating_sub(ELSE_BYTES_MIN).max(usual);
        (limit / 16 * sixteenths).clamp(SHARE_BYTES_MIN.min(usual), most)
    }

    /// The division that the next step would change, where `stored` bytes are in the data file.
    pub fn division(&self, stored: u64) -> Division {
        let step = self.budget.limit() / STEPS;
        Division { write_share: self.write_share(), step, stored }
    }

    /// Moves the write share by `step`.
    pub fn adapt(&self, step: Step) {
        let now = self.sixteenths.load(Ordering::Relaxed);
        let less = (now - 1).max(SIXTEENTHS_LEAST);
        // A smaller share must not make writers wait for memory.
        let fits = || self.memtable_bytes() <= self.share_of(less) / 8 * 7;
        let next = match step {
            Step::Memtables => (now + 1).min(SIXTEENTHS_MOST),
            Step::Caches if fits() => less,
            Step::Caches | Step::Stay => now,
        };
        self.sixteenths.store(next, Ordering::Relaxed);
    }

    /// The smallest budget whose write share is at least `bytes`.
    pub fn budget_for_write_share(bytes: u64) -> u64 {
        (bytes / SIXTEENTHS).saturating_add(1).saturating_mul(16).max(MEMORY_BYTES_MIN)
    }

    /// Bytes that all memtables hold now.
    pub fn memtable_bytes(&self) -> u64 {
        self.budget.used_by(Use::Memtable)
    }

    /// Bytes of large commits that were admitted and are not in their memtables yet.
    pub fn admitted_bytes(&self) -> u64 {
        self.admitted.load(Ordering::SeqCst)
    }

    /// Bytes that memtables may still take.
    pub fn headroom_bytes(&self) -> u64 {
        self.headroom_beside(self.admitted.load(Ordering::Relaxed))
    }

    fn headroom_beside(&self, admitted: u64) -> u64 {
        let share = self.write_share();
        // Memory that caches cannot give up, as of many pins, leaves less for memtables.
        let fixed: u64 = FIXED_USES.iter().map(|fixed| self.budget.used_by(*fixed)).sum();
        let left = self.budget.limit().saturating_sub(fixed).max(share / 4 * 3);
        share.min(left).saturating_sub(self.memtable_bytes() + admitted)
    }

    /// Admits a commit of `bytes` if `headroom_bytes` are available.
    pub fn admit(&self, bytes: u64, headroom_bytes: u64) -> Option<Admission<'_>> {
        if bytes < ADMITTED_BYTES_MIN {
            return (self.headroom_bytes() >= headroom_bytes).then(|| self.admission(0));
        }
        let before = self.admitted.fetch_add(bytes, Ordering::SeqCst);
        let admission = self.admission(bytes);
        (self.headroom_beside(before) >= headroom_bytes).then_some(admission)
    }

    /// Admits a commit of `bytes` regardless of the available memory.
    pub fn admit_forced(&self, bytes: u64) -> Admission<'_> {
        self.admitted.fetch_add(bytes, Ordering::SeqCst);
        self.admission(bytes)
    }

    fn admission(&self, bytes: u64) -> Admission<'_> {
        Admission { governor: self, bytes }
    }

    /// Most memory that one memtable may take.
    pub fn memtable_bytes_max(&self) -> u64 {
        self.write_share() / 2
    }

    /// The checkpoint distance given to engines for `asked` (0: not set), in bytes of updates: it
    /// does not follow every change of the load.
    pub fn usual_distance(&self, asked: u64) -> u64 {
        let most = match self.write_share_override.load(Ordering::Relaxed) {
            0 => self.share_of(SIXTEENTHS) / 2,
            share => share / 2,
        };
        if asked == 0 { most } else { asked.min(most) }
    }

    /// The effective checkpoint distance for `asked` (0: not set), in bytes of updates, given that
    /// a memtable of `density.1` bytes holds `density.0` bytes of updates.
    pub fn checkpoint_distance(&self, asked: u64, density: (u64, u64)) -> u64 {
        let (updates, memory) = (u128::from(density.0), u128::from(density.1.max(1)));
        let most = u128::from(self.memtable_bytes_max()) * updates / memory;
        let most = u64::try_from(most).unwrap_or(u64::MAX).max(1);
        if asked == 0 { most } else { asked.min(most) }
    }

    /// The size of the largest log segments.
    pub fn log_segment_bytes(&self) -> u64 {
        let usual = (self.budget.limit() / 64).next_power_of_two().clamp(256 << 10, 8 << 20);
        self.log_segment_override.unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limits::SLAB_BYTES;

    #[test]
    fn the_share_follows_the_work_in_steps_and_never_starves_a_batch() {
        let budget = Budget::new(1 << 30);
        let governor = Governor::new(Arc::clone(&budget), &Internals::default());
        let sixteenths = || governor.write_share() / (1 << 26);
        assert_eq!(sixteenths(), 9);
        (0..10).for_each(|_| governor.adapt(Step::Memtables));
        assert_eq!(sixteenths(), 13);
        governor.adapt(Step::Stay);
        assert_eq!(sixteenths(), 13);
        governor.adapt(Step::Caches);
        assert_eq!(sixteenths(), 12);
        // Memory of memtables is not taken from them.
        let slabs = 11 * (1 << 26) / SLAB_BYTES;
        let held: Vec<_> = (0..slabs).map(|_| budget.take_slab_forced(Use::Memtable)).collect();
        (0..20).for_each(|_| governor.adapt(Step::Caches));
        assert_eq!(sixteenths(), 12);
        drop(held);
        (0..20).for_each(|_| governor.adapt(Step::Caches));
        assert_eq!(sixteenths(), 4);
        budget.set_limit(MEMORY_BYTES_MIN);
        assert!(governor.memtable_bytes_max() >= BATCH_BYTES_MAX as u64);
        (0..20).for_each(|_| governor.adapt(Step::Memtables));
        assert_eq!(governor.write_share(), MEMORY_BYTES_MIN / 16 * 9);
    }
}
