//! LMDB, by the crate `heed`: a copy-on-write B-tree that is read through a mapping of its file.
//!
//! It has no log: a commit writes the pages that changed, so writes wait in the session and are
//! committed a thousand together. There is one writer at a time.
//!
//! | durability | a commit |
//! | --- | --- |
//! | `memory`, `process` | `NOSYNC`: its pages are written to the file, and not synced |
//! | `sync` | is synced |
//!
//! No `WRITEMAP`: with data beyond memory, writes into the mapping would first fault the pages in,
//! and together with `NOSYNC` a crash of the system could leave a file that can't be opened.

#![expect(unsafe_code, reason = "an island: opening a file that is mapped into memory")]

use crate::failure::{Failure, Result};
use crate::kinds::Durability;
use crate::stores::waiting::Waiting;
use crate::stores::{Answers, Entries, Facts, Session, Settled, Store, StoreOptions, bytes_of};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};
use std::ops::Bound;
use std::time::Duration;

/// Writes of a session in one transaction.
const COMMIT_EVERY: u32 = 1000;

/// The address space for the file: this multiple of the data, plus this. Only used parts take
/// memory or disk.
const MAP_PART: u64 = 10;
const MAP_BYTES_MORE: u64 = 1 << 32;

/// Readers beside the threads: the driver's own.
const READERS_MORE: u32 = 16;

type Table = Database<'static, Bytes, Bytes>;

struct Lmdb {
    env: Env,
    table: Table,
    durability: Durability,
    map_bytes: u64,
}

/// Adds the failed operation to an error.
fn failed(what: &'static str) -> impl Fn(heed::Error) -> Failure {
    move |error| Failure::failed(what, error)
}

/// Makes a new database.
pub fn open(options: &StoreOptions) -> Result<Box<dyn Store>> {
    let map_bytes = options.live_bytes * MAP_PART + MAP_BYTES_MORE;
    let map_bytes = map_bytes.next_multiple_of(1 << 20);
    let readers = u32::try_from(options.threads).unwrap_or(u32::MAX - READERS_MORE) + READERS_MORE;
    let mut env_options = EnvOpenOptions::new();
    env_options.map_size(bytes_of(map_bytes)?).max_readers(readers);
    let mut flags = EnvFlags::NO_READ_AHEAD;
    if options.durability != Durability::Sync {
        flags |= EnvFlags::NO_SYNC;
    }
    // SAFETY: the folder is new and locked by the driver, so only this program changes the file.
    // With NO_SYNC only a crash of the system loses data, and the database is removed anyway.
    let env = unsafe { env_options.flags(flags).open(&options.path) }.map_err(failed("open"))?;
    let transaction = env.write_txn().map_err(failed("make the table"))?;
    let made = env
        .create_databases_and_commit(transaction, |opener, transaction| {
            let table = opener.create_database::<Bytes, Bytes>(transaction, None)?;
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(table))
        })
        .map_err(failed("make the table"))?;
    let Some(table) = made.commit() else {
        return Err(Failure::failed("make the table", "its transaction was not committed"));
    };
    Ok(Box::new(Lmdb { env, table, durability: options.durability, map_bytes }))
}

impl Store for Lmdb {
    fn facts(&self) -> Facts {
        let version = heed::lmdb_version();
        let commit = match self.durability {
            Durability::Sync => "synced",
            _ => "written, not synced (NOSYNC)",
        };
        let settings = vec![
            ("log", "none".to_owned()),
            ("commit", commit.to_owned()),
            ("reads", "mapped, NORDAHEAD".to_owned()),
            ("writes", "by calls, no WRITEMAP".to_owned()),
            ("map_size", format!("{} bytes of address space", self.map_bytes)),
            ("memory", "the page cache: only a memory cgroup limits it".to_owned()),
            ("settle", "a sync of the file".to_owned()),
        ];
        let version = format!("{}.{}.{}", version.major, version.minor, version.patch);
        Facts { version, settings, commit_every: COMMIT_EVERY }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LmdbSession { store: self, waiting: Waiting::default() }))
    }

    /// A sync can't be ended early: the limit is not looked at.
    fn settle(&self, _limit: Duration) -> Result<Settled> {
        self.env.force_sync().map_err(failed("sync"))?;
        Ok(Settled::Done)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

/// The writes of a thread that are not committed yet.
struct LmdbSession<'a> {
    store: &'a Lmdb,
    waiting: Waiting,
}

impl Session for LmdbSession<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.waiting.push(key, Some(value));
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.waiting.push(key, None);
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let Lmdb { env, table, .. } = self.store;
        let mut transaction = env.write_txn().map_err(failed("begin"))?;
        for (key, value) in self.waiting.iter() {
            match value {
                Some(value) => table.put(&mut transaction, key, value).map_err(failed("insert"))?,
                None => drop(table.delete(&mut transaction, key).map_err(failed("remove"))?),
            }
        }
        transaction.commit().map_err(failed("commit"))?;
        self.waiting.clear();
        Ok(())
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let transaction = self.store.env.read_txn().map_err(failed("begin"))?;
        let found = self.store.table.get(&transaction, key).map_err(failed("get"))?;
        if let Some(found) = found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        let transaction = self.store.env.read_txn().map_err(failed("begin"))?;
        let range = (Bound::Included(from), Bound::Unbounded);
        let found = self.store.table.range(&transaction, &range).map_err(failed("scan"))?;
        for entry in found.take(count) {
            let (key, value) = entry.map_err(failed("scan"))?;
            entries.push(key, value);
        }
        Ok(())
    }

    /// All in one transaction.
    fn multi_get(&mut self, keys: &[Vec<u8>], answers: &mut Answers) -> Result<()> {
        let transaction = self.store.env.read_txn().map_err(failed("begin"))?;
        for key in keys {
            answers.push(self.store.table.get(&transaction, key).map_err(failed("multi_get"))?);
        }
        Ok(())
    }
}
