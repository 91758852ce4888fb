//! A version of a buffer tree: its root and its totals. Reads of it: `contract.rs`.

use crate::base::error::Result;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::buffer_tree::Shared;
use crate::buffer_tree::codec::RootBlob;
use crate::buffer_tree::counts::{Counts, Ledger};
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, Node, NodeCache, NodeSlot, Pivot, Summary};
use crate::engine::{EngineStats, OwnedExtent, blocks_after};
use crate::runtime::sync::{Arc, AtomicU64, OnceLock, Ordering};

/// Maximum number of nodes on a path whose buffers are examined: in a higher tree the amount
/// buffered in the lowest nodes is not known exactly.
pub const DEPTH_MOVED_DOWN: usize = 2;

/// An immutable version of a tree.
pub struct TreeVersion {
    pub shared: Arc<Shared>,
    pub root: Arc<NodeSlot>,
    pub summary: Summary,
    /// Number of blocks of everything the version refers to.
    pub disk_blocks: u64,
    /// See [`TreeVersion::unit_bounds`].
    pub unit_bounds: OnceLock<UnitBounds>,
}

/// A tree that was built on a version and is not the newest version yet.
pub struct Built {
    /// Its root.
    pub root: Arc<NodeSlot>,
    /// Totals of the root and everything below.
    pub summary: Summary,
    /// The extents written, and the references changed.
    pub ledger: Ledger,
}

/// A version that was made of a [`Built`] tree.
pub struct Settled {
    /// The version.
    pub version: Arc<TreeVersion>,
    /// See [`crate::engine::Absorbed`].
    pub gained: Vec<OwnedExtent>,
    /// See [`crate::engine::Absorbed`].
    pub lost: Vec<OwnedExtent>,
}

impl Shared {
    /// Opens the version described by `root`, or an empty one. Reads only the blob.
    pub fn open(self: &Arc<Self>, root: Option<&[u8]>) -> Result<TreeVersion> {
        let blob = match root {
            Some(blob) => RootBlob::decode(blob)?,
            None => RootBlob {
                height: 1,
                reference: None,
                summary: Node::empty().summary(),
                disk_blocks: 0,
            },
        };
        let summary = blob.reference.map_or_else(|| Node::empty().summary(), |_| blob.summary);
        Ok(TreeVersion {
            shared: Arc::clone(self),
            root: self.node_cache.slot(blob.reference, blob.height),
            summary,
            disk_blocks: blob.disk_blocks,
            unit_bounds: OnceLock::new(),
        })
    }

    /// Makes a version of the tree that was built on `before`, the newest version, and counts its
    /// references. After an error nothing has changed, and what the tree allocated is freed.
    pub fn settle(
        self: &Arc<Self>,
        counts: &mut Counts,
        before: &TreeVersion,
        built: Built,
    ) -> Result<Settled> {
        let Built { root, summary, ledger } = built;
        let storage = self.node_cache.storage();
        let settled = counts.settle(&ledger, &self.node_cache).inspect_err(|_| {
            // The first error is more useful than one from the roll-back.
            let _ = ledger.roll_back(storage);
        })?;
        for unused in &settled.unused {
            // If that fails, the space is lost until the next open finds it: no reason to fail
            // after the counts have changed.
            let _ = storage.free(unused.extent);
        }
        let (gained, lost) = (settled.gained, settled.lost);
        let disk_blocks = blocks_after(before.disk_blocks, &gained, &lost);
        let shared = Arc::clone(self);
        let unit_bounds = OnceLock::new();
        let version = TreeVersion { shared, root, summary, disk_blocks, unit_bounds };
        Ok(Settled { version: Arc::new(version), gained, lost })
    }
}

impl TreeVersion {
    /// Encodes the version, so that [`Shared::open`] can open it again.
    pub fn encode(&self) -> Vec<u8> {
        let blob = RootBlob {
            height: self.root.about(),
            reference: self.root.reference(),
            summary: self.summary,
            disk_blocks: self.disk_blocks,
        };
        blob.encode()
    }

    /// Returns the statistics of the newest version of an engine that does not have the events in
    /// `other`.
    pub fn stats(&self, other: &[Event]) -> EngineStats {
        let (summary, events) = (self.summary, &self.shared.events);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let stored = self.root.reference().is_some();
        EngineStats {
            height: if stored { u32::from(self.root.about()) } else { 0 },
            nodes: if stored { summary.nodes } else { 0 },
            leaves: summary.leaves,
            buffered_runs: summary.segments,
            leaf_bytes: summary.leaf.bytes,
            buffered_bytes: summary.buffered.bytes,
            disk_bytes: self.disk_bytes(),
            run_bytes_written: read(&events.run_bytes),
            node_bytes_written: read(&events.node_bytes),
            merge_bytes_read: read(&events.read_bytes),
            events: events.list(self.shared.node_cache.moves(), other),
        }
    }

    /// Returns the bytes of all blocks that the version refers to.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_blocks * BLOCK_BYTES_U64
    }
}

/// Bounds of a pass that frees one leaf, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct UnitBounds {
    /// The weight of the pending updates along one path.
    pub pending: u64,
    /// The weight of the heaviest leaf.
    pub leaf: u64,
}

impl TreeVersion {
    /// Bounds of a pass that frees one leaf, from the nodes down to
    /// [`DEPTH_MOVED_DOWN`].
    pub fn unit_bounds(&self) -> UnitBounds {
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
        return UnitBounds { pending: summary.buffered.weight(), leaf: 0 };
    };
    let of_pivot = |pivot: &Pivot| {
        let mut bounds = match &pivot.child {
            Child::Node(child, summary) => unit_bounds(node_cache, child, *summary, depth + 1),
            Child::Leaf(run) => UnitBounds { pending: 0, leaf: run.reference().totals().weight() },
            Child::None => UnitBounds::default(),
        };
        bounds.pending += pivot.pending().weight();
        bounds
    };
    node.pivots.iter().map(of_pivot).fold(UnitBounds::default(), |most, one| UnitBounds {
        pending: most.pending.max(one.pending),
        leaf: most.leaf.max(one.leaf),
    })
}
