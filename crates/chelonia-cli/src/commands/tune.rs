//! `tune`: the checkpoint distance of a keyspace.

use super::{Purpose, open};
use crate::arguments::{Distance, Tune};
use crate::failure::{Context, Failure, Result};
use crate::output::{Align, Table, bytes, output};
use chelonia::{Error, ErrorKind, KeyspaceOptions, KeyspaceStats, limits};
use serde_json::json;
use std::io::Write;

/// `tune`
pub fn tune(arguments: &Tune) -> Result<()> {
    let changes = arguments.checkpoint_distance.is_some();
    let database = open(&arguments.place, if changes { Purpose::Write } else { Purpose::Read })?;
    let name = &arguments.keyspace;
    let place = || arguments.place.path.display().to_string();
    if !database.keyspaces().contains(name) {
        let text = format!("there is no keyspace {name:?}");
        return Err(Failure::Store(place(), Error::new(ErrorKind::NotFound, text)));
    }
    let keyspace = database.keyspace(name, KeyspaceOptions::new()).context(place())?;
    match arguments.checkpoint_distance {
        None => {}
        Some(Distance::Auto) => keyspace.reset_checkpoint_distance()?,
        Some(Distance::Bytes(bytes)) => keyspace.set_checkpoint_distance(bytes)?,
    }
    let memory = arguments.place.memory.unwrap_or(limits::MEMORY_BYTES_DEFAULT);
    let keyspaces = database.stats().keyspaces;
    if let Some(stats) = keyspaces.iter().find(|stats| stats.name == *name) {
        print(stats, memory, arguments.json)?;
    }
    drop(keyspace);
    Ok(database.close()?)
}

/// Prints the distance that was set, and the effective one with this memory budget.
fn print(stats: &KeyspaceStats, memory: u64, is_json: bool) -> Result<()> {
    let (set, effective) = (stats.checkpoint_distance_set_bytes, stats.checkpoint_distance_bytes);
    let mut out = output();
    if is_json {
        let object = json!({
            "keyspace": stats.name,
            "memory_bytes": memory,
            "checkpoint_distance_set_bytes": set,
            "checkpoint_distance_bytes": effective,
        });
        writeln!(out, "{object}")?;
        return Ok(out.flush()?);
    }
    let mut table = Table::new(&[Align::Left, Align::Right]);
    table.row(["memory".to_owned(), bytes(memory)]);
    table.row(["checkpoint distance set".to_owned(), set.map_or("auto".to_owned(), bytes)]);
    table.row(["effective checkpoint distance".to_owned(), bytes(effective)]);
    table.write(&mut out, "")?;
    if set.is_some_and(|set| set > effective) {
        writeln!(out, "The memory budget clips the distance: raise --memory, or set less.")?;
    }
    Ok(out.flush()?)
}
