//! Freeing space on a nearly full device: the pages of a node are packed, and moved together, so
//! that regions become empty.

use super::node::NodeAbsorb;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::{BlockNo, Generation};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::{Absorbed, Work, WriteBudget};
use crate::engines::bminus::Bminus;
use crate::engines::bminus::node::Listed;
use crate::merge::NoUpdates;
use crate::pages::homes::HOMES_MAX;
use std::collections::BTreeSet;

/// Number of nodes that one call tries.
const ATTEMPTS: usize = 4;

/// Bytes that an entry takes in a page beside key and value, at most.
const ENTRY_EXTRA: u64 = 10;

/// A node as it is: the begin of its blocks, and the stamp of its last change.
type NodeName = (BlockNo, Generation);

fn name_of(listed: &Listed) -> NodeName {
    let start = listed.slot.reference().map_or(BlockNo(0), |place| place.extent.start);
    (start, listed.facts.changed)
}

/// Nodes that were not packed.
#[derive(Default)]
pub(in crate::engines::bminus) struct Unpackable {
    /// Packing them frees no region.
    without_gain: BTreeSet<NodeName>,
    /// There was not enough space to pack them since the last node was packed.
    without_space: BTreeSet<NodeName>,
}

impl Unpackable {
    fn has(&self, name: &NodeName) -> bool {
        self.without_gain.contains(name) || self.without_space.contains(name)
    }

    /// Forgets nodes that are no longer as they were.
    fn keep_only(&mut self, nodes: &[Listed]) {
        if self.without_gain.len() + self.without_space.len() > nodes.len() {
            let names: BTreeSet<NodeName> = nodes.iter().map(name_of).collect();
            self.without_gain.retain(|name| names.contains(name));
            self.without_space.retain(|name| names.contains(name));
        }
    }
}

impl Bminus {
    /// Homes that packing may free in a node, about.
    fn slack(&self, listed: &Listed) -> usize {
        let room = self.config().page_room() as u64;
        let totals = listed.facts.totals;
        let bytes = totals.bytes.saturating_add(totals.entries.saturating_mul(ENTRY_EXTRA));
        let pages = usize::try_from(bytes.div_ceil(room.max(1))).unwrap_or(usize::MAX).max(1);
        (listed.facts.homes as usize).saturating_sub(pages)
    }

    /// Packs the pages of one node so that a region becomes free.
    pub(in crate::engines::bminus) fn pack_node(
        &self,
        work: &Work<'_>,
    ) -> Result<Option<Absorbed>> {
        let version = self.newest();
        let nodes = &version.parts.directory.nodes;
        let mut candidates: Vec<(usize, usize)> = {
            let mut failed = self.unpackable.lock();
            failed.keep_only(nodes);
            let slack = nodes.iter().enumerate().map(|(place, listed)| (self.slack(listed), place));
            // A node with a few homes more than pages has nothing to give.
            let is_worthwhile = |(slack, place): &(usize, usize)| {
                let homes = nodes[*place].facts.homes as usize;
                *slack >= HOMES_MAX.min(homes / 4 + 1) && !failed.has(&name_of(&nodes[*place]))
            };
            slack.filter(is_worthwhile).collect()
        };
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        for (_, place) in candidates.into_iter().take(ATTEMPTS) {
            let listed = &nodes[place];
            let packed = self.write_version(&version, work, WriteBudget::Minimal, &mut |context| {
                let is_hot = context.is_hot(listed);
                let node = context.output.node_cache.load_once(&listed.slot)?;
                let before = Some((listed, &*node));
                let mut absorb = NodeAbsorb::new(context, listed.first.clone(), before, is_hot)?;
                absorb.run(&NoUpdates, 0..0)?;
                let finished = absorb.finish(true)?;
                let is_worthwhile = finished.has_freed;
                Ok(is_worthwhile.then_some((Some(place), finished)).into_iter().collect())
            });
            let mut failed = self.unpackable.lock();
            match packed {
                Ok(None) => failed.without_gain.insert(name_of(listed)),
                Ok(packed) => {
                    failed.without_space.clear();
                    return Ok(packed);
                }
                // Another node may need less.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    failed.without_space.insert(name_of(listed))
                }
                Err(error) => return Err(error),
            };
        }
        Ok(None)
    }

    /// Bytes that packing allocates: a node, which does not grow, the directory, and a home for a
    /// page that has to move.
    pub(in crate::engines::bminus) fn pack_needs_bytes(&self) -> u64 {
        let version = self.newest();
        let directory = version.place.map_or(0, |place| place.extent.bytes());
        let home = u64::from(self.config().usual().home_blocks()) * BLOCK_BYTES_U64;
        directory + version.largest_node + home
    }
}
