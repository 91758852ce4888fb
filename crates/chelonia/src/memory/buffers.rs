//! Buffers of one size for batches of reads and writes, used again and again.
//!
//! An allocator would keep buffers of that size among smaller allocations that live longer, so that
//! its memory grows with holes. These are mapped apart, and a few are kept for the next batch.

use super::budget::{Budget, Use};
use super::slab::OwnedPages;
use crate::base::error::{Error, Result};
use crate::base::limits::SLAB_BYTES;
use crate::runtime::sync::{Arc, Mutex};
use std::ops::{Deref, DerefMut};

/// Bytes of a buffer.
pub const BUFFER_BYTES: usize = SLAB_BYTES;

/// Number of buffers that are kept while nobody uses them.
const SPARE_MAX: usize = 2;

/// The buffers of a database.
pub struct Buffers {
    budget: Arc<Budget>,
    spare: Mutex<Vec<OwnedPages>>,
}

impl Buffers {
    /// Creates the buffers, none yet.
    #[must_use]
    pub fn new(budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), spare: Mutex::default() })
    }

    /// A buffer with any content.
    pub fn take(self: &Arc<Self>) -> Result<Buffer> {
        let spare = self.spare.lock().pop();
        let take = || OwnedPages::take(BUFFER_BYTES, &self.budget, Use::Work);
        let pages = Some(spare.or_else(take).ok_or_else(Error::out_of_memory)?);
        Ok(Buffer { pages, of: Arc::clone(self) })
    }

    /// Frees what is kept.
    pub fn clear(&self) {
        self.spare.lock().clear();
    }
}

/// A buffer in use.
pub struct Buffer {
    /// `None` only during the drop.
    pages: Option<OwnedPages>,
    of: Arc<Buffers>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.pages.as_ref().map_or(&[], |pages| pages.bytes())
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut().map_or(&mut [], |pages| pages.bytes_mut())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(pages) = self.pages.take() else { return };
        let mut spare = self.of.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_buffers_are_kept() {
        let budget = Budget::new(64 << 20);
        let before = budget.used_by(Use::Work);
        let buffers = Buffers::new(&budget);
        let mut held: Vec<Buffer> = (0..9).map(|_| buffers.take().unwrap()).collect();
        held[3][BUFFER_BYTES - 1] = 7;
        assert!(budget.used_by(Use::Work) >= before + 9 * BUFFER_BYTES as u64);
        drop(held);
        let kept = budget.used_by(Use::Work) - before;
        assert!(kept < 3 * BUFFER_BYTES as u64 && kept > 0, "{kept}");
        buffers.clear();
        assert_eq!(budget.used_by(Use::Work), before);
    }
}
