//! Charges: counts of memory on the heap or in mapped files.

use super::Budget;
use super::purpose::Use;
use crate::runtime::sync::{Arc, Ordering};

/// Of small pieces of the heap, a quarter is lost between them: measured with hundreds of
/// keyspaces and snapshots.
const LOSSES_PART: u64 = 4;

/// The bytes that `bytes` of charged memory count as.
pub fn with_losses(purpose: Use, bytes: u64) -> u64 {
    if purpose == Use::Metadata { bytes + bytes / LOSSES_PART } else { bytes }
}

impl Budget {
    /// Counts `bytes` of heap or mapped memory, even beyond the limit.
    pub fn charge(self: &Arc<Self>, purpose: Use, bytes: u64) -> Charge {
        self.used[purpose as usize].fetch_add(with_losses(purpose, bytes), Ordering::Relaxed);
        self.release_surplus();
        Charge { budget: Arc::clone(self), purpose, bytes }
    }
}

/// A count of heap or mapped memory; subtracted when dropped.
pub struct Charge {
    budget: Arc<Budget>,
    purpose: Use,
    bytes: u64,
}

impl Charge {
    /// The counted bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the count to `bytes`.
    pub fn resize(&mut self, bytes: u64) {
        // Wraps around to the right sum, with one update of the shared counter.
        let [before, now] = [self.bytes, bytes].map(|bytes| with_losses(self.purpose, bytes));
        let change = now.wrapping_sub(before);
        self.budget.used[self.purpose as usize].fetch_add(change, Ordering::Relaxed);
        self.bytes = bytes;
        self.budget.release_surplus();
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let counted = with_losses(self.purpose, self.bytes);
        self.budget.used[self.purpose as usize].fetch_sub(counted, Ordering::Relaxed);
    }
}
