//! redb: a copy-on-write B-tree with a cache of its own over buffered files.
//!
//! It has no log, so writes wait in the session and are committed a thousand together. A commit
//! without durability stays in the memory of the process until one that is durable; pages that it
//! freed are not used again before. So every tenth commit is durable, also where nobody asked.
//!
//! | durability | a commit |
//! | --- | --- |
//! | `memory`, `process` | `Durability::None`, each tenth `Durability::Immediate` |
//! | `sync` | `Durability::Immediate` |
//!
//! With `process` it does less than requested, and its settings say so: it has no level between.

use crate::failure::{Failure, Result};
use crate::kinds::Durability;
use crate::stores::waiting::Waiting;
use crate::stores::{Answers, Entries, Facts, Session, Settled, Store, StoreOptions, bytes_of};
use redb::{ReadOnlyTable, ReadableDatabase, TableDefinition};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The table as it was after some commit.
type View = ReadOnlyTable<&'static [u8], &'static [u8]>;

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("bench");

/// Writes of a session in one transaction.
const COMMIT_EVERY: u32 = 1000;

/// One in so many commits is durable, at the least.
const DURABLE_EVERY: u64 = 10;

/// The cache is this many percent of the memory: pages of transactions that are not durable yet are
/// beyond it. With most of the memory it was killed for what it used.
const CACHE_PERCENT: u64 = 40;

struct Redb {
    database: redb::Database,
    /// Transactions that have begun to write: there is one at a time.
    begun: AtomicU64,
    /// The number of committed ones: a view from before the last is outdated.
    commits: AtomicU64,
    durability: Durability,
    cache_bytes: usize,
}

/// Adds the failed operation to an error.
fn failed<E: Display>(what: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::failed(what, error)
}

/// Makes a new database.
pub fn open(options: &StoreOptions) -> Result<Box<dyn Store>> {
    let cache_bytes = bytes_of(options.memory / 100 * CACHE_PERCENT)?;
    let path = options.path.join("data.redb");
    let database = redb::Database::builder()
        .set_cache_size(cache_bytes)
        .create(path)
        .map_err(failed("open"))?;
    let (begun, commits) = (AtomicU64::new(0), AtomicU64::new(0));
    let store = Redb { database, begun, commits, durability: options.durability, cache_bytes };
    store.write(&Waiting::default(), Durability::Sync)?;
    Ok(Box::new(store))
}

impl Redb {
    /// Applies `waiting` in one transaction; makes the table if there is none.
    fn write(&self, waiting: &Waiting, durability: Durability) -> Result<()> {
        let mut transaction = self.database.begin_write().map_err(failed("begin"))?;
        let is_turn = self.begun.fetch_add(1, Ordering::Relaxed).is_multiple_of(DURABLE_EVERY);
        let durability = match durability {
            Durability::Memory | Durability::Process if !is_turn => redb::Durability::None,
            _ => redb::Durability::Immediate,
        };
        transaction.set_durability(durability).map_err(failed("set the durability"))?;
        let mut table = transaction.open_table(TABLE).map_err(failed("open the table"))?;
        for (key, value) in waiting.iter() {
            match value {
                Some(value) => drop(table.insert(key, value).map_err(failed("insert"))?),
                None => drop(table.remove(key).map_err(failed("remove"))?),
            }
        }
        drop(table);
        transaction.commit().map_err(failed("commit"))?;
        self.commits.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Store for Redb {
    fn facts(&self) -> Facts {
        let every = u64::from(COMMIT_EVERY) * DURABLE_EVERY;
        let commit = match self.durability {
            Durability::Sync => "durable".to_owned(),
            _ => format!(
                "Durability::None, one in {DURABLE_EVERY} durable: the end of the process \
                 may lose {every} writes"
            ),
        };
        let settings = vec![
            ("log", "none".to_owned()),
            ("commit", commit),
            ("cache", format!("{} bytes", self.cache_bytes)),
            ("data", "buffered".to_owned()),
            ("settle", "a durable commit".to_owned()),
        ];
        let version = env!("REDB_VERSION").to_owned();
        Facts { version, settings, commit_every: COMMIT_EVERY }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession { store: self, waiting: Waiting::default(), view: None }))
    }

    /// A commit can't be ended early: the limit is not looked at.
    fn settle(&self, _limit: Duration) -> Result<Settled> {
        self.write(&Waiting::default(), Durability::Sync)?;
        Ok(Settled::Done)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The uncommitted writes of a thread, and the newest view it has read from: opening the table
/// costs more than a get, so the view is reused until the next commit.
struct RedbSession<'a> {
    store: &'a Redb,
    waiting: Waiting,
    view: Option<(u64, View)>,
}

impl RedbSession<'_> {
    /// The table as it is after the last commit.
    fn table(&mut self) -> Result<&View> {
        let commits = self.store.commits.load(Ordering::Acquire);
        let table = match self.view.take() {
            Some((of, table)) if of == commits => table,
            _ => {
                let transaction = self.store.database.begin_read().map_err(failed("begin"))?;
                transaction.open_table(TABLE).map_err(failed("open the table"))?
            }
        };
        Ok(&self.view.insert((commits, table)).1)
    }
}

impl Session for RedbSession<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.waiting.push(key, Some(value));
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.waiting.push(key, None);
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        // A view of its own would keep the pages that this frees.
        self.view = None;
        self.store.write(&self.waiting, self.store.durability)?;
        self.waiting.clear();
        Ok(())
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.table()?.get(key).map_err(failed("get"))?;
        if let Some(found) = &found {
            value.extend_from_slice(found.value());
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        let found = self.table()?.range(from..).map_err(failed("scan"))?;
        for entry in found.take(count) {
            let (key, value) = entry.map_err(failed("scan"))?;
            entries.push(key.value(), value.value());
        }
        Ok(())
    }

    /// All from one view.
    fn multi_get(&mut self, keys: &[Vec<u8>], answers: &mut Answers) -> Result<()> {
        let table = self.table()?;
        for key in keys {
            let found = table.get(key.as_slice()).map_err(failed("multi_get"))?;
            answers.push(found.as_ref().map(|found| found.value()));
        }
        Ok(())
    }
}
