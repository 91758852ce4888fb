//! Chelonia, through its public API only; one name per engine.
//!
//! Writes are commits at the requested level. A settle makes a checkpoint, after which the
//! memtables are empty. The log is mapped into memory, and the kernel counts one of its pages as
//! written when it is first dirtied after its last write-back; so the bytes that the store counts
//! are reported in addition to those of the kernel.

use crate::driver::clock;
use crate::failure::{Failure, Result};
use crate::kinds::Durability;
use crate::stores::{
    Answers, Counters, Entries, Facts, Kind, Session, Settled, Store, StoreOptions,
};
use chelonia::{Compression, Database, EngineKind, Keyspace, KeyspaceOptions};
use std::time::Duration;

/// How often a settle looks whether memtables are gone.
const SETTLE_STEP: Duration = Duration::from_millis(10);

/// The default of the library.
const FILTER_BITS: u32 = 16;

/// A database with one keyspace.
struct Chelonia {
    database: Database,
    keyspace: Keyspace,
    settings: Vec<(&'static str, String)>,
}

/// Engines with compressed values. `Small` needs the feature `zstd`.
const COMPRESSED: [(&str, EngineKind, Compression); 6] = [
    ("turtle-fast", EngineKind::Turtle, Compression::Fast),
    ("autumn-fast", EngineKind::Autumn, Compression::Fast),
    ("splinter-fast", EngineKind::Splinter, Compression::Fast),
    ("turtle-small", EngineKind::Turtle, Compression::Small),
    ("autumn-small", EngineKind::Autumn, Compression::Small),
    ("splinter-small", EngineKind::Splinter, Compression::Small),
];

/// All engines.
pub fn kinds() -> impl Iterator<Item = Kind> {
    EngineKind::ALL.into_iter().map(|engine| kind(engine.name()))
}

/// Engines that compress values.
pub fn compressed() -> impl Iterator<Item = Kind> {
    COMPRESSED.into_iter().map(|(name, ..)| kind(name))
}

fn kind(name: &'static str) -> Kind {
    Kind { name, open: Some(open), package: None, uses_page_cache: false }
}

fn open(options: &StoreOptions) -> Result<Box<dyn Store>> {
    let compressed = COMPRESSED.into_iter().find(|(name, ..)| *name == options.engine);
    let compression = compressed.map_or(Compression::None, |(.., compression)| compression);
    let engine = compressed
        .map(|(_, engine, _)| engine)
        .or_else(|| EngineKind::from_name(&options.engine))
        .ok_or_else(|| Failure::usage(format!("{} is no engine of ours", options.engine)))?;
    let durability = match options.durability {
        Durability::Memory => chelonia::Durability::Memory,
        Durability::Process => chelonia::Durability::Process,
        Durability::Sync => chelonia::Durability::Sync,
    };
    let database = Database::builder(&options.path)
        .memory(options.memory)
        .durability(durability)
        .log_layout(options.shape.log_layout())
        .open()
        .map_err(|error| Failure::failed("open", error))?;
    let filter_bits = options.shape.filter_bits.unwrap_or(FILTER_BITS);
    let (filter, filter_name) = options.shape.filters();
    let mut keyspace_options = KeyspaceOptions::new()
        .engine(options.shape.engine(engine))
        .filter(filter)
        .filter_bits_per_key(filter_bits)
        .compression(compression);
    if let Some(bytes) = options.checkpoint_distance {
        keyspace_options = keyspace_options.checkpoint_distance(bytes);
    }
    let keyspace = database
        .keyspace("bench", keyspace_options)
        .map_err(|error| Failure::failed("make the keyspace", error))?;
    let io = database.stats().io;
    let settings = vec![
        ("memory", format!("{} bytes", options.memory)),
        ("log", if io.mapped_log { "mapped" } else { "written" }.to_owned()),
        ("data", if io.direct { "O_DIRECT" } else { "buffered" }.to_owned()),
        ("file_system", io.file_system),
        ("filter", format!("{filter_name}, {filter_bits} bits per key")),
        ("compression", format!("{compression:?}")),
    ];
    Ok(Box::new(Chelonia { database, keyspace, settings }))
}

impl Chelonia {
    /// True if every commit so far is in the data file, and the engine has arranged it as it wants.
    fn is_settled(&self) -> bool {
        let stats = self.database.stats();
        let memtables: u64 = stats.keyspaces.iter().map(|keyspace| keyspace.memtable_bytes).sum();
        let waits = stats.keyspaces.iter().any(|keyspace| keyspace.maintenance_pending);
        stats.background.backlog_bytes == 0 && memtables == 0 && !waits
    }
}

impl Store for Chelonia {
    fn facts(&self) -> Facts {
        let mut settings = self.settings.clone();
        let distance = self.keyspace.checkpoint_distance();
        settings.push(("checkpoint_distance", format!("{distance} bytes")));
        Facts { version: chelonia::VERSION.to_owned(), settings, commit_every: 1 }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(ChelonianSession { keyspace: &self.keyspace }))
    }

    fn settle(&self, limit: Duration) -> Result<Settled> {
        let start = clock::now();
        self.database.checkpoint().map_err(|error| Failure::failed("checkpoint", error))?;
        while !self.is_settled() {
            if clock::since(start) > limit {
                return Ok(Settled::TimeOver);
            }
            clock::sleep(SETTLE_STEP);
        }
        Ok(Settled::Done)
    }

    fn set_checkpoint_distance(&self, bytes: u64) -> Result<bool> {
        self.keyspace
            .set_checkpoint_distance(bytes)
            .map_err(|error| Failure::failed("set the checkpoint distance", error))?;
        Ok(true)
    }

    fn counters(&self) -> Result<Counters> {
        let stats = self.database.stats();
        let first = stats.keyspaces.first();
        Ok(Counters {
            log_bytes: Some(stats.io.log_bytes_written),
            data_bytes: Some(stats.io.data_bytes_written),
            log_disk_bytes: Some(stats.disk.log_file_bytes),
            levels: first.map(|one| u64::from(one.engine_stats.height)),
            delayed: Some(Duration::from_nanos(stats.commits.delay_nanos)),
            events: first.map(|one| one.engine_stats.events.clone()).unwrap_or_default(),
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.database.close().map_err(|error| Failure::failed("close", error))
    }
}

/// Keyspaces are used from any thread as they are.
struct ChelonianSession<'a> {
    keyspace: &'a Keyspace,
}

impl Session for ChelonianSession<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.insert(key, value).map_err(|error| Failure::failed("insert", error))
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.keyspace.remove(key).map_err(|error| Failure::failed("remove", error))
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.keyspace.get(key).map_err(|error| Failure::failed("get", error))?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        let range = self.keyspace.range(from..);
        for entry in range.take(count) {
            let (key, value) = entry.map_err(|error| Failure::failed("scan", error))?;
            entries.push(&key, &value);
        }
        Ok(())
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], answers: &mut Answers) -> Result<()> {
        let found =
            self.keyspace.multi_get(keys).map_err(|error| Failure::failed("multi_get", error))?;
        for value in found {
            answers.push(value);
        }
        Ok(())
    }
}
