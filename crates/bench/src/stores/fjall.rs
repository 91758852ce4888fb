//! fjall: a log-structured merge tree in Rust, over buffered files.
//!
//! | durability | the journal |
//! | --- | --- |
//! | `memory` | may wait in a buffer (`manual_journal_persist`) |
//! | `process` | is written before a write returns |
//! | `sync` | is synced before a write returns |
//!
//! A settle rotates the memtable and waits until flushes and compactions are over. The store does
//! not report compactions that are due but have not begun, so it must have been quiet for a while.

use crate::driver::clock;
use crate::failure::{Failure, Result};
use crate::kinds::Durability;
use crate::stores::{Counters, Entries, Facts, Session, Settled, Store, StoreOptions};
use fjall::config::CompressionPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::time::Duration;

/// Bytes of a memtable, if there is memory for it.
const MEMTABLE_BYTES: u64 = 64 << 20;

/// With little memory a memtable takes at most this part of it.
const SMALL_PART: u64 = 8;

/// The cache is this many percent of the memory: memtables, filters and the page cache share the
/// rest.
const CACHE_PERCENT: u64 = 70;

const WORKERS: usize = 2;

/// How often a settle looks, and how many times it must have seen nothing.
const SETTLE_STEP: Duration = Duration::from_millis(10);
const QUIET_STEPS: u32 = 10;

struct Fjall {
    database: Database,
    keyspace: Keyspace,
    durability: Durability,
    memtable_bytes: u64,
}

/// Adds the failed operation to an error.
fn failed(what: &'static str) -> impl Fn(fjall::Error) -> Failure {
    move |error| Failure::failed(what, error)
}

/// Makes a new database.
pub fn open(options: &StoreOptions) -> Result<Box<dyn Store>> {
    let memtable_bytes = MEMTABLE_BYTES.min(options.memory / SMALL_PART);
    let database = Database::builder(&options.path)
        .cache_size(options.memory / 100 * CACHE_PERCENT)
        .worker_threads(WORKERS)
        .manual_journal_persist(options.durability == Durability::Memory)
        .open()
        .map_err(failed("open"))?;
    let keyspace_options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(memtable_bytes)
            .manual_journal_persist(options.durability == Durability::Memory)
            .data_block_compression_policy(CompressionPolicy::disabled())
            .index_block_compression_policy(CompressionPolicy::disabled())
    };
    let keyspace =
        database.keyspace("bench", keyspace_options).map_err(failed("make the keyspace"))?;
    let durability = options.durability;
    Ok(Box::new(Fjall { database, keyspace, durability, memtable_bytes }))
}

impl Fjall {
    fn is_busy(&self) -> bool {
        self.database.outstanding_flushes() > 0
            || self.keyspace.sealed_memtable_count() > 0
            || self.database.active_compactions() > 0
    }

    /// After a write, if it is to survive a power cut.
    fn sync(&self) -> Result<()> {
        match self.durability {
            Durability::Sync => {
                self.database.persist(PersistMode::SyncData).map_err(failed("sync"))
            }
            _ => Ok(()),
        }
    }
}

impl Store for Fjall {
    fn facts(&self) -> Facts {
        let log = match self.durability {
            Durability::Memory => "on, may wait in its buffer",
            Durability::Process => "on, written with each commit, not synced",
            Durability::Sync => "on, synced with each commit",
        };
        let settings = vec![
            ("log", log.to_owned()),
            ("cache", format!("{} bytes", self.database.cache_capacity())),
            ("memtable", format!("{} bytes", self.memtable_bytes)),
            ("workers", WORKERS.to_string()),
            ("compaction", "levels".to_owned()),
            ("filter", "as by default".to_owned()),
            ("compression", "off".to_owned()),
            ("data", "buffered".to_owned()),
            ("settle", "memtable rotated, then until no flush or compaction runs".to_owned()),
        ];
        Facts { version: env!("FJALL_VERSION").to_owned(), settings, commit_every: 1 }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession { store: self }))
    }

    fn settle(&self, limit: Duration) -> Result<Settled> {
        let start = clock::now();
        self.keyspace.rotate_memtable().map_err(failed("rotate the memtable"))?;
        let mut quiet = 0;
        while quiet < QUIET_STEPS {
            if clock::since(start) > limit {
                return Ok(Settled::TimeOver);
            }
            clock::sleep(SETTLE_STEP);
            quiet = if self.is_busy() { 0 } else { quiet + 1 };
        }
        Ok(Settled::Done)
    }

    fn counters(&self) -> Result<Counters> {
        let disk = self.database.journal_disk_space().map_err(failed("look at the journal"))?;
        Ok(Counters { log_disk_bytes: Some(disk), ..Counters::default() })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// fjall has no sessions: threads use the keyspace as it is.
struct FjallSession<'a> {
    store: &'a Fjall,
}

impl Session for FjallSession<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.keyspace.insert(key, value).map_err(failed("insert"))?;
        self.store.sync()
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.store.keyspace.remove(key).map_err(failed("remove"))?;
        self.store.sync()
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.store.keyspace.get(key).map_err(failed("get"))?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        for entry in self.store.keyspace.range(from..).take(count) {
            let (key, value) = entry.into_inner().map_err(failed("scan"))?;
            entries.push(&key, &value);
        }
        Ok(())
    }
}
