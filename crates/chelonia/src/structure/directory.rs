//! A directory: all nodes of a tree that has one level of nodes, in key order.
//!
//! ```text
//! directory    v  nodes
//!                 nodes; each: v length of its first bound, that bound; `NodeRef`;
//!                 facts of the engine                                        (v: a varint)
//! ```

use super::NodeRef;
use super::allowance::{Allowance, list_of};
use super::node_cache::{NodeCache, Slot, Structure};
use super::shared_key::{SharedKey, begun_by};
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::runtime::sync::Arc;

/// Approximate heap bytes of a slot.
const SLOT_BYTES: usize = 128;

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
        let mut bytes = 0;
        let mut before = None;
        for node in &self.nodes {
            bytes += size_of::<Listed<N, F>>() + 8 + node.first.heap_bytes(before) + SLOT_BYTES;
            before = Some(&node.first);
        }
        bytes as u64
    }
}

impl<N: Structure<About = ()>, F> Directory<N, F> {
    /// Appends the encoded nodes; `encode_facts` appends the facts of each.
    pub fn encode(&self, out: &mut Vec<u8>, encode_facts: impl Fn(&F, &mut Vec<u8>)) {
        put_varint(out, self.nodes.len() as u64);
        for node in &self.nodes {
            put_bytes(out, &node.first.to_bytes());
            if let Some(reference) = node.slot.reference() {
                reference.encode(out);
            }
            encode_facts(&node.facts, out);
        }
    }

    /// Decodes the output of [`Directory::encode`]: the first node begins at the least key, and the
    /// others follow in order.
    pub fn decode(
        decoder: &mut Decoder<'_>,
        node_cache: &NodeCache<N>,
        allowance: &mut Allowance,
        decode_facts: impl Fn(&mut Decoder<'_>) -> Result<F>,
    ) -> Result<Self> {
        // Each node takes more than eight bytes.
        let count = decoder.length(decoder.remaining() / 8)?;
        let mut nodes: Vec<Listed<N, F>> = list_of(count);
        for _ in 0..count {
            let first = decoder.bytes(KEY_BYTES_MAX)?;
            allowance.take(size_of::<Listed<N, F>>() + first.len() + SLOT_BYTES);
            let first = SharedKey::whole(first);
            match nodes.last() {
                None if first.len() > 0 => {
                    return Err(decoder.damaged("the first node does not begin at the least key"));
                }
                Some(before) if before.first >= first => {
                    return Err(decoder.damaged("nodes are out of order"));
                }
                _ => {}
            }
            let slot = node_cache.slot_of(NodeRef::decode(decoder)?, ())?;
            nodes.push(Listed { first, slot, facts: decode_facts(decoder)? });
        }
        Ok(Self::new(nodes))
    }
}
