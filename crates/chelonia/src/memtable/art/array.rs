//! The entries of an immutable tree, in key order, as arrays of addresses.
//!
//! ```text
//!   piece 0                       piece 1
//!   | address | address | ...     | address | ...        8 bytes each, 32 Ki to a piece
//! ```
//!
//! A piece is a slab of the budget, except for the only piece of a small array, which is on the
//! heap and grows up to half a slab: a memtable that is cut at hundreds of snapshots gives hundreds
//! of arrays with a few entries each.
//!
//! Only [`collect`] fills arrays, so that every address in them belongs to the tree that the array
//! keeps alive.
//!
//! Invariants:
//! 1. The first `len` places of the pieces hold addresses of records of `tree`.
//! 2. `pieces` are the beginnings of `slabs`, or of `small` while there is no slab.
//!
//! Thread-safety: an array is immutable once `collect` has returned it; it may be read from any
//! thread.

#![expect(unsafe_code, reason = "an island: addresses in raw memory")]

use super::record::{Entry, Record};
use super::{Tree, walk::Walk};
use crate::base::keys::Direction;
use crate::base::limits::SLAB_BYTES;
use crate::memory::budget::{Charge, Use};
use crate::memory::slab::OwnedSlab;
use crate::runtime::sync::Arc;
use std::ops::Bound;
use std::ptr::NonNull;

/// Addresses in a piece.
const SLAB_PLACES: usize = SLAB_BYTES / size_of::<NonNull<Record>>();

/// Prefetch distance: number of records requested before the first of them is touched.
const AHEAD: usize = 32;

/// The most addresses that stay on the heap.
const SMALL_PLACES_MAX: usize = SLAB_PLACES / 2;

const _: () = assert!(SLAB_PLACES.is_power_of_two());

/// Entries in key order; see the head of the file.
pub struct EntryArray {
    tree: Arc<Tree>,
    /// Start address of each piece.
    pieces: Vec<NonNull<NonNull<Record>>>,
    /// The memory of a small array.
    small: Vec<NonNull<Record>>,
    /// The memory of a large one.
    slabs: Vec<OwnedSlab>,
    len: usize,
    /// Charge for `small`.
    charge: Charge,
}

// SAFETY: the pieces hold plain addresses of memory that any thread may read, and belong to the
// array, whichever thread has it.
unsafe impl Send for EntryArray {}

// SAFETY: as above; the pieces are written through `&mut` only, before the array is shared.
unsafe impl Sync for EntryArray {}

impl EntryArray {
    fn new(tree: &Arc<Tree>) -> Self {
        let charge = tree.budget().charge(Use::Work, 0);
        let tree = Arc::clone(tree);
        Self { tree, pieces: Vec::new(), small: Vec::new(), slabs: Vec::new(), len: 0, charge }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The entry of rank `index`. Panics beyond the last.
    #[inline]
    pub fn get(&self, index: usize) -> Entry<'_> {
        assert!(index < self.len, "a rank beyond the last entry");
        // SAFETY: the first `len` places are filled with records of `tree`, which lives as long as
        // `self`; whoever shared the array with this thread ordered their writes before.
        unsafe { Entry::from_raw(self.place(index).read()) }
    }

    /// Prefetches the entry of rank `index`; out of range does nothing.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        if index < self.len {
            self.get(index).prefetch();
        }
    }

    /// Prefetches the rest of the entry of rank `index`, whose beginning was prefetched earlier;
    /// out of range does nothing.
    #[inline]
    pub fn prefetch_rest(&self, index: usize) {
        if index < self.len {
            self.get(index).prefetch_rest();
        }
    }

    /// Address of the place of rank `index`; its piece must exist.
    #[inline]
    fn place(&self, index: usize) -> NonNull<NonNull<Record>> {
        let piece = self.pieces[index / SLAB_PLACES];
        // SAFETY: a piece that is there has a place for each rank below `len`.
        unsafe { piece.add(index % SLAB_PLACES) }
    }

    /// Appends a record of the array's tree.
    #[inline]
    fn push(&mut self, record: NonNull<Record>) {
        if self.slabs.is_empty() && self.len < SMALL_PLACES_MAX {
            return self.push_small(record);
        }
        if self.len == self.slabs.len() * SLAB_PLACES || self.slabs.is_empty() {
            self.add_slab();
        }
        // SAFETY: the place lies within a slab that is ours alone, aligned to a block.
        unsafe { self.place(self.len).write(record) };
        self.len += 1;
    }

    fn push_small(&mut self, record: NonNull<Record>) {
        if self.small.len() == self.small.capacity() {
            self.small.reserve(self.small.len().max(8));
            let bytes = self.small.capacity() * size_of::<NonNull<Record>>();
            self.charge.resize(bytes as u64);
            self.pieces.clear();
            self.pieces.extend(NonNull::new(self.small.as_mut_ptr()));
        }
        self.small.push(record);
        self.len += 1;
    }

    /// Adds a slab, and moves the content of `small` there.
    #[cold]
    fn add_slab(&mut self) {
        let slab = self.tree.budget().take_slab_forced(Use::Work);
        let start = NonNull::new(slab.as_ptr()).expect("a slab in use has memory");
        let start = start.cast::<NonNull<Record>>();
        if let Some(small) = self.pieces.first().filter(|_| self.slabs.is_empty()) {
            // SAFETY: half a slab at most, from the heap into a slab that is ours alone.
            unsafe { start.copy_from_nonoverlapping(*small, self.small.len()) };
            self.pieces.clear();
            self.small = Vec::new();
            self.charge.resize(0);
        }
        self.pieces.push(start);
        self.slabs.push(slab);
    }
}

/// Walks the complete tree in ascending order and collects its entries in arrays: `choose` is
/// called with each entry and calls back with the numbers of the arrays it belongs to. An array is
/// created when its number is first used; numbers are used in order from 0 on.
pub fn collect(
    tree: &Arc<Tree>,
    mut choose: impl FnMut(Entry<'_>, &mut dyn FnMut(usize)),
) -> Vec<EntryArray> {
    let mut filled: Vec<EntryArray> = Vec::new();
    let mut walk = Walk::new(tree, Direction::Ascending, Bound::Unbounded);
    // A ring: records requested `AHEAD` steps ago have arrived by now.
    let mut ring = [None; AHEAD];
    let mut turn = 0;
    loop {
        let fetched = walk.fetch();
        let due = std::mem::replace(&mut ring[turn % AHEAD], fetched);
        turn += 1;
        match due {
            Some(record) => {
                // SAFETY: the walk gives records of `tree`, which lives through this call.
                let entry = unsafe { Entry::from_raw(record) };
                choose(entry, &mut |number| {
                    if number == filled.len() {
                        filled.push(EntryArray::new(tree));
                    }
                    filled[number].push(record);
                });
            }
            // The ring fills up in the first round; later an empty place means the end.
            None if fetched.is_none() && ring.iter().all(Option::is_none) => return filled,
            None => {}
        }
    }
}
