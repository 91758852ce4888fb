//! WiredTiger: a B-tree with a cache of its own, direct I/O, a log that is written but not synced.
//!
//! Each thread has a session with one cursor; a call on it is a transaction of its own. A settle is
//! a checkpoint: none is made otherwise, so the log grows until then.
//!
//! | durability | `transaction_sync` | the log |
//! | --- | --- | --- |
//! | `memory` | off | may wait in a buffer |
//! | `process` | on, method `none` | is written before a commit returns |
//! | `sync` | on, method `fsync` | is synced before a commit returns |

mod ffi;

use crate::failure::{Failure, Result};
use crate::kinds::Durability;
use crate::stores::{Counters, Entries, Facts, Session, Settled, Store, StoreOptions, files_bytes};
use ffi::{Connection, Cursor};
use std::path::PathBuf;
use std::time::Duration;

/// The part of the memory that is the cache. The library counts requested bytes, not those that the
/// allocator takes: with a cache of 2.6 GB, 5.7 GB were resident.
const CACHE_PART: u64 = 2;

/// Below this the library can't hold the pages that a few threads need.
const CACHE_BYTES_MIN: u64 = 16_000_000;

/// Sessions of its own, beside those of the threads.
const SESSIONS_MORE: u64 = 50;

struct WiredTiger {
    connection: Connection,
    path: PathBuf,
    settings: Vec<(&'static str, String)>,
}

/// Makes a new database.
pub fn open(options: &StoreOptions) -> Result<Box<dyn Store>> {
    let cache = options.memory / CACHE_PART;
    if cache < CACHE_BYTES_MIN {
        let least = CACHE_BYTES_MIN * CACHE_PART / 1_000_000;
        return Err(Failure::usage(format!("--memory: wiredtiger needs at least {least}MB")));
    }
    let (sync, log) = match options.durability {
        Durability::Memory => ("(enabled=false)", "on, may wait in its buffer"),
        Durability::Process => {
            ("(enabled=true,method=none)", "on, written with each commit, not synced")
        }
        Durability::Sync => ("(enabled=true,method=fsync)", "on, synced with each commit"),
    };
    let sessions = options.threads + SESSIONS_MORE;
    let config = format!(
        "create,exclusive,cache_size={cache},direct_io=[data],log=(enabled=true),\
         transaction_sync={sync},eviction=(threads_min=1,threads_max=2),eviction_dirty_target=50,\
         eviction_dirty_trigger=60,session_max={sessions},statistics=(fast)"
    );
    let table = "key_format=u,value_format=u,allocation_size=4KB,internal_page_max=4KB,\
                 leaf_page_max=4KB";
    let connection = Connection::create(&options.path, &config, table)?;
    let settings = vec![
        ("log", log.to_owned()),
        ("transaction_sync", sync.to_owned()),
        ("cache_size", format!("{cache} bytes: half, as its resident memory is twice as much")),
        ("pages", "4 KB, leaves and inner ones".to_owned()),
        ("eviction", "1 to 2 threads, dirty target 50%, dirty trigger 60%".to_owned()),
        ("compression", "off".to_owned()),
        ("data", "O_DIRECT".to_owned()),
        ("checkpoints", "at a settle, none else".to_owned()),
        ("settle", "a checkpoint".to_owned()),
    ];
    Ok(Box::new(WiredTiger { connection, path: options.path.clone(), settings }))
}

impl Store for WiredTiger {
    fn facts(&self) -> Facts {
        Facts { version: ffi::version(), settings: self.settings.clone(), commit_every: 1 }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(TigerSession { cursor: self.connection.cursor()? }))
    }

    /// A checkpoint can't be ended early: the limit is not looked at.
    fn settle(&self, _limit: Duration) -> Result<Settled> {
        self.connection.checkpoint()?;
        Ok(Settled::Done)
    }

    fn counters(&self) -> Result<Counters> {
        Ok(Counters {
            log_bytes: Some(self.connection.log_bytes()?),
            log_disk_bytes: files_bytes(&self.path, |name| name.starts_with(b"WiredTigerLog")),
            ..Counters::default()
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.connection.close()
    }
}

struct TigerSession<'a> {
    cursor: Cursor<'a>,
}

impl Session for TigerSession<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.cursor.insert(key, value)
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.remove(key)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.cursor.get(key, value)
    }

    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        self.cursor.scan(from, count, entries)
    }
}
