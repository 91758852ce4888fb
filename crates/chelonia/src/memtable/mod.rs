//! The memtable: updates in memory, in key order, with their seqnos.
//!
//! ```text
//!   commit threads -- insert -->  Memtable  -- get, cursor -->  readers at a seqno
//!                                    |
//!                              (made immutable by a rotation: no more inserts)
//!                                    |
//!                                    +-- sorted --> SortedBatch, one per interval between cuts
//! ```
//!
//! Life cycle: a memtable is created empty and holds no memory. Any number of threads insert and
//! read at the same time. A rotation (`flush/rotation.rs`) makes it immutable: from then on it is
//! only read. Then it is flushed: the newest version of each key, in key order, once for each
//! interval between the seqnos at which snapshots must still see it. It is dropped as a whole; its
//! memory returns to the budget at once.
//!
//! Invariants:
//! 1. A version whose insert has returned is found by every later reader whose seqno is not before
//!    it, unless a newer version that this reader may see replaces it.
//! 2. Versions that neither a snapshot nor a reader at the newest visible seqno needs are unlinked
//!    when their key is written again ([`Pins`] decides which); their memory stays allocated until
//!    the memtable is dropped. A reader at an older seqno that no snapshot protects gets
//!    [`Lookup::Pruned`].
//!
//! Modules: `art` is the index (contains unsafe code), `arena` its memory (contains unsafe code);
//! `cursor` and `sorted` are its interfaces to the rest, in safe code.
//!
//! Thread-safety: everything may be called from any thread; only writers of the same node or key
//! block each other, for the time of a few stores.
//!
//! A memtable is independent of the log and of visibility: a commit inserts its updates before
//! their seqnos become visible (`write/pipeline.rs`).

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

/// Decides which versions readers may still need. Called while a key is overwritten.
pub trait Pins: Sync {
    /// The newest visible seqno: new readers read at it or after it.
    fn visible(&self) -> SeqNo;

    /// True if a snapshot holds a seqno in `from..to`.
    fn any_in(&self, from: SeqNo, to: SeqNo) -> bool;
}

/// Result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup<'a> {
    /// No version at or before the seqno.
    Absent,
    /// The newest version at or before the seqno.
    Found(Update<'a>, SeqNo),
    /// A version that the reader needed may have been unlinked: read again at a newer visible
    /// seqno. Never returned at a seqno that a snapshot held when newer versions were inserted.
    Pruned,
}

/// A concurrent ordered index of updates; see the head of the file.
pub struct Memtable {
    tree: Arc<Tree>,
}

impl Memtable {
    /// Creates an empty memtable. The first insert allocates its first memory.
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

    /// Prefetches the memory that an insert or a lookup of `key` touches first.
    #[inline]
    pub fn prefetch(&self, key: &[u8]) {
        self.tree.prefetch(key);
    }

    /// The newest version of `key` at or before `at`.
    #[must_use]
    pub fn get(&self, key: &[u8], at: SeqNo) -> Lookup<'_> {
        self.tree.get(key).map_or(Lookup::Absent, |entry| entry.lookup(at).into())
    }

    /// Returns the entries within `range` at `at`, tombstones included, in `direction`: every
    /// version at or before `at` that was inserted before the call. A snapshot must hold `at` while
    /// the cursor lives (or inserts must have ended); otherwise a missing version is an error.
    pub fn cursor(
        self: &Arc<Self>,
        range: KeyRange,
        direction: Direction,
        at: SeqNo,
    ) -> Result<MemtableCursor> {
        MemtableCursor::new(&self.tree, range, direction, at)
    }

    /// Returns all entries, cut at the seqnos that snapshots hold (ascending): the newest version
    /// of each key in each interval. There must be no more inserts.
    #[must_use]
    pub fn sorted(self: &Arc<Self>, cuts: &[SeqNo]) -> Sorted {
        Sorted::new(&self.tree, cuts)
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tree.held_bytes()
    }

    /// Estimates the additional memory for `bytes` more bytes of keys and inline values.
    #[must_use]
    pub fn growth_bytes(&self, bytes: usize) -> u64 {
        self.tree.growth_bytes(bytes)
    }

    /// Number of keys; exact while no insert is in progress.
    #[must_use]
    pub fn len_estimate(&self) -> u64 {
        self.tree.keys()
    }
}
