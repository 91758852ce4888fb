//! A slab in use: a fixed-size piece of memory for large data, handed out by a budget. The unused
//! ones: `budget/free_slabs.rs`.
//!
//! Thread-safety: a slab belongs to its holder.

#![expect(unsafe_code, reason = "an island: the raw memory of slabs")]

use crate::base::limits::SLAB_BYTES;
use crate::memory::budget::{Budget, Use};
use crate::memory::pages::Pages;
use crate::runtime::sync::Arc;

/// A slab in use; goes back to its budget when dropped.
pub struct OwnedSlab {
    /// `None` only while dropping.
    slab: Option<Pages>,
    budget: Arc<Budget>,
    purpose: Use,
}

impl OwnedSlab {
    /// Wraps a slab that `budget` handed out for `purpose`.
    pub(in crate::memory) fn new(slab: Pages, budget: Arc<Budget>, purpose: Use) -> Self {
        Self { slab: Some(slab), budget, purpose }
    }

    /// The start of the slab's [`SLAB_BYTES`] bytes, aligned to a block. The memory is initialised
    /// (zero or stale bytes), never moves, and stays until the slab is dropped. The holder must
    /// synchronize accesses through the pointer.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.slab.as_ref().map_or(std::ptr::null_mut(), |slab| slab.as_ptr())
    }

    /// The bytes, for a sole owner.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is SLAB_BYTES long and initialised, and lives as long as `self`; safe
        // users only ever write through `bytes_mut`, which needs `&mut self`, and islands that
        // write through `as_ptr` do not call this on parts they write.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), SLAB_BYTES) }
    }

    /// The bytes, to write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), SLAB_BYTES) }
    }
}

impl Drop for OwnedSlab {
    fn drop(&mut self) {
        if let Some(slab) = self.slab.take() {
            self.budget.give_back(slab, self.purpose);
        }
    }
}
