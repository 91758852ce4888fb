//! A version of a bminus tree. Reads of it: `contract.rs`.

use super::Shared;
use super::node::Directory;
use crate::memory::budget::{Charge, Use};
use crate::pages::homes::{HeldStamp, View};
use crate::run::Totals;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::structure::NodeRef;

/// The parts of a version.
#[derive(Clone, Default)]
pub(super) struct Parts {
    /// Its stamp, and which stamps before it are dead.
    pub view: View,
    /// The nodes.
    pub directory: Arc<Directory>,
}

impl Parts {
    /// The totals of all entries.
    pub fn totals(&self) -> Totals {
        Totals::sum(self.directory.nodes.iter().map(|node| node.facts.totals))
    }
}

/// An immutable version of a tree.
pub struct BminusVersion {
    pub(super) shared: Arc<Shared>,
    /// Location of the directory; `None` for an empty tree.
    pub(super) place: Option<NodeRef>,
    pub(super) parts: Parts,
    /// Number of blocks of everything the version refers to.
    pub(super) disk_blocks: u64,
    /// Bytes of the largest node on the device.
    pub(super) largest_node: u64,
    /// Nothing that it needs is overwritten while it exists.
    _held: HeldStamp,
    _charge: Charge,
}

impl BminusVersion {
    pub(super) fn new(
        shared: Arc<Shared>,
        place: Option<NodeRef>,
        parts: Parts,
        disk_blocks: u64,
    ) -> Self {
        let budget = shared.node_cache.storage().budget();
        let charge = budget.charge(Use::Metadata, parts.directory.heap_bytes());
        let held = shared.held.hold(parts.view.stamp);
        let places = parts.directory.nodes.iter().filter_map(|listed| listed.slot.reference());
        let largest_node = places.map(|place| place.extent.bytes()).max().unwrap_or(0);
        Self { shared, place, parts, disk_blocks, largest_node, _held: held, _charge: charge }
    }

    pub(super) fn storage(&self) -> &Arc<Storage> {
        self.shared.node_cache.storage()
    }
}
