//! Groups in memory, and the nodes that list them.
//!
//! ```text
//!   directory  [ node | node | node ]     knows the first bound and the totals of each node
//!                 |                       without reading it
//!                 '-> [ group | group | ... ]      up to NODE_GROUPS_MAX, in key order
//! ```
//!
//! A group covers all keys from its first bound to the first bound of the next one. The first group
//! begins at the least key, so every key belongs to one group, unless the directory is empty.
//!
//! Invariants (checked when a node is decoded, and by `verify`):
//! 1. Bounds ascend; the first bound of the directory is the empty key.
//! 2. Every group belongs to one node, and every node to one directory of each version.

use crate::memory::budget::Charge;
use crate::pages::Group;
use crate::run::Totals;
use crate::runtime::sync::Arc;
use crate::structure::{self, SharedKey, begun_by};

/// Maximum number of groups of a node: small enough to be rewritten when one of its pages was.
pub(super) const NODE_GROUPS_MAX: usize = 64;

/// Maximum memory of the keys of a node in bytes, unless a single group takes more.
pub(super) const NODE_KEY_BYTES: usize = 512 << 10;

/// The nodes of a tree that are in memory, and its open staged runs.
pub(super) type NodeCache = structure::NodeCache<Node>;

/// A node with the facts of it.
pub(super) type Listed = structure::Listed<Node, Facts>;

/// All nodes of a tree.
pub(super) type Directory = structure::Directory<Node, Facts>;

/// A group and its first bound.
#[derive(Clone)]
pub(super) struct Item {
    /// The least key that belongs to the group.
    pub first: SharedKey,
    /// The group.
    pub group: Arc<Group>,
}

impl Item {
    /// Memory of its keys, when stored after those of the item before.
    pub fn key_bytes(&self, before: Option<&Item>) -> usize {
        self.first.heap_bytes(before.map(|before| &before.first)) + self.group.bounds.heap_bytes()
    }

    /// Bytes of its slots on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.group.owned().extent.bytes()
    }
}

/// Neighboring groups.
pub(super) struct Node {
    /// At least one, in key order.
    pub items: Vec<Item>,
    /// Numeric prefixes of their first bounds.
    heads: Vec<u64>,
    /// Memory charge; `None` while a node is examined before it is cached.
    pub charge: Option<Charge>,
}

impl Node {
    /// Creates a node of these groups.
    pub fn new(mut items: Vec<Item>) -> Self {
        for index in 0..items.len() {
            items[index].first = match index.checked_sub(1) {
                Some(before) => items[index].first.beside(&items[before].first),
                None => items[index].first.alone(),
            };
        }
        let heads = items.iter().map(|item| item.first.head()).collect();
        Self { items, heads, charge: None }
    }

    /// The group that has the keys around `key`.
    #[inline]
    pub fn item_of(&self, key: &[u8]) -> usize {
        begun_by(&self.heads, key, |index| &self.items[index].first).saturating_sub(1)
    }

    /// The totals of all groups.
    pub fn totals(&self) -> Totals {
        Totals::sum(self.items.iter().map(|item| item.group.totals))
    }

    /// Approximate heap bytes, without the extents of groups.
    pub fn heap_bytes(&self) -> u64 {
        let mut bytes = size_of::<Self>();
        let mut before = None;
        for item in &self.items {
            let keys = item.first.heap_bytes(before);
            bytes += size_of::<Item>() + 24 + keys + item.group.heap_bytes();
            before = Some(&item.first);
        }
        bytes as u64
    }

    /// Heap bytes with the extents of groups, which are charged by the cache.
    pub fn footprint_bytes(&self) -> u64 {
        let places = self.items.iter().map(|item| item.group.place.footprint_bytes());
        self.heap_bytes() + places.sum::<u64>()
    }
}

/// The facts that the directory knows of a node.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    /// Totals of its entries.
    pub totals: Totals,
    /// Number of its groups.
    pub groups: u32,
    /// Number of their pages.
    pub pages: u32,
}
