//! Salvage: extracts all readable data of a damaged tree.
//!
//! Data is visited from the lowest level up to the newest sequence: applied in this order, the
//! newest entry of each key comes last. An unreadable node loses its range, up to where the next
//! node begins.

use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::engine::Salvaged;
use crate::engines::autumn::table::{Sequence, Table};
use crate::engines::autumn::version::AutumnVersion;
use crate::run::RunPart;

/// Passes all readable data of `version` to `found`.
pub(in crate::engines::autumn) fn salvage(
    version: &AutumnVersion,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let mut sequences: Vec<_> = version.sequences().collect();
    sequences.reverse();
    sequences.into_iter().try_for_each(|it| sequence(version, it, found))
}

fn sequence(version: &AutumnVersion, sequence: &Sequence, found: &mut dyn Salvaged) -> Result<()> {
    for (index, listed) in sequence.nodes.iter().enumerate() {
        let Some(place) = listed.slot.reference() else { continue };
        match version.shared.node_cache.read(place, ()) {
            Ok(node) => node.tables.iter().try_for_each(|table| read(table, found))?,
            Err(error) => {
                let next = sequence.nodes.get(index + 1).map(|next| next.first.to_bytes());
                let range = KeyRange::half_open(&listed.first.to_bytes(), next.as_deref());
                found.lost(range, error)?;
            }
        }
    }
    Ok(())
}

fn read(table: &Table, found: &mut dyn Salvaged) -> Result<()> {
    table.run.salvage(&table.bounds(), &mut |part| match part {
        RunPart::Entry(key, update) => found.update(key, update),
        RunPart::Gap(keys, cause) => found.lost(keys, cause),
    })
}
