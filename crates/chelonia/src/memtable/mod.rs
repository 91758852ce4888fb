//! The memtable: updates in memory, in key order, with their seqnos.
//!
//! ```text
//!   commit threads -- insert -->  Memtable  -- get, cursor -->  readers at a seqno
//!                                    |
//!                              (finalized by db: no more inserts)
//!                                    |
//!                                    +-- drain --> SortedBatch, one per interval between cuts
//! ```
//!
//! Life of a memtable: it is made empty and holds no memory. Any number of threads insert and read
//! at the same time. Db finalizes it: from then on it is only read. Then it is drained: the newest
//! version of each key, in key order, once for each interval between the seqnos at which snapshots
//! must still see it. It is dropped as a whole; its memory goes back to the budget at once.
//!
//! Invariants:
//! 1. A version whose insert has returned is found by every later reader whose seqno is not
//!    before it, unless a newer version that this reader may see replaces it.
//! 2. Versions that neither a snapshot nor a reader at the newest visible seqno needs are
//!    unlinked when their key is written again ([`Pins`] says which); their memory stays in use
//!    until the memtable is dropped. A reader at an older seqno that no snapshot protects is told
//!    so ([`Lookup::Pruned`]).
//!
//! Parts: `art` is the index (an island), `arena` its memory (an island), `cursor` and `sorted` are
//! its faces to the rest, in safe code.
//!
//! Thread-safety: everything may be called from any thread; nothing blocks but writers of the same
//! node or key, for the time of a few stores.
//!
//! It knows neither the log nor visibility: db inserts an update before it makes its seqno visible.

mod arena;
mod art;
mod cursor;
mod sorted;
#[cfg(test)]
mod tests;

pub use cursor::MemtableCursor;
pub use sorted::{Sorted, SortedBatch};

use crate::base::error::Result;
use crate::base::ids::SeqNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::{KEY_BYTES_MAX, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::Update;
use crate::memory::budget::Budget;
use crate::runtime::sync::Arc;
use art::Tree;

/// Which versions readers may still ask for. Asked while a key is overwritten.
pub trait Pins: Sync {
    /// The newest visible seqno: readers that come from now on read at it or after it.
    fn visible(&self) -> SeqNo;

    /// True if a snapshot holds a seqno in `from..to`.
    fn any_in(&self, from: SeqNo, to: SeqNo) -> bool;
}

/// What a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup<'a> {
    /// Nothing at or before the seqno.
    Absent,
    /// The newest version at or before the seqno.
    Found(Update<'a>, SeqNo),
    /// A version that the reader needed may have been unlinked: read again at a newer visible
    /// seqno. Never at a seqno that a snapshot held when newer versions were inserted.
    Pruned,
}

/// A concurrent ordered index of updates; see the head of the file.
pub struct Memtable {
    tree: Arc<Tree>,
}

impl Memtable {
    /// An empty memtable. It takes its first memory with the first insert.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { tree: Arc::new(Tree::new(budget)) })
    }

    /// Inserts a version of `key`. Inserts of one key may come in any order of their seqnos; of
    /// equal seqnos the later insert counts. Panics if key or value are beyond their limits.
    pub fn insert(&self, key: &[u8], update: Update<'_>, seqno: SeqNo, pins: &dyn Pins) {
        assert!(key.len() <= KEY_BYTES_MAX, "a key is longer than its limit");
        assert!(update.inline_bytes() < LARGE_VALUE_BYTES_MIN, "a large value comes by reference");
        self.tree.insert(key, update, seqno, pins);
    }

    /// Asks for the memory that an insert or a look for `key` touches first.
    #[inline]
    pub fn prefetch(&self, key: &[u8]) {
        self.tree.prefetch(key);
    }

    /// The newest version of `key` at or before `at`.
    #[must_use]
    pub fn get(&self, key: &[u8], at: SeqNo) -> Lookup<'_> {
        self.tree.get(key).map_or(Lookup::Absent, |entry| entry.lookup(at).into())
    }

    /// The entries within `range` at `at`, tombstones included, in `direction`. It gives everything
    /// at or before `at` that was inserted before the call. A snapshot must hold `at` while the
    /// cursor lives (or no insert may come any more); without that a version that is gone is an
    /// error.
    pub fn cursor(
        self: &Arc<Self>,
        range: KeyRange,
        direction: Direction,
        at: SeqNo,
    ) -> Result<MemtableCursor> {
        MemtableCursor::new(&self.tree, range, direction, at)
    }

    /// All of it, cut at the seqnos that snapshots hold (ascending): the newest version of each key
    /// in each interval. No more inserts may come.
    #[must_use]
    pub fn sorted(self: &Arc<Self>, cuts: &[SeqNo]) -> Sorted {
        Sorted::new(&self.tree, cuts)
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tree.held_bytes()
    }

    /// About the memory that `bytes` more of keys and inline values will take beyond that.
    #[must_use]
    pub fn growth_bytes(&self, bytes: usize) -> u64 {
        self.tree.growth_bytes(bytes)
    }

    /// How many keys there are; exact when no insert is under way.
    #[must_use]
    pub fn len_estimate(&self) -> u64 {
        self.tree.keys()
    }
}
