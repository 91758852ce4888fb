//! The memory of open transactions, counted in the budget and bounded.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BATCH_BYTES_MAX;
use crate::memory::budget::{Budget, Charge, Use};
use crate::runtime::sync::Arc;

/// The part of the memory budget that all transactions together may use.
const BUDGET_PART: u64 = 4;

/// They may use at least this much, so that one can have as many writes as are allowed.
const BYTES_MIN: u64 = 2 * BATCH_BYTES_MAX as u64;

/// Bytes that are charged to the budget at a time.
const STEP_BYTES: usize = 4 << 10;

/// Memory of the reads or the writes of a transaction.
pub struct Memory {
    bytes: usize,
    charge: Charge,
    budget: Arc<Budget>,
}

impl Memory {
    /// Counts nothing yet.
    pub fn new(budget: &Arc<Budget>) -> Self {
        let charge = budget.charge(Use::Transactions, 0);
        Self { bytes: 0, charge, budget: Arc::clone(budget) }
    }

    /// The counted bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The budget that they are counted in.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Counts `bytes` more; counts nothing and fails if transactions would use too much.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        let more = (self.bytes + bytes) as u64;
        if more > self.charge.bytes() {
            let limit = (self.budget.limit() / BUDGET_PART).max(BYTES_MIN);
            let others = self.budget.used_by(Use::Transactions) - self.charge.bytes();
            if others + more > limit {
                let text = format!(
                    "open transactions would use {} bytes of at most {limit}, a quarter of the \
                     memory budget: commit or drop some, or raise the budget",
                    others + more
                );
                return Err(Error::new(ErrorKind::OutOfMemory, text));
            }
            self.charge.resize(more.next_multiple_of(STEP_BYTES as u64));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Counts `bytes` less.
    pub fn remove(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.bytes, "only what was counted is removed");
        self.bytes = self.bytes.saturating_sub(bytes);
        let kept = (self.bytes + STEP_BYTES) as u64;
        if self.charge.bytes() > 2 * kept {
            self.charge.resize(kept);
        }
    }
}
