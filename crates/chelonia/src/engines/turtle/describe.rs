//! The shape of a tree as text: nodes, pivots, leaves, buffered runs.

use super::TurtleVersion;
use super::node::{Child, Node, NodeSlot};
use crate::base::error::{Error, Result};
use crate::base::sync::{Arc, Ordering};
use crate::run::Totals;
use std::fmt::Write;

/// The most bytes of a key that are shown.
const KEY_BYTES_SHOWN: usize = 24;

/// Writes the shape of `version` to `out`.
pub(super) fn describe(version: &TurtleVersion, out: &mut dyn Write) -> Result<()> {
    node(version, &version.root, 1, out)
}

fn told(written: std::fmt::Result) -> Result<()> {
    written.map_err(|_| Error::invalid("the description could not be written"))
}

fn node(
    version: &TurtleVersion,
    slot: &Arc<NodeSlot>,
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let indent = "  ".repeat(depth);
    let node = version.shared.residence.load_owned(slot)?;
    let place = slot.reference().map_or_else(|| "empty".into(), |it| format!("{:?}", it.extent));
    let (pivots, levels, height) = (node.pivots.len(), node.levels(), node.height);
    told(writeln!(out, "{indent}node {place} height {height}, {pivots} pivots, {levels} levels"))?;
    segments(&node, &indent, out)?;
    for pivot in &node.pivots {
        let (key, pending) = (shown(&pivot.key), totals(pivot.pending()));
        told(writeln!(out, "{indent}  pivot {key}: {pending} waiting"))?;
        match &pivot.child {
            Child::None => {}
            Child::Leaf(run) => {
                let (extent, held) = (run.reference().extent, totals(Totals::of_run(run)));
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
        let held = totals(Totals::of_run(&segment.run));
        let (extent, first) = (run.extent, shown(&segment.first));
        told(writeln!(out, "{indent}  segment {extent:?} from {first}: {held}{shared}"))?;
    }
    Ok(())
}

fn totals(totals: Totals) -> String {
    let Totals { entries, tombstones, bytes } = totals;
    format!("{entries} entries ({tombstones} tombstones), {bytes} bytes")
}

fn shown(key: &[u8]) -> String {
    let cut = &key[..key.len().min(KEY_BYTES_SHOWN)];
    let more = if cut.len() < key.len() { "..." } else { "" };
    format!("\"{}\"{more}", cut.escape_ascii())
}
