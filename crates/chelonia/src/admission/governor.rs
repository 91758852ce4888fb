//! Who gets how much of the one memory budget.
//!
//! ```text
//!   budget B
//!   |<-- write share: 4/16 to 13/16 of B ---->|<-- everything else ------------------------->|
//!   | active memtables | immutable, draining  | log 1/32 | merge work | metadata | cache ... |
//! ```
//!
//! The write share is a ceiling, not a reservation: memory that memtables do not use holds cached
//! blocks and records. It grows while writes come and hardly anything is read from the device, for
//! then nobody else wants the memory; and it shrinks, in small steps, when more is read: a read
//! that is saved is worth many writes that are made once more.
//!
//! A keyspace's memtable is immutable when the updates in it reach the keyspace's checkpoint
//! distance, or its memory half of the write share, so that one can fill while the other drains; if
//! the active memtables of all keyspaces together reach that half, the largest are immutable, until
//! they do not. One that gets hardly any writes while there are reads is immutable before
//! (`flush/idle.rs`). A commit to several keyspaces is admitted with what their memtables will grow
//! by, for each grows by a chunk.

use crate::base::error::{Error, Result};
use crate::base::limits::{BATCH_BYTES_MAX, MEMORY_BYTES_MIN};
use crate::memory::budget::{Budget, Use};
use crate::options::database::Internals;
use crate::runtime::sync::{Arc, AtomicU64, Ordering};

/// Divides the budget.
pub struct Governor {
    budget: Arc<Budget>,
    /// Set by tests that want tiny memtables; else 0.
    log_segment_override: Option<u64>,
    write_share_override: AtomicU64,
    /// The write share in sixteenths of the budget.
    sixteenths: AtomicU64,
    /// Bytes of large commits that were admitted and are not in their memtables yet.
    admitted: AtomicU64,
}

/// The write share at first, in sixteenths of the budget.
const SIXTEENTHS: u64 = 9;

/// The write share while nobody reads.
const SIXTEENTHS_MOST: u64 = 13;

/// The write share while much is read, or nothing is written.
const SIXTEENTHS_LEAST: u64 = 4;

/// The write share is never less: half of it holds the largest batch.
const SHARE_BYTES_MIN: u64 = MEMORY_BYTES_MIN / 16 * SIXTEENTHS;

const _: () = assert!(SHARE_BYTES_MIN / 2 >= BATCH_BYTES_MAX as u64);

/// What everything else has at least, where the write share is more than usual: merges, the log,
/// nodes, indexes.
const ELSE_BYTES_MIN: u64 = 64 << 20;

/// Nobody reads, as far as memory goes, if so many entries are written for each block of entries
/// that is read.
const WRITES_PER_READ: u64 = 16;

/// Commits of fewer bytes are not counted while they are on their way: there are never so many at
/// a time that it would matter.
const ADMITTED_BYTES_MIN: u64 = 64 << 10;

