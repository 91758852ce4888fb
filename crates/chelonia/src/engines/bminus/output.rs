//! Output of an absorb: extents written, extents that the next version does not refer to, and
//! images of pages in their homes.
//!
//! Extents are recorded at once (`structure/output.rs`). Images are recorded in their regions only
//! after all of the absorb has succeeded.

use super::codec;
use super::counters::Counters;
use super::node::{Facts, Listed, Node, PageRef};
use crate::base::error::Result;
use crate::base::ids::Generation;
use crate::pages::homes::{HomeLayout, Region};
use crate::runtime::sync::Arc;
use crate::structure::{self, SharedKey, events};

/// Output of one absorb.
pub(super) type Output<'t> = structure::Output<'t, Node, Counters>;

impl Output<'_> {
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
        let reference = self.write(&codec::encode_node(&node))?;
        let slot = match is_hot {
            true => self.node_cache.admit(Some(reference), (), node),
            false => self.node_cache.admit_beside(reference, (), node),
        };
        Ok(Listed { first, slot, facts })
    }
}
