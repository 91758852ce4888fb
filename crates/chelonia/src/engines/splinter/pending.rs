//! The nodes at which merges are due, and how many bytes these read.
//!
//! A change of the tree evaluates the nodes that it writes; after an open all nodes are evaluated
//! once. So a plan visits only nodes where something may be due.

use crate::buffer_tree::node::{Node, Pivot};
use crate::engines::splinter::due::{Around, all_due};
use crate::engines::splinter::sizes::Sizes;
use crate::structure::SharedKey;
use std::collections::BTreeMap;

/// A node: its height, and the key of its first pivot.
pub(super) type NodeKey = (u8, Vec<u8>);

/// Bytes of merges that are due, by node.
#[derive(Default)]
pub(super) struct Pending {
    due: BTreeMap<NodeKey, u64>,
}

impl Pending {
    /// Applies the changes of a tree.
    pub fn apply(&mut self, changed: Changed) {
        for key in changed.retired {
            self.due.remove(&key);
        }
        self.due.extend(changed.due);
    }

    /// Returns the bytes of all merges that are due.
    pub fn bytes(&self) -> u64 {
        self.due.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns the nodes, most bytes first.
    pub fn nodes(&self) -> Vec<NodeKey> {
        let mut nodes: Vec<_> = self.due.iter().collect();
        nodes.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        nodes.into_iter().map(|(key, _)| key.clone()).collect()
    }

    /// Records that nothing is due at a node after all.
    pub fn remove(&mut self, key: &NodeKey) {
        self.due.remove(key);
    }

    /// Returns true if nothing is due.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

/// Nodes that a change retired and wrote.
#[derive(Default)]
pub(super) struct Changed {
    retired: Vec<NodeKey>,
    due: BTreeMap<NodeKey, u64>,
}

impl Changed {
    /// Records that the next version does not have `node`.
    pub fn retire(&mut self, node: &Node) {
        let key = key_of(node.height, &node.pivots);
        self.due.remove(&key);
        self.retired.push(key);
    }

    /// Records a node that was written, of these `pivots`, whose range ends at `upper`.
    pub fn write(
        &mut self,
        height: u8,
        pivots: &[Pivot],
        upper: Option<&SharedKey>,
        sizes: &Sizes,
    ) {
        let around = Around { upper: upper.map(SharedKey::view), claims: None, damage: None };
        let due = all_due(height, pivots, &around, sizes).unwrap_or_default();
        let bytes: u64 = due.iter().map(|due| due.bytes).sum();
        if bytes > 0 {
            self.due.insert(key_of(height, pivots), bytes);
        }
    }
}

fn key_of(height: u8, pivots: &[Pivot]) -> NodeKey {
    (height, pivots[0].key.to_bytes().into_owned())
}
