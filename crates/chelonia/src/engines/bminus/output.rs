//! Output of an absorb: extents written, extents that the next version does not refer to, and
//! images of pages in their homes.
//!
//! Every allocated extent is recorded at once, so that a failure frees all of them. Images are
//! recorded in their regions only after all of the absorb has succeeded. Workers share the output.

use super::codec;
use super::counters::Counters;
use super::node::{Facts, Listed, Node, NodeCache, PageRef};
use super::version::Parts;
use crate::base::error::Result;
use crate::base::ids::Generation;
use crate::engine::OwnedExtent;
use crate::pages::homes::{HomeLayout, Region};
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::storage::Storage;
use crate::storage::quota::Quota;
use crate::structure::{NodeRef, SharedKey, events};

/// Output of one absorb.
pub(super) struct Output<'t> {
    pub node_cache: &'t NodeCache,
    pub counters: &'t Counters,
    pub quota: &'t Quota<'t>,
    ledger: Mutex<Ledger>,
}

/// Gained and lost extents.
#[derive(Default)]
pub(super) struct Ledger {
    pub gained: Vec<OwnedExtent>,
    pub lost: Vec<OwnedExtent>,
}

impl Ledger {
    /// Frees everything that failed work allocated. Continues after an error.
    pub fn roll_back(self, storage: &Storage) -> Result<()> {
        let own = self.gained.into_iter().filter(|owned| !owned.is_large_value());
        own.map(|owned| storage.free(owned.extent)).fold(Ok(()), Result::and)
    }
}

/// The extent of a node.
pub(super) fn owned_node(reference: NodeRef) -> OwnedExtent {
    OwnedExtent::structure(reference.extent, reference.generation)
}

impl<'t> Output<'t> {
    pub fn new(node_cache: &'t NodeCache, counters: &'t Counters, quota: &'t Quota<'t>) -> Self {
        Self { node_cache, counters, quota, ledger: Mutex::default() }
    }

    /// The storage.
    pub fn storage(&self) -> &Arc<Storage> {
        self.node_cache.storage()
    }

    /// Records extents that the next version refers to.
    pub fn gain(&self, extents: impl IntoIterator<Item = OwnedExtent>) {
        self.ledger.lock().gained.extend(extents);
    }

    /// Records extents that the next version does not refer to.
    pub fn lose(&self, extents: impl IntoIterator<Item = OwnedExtent>) {
        self.ledger.lock().lost.extend(extents);
    }

    /// Ends the output.
    pub fn into_ledger(self) -> Ledger {
        self.ledger.into_inner()
    }

    /// Allocates a region of `homes` homes, in the absorb with this stamp.
    pub fn region(
        &self,
        stamp: Generation,
        layout: HomeLayout,
        homes: usize,
    ) -> Result<Arc<Region>> {
        let blocks = layout.home_blocks() * u32::try_from(homes).unwrap_or(u32::MAX);
        let allocation = self.storage().allocate_zeros(blocks, self.quota)?;
        let (extent, generation) = (allocation.extent, allocation.generation);
        let region = Region::open(self.storage(), extent, (generation, stamp), layout);
        self.gain([region.owned()]);
        events::add(&self.counters.regions, 1);
        Ok(region)
    }

    fn write_node_bytes(&self, bytes: &[u8]) -> Result<NodeRef> {
        let reference = NodeRef::write(self.storage(), self.quota, bytes, |reference| {
            self.gain([owned_node(reference)]);
        })?;
        self.counters.node_bytes.fetch_add(reference.extent.bytes(), Ordering::Relaxed);
        Ok(reference)
    }

    /// Writes the directory of a version; loses the one `before`.
    pub fn write_directory(&self, before: Option<NodeRef>, parts: &Parts) -> Result<NodeRef> {
        let reference = self.write_node_bytes(&parts.encode())?;
        self.lose(before.map(owned_node));
        Ok(reference)
    }

    /// Writes a node of these pages, which begins at `first`. It is in memory afterwards if there
    /// is space, or if it `is_hot`: nodes that it replaces were in memory.
    pub fn write_node(
        &self,
        (stamp, is_hot): (Generation, bool),
        first: SharedKey,
        pages: Vec<PageRef>,
        regions: Vec<Arc<Region>>,
        facts: Facts,
    ) -> Result<Listed> {
        let node = Node::new(stamp, pages, regions);
        let homes = u32::try_from(node.homes()).unwrap_or(u32::MAX);
        let pages = u32::try_from(node.pages.len()).unwrap_or(u32::MAX);
        let facts = Facts { pages, homes, ..facts };
        let reference = self.write_node_bytes(&codec::encode_node(&node))?;
        let slot = match is_hot {
            true => self.node_cache.admit(Some(reference), (), node),
            false => self.node_cache.admit_beside(reference, (), node),
        };
        Ok(Listed { first, slot, facts })
    }
}
