//! Salvage: extracts all readable data of a damaged tree.
//!
//! For each key range the leaf comes first, then the pending updates of the nodes above it, from
//! the bottom up and from the oldest level to the newest: applied in this order, the newest entry
//! of each key comes last. An unreadable node loses its whole range; updates buffered above it are
//! not affected.

use crate::base::error::{Error, Result};
use crate::buffer_tree::node::{Child, Node, NodeSlot};
use crate::buffer_tree::span::KeySpan;
use crate::buffer_tree::version::TreeVersion;
use crate::engine::Salvaged;
use crate::run::{Run, RunPart};
use crate::runtime::sync::Arc;
use crate::storage::block::DATA_FILE;
use crate::structure::KeyView;

/// Passes all readable data of `version` to `found`.
pub fn salvage(version: &TreeVersion, found: &mut dyn Salvaged) -> Result<()> {
    below(version, &version.root, KeySpan { lower: KeyView::LEAST, upper: None }, found)
}

/// Visits the node of `slot`, whose range is `span`, and everything below it.
fn below(
    version: &TreeVersion,
    slot: &Arc<NodeSlot>,
    span: KeySpan<'_>,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let Some(place) = slot.reference() else { return Ok(()) };
    let node = match version.shared.node_cache.read(place, slot.about()) {
        Ok(node) if node.pivots[0].key.view() == span.lower => node,
        Ok(_) => {
            let error = Error::corrupt("the first key of a node differs from its parent");
            return found.lost(span.to_range(), error.at(DATA_FILE, place.extent.offset()));
        }
        Err(error) => return found.lost(span.to_range(), error),
    };
    (0..node.pivots.len()).try_for_each(|index| within(version, &node, index, span, found))
}

/// Visits the child of a pivot, then its pending updates.
fn within(
    version: &TreeVersion,
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
