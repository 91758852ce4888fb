//! A directory: all nodes of a tree that has one level of nodes, in key order.

use super::node_cache::{Slot, Structure};
use super::shared_key::{SharedKey, begun_by};
use crate::runtime::sync::Arc;

/// A node with the facts that are known without reading it.
pub struct Listed<N: Structure, F> {
    /// The least key that belongs to it.
    pub first: SharedKey,
    /// The node.
    pub slot: Arc<Slot<N>>,
    /// Facts of the engine.
    pub facts: F,
}

impl<N: Structure, F: Clone> Clone for Listed<N, F> {
    fn clone(&self) -> Self {
        let Self { first, slot, facts } = self;
        Self { first: first.clone(), slot: Arc::clone(slot), facts: facts.clone() }
    }
}

/// All nodes of a tree, in key order.
pub struct Directory<N: Structure, F> {
    /// The nodes, in key order.
    pub nodes: Vec<Listed<N, F>>,
    heads: Vec<u64>,
}

impl<N: Structure, F> Default for Directory<N, F> {
    fn default() -> Self {
        Self { nodes: Vec::new(), heads: Vec::new() }
    }
}

impl<N: Structure, F> Directory<N, F> {
    /// Creates the directory of these nodes.
    #[must_use]
    pub fn new(mut nodes: Vec<Listed<N, F>>) -> Self {
        for place in 1..nodes.len() {
            nodes[place].first = nodes[place].first.beside(&nodes[place - 1].first);
        }
        let heads = nodes.iter().map(|node| node.first.head()).collect();
        Self { nodes, heads }
    }

    /// The node that has the keys around `key`; `None` if there are no nodes.
    #[inline]
    #[must_use]
    pub fn node_of(&self, key: &[u8]) -> Option<usize> {
        let begun = begun_by(&self.heads, key, |index| &self.nodes[index].first);
        (!self.nodes.is_empty()).then(|| begun.saturating_sub(1))
    }

    /// The first bound after node `index`.
    #[must_use]
    pub fn upper_of(&self, index: usize) -> Option<&SharedKey> {
        self.nodes.get(index + 1).map(|next| &next.first)
    }

    /// Approximate heap bytes, without nodes, which have charges of their own.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        const SLOT_BYTES: usize = 128;
        let mut bytes = 0;
        let mut before = None;
        for node in &self.nodes {
            bytes += size_of::<Listed<N, F>>() + 8 + node.first.heap_bytes(before) + SLOT_BYTES;
            before = Some(&node.first);
        }
        bytes as u64
    }
}
