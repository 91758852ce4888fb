//! What pins read a keyspace from once its own view has moved beyond them.
//!
//! A pin holds a seqno and no view: the keyspace's own view shows every seqno from the newest that
//! its engine has absorbed on. When a memtable is flushed that view moves on, and what the pinned
//! seqnos before need is kept here, each view once, however many pins read from it:
//!
//! ```text
//!   seqnos     3     7  8  9      15           20
//!   pins       p     p  p  p      p            p
//!   kept      [.. view of 3][.. view of 9][.. view of 15] then the keyspace's own view
//! ```
//!
//! An entry is named by the newest pinned seqno that reads from it, and is for every seqno after
//! the entry before it. It goes when the last pin within that interval does.
//!
//! Invariants:
//! 1. `newest` is the greatest name of an entry, or 0: whoever reads at a later seqno needs no
//!    lock.
//! 2. An entry is added before the keyspace's own view moves on. So whoever loads that view first
//!    and looks here afterwards finds what it needs in one of them.
//!
//! Beside that, those are listed who stand in a view, and keep what it has from being given back:
//! iterators. They let go of the memtables of a view when it is replaced, and close their cursors
//! when those of all iterators take too much memory (`crate::state::open_cursors`).
//!
//! Thread-safety: everything may be called from any thread. Entries change only under the lock of
//! the registry of pins (`crate::versions::pins`).

use crate::base::ids::SeqNo;
use crate::memory::budget::Charge;
use crate::runtime::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::versions::view::{Buffer, View};
use std::collections::BTreeMap;

/// Something that stands in a view and can be told that the view was replaced.
pub trait ViewHolder: Send + Sync {
    /// Lets go of views that have `flushed`.
    fn let_go(&self, flushed: &Arc<Buffer>);

    /// Closes its cursors, unless it is in use. The next call opens them again where they stood.
    fn close_cursors(&self);
}

/// The views that pins need of one keyspace; see the head of the file.
pub struct History {
    newest: AtomicU64,
    entries: Mutex<BTreeMap<SeqNo, Kept>>,
    holders: Mutex<Vec<Weak<dyn ViewHolder>>>,
}

/// A view with its place in the budget.
pub struct Kept {
    view: Arc<View>,
    _charge: Charge,
}

/// Those who stand are looked through for the dead each time they are twice as many, at least.
const HOLDERS_MIN: usize = 16;

impl History {
    /// Nothing is kept.
    pub fn new() -> Arc<Self> {
        let newest = AtomicU64::new(0);
        Arc::new(Self { newest, entries: Mutex::default(), holders: Mutex::default() })
    }

    /// The view for a pin at `seqno`; `None` if that is the keyspace's own, as it was loaded before
    /// this call.
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

    /// Adds a view for pins up to `upto`, which is newer than all that are kept.
    pub fn keep(&self, upto: SeqNo, view: Arc<View>, charge: Charge) {
        let mut entries = self.entries.lock();
        debug_assert!(entries.keys().next_back().is_none_or(|newest| *newest < upto), "in order");
        entries.insert(upto, Kept { view, _charge: charge });
        self.newest.store(upto.0, Ordering::Release);
    }

    /// The interval of the entry that a pin at `seqno` reads from: its name, and that of the entry
    /// before it.
    pub fn interval(&self, seqno: SeqNo) -> Option<(Option<SeqNo>, SeqNo)> {
        let entries = self.entries.lock();
        let upto = *entries.range(seqno..).next()?.0;
        Some((entries.range(..upto).next_back().map(|(before, _)| *before), upto))
    }

    /// Takes the entry named `upto` out. The caller drops it without locks.
    pub fn remove(&self, upto: SeqNo) -> Option<Kept> {
        let mut entries = self.entries.lock();
        let kept = entries.remove(&upto);
        let newest = entries.keys().next_back().map_or(0, |newest| newest.0);
        self.newest.store(newest, Ordering::Release);
        kept
    }

    /// Lists somebody who may stand in views of the keyspace.
    pub fn stand(&self, holders: Weak<dyn ViewHolder>) {
        let mut all = self.holders.lock();
        if all.len() >= HOLDERS_MIN && all.len() == all.capacity() {
            all.retain(|holders| holders.strong_count() > 0);
        }
        all.push(holders);
    }

    /// `flushed` is in the engine, and in no view that is kept: those who stand in it let go.
    pub fn let_holders_go(&self, flushed: &Arc<Buffer>) {
        for holders in self.holders() {
            holders.let_go(flushed);
        }
    }

    /// Those who are listed, the oldest first.
    pub fn holders(&self) -> Vec<Arc<dyn ViewHolder>> {
        self.holders.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
