//! An adaptive radix tree over byte strings of any length, for any number of threads.
//!
//! After Leis, Scheibner, Kemper, Neumann, "The ART of Practical Synchronization": read-optimised
//! write exclusion, with prefixes that never change. Writers lock the node they change, or a node
//! and its parent; readers take no lock, write nothing, and never start again.
//!
//! ```text
//!   root (a node of 256)
//!    | 'c'                  one key only goes that way: its entry hangs here (lazy expansion)
//!    +------------------->  entry "cat"
//!    | 'd', prefix "o"      a path without branches is a prefix (path compression)
//!    +------------------->  node of 4: terminal -> entry "do"
//!                                      'g'      -> entry "dog"
//! ```
//!
//! How a writer changes the tree (`insert`), with the locks it holds:
//!
//! | it finds | it does | locks |
//! | --- | --- | --- |
//! | its key's entry | links a version to it | the record |
//! | no child, free slot | appends the entry | the node |
//! | no child, no free slot | replaces the node by a larger copy with the entry | parent, node |
//! | another key's entry | replaces it by a node of 4 with both | the node |
//! | a prefix that differs | puts a node of 4 above a copy of the node | parent, node |
//!
//! Invariants, in addition to those of nodes and records:
//! 1. A node's path never changes, so neither does its depth. Locks are taken in order of
//!    increasing depth, so writers cannot deadlock. The root is never replaced.
//! 2. A node is replaced only under its parent's lock, after a check of the parent's obsolete mark
//!    and slot: a node that is not obsolete is reachable from the root.
//! 3. Nothing is freed while the tree lives: any address read from it stays valid.
//!
//! A reader may stand on an obsolete node: it got there through a slot that held the node when the
//! reader came, so everything inserted before that is in the node or below it, and the keys that
//! only the node's replacement has were inserted later.
//!
//! Thread-safety: everything may be called from any thread.
//!
//! The tree does not delete keys or free nodes, and uses only the order of seqnos.

#![expect(unsafe_code, reason = "an island: follows addresses of nodes and records in an arena")]

mod array;
mod child;
mod insert;
mod layout;
mod node;
mod record;
mod walk;

pub use array::{EntryArray, collect};
pub use record::{Entry, VersionRef};
pub use walk::{Settled, Walk};

use crate::base::stream::LargeRef;
use crate::memory::budget::Budget;
use crate::memtable::arena::Arena;
use crate::runtime::sync::{Arc, Mutex};
use child::{Child, Slot};
use node::{Node, Target};

/// The tree; see the head of the file.
pub struct Tree {
    arena: Arena,
    /// Null before the first insert, then always a node of 256. Changes under `making_root`.
    root: Slot,
    making_root: Mutex<()>,
    /// Large values whose versions were unlinked.
    unlinked: Mutex<Vec<LargeRef>>,
}

impl Tree {
    /// Creates an empty tree; the first insert allocates its first memory.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self {
            arena: Arena::new(budget),
            root: Slot::new(Child::NONE),
            making_root: Mutex::new(()),
            unlinked: Mutex::new(Vec::new()),
        }
    }

    /// The entry of `key`.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<Entry<'_>> {
        let mut child = self.root.load();
        let mut depth = 0;
        loop {
            // SAFETY: the child was loaded from this tree, which lives as long as `self`.
            match unsafe { child.target() } {
                Target::Nothing => return None,
                Target::Entry(entry) => return (entry.key() == key).then_some(entry),
                Target::Node(node) => {
                    // The bytes of the prefix are not compared here: the entry's key is.
                    depth += node.prefix_bytes();
                    child = match key.get(depth) {
                        Some(byte) => node.slot(*byte)?.load(),
                        None if depth == key.len() => node.terminal().load(),
                        None => return None,
                    };
                    depth += 1;
                }
            }
        }
    }

    /// Prefetches the memory that a search for `key` touches below the large nodes near the root,
    /// which are usually cached: that miss then overlaps with other work.
    #[inline]
    pub fn prefetch(&self, key: &[u8]) {
        let mut child = self.root.load();
        for (depth, byte) in key.iter().enumerate() {
            let Target::Node(node) = self.target(child) else { return };
            if !node.is_full_sized() || node.prefix_bytes() > 0 {
                return;
            }
            let Some(slot) = node.slot(*byte) else { return };
            child = slot.load();
            if let Some(next) = key.get(depth + 1) {
                child.prefetch_slot(*next);
            }
        }
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> u64 {
        self.arena.held_bytes()
    }

    /// As [`Arena::growth_bytes`].
    pub fn growth_bytes(&self, bytes: usize) -> u64 {
        self.arena.growth_bytes(bytes)
    }

    /// Number of keys.
    pub fn keys(&self) -> u64 {
        self.arena.keys()
    }

    /// The budget that the memory comes from.
    pub fn budget(&self) -> &Arc<Budget> {
        self.arena.budget()
    }

    /// The large values of versions unlinked so far.
    pub fn unlinked_large(&self) -> Vec<LargeRef> {
        self.unlinked.lock().clone()
    }

    /// Resolves `child`.
    #[inline]
    fn target(&self, child: Child) -> Target<'_> {
        // SAFETY: private, and called with children of this tree only.
        unsafe { child.target() }
    }

    /// The root, if there is one.
    fn root_node(&self) -> Option<Node<'_>> {
        match self.target(self.root.load()) {
            Target::Node(node) => Some(node),
            _ => None,
        }
    }
}
