//! The tagged addresses that link the nodes of the tree.
//!
//! Slots and the terminal are *children*: addresses with the kind in the low three bits, so that a
//! reader can compute where to look before the node's first cache line has arrived.
//!
//! This module does not dereference the addresses; `node` does, under its invariants.

use super::record::Entry;
use crate::kernels::prefetch::prefetch_read;
use crate::runtime::sync::{AtomicPtr, Ordering};
use std::ptr::{NonNull, null_mut};

/// A slot or terminal: null, or an address with a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child(*mut u8);

const KIND_MASK: usize = 7;
const ENTRY: usize = 0;

/// The kinds of nodes, as the tags of their addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(usize)]
pub(super) enum Kind {
    /// Up to 4 children.
    N4 = 1,
    /// Up to 16.
    N16 = 2,
    /// Up to 48.
    N48 = 3,
    /// Any number.
    N256 = 4,
}

/// A child taken apart: the address without its tag.
pub(super) enum Tagged {
    /// No child.
    Nothing,
    /// The address of a record.
    Entry(NonNull<u8>),
    /// The address of a node of this kind.
    Node(NonNull<u8>, Kind),
}

impl Child {
    /// No child.
    pub(super) const NONE: Child = Child(null_mut());

    /// The child that is this entry.
    pub(super) fn entry(entry: Entry<'_>) -> Self {
        Self(entry.raw().as_ptr().cast())
    }

    /// The child that is the node of this kind at `at`.
    pub(super) fn node(at: NonNull<u8>, kind: Kind) -> Self {
        Self(at.as_ptr().map_addr(|address| address | kind as usize))
    }

    /// True if there is none.
    pub(super) fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// Splits it into address and tag.
    #[inline]
    pub(super) fn tagged(self) -> Tagged {
        let kind = match self.0.addr() & KIND_MASK {
            ENTRY => return NonNull::new(self.0).map_or(Tagged::Nothing, Tagged::Entry),
            1 => Kind::N4,
            2 => Kind::N16,
            3 => Kind::N48,
            _ => Kind::N256,
        };
        // Only addresses that are not null are tagged.
        let at = NonNull::new(self.0.map_addr(|address| address & !KIND_MASK));
        at.map_or(Tagged::Nothing, |at| Tagged::Node(at, kind))
    }

    /// The kind of a node as a number; 0 for an entry and if there is none.
    #[inline]
    pub(super) fn tag(self) -> usize {
        self.0.addr() & KIND_MASK
    }

    /// The address, with the tag.
    #[inline]
    pub(super) fn tagged_address(self) -> *const u8 {
        self.0.cast_const()
    }

    /// Prefetches the first line of a node; does nothing for entries.
    #[inline]
    pub(super) fn prefetch_node(self) {
        if self.0.addr() & KIND_MASK != ENTRY {
            prefetch_read(self.0.cast_const());
        }
    }
}

impl Kind {
    /// The next larger kind.
    pub(super) fn larger(self) -> Kind {
        match self {
            Kind::N4 => Kind::N16,
            Kind::N16 => Kind::N48,
            Kind::N48 | Kind::N256 => Kind::N256,
        }
    }
}

/// A slot or terminal, shared.
#[repr(transparent)]
pub(super) struct Slot(AtomicPtr<u8>);

impl Slot {
    /// A slot that holds `child`.
    pub(super) fn new(child: Child) -> Self {
        Self(AtomicPtr::new(child.0))
    }

    /// Loads its child with acquire order, so that the target is visible.
    #[inline]
    pub(super) fn load(&self) -> Child {
        Child(self.0.load(Ordering::Acquire))
    }

    /// Publishes `child`. Slots of published nodes change under the node's lock only.
    #[inline]
    pub(super) fn store(&self, child: Child) {
        self.0.store(child.0, Ordering::Release);
    }
}
