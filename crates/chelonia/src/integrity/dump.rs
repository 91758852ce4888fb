//! The structure of a database as text, for people and for bug reports ([`crate::Database::dump`]).
//!
//! ```text
//!   superblock ...
//!     catalog ...
//!     log ...
//!   keyspace 1 "people": ...
//!     in the log only: ...
//!     ...                         the engine's own lines
//! ```
//!
//! One item per line; the parts of an item are indented below it.

use crate::base::error::{Error, Result};
use crate::engine::{EngineOptions, LevelOptions, PIVOTS_MAX};
use crate::options::keyspace::StoredOptions;
use crate::state::core::Core;
use crate::storage::data_file::superblock::{CatalogLocation, LogMark, Superblock};
use std::fmt::Write;

impl Core {
    /// Implements [`crate::Database::dump`].
    pub fn dump(&self, out: &mut dyn Write) -> Result<()> {
        let checked = |written: std::fmt::Result| {
            written.map_err(|_| Error::invalid("the dump could not be written"))
        };
        checked(superblock(&self.storage.superblock(), out))?;
        for keyspace in self.all_keyspaces() {
            let view = keyspace.current_view();
            checked(write!(out, "keyspace {} {:?}: ", keyspace.id, keyspace.name))?;
            checked(options(&keyspace.stored_options(), out))?;
            let entries: u64 =
                view.buffers.iter().map(|buffer| buffer.memtable.len_estimate()).sum();
            checked(writeln!(out, "  in the log only: about {entries} keys"))?;
            view.version.version().describe(out)?;
        }
        Ok(())
    }
}

fn superblock(superblock: &Superblock, out: &mut dyn Write) -> std::fmt::Result {
    let Superblock { salt, generation, opens, catalog, log, file_blocks } = superblock;
    write!(out, "superblock generation {generation}, opened for writing {opens} times, ")?;
    writeln!(out, "at least {file_blocks} blocks in the file, salt {salt}")?;
    match catalog {
        Some(CatalogLocation { extent, generation, bytes }) => {
            writeln!(out, "  catalog {extent:?} generation {generation}, {bytes} bytes")?;
        }
        None => writeln!(out, "  catalog none")?,
    }
    let LogMark { lsn, chain, durable, seqno } = log;
    write!(out, "  log replayed from lsn {lsn} behind seqno {seqno}, chain {chain}, ")?;
    writeln!(out, "known to be durable up to lsn {durable}")
}

fn options(options: &StoredOptions, out: &mut dyn Write) -> std::fmt::Result {
    let size = |bytes: Option<u64>| {
        bytes.map_or_else(|| "automatic".to_owned(), |bytes| format!("{bytes} bytes"))
    };
    let StoredOptions { engine, filter, filter_bits_per_key, .. } = options;
    let kinds = format!("engine {}, filter {filter:?}", engine.kind().name()).to_ascii_lowercase();
    let (leaf, pivots_max) = match engine {
        EngineOptions::Turtle(options) => (options.leaf_bytes, options.pivots_max),
        EngineOptions::Autumn(options) => (options.table_bytes, None),
    };
    let leaf = size(leaf.map(u64::from));
    let distance = size(options.checkpoint_distance);
    write!(out, "{kinds} of {filter_bits_per_key} bits a key, leaf size {leaf}, ")?;
    if let Some(levels) = engine.levels() {
        let LevelOptions { size_ratio, scaling_percent, .. } = levels;
        let relative = if levels.dynamic_sizes { "relative" } else { "absolute" };
        let filters =
            if levels.allocate_filters_by_level { "divided between levels" } else { "uniform" };
        write!(out, "size ratio {size_ratio} scaled by {scaling_percent}%, {relative} levels, ")?;
        write!(out, "filters {filters}, ")?;
    } else {
        write!(out, "at most {} pivots, ", pivots_max.unwrap_or(PIVOTS_MAX))?;
    }
    writeln!(out, "checkpoint distance {distance}")
}
