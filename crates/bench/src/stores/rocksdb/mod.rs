//! RocksDB, by its C interface, as its tuning guide has it for data larger than memory: direct I/O,
//! full Bloom filters, levels, the log written but not synced.
//!
//! A settle flushes the memtables and waits until no flush and no compaction runs or is due. Index
//! and filter blocks are on the heap, outside the cache; the cache is smaller by what they take.

mod ffi;

use crate::driver::clock;
use crate::failure::{Failure, Result};
use crate::kinds::Durability;
use crate::stores::{
    Answers, Counters, Entries, Facts, Session, Settled, Store, StoreOptions, bytes_of, files_bytes,
};
use ffi::{Db, Tuning};
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a memtable, if there is memory for it.
const WRITE_BUFFER_BYTES: u64 = 64_000_000;

/// Memory outside of cache and memtables: index and filter blocks (37 MB were measured with 20
/// million records), stacks, the allocator.
const HEAP_BYTES: u64 = 50_000_000;

/// With little memory a memtable and the rest take at most this part of it each.
const SMALL_PART: u64 = 8;

/// The largest size of one of the two memtables, in such parts.
const WRITE_BUFFER_PARTS_MAX: u64 = 3;

/// Properties that are zero when no background work is left.
const WORK: [&CStr; 5] = [
    c"rocksdb.mem-table-flush-pending",
    c"rocksdb.num-running-flushes",
    c"rocksdb.compaction-pending",
    c"rocksdb.num-running-compactions",
    c"rocksdb.num-immutable-mem-table",
];

/// How often a settle looks.
const SETTLE_STEP: Duration = Duration::from_millis(10);

/// The property with the statistics of the database.
const GIB: f64 = 1_073_741_824.0;

struct RocksDb {
    db: Db,
    path: PathBuf,
    tuning: Tuning,
    version: String,
    durability: Durability,
    compression: &'static str,
}

/// Names of the store with compressed blocks, at the level that is its default.
const COMPRESSIONS: [(&str, &str, i32); 2] =
    [("rocksdb-lz4", "LZ4", ffi::LZ4), ("rocksdb-zstd", "zstd", ffi::ZSTD)];

/// Makes a new database.
pub fn open(options: &StoreOptions) -> Result<Box<dyn Store>> {
    // The option for a checkpoint distance sets the size of a memtable here.
    let write_buffer = match options.checkpoint_distance {
        Some(bytes) => bytes.min(options.memory / SMALL_PART * WRITE_BUFFER_PARTS_MAX),
        None => WRITE_BUFFER_BYTES.min(options.memory / SMALL_PART),
    };
    let compression = COMPRESSIONS
        .into_iter()
        .find(|(name, ..)| *name == options.engine)
        .map_or(("off", ffi::NO_COMPRESSION), |(_, word, code)| (word, code));
    let heap = HEAP_BYTES.min(options.memory / SMALL_PART);
    let tuning = Tuning {
        write_buffer_bytes: bytes_of(write_buffer)?,
        // As large as level 0 when it is compacted, as the tuning guide has it.
        level_bytes: (write_buffer < WRITE_BUFFER_BYTES).then_some(4 * write_buffer),
        cache_bytes: bytes_of(options.memory - 2 * write_buffer - heap)?,
        block_bytes: 4096,
        filter_bits: 10.0,
        compression: compression.1,
        background_jobs: 2,
        buffers_log: options.durability == Durability::Memory,
        syncs: options.durability == Durability::Sync,
    };
    let db = Db::create(&options.path, &tuning)?;
    let version = version(&options.path)?;
    let (path, durability) = (options.path.clone(), options.durability);
    let compression = compression.0;
    Ok(Box::new(RocksDb { db, path, tuning, version, durability, compression }))
}

/// The version, which the library writes to its options file: the C interface does not return it.
fn version(path: &Path) -> Result<String> {
    let failed = |error| Failure::failed("read the version", error);
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b"OPTIONS-") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).map_err(failed)?;
        let mut lines = text.lines().map(str::trim);
        if let Some(version) = lines.find_map(|line| line.strip_prefix("rocksdb_version=")) {
            return Ok(version.to_owned());
        }
    }
    Ok("unknown".to_owned())
}

