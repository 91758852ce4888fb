//! Human-readable dump of a tree: sequences, nodes, tables.

use super::AutumnVersion;
use super::table::Sequence;
use crate::base::error::Result;
use crate::base::text::{shown_key, told};
use std::fmt::Write;

/// Writes a dump of `version` to `out`.
pub(super) fn describe(version: &AutumnVersion, out: &mut dyn Write) -> Result<()> {
    let first = version.level0.len() - version.sinking;
    for (place, newer) in version.level0.iter().enumerate() {
        let sinks = if place < first { "" } else { ", sinking" };
        told(writeln!(out, "  level 0, sequence {place}{sinks}: {}", newer.totals()))?;
        sequence(version, newer, out)?;
    }
    for (place, level) in version.levels.iter().enumerate() {
        told(writeln!(out, "  level {}: {}", place + 1, level.totals()))?;
        sequence(version, level, out)?;
    }
    Ok(())
}

fn sequence(version: &AutumnVersion, sequence: &Sequence, out: &mut dyn Write) -> Result<()> {
    for listed in &sequence.nodes {
        let node = version.shared.node_cache.load_owned(&listed.slot)?;
        let place = listed.slot.reference().map(|reference| reference.extent).unwrap_or_default();
        told(writeln!(out, "    node {place:?}, {} tables", node.tables.len()))?;
        for table in &node.tables {
            let (first, last) =
                (shown_key(&table.first.to_bytes()), shown_key(&table.last.to_bytes()));
            let extent = table.run.reference().extent;
            told(writeln!(out, "      table {extent:?} {first} to {last}: {}", table.live))?;
        }
    }
    Ok(())
}
