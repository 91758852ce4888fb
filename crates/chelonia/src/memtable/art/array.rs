//! The entries of a finished tree, in key order, as arrays of addresses.
//!
//! ```text
//!   slab 0                        slab 1
//!   | address | address | ...     | address | ...        8 bytes each, 32 Ki to a slab
//! ```
//!
//! Arrays are filled by [`collect`] alone, so that every address in them belongs to the tree that
//! the array keeps alive.
//!
//! Invariant: the first `len` places of the slabs hold addresses of records of `tree`.
//!
//! Thread-safety: an array does not change any more once `collect` returns it; it may be read from
//! any thread.

#![expect(unsafe_code, reason = "an island: addresses in raw memory")]

use super::record::{Entry, Record};
use super::{Tree, walk::Walk};
use crate::base::budget::Use;
use crate::base::keys::Direction;
use crate::base::limits::SLAB_BYTES;
use crate::base::slab::OwnedSlab;
use crate::base::sync::Arc;
use std::ops::Bound;
use std::ptr::NonNull;

/// Addresses in a slab.
const SLAB_PLACES: usize = SLAB_BYTES / size_of::<NonNull<Record>>();

/// How many records are fetched before the first of them is touched.
const AHEAD: usize = 32;

const _: () = assert!(SLAB_PLACES.is_power_of_two());

/// Entries in key order; see the head of the file.
pub struct EntryArray {
    tree: Arc<Tree>,
    slabs: Vec<OwnedSlab>,
    len: usize,
}

// SAFETY: the slabs hold plain addresses of memory that any thread may read; they are written
// through `&mut` only, before the array is shared.
unsafe impl Sync for EntryArray {}

impl EntryArray {
    fn new(tree: &Arc<Tree>) -> Self {
        Self { tree: Arc::clone(tree), slabs: Vec::new(), len: 0 }
    }

    /// How many there are.
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

    /// Asks for the lines of the entry of rank `index`; out of range is fine.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        if index < self.len {
            self.get(index).prefetch();
        }
    }

    /// Asks for the rest of the entry of rank `index`, which was asked for a while ago; out of
    /// range is fine.
    #[inline]
    pub fn prefetch_rest(&self, index: usize) {
        if index < self.len {
            self.get(index).prefetch_rest();
        }
    }

    /// Where the address of rank `index` stands; its slab is there.
    #[inline]
    fn place(&self, index: usize) -> NonNull<NonNull<Record>> {
        let slab = NonNull::new(self.slabs[index / SLAB_PLACES].as_ptr());
        let slab = slab.expect("a slab in use has memory").cast::<NonNull<Record>>();
        // SAFETY: the offset is below the slab's size.
        unsafe { slab.add(index % SLAB_PLACES) }
    }

    /// Appends a record of the array's tree.
    #[inline]
    fn push(&mut self, record: NonNull<Record>) {
        if self.len == self.slabs.len() * SLAB_PLACES {
            self.slabs.push(self.tree.budget().take_slab_forced(Use::Work));
        }
        // SAFETY: the place lies within a slab that is ours alone, aligned to a block.
        unsafe { self.place(self.len).write(record) };
        self.len += 1;
    }
}

/// Walks the whole tree in ascending order and makes `arrays` arrays of its entries: `choose` is
/// given each entry and calls back with the numbers of the arrays it goes to.
pub fn collect(
    tree: &Arc<Tree>,
    arrays: usize,
    mut choose: impl FnMut(Entry<'_>, &mut dyn FnMut(usize)),
) -> Vec<EntryArray> {
    let mut filled: Vec<_> = (0..arrays).map(|_| EntryArray::new(tree)).collect();
    let mut walk = Walk::new(tree, Direction::Ascending, Bound::Unbounded);
    // A ring: what was fetched `AHEAD` records ago has come by now.
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
                choose(entry, &mut |number| filled[number].push(record));
            }
            // The ring fills up in the first round; later an empty place is the end.
            None if fetched.is_none() && ring.iter().all(Option::is_none) => return filled,
            None => {}
        }
    }
}