impl RocksDb {
    fn is_settled(&self) -> bool {
        // A property that a version has not says nothing.
        WORK.iter().all(|name| self.db.number(name).unwrap_or(0) == 0)
    }
}

impl Store for RocksDb {
    fn facts(&self) -> Facts {
        let Tuning { write_buffer_bytes, level_bytes, cache_bytes, block_bytes, .. } = self.tuning;
        let Tuning { filter_bits, background_jobs, .. } = self.tuning;
        let log = match self.durability {
            Durability::Memory => "on, written when its buffer is full (manual_wal_flush)",
            Durability::Process => "on, written with each commit, not synced",
            Durability::Sync => "on, synced with each commit",
        };
        let settings = vec![
            ("log", log.to_owned()),
            ("log_bytes", "as counted by the store, in steps of 0.01 GiB".to_owned()),
            ("write_buffer", format!("2 x {write_buffer_bytes} bytes")),
            ("checkpoint_distance", format!("{write_buffer_bytes} bytes")),
            ("level_1", level_bytes.map_or("default".to_owned(), |bytes| format!("{bytes} bytes"))),
            ("block_cache", format!("LRU, {cache_bytes} bytes, index and filters on the heap")),
            ("block_size", format!("{block_bytes} bytes")),
            ("filter", format!("full Bloom, {filter_bits} bits per key")),
            ("max_background_jobs", background_jobs.to_string()),
            ("compaction", "levels".to_owned()),
            ("compression", self.compression.to_owned()),
            ("data", "O_DIRECT: reads, flushes, compactions".to_owned()),
            ("settle", "flush, then until no compaction runs or is due".to_owned()),
        ];
        Facts { version: self.version.clone(), settings, commit_every: 1 }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RocksSession { db: &self.db }))
    }

    fn settle(&self, limit: Duration) -> Result<Settled> {
        let start = clock::now();
        self.db.flush()?;
        while !self.is_settled() {
            if clock::since(start) > limit {
                return Ok(Settled::TimeOver);
            }
            clock::sleep(SETTLE_STEP);
        }
        Ok(Settled::Done)
    }

    fn counters(&self) -> Result<Counters> {
        let statistics = self.db.text(c"rocksdb.dbstats").unwrap_or_default();
        Ok(Counters {
            log_bytes: log_bytes(&statistics),
            log_disk_bytes: files_bytes(&self.path, |name| name.ends_with(b".log")),
            delayed: delayed(&statistics),
            ..Counters::default()
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// From the line `Cumulative WAL: 12K writes, 0 syncs, 12K writes per sync, written: 1.50 GB, ...`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count that was printed with two digits behind the point"
)]
fn log_bytes(statistics: &str) -> Option<u64> {
    let line = statistics.lines().find(|line| line.starts_with("Cumulative WAL:"))?;
    let (_, written) = line.split_once("written: ")?;
    let written: f64 = written.split_whitespace().next()?.parse().ok()?;
    Some((written * GIB) as u64)
}

/// From the line `Cumulative stall: 00:00:12.345 H:M:S, 3.4 percent`.
fn delayed(statistics: &str) -> Option<Duration> {
    let line = statistics.lines().find(|line| line.starts_with("Cumulative stall:"))?;
    let time = line.split_whitespace().nth(2)?;
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    Duration::try_from_secs_f64(hours * 3600.0 + minutes * 60.0 + seconds).ok()
}

/// RocksDB has no sessions: threads use the database as it is.
struct RocksSession<'a> {
    db: &'a Db,
}

impl Session for RocksSession<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put(key, value)
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.db.delete(key)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.db.get(key, value)
    }

    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        self.db.scan(from, count, entries)
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], answers: &mut Answers) -> Result<()> {
        self.db.multi_get(keys, answers)
    }
}
