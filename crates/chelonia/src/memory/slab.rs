//! Memory for large data, handed out by a budget: slabs, which have a fixed size and are used again
//! (the unused ones: `budget/free_slabs.rs`), and pages of any number, which return to the system.
//!
//! Thread-safety: both belong to their holder.

#![expect(unsafe_code, reason = "an island: the raw memory of slabs")]

use crate::base::limits::SLAB_BYTES;
use crate::memory::budget::{Budget, Charge, Use};
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

/// Pages in use, aligned to a block; go back to the system when dropped.
pub struct OwnedPages {
    pages: Pages,
    _charge: Charge,
}

impl OwnedPages {
    /// Takes `bytes` bytes, a multiple of the size of a page above zero, of which caches give up as
    /// many as are missing. `None` if the system refuses memory.
    #[must_use]
    pub fn take(bytes: usize, budget: &Arc<Budget>, purpose: Use) -> Option<Self> {
        budget.make_room_for(bytes as u64);
        let pages = Pages::map(bytes)?;
        Some(Self { pages, _charge: budget.charge(purpose, bytes as u64) })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is that long and initialised, and lives as long as `self`; it is only
        // written through `bytes_mut`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr(), self.pages.len()) }
    }

    /// The bytes, to write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr(), self.pages.len()) }
    }
}
