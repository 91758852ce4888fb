//! The items of a dump: sequences, nodes, tables.

use crate::base::dump::{DumpField, DumpItem, DumpVisitor};
use crate::base::error::Result;
use crate::engines::autumn::table::Sequence;
use crate::engines::autumn::version::AutumnVersion;

/// Sends the items of `version` to `out`.
pub(in crate::engines::autumn) fn describe(
    version: &AutumnVersion,
    out: &mut dyn DumpVisitor,
) -> Result<()> {
    let first_sinking = version.level0.len() - version.sinking;
    for (place, newer) in version.level0.iter().enumerate() {
        sequence(version, newer, (0, place), place >= first_sinking, out)?;
    }
    for (place, level) in version.levels.iter().enumerate() {
        sequence(version, level, (place + 1, 0), false, out)?;
    }
    Ok(())
}

fn sequence(
    version: &AutumnVersion,
    sequence: &Sequence,
    (level, place): (usize, usize),
    sinking: bool,
    out: &mut dyn DumpVisitor,
) -> Result<()> {
    let [entries, tombstones, bytes] = sequence.totals().fields();
    let fields = [
        ("level", DumpField::Number(level as u64)),
        ("place", DumpField::Number(place as u64)),
        entries,
        tombstones,
        bytes,
        ("sinking", DumpField::Flag(sinking)),
    ];
    out.item(&DumpItem { kind: "sequence", depth: 1, fields: &fields })?;
    for listed in &sequence.nodes {
        let node = version.shared.node_cache.load_owned(&listed.slot)?;
        let extent = listed.slot.reference().map(|reference| reference.extent);
        let fields = [
            ("extent", DumpField::extent(extent)),
            ("tables", DumpField::Number(node.tables.len() as u64)),
        ];
        out.item(&DumpItem { kind: "node", depth: 2, fields: &fields })?;
        for table in &node.tables {
            let (first, last) = (table.first.to_bytes(), table.last.to_bytes());
            let [entries, tombstones, bytes] = table.live.fields();
            let fields = [
                ("extent", DumpField::extent(Some(table.run.reference().extent))),
                ("first_key", DumpField::Key(&first)),
                ("last_key", DumpField::Key(&last)),
                entries,
                tombstones,
                bytes,
            ];
            out.item(&DumpItem { kind: "table", depth: 3, fields: &fields })?;
        }
    }
    Ok(())
}
