//! A version of a turtle tree: its root and its totals. Reads of it: `contract.rs`.

use super::Shared;
use super::node::{Child, NodeCache, NodeSlot, Pivot, Summary};
use crate::runtime::sync::{Arc, OnceLock};

/// On a full device, updates flushed into a buffer are written with at most this multiple of their
/// weight in merged levels: see [`Geometry::gathered_max`].
const LEVEL_TIMES: u64 = 2;

/// Maximum number of nodes on a path whose buffers are examined: in a higher tree the amount
/// buffered in the lowest nodes is not known exactly.
const DEPTH_MOVED_DOWN: usize = 2;

/// An immutable version of a tree.
pub struct TurtleVersion {
    pub(super) shared: Arc<Shared>,
    pub(super) root: Arc<NodeSlot>,
    pub(super) summary: Summary,
    /// Number of blocks of everything the version refers to.
    pub(super) disk_blocks: u64,
    /// See [`TurtleVersion::moved_down`].
    pub(super) moved_down: OnceLock<u64>,
}

impl TurtleVersion {
    /// Maximum bytes of buffered updates written by a pass that frees one leaf.
    pub(super) fn moved_down(&self) -> u64 {
        let node_cache = &self.shared.node_cache;
        *self.moved_down.get_or_init(|| moved_down(node_cache, &self.root, self.summary, 0))
    }
}

/// Maximum bytes of buffered updates written by a pass along one path down from the node in `slot`:
/// the pending updates of its pivots, and as much again from levels merged with them. Nodes are
/// read down to [`DEPTH_MOVED_DOWN`]; for an unreadable node all its buffered updates count.
fn moved_down(node_cache: &NodeCache, slot: &Arc<NodeSlot>, summary: Summary, depth: usize) -> u64 {
    if slot.reference().is_none() || depth == DEPTH_MOVED_DOWN {
        return 0;
    }
    let Ok(node) = node_cache.load_owned(slot) else {
        return LEVEL_TIMES * summary.buffered.weight();
    };
    let of_pivot = |pivot: &Pivot| {
        let below = match &pivot.child {
            Child::Node(child, summary) => moved_down(node_cache, child, *summary, depth + 1),
            Child::Leaf(_) | Child::None => 0,
        };
        LEVEL_TIMES * pivot.pending().weight() + below
    };
    node.pivots.iter().map(of_pivot).max().unwrap_or(0)
}
