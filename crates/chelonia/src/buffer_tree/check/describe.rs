//! The items of a dump: nodes, segments, pivots, leaves.

use crate::base::dump::{DumpField, DumpItem, DumpVisitor};
use crate::base::error::Result;
use crate::buffer_tree::node::{Child, Node, NodeSlot};
use crate::buffer_tree::version::TreeVersion;
use crate::runtime::sync::{Arc, Ordering};

/// Sends the items of `version` to `out`.
pub fn describe(version: &TreeVersion, out: &mut dyn DumpVisitor) -> Result<()> {
    node(version, &version.root, 1, out)
}

fn node(
    version: &TreeVersion,
    slot: &Arc<NodeSlot>,
    depth: usize,
    out: &mut dyn DumpVisitor,
) -> Result<()> {
    let node = version.shared.node_cache.load_owned(slot)?;
    let extent = slot.reference().map(|reference| reference.extent);
    let fields = [
        ("extent", DumpField::extent(extent)),
        ("height", DumpField::Number(node.height.into())),
        ("pivots", DumpField::Number(node.pivots.len() as u64)),
        ("levels", DumpField::Number(node.levels() as u64)),
    ];
    out.item(&DumpItem { kind: "node", depth, fields: &fields })?;
    segments(&node, depth + 1, out)?;
    for pivot in &node.pivots {
        let key = pivot.key.to_bytes();
        let [entries, tombstones, bytes] = pivot.pending().fields();
        let fields = [("key", DumpField::Key(&key)), entries, tombstones, bytes];
        out.item(&DumpItem { kind: "pivot", depth: depth + 1, fields: &fields })?;
        match &pivot.child {
            Child::None => {}
            Child::Leaf(run) => {
                let extent = DumpField::extent(Some(run.reference().extent));
                let [entries, tombstones, bytes] = run.reference().totals().fields();
                let fields = [("extent", extent), entries, tombstones, bytes];
                out.item(&DumpItem { kind: "leaf", depth: depth + 2, fields: &fields })?;
            }
            Child::Node(child, _) => self::node(version, child, depth + 2, out)?,
        }
    }
    Ok(())
}

fn segments(node: &Node, depth: usize, out: &mut dyn DumpVisitor) -> Result<()> {
    for segment in node.segments() {
        let extent = DumpField::extent(Some(segment.run.reference().extent));
        let first = segment.first.to_bytes();
        let [entries, tombstones, bytes] = segment.run.reference().totals().fields();
        let shared = DumpField::Flag(segment.shared.load(Ordering::Relaxed));
        let fields = [
            ("extent", extent),
            ("first_key", DumpField::Key(&first)),
            entries,
            tombstones,
            bytes,
            ("shared", shared),
        ];
        out.item(&DumpItem { kind: "segment", depth, fields: &fields })?;
    }
    Ok(())
}
