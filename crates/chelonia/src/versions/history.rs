//! History: the older views of a keyspace that pins still read.
//!
//! A pin holds a seqno and no view: the keyspace's own view shows every seqno from the newest that
//! its engine has absorbed on. When a memtable is flushed that view moves on, and the views that
//! older pinned seqnos need are kept here, each view once, however many pins read from it:
//!
//! ```text
//!   seqnos     3     7  8  9      15           20
//!   pins       p     p  p  p      p            p
//!   kept      [.. view of 3][.. view of 9][.. view of 15] then the keyspace's own view
//! ```
//!
//! An entry is named by the newest pinned seqno that reads from it, and serves every seqno after
//! the name of the previous entry. It is removed with the last pin within that interval.
//!
//! Invariants:
//! 1. `newest` is the greatest name of an entry, or 0: a reader at a later seqno needs no lock.
//! 2. An entry is added before the keyspace's own view moves on. So a reader that first loads that
//!    view and then looks here finds the view that it needs in one of them.
//!
//! The history also lists the holders of views, which keep memtables from being freed: iterators.
//! They release the memtables of a view when it is replaced, and close their cursors when those of
//! all iterators take too much memory (`crate::state::open_cursors`).
//!
//! Thread-safety: everything may be called from any thread. Entries change only under the lock of
//! the registry of pins (`crate::versions::pins`).

use crate::base::ids::SeqNo;
use crate::memory::budget::Charge;
use crate::runtime::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::versions::view::{Buffer, View};
use std::collections::BTreeMap;

/// A holder of a view that can be notified when the view was replaced.
pub trait ViewHolder: Send + Sync {
    /// Releases views that contain `flushed`.
    fn let_go(&self, flushed: &Arc<Buffer>);

    /// Closes its cursors, unless it is in use. The next call reopens them at the same position.
    fn close_cursors(&self);
}

/// The older views of one keyspace that pins need.
pub struct History {
    newest: AtomicU64,
    entries: Mutex<BTreeMap<SeqNo, Kept>>,
    holders: Mutex<Vec<Weak<dyn ViewHolder>>>,
}

/// A view with its charge to the budget.
pub struct Kept {
    view: Arc<View>,
    _charge: Charge,
}

/// Dead holders are removed each time that the list has doubled, but not below this length.
const HOLDERS_MIN: usize = 16;

impl History {
    /// Creates an empty history.
    pub fn new() -> Arc<Self> {
        let newest = AtomicU64::new(0);
        Arc::new(Self { newest, entries: Mutex::default(), holders: Mutex::default() })
    }

    /// The view for a pin at `seqno`; `None` if the keyspace's own view, loaded before this call,
    /// serves it.
    #[inline]
    pub fn at(&self, seqno: SeqNo) -> Option<Arc<View>> {
        if seqno.0 > self.newest.load(Ordering::Acquire) {
            return None;
        }
        let entries = self.entries.lock();
        entries.range(seqno..).next().map(|(_, kept)| Arc::clone(&kept.view))
    }

    /// The greatest name of an entry.
    pub fn newest(&self) -> Option<SeqNo> {
        self.entries.lock().keys().next_back().copied()
    }

    /// Adds a view for pins up to `upto`, which is newer than all kept ones.
    pub fn keep(&self, upto: SeqNo, view: Arc<View>, charge: Charge) {
        let mut entries = self.entries.lock();
        debug_assert!(entries.keys().next_back().is_none_or(|newest| *newest < upto), "in order");
        entries.insert(upto, Kept { view, _charge: charge });
        self.newest.store(upto.0, Ordering::Release);
    }

    /// The interval of the entry that a pin at `seqno` reads from: the name of the previous entry,
    /// and its own.
    pub fn interval(&self, seqno: SeqNo) -> Option<(Option<SeqNo>, SeqNo)> {
        let entries = self.entries.lock();
        let upto = *entries.range(seqno..).next()?.0;
        Some((entries.range(..upto).next_back().map(|(before, _)| *before), upto))
    }

    /// Removes the entry named `upto`. The caller drops it without locks.
    pub fn remove(&self, upto: SeqNo) -> Option<Kept> {
        let mut entries = self.entries.lock();
        let kept = entries.remove(&upto);
        let newest = entries.keys().next_back().map_or(0, |newest| newest.0);
        self.newest.store(newest, Ordering::Release);
        kept
    }

    /// Lists a holder that may hold views of the keyspace.
    pub fn stand(&self, holders: Weak<dyn ViewHolder>) {
        let mut all = self.holders.lock();
        if all.len() >= HOLDERS_MIN && all.len() == all.capacity() {
            all.retain(|holders| holders.strong_count() > 0);
        }
        all.push(holders);
    }

    /// Makes holders release views that contain `flushed`: the engine has absorbed it, and no kept
    /// view contains it.
    pub fn let_holders_go(&self, flushed: &Arc<Buffer>) {
        for holders in self.holders() {
            holders.let_go(flushed);
        }
    }

    /// The listed holders, oldest first.
    pub fn holders(&self) -> Vec<Arc<dyn ViewHolder>> {
        self.holders.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
