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
//! drains; if the active memtables of all keyspaces together reach that half, the largest is
//! finalized.

use crate::base::budget::{Budget, Use};
use crate::base::error::{Error, Result};
use crate::base::limits::MEMORY_BYTES_MIN;
use crate::base::sync::{Arc, AtomicU64, Ordering};

/// Divides the budget.
pub struct Governor {
    budget: Arc<Budget>,
    /// Set by tests that want tiny memtables; else 0.
    write_share_override: AtomicU64,
}

impl Governor {
    /// Divides `budget`.
    pub fn new(budget: Arc<Budget>, write_share: Option<u64>) -> Self {
        Self { budget, write_share_override: AtomicU64::new(write_share.unwrap_or(0)) }
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

    /// The bytes that all memtables hold now.
    pub fn memtable_bytes(&self) -> u64 {
        self.budget.used_by(Use::Memtable)
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