/// Room in memtables for one commit, until dropped: several that come at once do not count on the
/// same.
#[must_use]
pub struct Admission<'a> {
    governor: &'a Governor,
    bytes: u64,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.governor.admitted.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Governor {
    /// Divides `budget`.
    pub fn new(budget: Arc<Budget>, internals: &Internals) -> Self {
        Self {
            budget,
            log_segment_override: internals.log_segment_bytes,
            write_share_override: AtomicU64::new(internals.write_share.unwrap_or(0)),
            sixteenths: AtomicU64::new(SIXTEENTHS),
            admitted: AtomicU64::new(0),
        }
    }

    /// Fails with the minimum named if `bytes` is too little.
    pub fn check(bytes: u64) -> Result<()> {
        if bytes >= MEMORY_BYTES_MIN {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a memory budget of {bytes} bytes is below the minimum of {MEMORY_BYTES_MIN} bytes"
        )))
    }

    /// The bytes that all memtables together may take.
    pub fn write_share(&self) -> u64 {
        match self.write_share_override.load(Ordering::Relaxed) {
            0 => self.share_of(self.sixteenths.load(Ordering::Relaxed)),
            share => share,
        }
    }

    /// So many sixteenths of the budget, but for what everything else needs at least.
    fn share_of(&self, sixteenths: u64) -> u64 {
        let limit = self.budget.limit();
        let usual = limit / 16 * SIXTEENTHS;
        let most = limit.saturating_sub(ELSE_BYTES_MIN).max(usual);
        (limit / 16 * sixteenths).clamp(SHARE_BYTES_MIN.min(usual), most)
    }

    /// So many entries were written, and so many blocks of entries read from the device, in the
    /// last little while: moves the write share one step towards what suits that.
    pub fn adapt(&self, written: u64, read: u64) {
        let now = self.sixteenths.load(Ordering::Relaxed);
        let alone = written > read.saturating_mul(WRITES_PER_READ);
        let less = (now - 1).max(SIXTEENTHS_LEAST);
        // Nobody is to wait for room because the share shrinks.
        let fits = self.memtable_bytes() <= self.share_of(less) / 8 * 7;
        let next = match alone {
            true => (now + 1).min(SIXTEENTHS_MOST),
            false if fits => less,
            false => now,
        };
        self.sixteenths.store(next, Ordering::Relaxed);
    }

    /// The budget whose write share is at least `bytes`.
    pub fn budget_for_write_share(bytes: u64) -> u64 {
        (bytes / SIXTEENTHS).saturating_add(1).saturating_mul(16).max(MEMORY_BYTES_MIN)
    }

    /// The bytes that all memtables hold now.
    pub fn memtable_bytes(&self) -> u64 {
        self.budget.used_by(Use::Memtable)
    }

    /// The bytes that memtables may still take.
    pub fn headroom_bytes(&self) -> u64 {
        self.headroom_beside(self.admitted.load(Ordering::Relaxed))
    }

    fn headroom_beside(&self, admitted: u64) -> u64 {
        self.write_share().saturating_sub(self.memtable_bytes() + admitted)
    }

    /// Room for a commit of `bytes`, if there are `headroom_bytes`.
    pub fn admit(&self, bytes: u64, headroom_bytes: u64) -> Option<Admission<'_>> {
        if bytes < ADMITTED_BYTES_MIN {
            return (self.headroom_bytes() >= headroom_bytes).then(|| self.admission(0));
        }
        let before = self.admitted.fetch_add(bytes, Ordering::Relaxed);
        let admission = self.admission(bytes);
        (self.headroom_beside(before) >= headroom_bytes).then_some(admission)
    }

    /// Room for a commit of `bytes`, whether there is any or not.
    pub fn admit_forced(&self, bytes: u64) -> Admission<'_> {
        self.admitted.fetch_add(bytes, Ordering::Relaxed);
        self.admission(bytes)
    }

    fn admission(&self, bytes: u64) -> Admission<'_> {
        Admission { governor: self, bytes }
    }

    /// The memory one memtable may take.
    pub fn memtable_bytes_max(&self) -> u64 {
        self.write_share() / 2
    }

    /// The distance that engines are told for `asked` (0: nothing), in bytes of updates: it does
    /// not follow every change of the work.
    pub fn usual_distance(&self, asked: u64) -> u64 {
        let most = match self.write_share_override.load(Ordering::Relaxed) {
            0 => self.share_of(SIXTEENTHS) / 2,
            share => share / 2,
        };
        if asked == 0 { most } else { asked.min(most) }
    }

    /// The distance that is acted on when `asked` is set (0: nothing), in bytes of updates.
    pub fn checkpoint_distance(&self, asked: u64) -> u64 {
        match asked {
            0 => self.memtable_bytes_max(),
            asked => asked.min(self.memtable_bytes_max()),
        }
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
        (0..10).for_each(|_| governor.adapt(1_000_000, 10));
        assert_eq!(sixteenths(), 13);
        governor.adapt(1000, 1000);
        assert_eq!(sixteenths(), 12);
        // What memtables hold is not taken from them.
        let slabs = 11 * (1 << 26) / SLAB_BYTES;
        let held: Vec<_> = (0..slabs).map(|_| budget.take_slab_forced(Use::Memtable)).collect();
        (0..20).for_each(|_| governor.adapt(1000, 1000));
        assert_eq!(sixteenths(), 12);
        drop(held);
        (0..20).for_each(|_| governor.adapt(0, 0));
        assert_eq!(sixteenths(), 4);
        budget.set_limit(MEMORY_BYTES_MIN);
        assert!(governor.memtable_bytes_max() >= BATCH_BYTES_MAX as u64);
        (0..20).for_each(|_| governor.adapt(1_000_000, 0));
        assert_eq!(governor.write_share(), MEMORY_BYTES_MIN / 16 * 9);
    }
}
