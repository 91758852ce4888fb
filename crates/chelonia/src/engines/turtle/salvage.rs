//! What can be read of a damaged tree.
//!
//! Of each range of keys the leaf comes first, then what waits in the nodes above it, from the
//! bottom up and from the oldest level to the newest: whoever does it all in this order has the
//! newest of everything in the end. A node that cannot be read takes its whole range with it; what
//! waits above it is not touched by that.

use super::TurtleVersion;
use super::node::{Child, Node, NodeSlot};
use super::source::KeySpan;
use crate::base::error::{Error, Result};
use crate::engine::Salvaged;
use crate::run::{Run, RunPart};
use crate::runtime::sync::Arc;
use crate::storage::block::DATA_FILE;
use crate::structure::KeyView;

/// Hands everything that can be read of `version` to `found`.
pub(super) fn salvage(version: &TurtleVersion, found: &mut dyn Salvaged) -> Result<()> {
    below(version, &version.root, KeySpan { lower: KeyView::LEAST, upper: None }, found)
}

/// The node of `slot`, whose range is `span`, and everything below it.
fn below(
    version: &TurtleVersion,
    slot: &Arc<NodeSlot>,
    span: KeySpan<'_>,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let Some(place) = slot.reference() else { return Ok(()) };
    let node = match version.shared.node_cache.read(place, slot.about()) {
        Ok(node) if node.pivots[0].key.view() == span.lower => node,
        Ok(_) => {
            let error = Error::corrupt("a node does not begin where its parent says");
            return found.lost(span.to_range(), error.at(DATA_FILE, place.extent.offset()));
        }
        Err(error) => return found.lost(span.to_range(), error),
    };
    (0..node.pivots.len()).try_for_each(|index| within(version, &node, index, span, found))
}

/// What a pivot has, and what waits for it.
fn within(
    version: &TurtleVersion,
    node: &Node,
    index: usize,
    span: KeySpan<'_>,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let pivot = &node.pivots[index];
    let own = KeySpan { lower: pivot.key.view(), upper: node.upper_of(index, span.upper) };
    match &pivot.child {
        Child::None => {}
        Child::Leaf(run) => read(run, own, found)?,
        Child::Node(child, _) => below(version, child, own, found)?,
    }
    pivot.parts.iter().rev().try_for_each(|part| read(&part.segment.run, own, found))
}

fn read(run: &Run, span: KeySpan<'_>, found: &mut dyn Salvaged) -> Result<()> {
    run.salvage(&span.to_range(), &mut |part| match part {
        RunPart::Entry(key, update) => found.update(key, update),
        RunPart::Gap(keys, cause) => found.lost(keys, cause),
    })
}
