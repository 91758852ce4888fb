//! Sets of options under which the same history must give the same answers.

use crate::trials::support::engine_of;
use chelonia::internals::{Directory, MemoryDirectory};
use chelonia::limits::MEMORY_BYTES_MIN;
use chelonia::{Database, Durability, FilterKind, KeyspaceOptions, Result};
use std::sync::Arc;

/// One set of options.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// What a failure calls it.
    pub name: &'static str,
    memory: u64,
    leaf_bytes: u32,
    pivots_max: u32,
    /// Of the first keyspace; the second has the other kind.
    filter: FilterKind,
    filter_bits: u32,
    /// The number of the engine of the first keyspace; the second has the next one.
    engine: u64,
    /// Bytes of updates that a memtable takes before it is drained.
    pub distance: u64,
    log_segment_bytes: u64,
    write_share: Option<u64>,
    durability: Durability,
    /// Background work on threads of its own; else the committing thread does it.
    threads: bool,
}

/// What most others differ from in one thing: leaves of a block, four pivots, memtables of a few
/// entries, so that every case of the tree comes up soon.
const TINY: Setting = Setting {
    name: "tiny",
    memory: 64 << 20,
    leaf_bytes: 4 << 10,
    pivots_max: 4,
    filter: FilterKind::Bloom,
    filter_bits: 16,
    engine: 0,
    distance: 2_000,
    log_segment_bytes: 32 << 10,
    write_share: None,
    durability: Durability::Process,
    threads: false,
};

/// All of them.
pub const SETTINGS: [Setting; 11] = [
    TINY,
    Setting { name: "engines the other way round", engine: 1, ..TINY },
    Setting { name: "a memtable of one entry", distance: 1, ..TINY },
    Setting {
        name: "quotient filters of few bits",
        filter: FilterKind::Quotient,
        filter_bits: 4,
        ..TINY
    },
    Setting { name: "small leaves, many pivots", pivots_max: 64, ..TINY },
    Setting {
        name: "larger leaves",
        leaf_bytes: 64 << 10,
        pivots_max: 8,
        distance: 30_000,
        ..TINY
    },
    Setting {
        name: "everything in memtables",
        leaf_bytes: 1 << 20,
        pivots_max: 64,
        distance: 32 << 20,
        log_segment_bytes: 1 << 20,
        ..TINY
    },
    Setting { name: "the least memory", memory: MEMORY_BYTES_MIN, ..TINY },
    Setting { name: "a write share of a few blocks", write_share: Some(16 << 10), ..TINY },
    Setting {
        name: "every commit synced",
        durability: Durability::Sync,
        log_segment_bytes: 16 << 10,
        ..TINY
    },
    Setting { name: "background threads", threads: true, distance: 3_000, ..TINY },
];

/// The keyspaces of a history.
pub const KEYSPACES: [&str; 2] = ["left", "right"];

impl Setting {
    /// The fixed options of a keyspace.
    pub fn options(&self, name: &str) -> KeyspaceOptions {
        let other = match self.filter {
            FilterKind::Bloom => FilterKind::Quotient,
            _ => FilterKind::Bloom,
        };
        let is_first = name == KEYSPACES[0];
        let filter = if is_first { self.filter } else { other };
        let engine = engine_of(self.engine + u64::from(!is_first));
        let options =
            KeyspaceOptions::new().leaf_bytes(self.leaf_bytes).pivots_max(self.pivots_max);
        options.engine(engine).filter(filter).filter_bits_per_key(self.filter_bits)
    }

    /// Opens a database over `directory`.
    pub fn open(&self, directory: &MemoryDirectory, salt: u64) -> Result<Database> {
        let directory: Arc<dyn Directory> = Arc::new(directory.clone());
        let builder = Database::builder("model").memory(self.memory).durability(self.durability);
        let builder = builder.internals(|internals| {
            internals.directory = Some(directory);
            internals.stepped = !self.threads;
            internals.salt = Some(salt);
            internals.log_segment_bytes = Some(self.log_segment_bytes);
            internals.write_share = self.write_share;
        });
        let database = builder.open()?;
        for name in KEYSPACES {
            database.keyspace(name, self.options(name))?.set_checkpoint_distance(self.distance)?;
        }
        Ok(database)
    }
}
