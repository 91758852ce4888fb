//! Human-readable dump of a tree: nodes, pivots, leaves, buffered runs.

use super::TurtleVersion;
use super::node::{Child, Node, NodeSlot};
use crate::base::error::Result;
use crate::base::text::{shown_key, told};
use crate::run::Totals;
use crate::runtime::sync::{Arc, Ordering};
use std::fmt::Write;

/// Writes a dump of `version` to `out`.
pub(super) fn describe(version: &TurtleVersion, out: &mut dyn Write) -> Result<()> {
    node(version, &version.root, 1, out)
}

fn node(
    version: &TurtleVersion,
    slot: &Arc<NodeSlot>,
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let indent = "  ".repeat(depth);
    let node = version.shared.node_cache.load_owned(slot)?;
    let place = slot.reference().map_or_else(|| "empty".into(), |it| format!("{:?}", it.extent));
    let (pivots, levels, height) = (node.pivots.len(), node.levels(), node.height);
    told(writeln!(out, "{indent}node {place} height {height}, {pivots} pivots, {levels} levels"))?;
    segments(&node, &indent, out)?;
    for pivot in &node.pivots {
        let (key, pending) = (shown_key(&pivot.key.to_bytes()), pivot.pending());
        told(writeln!(out, "{indent}  pivot {key}: {pending} waiting"))?;
        match &pivot.child {
            Child::None => {}
            Child::Leaf(run) => {
                let (extent, held) = (run.reference().extent, Totals::of_run(run));
                told(writeln!(out, "{indent}    leaf {extent:?} {held}"))?;
            }
            Child::Node(child, _) => self::node(version, child, depth + 2, out)?,
        }
    }
    Ok(())
}

fn segments(node: &Node, indent: &str, out: &mut dyn Write) -> Result<()> {
    for segment in node.segments() {
        let (run, shared) = (segment.run.reference(), segment.shared.load(Ordering::Relaxed));
        let shared = if shared { ", shared" } else { "" };
        let held = Totals::of_run(&segment.run);
        let (extent, first) = (run.extent, shown_key(&segment.first.to_bytes()));
        told(writeln!(out, "{indent}  segment {extent:?} from {first}: {held}{shared}"))?;
    }
    Ok(())
}
