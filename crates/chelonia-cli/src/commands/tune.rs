//! `tune`: what can be changed of a keyspace: its checkpoint distance, its compression, and the
//! space of `splinter`.

use super::{Purpose, check_there_is, open};
use crate::arguments::{Distance, Tune};
use crate::failure::{Context, Result};
use crate::output::{Align, Table, bytes, output};
use chelonia::{EngineOptions, KeyspaceOptions, KeyspaceStats, LiveOptions, limits};
use serde_json::json;
use std::io::Write;

/// `tune`
pub fn tune(arguments: &Tune) -> Result<()> {
    let changes = arguments.checkpoint_distance.is_some()
        || arguments.space_percent.is_some()
        || arguments.compression.is_some();
    let database = open(&arguments.place, if changes { Purpose::Write } else { Purpose::Read })?;
    let name = &arguments.keyspace;
    let place = || arguments.place.path.display().to_string();
    check_there_is(&database, name).context(place())?;
    let keyspace = database.keyspace(name, KeyspaceOptions::new()).context(place())?;
    match arguments.checkpoint_distance {
        None => {}
        Some(Distance::Auto) => keyspace.reset_checkpoint_distance()?,
        Some(Distance::Bytes(bytes)) => keyspace.set_checkpoint_distance(bytes)?,
    }
    if let Some(compression) = arguments.compression {
        keyspace.set_compression(compression)?;
    }
    if let Some(percent) = arguments.space_percent {
        keyspace.set_live_options(LiveOptions::SpacePercent(percent))?;
    }
    let space = match keyspace.engine_options() {
        EngineOptions::Splinter(options) => options.space_percent,
        _ => None,
    };
    let memory = arguments.place.memory.unwrap_or(limits::MEMORY_BYTES_DEFAULT);
    let keyspaces = database.stats().keyspaces;
    if let Some(stats) = keyspaces.iter().find(|stats| stats.name == *name) {
        print(stats, memory, space, arguments.json)?;
    }
    drop(keyspace);
    Ok(database.close()?)
}

/// Prints the distance that was set, and the effective one with this memory budget; the
/// compression; and the space of leaves, if the engine has that option.
fn print(
    stats: &KeyspaceStats,
    memory: u64,
    space_percent: Option<u32>,
    is_json: bool,
) -> Result<()> {
    let (set, effective) = (stats.checkpoint_distance_set_bytes, stats.checkpoint_distance_bytes);
    let mut out = output();
    if is_json {
        let object = json!({
            "keyspace": stats.name,
            "memory_bytes": memory,
            "checkpoint_distance_set_bytes": set,
            "checkpoint_distance_bytes": effective,
            "compression": stats.compression.name(),
            "space_percent": space_percent,
        });
        writeln!(out, "{object}")?;
        return Ok(out.flush()?);
    }
    let mut table = Table::new(&[Align::Left, Align::Right]);
    table.row(["memory".to_owned(), bytes(memory)]);
    table.row(["checkpoint distance set".to_owned(), set.map_or("auto".to_owned(), bytes)]);
    table.row(["effective checkpoint distance".to_owned(), bytes(effective)]);
    table.row(["compression".to_owned(), stats.compression.name().to_owned()]);
    if let Some(percent) = space_percent {
        table.row(["space percent".to_owned(), percent.to_string()]);
    }
    table.write(&mut out, "")?;
    if set.is_some_and(|set| set > effective) {
        writeln!(
            out,
            "With this much memory the distance is at most {}. --memory is not stored: the program \
             that uses the database sets its own.",
            bytes(effective)
        )?;
    }
    Ok(out.flush()?)
}
