//! Freeing space on a nearly full device: the pages of a node are packed, and moved together, so
//! that regions become empty.

use super::node::NodeAbsorb;
use crate::base::error::Result;
use crate::base::ids::BlockNo;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::{Absorbed, Work, WriteBudget};
use crate::engines::bminus::Bminus;
use crate::engines::bminus::node::Listed;
use crate::merge::NoUpdates;
use crate::pages::homes::HOMES_MAX;

/// Number of nodes that one call tries.
const ATTEMPTS: usize = 4;

/// Bytes that an entry takes in a page beside key and value, at most.
const ENTRY_EXTRA: u64 = 10;

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
        let name = |listed: &Listed| {
            let start = listed.slot.reference().map_or(BlockNo(0), |place| place.extent.start);
            (start, listed.facts.changed)
        };
        let mut candidates: Vec<(usize, usize)> = {
            let failed = self.unpackable.lock();
            let slack = nodes.iter().enumerate().map(|(place, listed)| (self.slack(listed), place));
            // A node with a few homes more than pages has nothing to give.
            let is_worthwhile = |(slack, place): &(usize, usize)| {
                let homes = nodes[*place].facts.homes as usize;
                *slack >= HOMES_MAX.min(homes / 4 + 1) && !failed.contains(&name(&nodes[*place]))
            };
            slack.filter(is_worthwhile).collect()
        };
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        for (_, place) in candidates.into_iter().take(ATTEMPTS) {
            let listed = &nodes[place];
            let packed =
                self.write_version(&version, work, WriteBudget::Minimal, &mut |context| {
                    let is_hot = context.is_hot(listed);
                    let node = context.output.node_cache.load_once(&listed.slot)?;
                    let before = Some((listed, &*node));
                    let mut absorb =
                        NodeAbsorb::new(context, listed.first.clone(), before, is_hot)?;
                    absorb.run(&NoUpdates, 0..0)?;
                    let finished = absorb.finish(true)?;
                    let is_worthwhile = finished.has_freed;
                    Ok(is_worthwhile.then_some((Some(place), finished)).into_iter().collect())
                })?;
            if packed.is_some() {
                return Ok(packed);
            }
            self.unpackable.lock().insert(name(listed));
        }
        Ok(None)
    }

    /// Bytes that packing allocates: a node and the directory, and a home for a page that has to
    /// move.
    pub(in crate::engines::bminus) fn pack_needs_bytes(&self) -> u64 {
        const NODE_BYTES: u64 = 64 << 10;
        let version = self.newest();
        let directory = version.place.map_or(0, |place| place.extent.bytes());
        let home = u64::from(self.config().usual().home_blocks()) * BLOCK_BYTES_U64;
        directory + NODE_BYTES + home
    }
}
