//! Who gets how much of the one memory budget.
//!
//! ```text
//!   budget B
//!   |<-- write share: 9/16 of B ------------->|<-- everything else ------------------------->|
//!   | active memtables | finalized, draining  | log 1/32 | merge work | metadata | cache ... |
//! ```
//!
//! The write share is a ceiling, not a reservation: memory that memtables do not use holds cached
//! blocks. A keyspace's memtable is finalized when the updates in it reach the keyspace's
//! checkpoint distance, or its memory half of the write share, so that one can fill while the other
//! drains; if the active memtables of all keyspaces together reach that half, the largest are
//! finalized, until they do not. A commit to several keyspaces is admitted with what their
//! memtables will grow by, for each grows by a chunk.

use crate::base::budget::{Budget, Use};
use crate::base::error::{Error, Result};
use crate::base::limits::MEMORY_BYTES_MIN;
use crate::base::sync::{Arc, AtomicU64, Ordering};

/// Divides the budget.
pub struct Governor {
    budget: Arc<Budget>,
    /// Set by tests that want tiny memtables; else 0.
    write_share_override: AtomicU64,
    /// Bytes of large commits that were admitted and are not in their memtables yet.
    admitted: AtomicU64,
}

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
    pub fn new(budget: Arc<Budget>, write_share: Option<u64>) -> Self {
        let write_share_override = AtomicU64::new(write_share.unwrap_or(0));
        Self { budget, write_share_override, admitted: AtomicU64::new(0) }
    }

    /// Fails with the minimum named if `bytes` is too little.
    pub fn check(bytes: u64) -> Result<()> {
        if bytes >= MEMORY_BYTES_MIN {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a memory budget of {bytes} bytes is too small; the minimum is {MEMORY_BYTES_MIN}"
        )))
    }

    /// The bytes that all memtables together may take.
    pub fn write_share(&self) -> u64 {
        match self.write_share_override.load(Ordering::Relaxed) {
            0 => self.budget.limit() / 16 * 9,
            share => share,
        }
    }

    /// The budget whose write share is at least `bytes`.
    pub fn budget_for_write_share(bytes: u64) -> u64 {
        (bytes / 9).saturating_add(1).saturating_mul(16).max(MEMORY_BYTES_MIN)
    }

    /// The bytes that all memtables hold now.
    pub fn memtable_bytes(&self) -> u64 {
        self.budget.used_by(Use::Memtable)
    }

    /// The bytes that memtables may still take.
    pub fn room_bytes(&self) -> u64 {
        self.room_beside(self.admitted.load(Ordering::Relaxed))
    }

    fn room_beside(&self, admitted: u64) -> u64 {
        self.write_share().saturating_sub(self.memtable_bytes() + admitted)
    }

    /// Room for a commit of `bytes`, if there are `room_bytes`.
    pub fn admit(&self, bytes: u64, room_bytes: u64) -> Option<Admission<'_>> {
        if bytes < ADMITTED_BYTES_MIN {
            return (self.room_bytes() >= room_bytes).then(|| self.admission(0));
        }
        let before = self.admitted.fetch_add(bytes, Ordering::Relaxed);
        let admission = self.admission(bytes);
        (self.room_beside(before) >= room_bytes).then_some(admission)
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

    /// The distance that is acted on when `asked` is set (0: nothing), in bytes of updates.
    pub fn checkpoint_distance(&self, asked: u64) -> u64 {
        match asked {
            0 => self.memtable_bytes_max(),
            asked => asked.min(self.memtable_bytes_max()),
        }
    }

    /// The size of a full log segment.
    pub fn log_segment_bytes(budget: u64) -> u64 {
        (budget / 64).next_power_of_two().clamp(256 << 10, 8 << 20)
    }
}
