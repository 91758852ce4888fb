//! The memory of open cursors: the read-ahead of all iterators is a bounded part of the budget.
//!
//! A cursor keeps a window of blocks for each run that it reads. The windows of thousands of
//! iterators would exceed the budget. Above a part of it, iterators close their cursors, the oldest
//! first, until half of that part remains. An iterator without cursors only holds its pin; its next
//! call opens them at the same position, with small windows. So iterators that are advanced in turn
//! read less ahead, and none of them fails.
//!
//! The calling iterator and iterators in use by other threads are not closed; each holds at most
//! one window per run.
//!
//! Thread-safety: everything may be called from any thread, without the lock of an iterator.

use crate::memory::budget::Use;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::Arc;
use crate::state::keyspace::KeyspaceCore;
use crate::state::reads::Reads;

/// Cursors may use this part of the budget before some are closed.
const SCANS_PART: u64 = 4;

impl Reads<'_> {
    /// The memory of all open cursors, in bytes.
    #[inline]
    pub fn scan_bytes(self) -> u64 {
        self.core.storage.budget().used_by(Use::Scans)
    }

    /// Closes cursors if they use more than their part of the budget, given that they use `used`
    /// bytes: of all keyspaces and of this one, which may have been dropped, but not of the
    /// iterator whose state is at `own`. Caches give up what the others take.
    #[inline]
    pub fn limit_scans(self, used: u64, keyspace: &Arc<KeyspaceCore>, own: *const ()) {
        let budget = self.core.storage.budget();
        if used > budget.limit() / SCANS_PART {
            self.close_scans(keyspace, own);
        }
        budget.make_room_for(0);
    }

    #[cold]
    fn close_scans(self, keyspace: &Arc<KeyspaceCore>, own: *const ()) {
        let enough = self.core.storage.budget().limit() / SCANS_PART / 2;
        let mut keyspaces = self.core.all_keyspaces();
        keyspaces.push(Arc::clone(keyspace));
        for standing in keyspaces.iter().flat_map(|keyspace| keyspace.history.holders()) {
            if self.scan_bytes() <= enough {
                return;
            }
            if !std::ptr::addr_eq(Arc::as_ptr(&standing), own) {
                standing.close_cursors();
                mark(Mark::CursorsClosed);
            }
        }
    }
}
