//! Output of an absorb or a job: extents written, and extents the next version no longer refers to.
//!
//! Extents are recorded at once (`structure/output.rs`). A page written to a slot of its group is
//! not recorded: after a failure no version refers to the slot. A page that is lost is recorded if
//! its group stays.

use super::codec;
use super::config::TreelineConfig;
use super::counters::Counters;
use super::node::{Facts, Item, Listed, NODE_KEY_BYTES, Node};
use crate::base::error::Result;
use crate::structure::{self, NodeRef};

/// A node with fewer groups than this part of a full one is joined with its neighbor.
const SMALL_PART: usize = 4;

/// Output of one absorb or one job.
pub(super) type Output<'t> = structure::Output<'t, Node, Counters>;

impl Output<'_> {
    fn write_node(&self, items: Vec<Item>) -> Result<Listed> {
        let groups = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let pages = items.iter().map(|item| item.group.pages()).sum();
        let node = Node::new(items);
        let first = node.items[0].first.clone();
        let facts = Facts { totals: node.totals(), groups, pages };
        let reference = self.write(&codec::encode_node(&node))?;
        let slot = self.node_cache.admit(Some(reference), (), node);
        Ok(Listed { first, slot, facts })
    }
}

/// The nodes of a key span under construction: changed groups are divided among new nodes, nodes
/// without changes stay.
pub(super) struct NextNodes<'o, 't> {
    output: &'o Output<'t>,
    groups_max: usize,
    /// Bytes of the groups of a node, unless a single one has more: a job has space for a node.
    bytes_max: u64,
    nodes: Vec<Listed>,
    /// Groups behind the finished nodes that are in no node yet.
    open: Vec<Item>,
}

impl<'o, 't> NextNodes<'o, 't> {
    /// Creates an empty list.
    pub fn new(output: &'o Output<'t>, config: &TreelineConfig) -> Self {
        let (groups_max, bytes_max) = (config.groups_of_node(), config.node_bytes_max());
        Self { output, groups_max, bytes_max, nodes: Vec::new(), open: Vec::new() }
    }

    /// True if the open groups make a node so small that it is joined with the next one.
    fn is_small(&self) -> bool {
        let bytes: u64 = self.open.iter().map(Item::disk_bytes).sum();
        (1..self.groups_max / SMALL_PART).contains(&self.open.len())
            && bytes < self.bytes_max / SMALL_PART as u64
    }

    /// Adds the groups of a node with changes, which is lost.
    pub fn change(&mut self, before: Option<&Listed>, items: Vec<Item>) {
        self.output.lose(before.and_then(|node| node.slot.reference()).map(NodeRef::owned));
        self.open.extend(items);
    }

    /// Adds a node without changes, unless it is joined with a few groups before it.
    pub fn keep(&mut self, node: &Listed) -> Result<()> {
        if self.is_small() {
            let items = self.output.node_cache.load_owned(&node.slot)?.items.clone();
            self.change(Some(node), items);
            return Ok(());
        }
        self.close()?;
        self.nodes.push(node.clone());
        Ok(())
    }

    /// Writes the open groups as nodes of similar size.
    fn close(&mut self) -> Result<()> {
        let items = std::mem::take(&mut self.open);
        let total = items.len();
        let count = match total {
            0 => return Ok(()),
            few if few <= self.groups_max => 1,
            many => many.div_ceil((self.groups_max * 3).div_ceil(4)),
        };
        let mut items = items.into_iter();
        for place in 0..count {
            let size = total * (place + 1) / count - total * place / count;
            let (mut open, mut keys, mut bytes): (Vec<Item>, usize, u64) = (Vec::new(), 0, 0);
            for item in items.by_ref().take(size) {
                let (more_keys, more) = (item.key_bytes(open.last()), item.disk_bytes());
                let fits = keys + more_keys <= NODE_KEY_BYTES && bytes + more <= self.bytes_max;
                if !fits && !open.is_empty() {
                    self.nodes.push(self.output.write_node(std::mem::take(&mut open))?);
                    (keys, bytes) = (0, 0);
                }
                (keys, bytes) = (keys + more_keys, bytes + more);
                open.push(item);
            }
            self.nodes.push(self.output.write_node(open)?);
        }
        Ok(())
    }

    /// Writes what is open, and returns all nodes.
    pub fn end(mut self) -> Result<Vec<Listed>> {
        self.close()?;
        Ok(self.nodes)
    }
}
