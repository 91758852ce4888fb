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
    /// See [`TurtleVersion::unit_bounds`].
    pub(super) unit_bounds: OnceLock<UnitBounds>,
}

/// Bounds of a pass that frees one leaf, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct UnitBounds {
    /// Buffered updates that it writes along one path: the pending updates of its pivots, and as
    /// much again from levels merged with them.
    pub moved_down: u64,
    /// The weight of the heaviest leaf.
    pub leaf: u64,
}

impl TurtleVersion {
    /// Bounds of a pass that frees one leaf, from the nodes down to
    /// [`DEPTH_MOVED_DOWN`].
    pub(super) fn unit_bounds(&self) -> UnitBounds {
        let node_cache = &self.shared.node_cache;
        *self.unit_bounds.get_or_init(|| unit_bounds(node_cache, &self.root, self.summary, 0))
    }
}

/// The bounds below the node in `slot`. For an unreadable node all its buffered updates count.
fn unit_bounds(
    node_cache: &NodeCache,
    slot: &Arc<NodeSlot>,
    summary: Summary,
    depth: usize,
) -> UnitBounds {
    if slot.reference().is_none() || depth == DEPTH_MOVED_DOWN {
        return UnitBounds::default();
    }
    let Ok(node) = node_cache.load_owned(slot) else {
        return UnitBounds { moved_down: LEVEL_TIMES * summary.buffered.weight(), leaf: 0 };
    };
    let of_pivot = |pivot: &Pivot| {
        let mut bounds = match &pivot.child {
            Child::Node(child, summary) => unit_bounds(node_cache, child, *summary, depth + 1),
            Child::Leaf(run) => {
                UnitBounds { moved_down: 0, leaf: run.reference().totals().weight() }
            }
            Child::None => UnitBounds::default(),
        };
        bounds.moved_down += LEVEL_TIMES * pivot.pending().weight();
        bounds
    };
    node.pivots.iter().map(of_pivot).fold(UnitBounds::default(), |most, one| UnitBounds {
        moved_down: most.moved_down.max(one.moved_down),
        leaf: most.leaf.max(one.leaf),
    })
}
