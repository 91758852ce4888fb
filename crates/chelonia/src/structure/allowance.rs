//! Limits the memory of a node while it is decoded, counted before it is allocated.
//!
//! The bytes of a node may claim keys of any length in common with each other, many times their own
//! size. So the decoder asks before each allocation.

use crate::base::error::{Error, Result};
use crate::memory::budget::{Charge, Use};
use crate::runtime::sync::Arc;
use crate::storage::Storage;

/// Upper bound of the memory of a valid node's keys: 256 of the longest, and their overhead.
const NODE_KEYS_MAX: usize = 20 << 20;

/// Requested memory is charged in steps of this many bytes.
const STEP_BYTES: usize = 64 << 10;

/// The memory of a node that is being decoded. Charged until the node is cached, which charges it
/// separately, or dropped.
pub struct Allowance {
    storage: Arc<Storage>,
    /// `None` while it is small.
    charge: Option<Charge>,
    bytes: usize,
    key_bytes: usize,
}

impl Allowance {
    /// Creates an allowance with nothing taken.
    #[must_use]
    pub fn of(storage: &Arc<Storage>) -> Self {
        Self { storage: Arc::clone(storage), charge: None, bytes: 0, key_bytes: 0 }
    }

    /// Takes `bytes` more for a key; fails if the keys exceed the bound of any valid node.
    pub fn take_key(&mut self, bytes: usize) -> Result<()> {
        self.key_bytes = self.key_bytes.saturating_add(bytes);
        if self.key_bytes > NODE_KEYS_MAX {
            return Err(Error::corrupt("the keys of a node exceed the memory limit of a node"));
        }
        self.take(bytes);
        Ok(())
    }

    /// Takes `bytes` more for structures that expand each byte of the node to several.
    pub fn take(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        let charged = self.charge.as_ref().map_or(STEP_BYTES as u64, Charge::bytes);
        if self.bytes as u64 > charged {
            let next = self.bytes.next_multiple_of(STEP_BYTES) as u64;
            let budget = self.storage.budget();
            self.charge.get_or_insert_with(|| budget.charge(Use::Work, 0)).resize(next);
            // Caches shrink now, or later when slabs are requested.
            budget.trim();
        }
    }
}

/// Maximum number of items that a list allocates before the first one was read.
const ITEMS_AHEAD: usize = 1024;

/// Allocates a list for `count` items that are still to be decoded. A forged count allocates
/// little: a longer list grows as its items are read.
#[must_use]
pub fn list_of<T>(count: usize) -> Vec<T> {
    Vec::with_capacity(count.min(ITEMS_AHEAD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_charged_and_bounded() {
        let (storage, _directory) = Storage::testing(64 << 20);
        let used = || storage.budget().used_by(Use::Work);
        let before = used();
        let mut allowance = Allowance::of(&storage);
        allowance.take(1_000);
        assert_eq!(used(), before);
        allowance.take_key(1 << 20).unwrap();
        assert!(used() >= before + (1 << 20));
        assert!(allowance.take_key(NODE_KEYS_MAX).is_err());
        drop(allowance);
        assert_eq!(used(), before);
    }

    #[test]
    fn a_count_allocates_little_before_its_items_come() {
        assert!(list_of::<[u8; 64]>(usize::MAX).capacity() <= 2 * ITEMS_AHEAD);
        assert_eq!(list_of::<u8>(3).capacity(), 3);
    }
}
