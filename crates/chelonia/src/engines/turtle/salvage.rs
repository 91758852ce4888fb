//! What can be read of a damaged tree.
//!
//! Of each range of keys the leaf comes first, then what waits in the nodes above it, from the
//! bottom up and from the oldest level to the newest: whoever does it all in this order has the
//! newest of everything in the end. A node that cannot be read takes its whole range with it; what
//! waits above it is not touched by that.

use super::TurtleVersion;
use super::node::{Child, Node, NodeSlot};
use super::source::Stretch;
use crate::base::error::{Error, Result};
use crate::engine::Salvaged;
use crate::run::{Run, RunPart};
use crate::runtime::sync::Arc;
use crate::storage::block::DATA_FILE;
use crate::structure::KeyView;

/// Hands everything that can be read of `version` to `found`.
pub(super) fn salvage(version: &TurtleVersion, found: &mut dyn Salvaged) -> Result<()> {
    below(version, &version.root, Stretch { lower: KeyView::LEAST, upper: None }, found)
}

/// The node of `slot`, whose range is `stretch`, and everything below it.
fn below(
    version: &TurtleVersion,
    slot: &Arc<NodeSlot>,
    stretch: Stretch<'_>,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let Some(place) = slot.reference() else { return Ok(()) };
    let node = match version.shared.residence.read(place, slot.about()) {
        Ok(node) if node.pivots[0].key.view() == stretch.lower => node,
        Ok(_) => {
            let error = Error::corrupt("a node does not begin where its parent says");
            return found.lost(stretch.to_range(), error.at(DATA_FILE, place.extent.offset()));
        }
        Err(error) => return found.lost(stretch.to_range(), error),
    };
    (0..node.pivots.len()).try_for_each(|index| within(version, &node, index, stretch, found))
}

/// What a pivot has, and what waits for it.
fn within(
    version: &TurtleVersion,
    node: &Node,
    index: usize,
    stretch: Stretch<'_>,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let pivot = &node.pivots[index];
    let own = Stretch { lower: pivot.key.view(), upper: node.upper_of(index, stretch.upper) };
    match &pivot.child {
        Child::None => {}
        Child::Leaf(run) => read(run, own, found)?,
        Child::Node(child, _) => below(version, child, own, found)?,
    }
    pivot.parts.iter().rev().try_for_each(|part| read(&part.segment.run, own, found))
}

fn read(run: &Run, stretch: Stretch<'_>, found: &mut dyn Salvaged) -> Result<()> {
    run.salvage(&stretch.to_range(), &mut |part| match part {
        RunPart::Entry(key, update) => found.update(key, update),
        RunPart::Gap(keys, why) => found.lost(keys, why),
    })
}
