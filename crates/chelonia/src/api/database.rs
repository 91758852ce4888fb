//! The database handle: opening, keyspaces, snapshots, maintenance calls.

use crate::admission::governor::Governor;
use crate::api::batch::Batch;
use crate::api::builder::DatabaseBuilder;
use crate::api::handle::Handle;
use crate::api::keyspace::Keyspace;
use crate::api::snapshot::Snapshot;
use crate::api::transaction::Transaction;
use crate::base::dump::DumpVisitor;
use crate::base::error::{ErrorKind, Result};
use crate::base::limits::TRANSACTION_ATTEMPTS_MAX;
use crate::integrity::stats::Stats;
use crate::integrity::verify::VerifyReport;
use crate::options::commit::CommitOptions;
use crate::options::keyspace::KeyspaceOptions;
use crate::recovery::open;
use crate::runtime::sync::Arc;
use crate::state::pending_sync::PendingSync;
use crate::storage::io::direct::DirectDirectory;
use std::path::Path;

/// An open database: one directory, one log, one data file, one memory budget, up to
/// [`crate::limits::KEYSPACES_MAX`] keyspaces. Cheap to clone; all clones are the same database,
/// usable from any number of threads. It stays open until [`Database::close`], or until its last
/// handle of any kind (database, keyspace, transaction, snapshot, iterator, batch) is dropped.
#[derive(Clone)]
pub struct Database {
    pub(crate) handle: Arc<Handle>,
}

impl DatabaseBuilder {
    /// Opens the database and recovers it if it was not closed. The path is a directory for this
    /// database alone. If it does not exist, it is created; its parent directory must exist.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// let database = Database::builder(&path).memory(64 << 20).open()?;
    /// let error = Database::builder(&path).open().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::AlreadyOpen);
    /// # drop(database);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyOpen` if it is open elsewhere; `NotFound` if it does not exist and [`Self::create`]
    /// is false, or its parent directory does not exist; `InvalidArgument` if the path is a file,
    /// or a directory with other files but no database, if the memory budget is below the minimum,
    /// or if the number of logs is out of range; `Unsupported` if the format is newer; `Corrupt` if
    /// durable data is damaged; `PermissionDenied`, `NoSpace` and `Io` as reported by the system.
    pub fn open(mut self) -> Result<Database> {
        // Refused before anything is created.
        Governor::check(self.settings.memory)?;
        self.settings.log_layout.logs()?;
        let directory = match self.settings.internals.directory.take() {
            Some(directory) => directory,
            None => {
                let create = self.settings.create && !self.settings.read_only;
                Arc::new(DirectDirectory::open(&self.path, create)?)
            }
        };
        let opened = open::open(&self.settings, &directory);
        let (core, threads) = opened.map_err(|error| error.within(directory.path()))?;
        Ok(Database { handle: Handle::new(core, threads) })
    }
}

impl Database {
    /// Opens the database at `path` with the default options; creates it if it does not exist.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// let database = Database::open(&path)?;
    /// assert!(database.keyspaces().is_empty());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`DatabaseBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Creates a database with the default options whose files are in memory, for tests; see
    /// [`DatabaseBuilder::in_memory`].
    ///
    /// ```
    /// # use chelonia::Database;
    /// let database = Database::in_memory()?;
    /// let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// assert_eq!(people.get("ada")?.unwrap(), "analyst");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfMemory` if the system refuses memory.
    pub fn in_memory() -> Result<Self> {
        Self::builder("in memory").in_memory().open()
    }

    /// Returns a builder with the options for opening the database at `path`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// let database = Database::builder(&path).memory(64 << 20).threads(2).open()?;
    /// assert_eq!(database.stats().memory.budget_bytes, 64 << 20);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn builder(path: impl AsRef<Path>) -> DatabaseBuilder {
        DatabaseBuilder::new(path.as_ref())
    }

    /// Opens the keyspace `name`, or creates it. Options that are not set keep their stored values;
    /// in a new keyspace they get their defaults. The name has 1 to
    /// [`crate::limits::KEYSPACE_NAME_BYTES_MAX`] bytes. A new keyspace is durable on return.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # use chelonia::{EngineKind, KeyspaceOptions};
    /// let people = database.keyspace("people", KeyspaceOptions::new())?;
    /// let options = KeyspaceOptions::new().engine(EngineKind::Autumn);
    /// let events = database.keyspace("events", options)?;
    /// assert_eq!(people.engine_options().kind(), EngineKind::Turtle);
    /// assert_eq!(events.engine_options().kind(), EngineKind::Autumn);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the name or an option is out of range, or a fixed option differs from
    /// the stored one; `NotFound` if it does not exist and the database is read-only; otherwise as
    /// a commit.
    #[expect(clippy::needless_pass_by_value, reason = "callers make the options in the call")]
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let core = self.handle.keyspaces().open(name, &options)?;
        Ok(Keyspace { handle: Arc::clone(&self.handle), core })
    }

    /// Returns the names of all keyspaces, sorted.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// database.keyspace("people", Default::default())?;
    /// database.keyspace("events", Default::default())?;
    /// assert_eq!(database.keyspaces(), ["events", "people"]);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn keyspaces(&self) -> Vec<String> {
        self.handle.keyspaces().names()
    }

    /// Drops the keyspace `name` and its data. The drop is durable on return; after a crash before
    /// that, the keyspace is complete or gone. Calls of its handles then fail with `NotFound`;
    /// older snapshots still read it. Space that cannot be enumerated because of damage is freed by
    /// the next open.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// database.drop_keyspace("people")?;
    /// assert_eq!(people.get("ada").unwrap_err().kind(), chelonia::ErrorKind::NotFound);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if it does not exist; otherwise as a commit. After `NoSpace` it still exists.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.handle.keyspaces().drop(name)
    }

    /// Returns an empty batch.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut batch = database.batch();
    /// batch.insert(&people, "ada", "analyst").remove(&people, "bob");
    /// batch.commit()?;
    /// assert_eq!(people.len()?, 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.handle))
    }

    /// Returns a snapshot of all keyspaces. If too many snapshots and iterators are open, its reads
    /// fail with `OutOfMemory`; see [`Snapshot`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let snapshot = database.snapshot();
    /// people.insert("ada", "analyst")?;
    /// assert_eq!(snapshot.get(&people, "ada")?, None);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.handle))
    }

    /// Begins a transaction over all keyspaces.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut transaction = database.transaction()?;
    /// if transaction.get(&people, "ada")?.is_none() {
    ///     transaction.insert(&people, "ada", "analyst")?;
    /// }
    /// transaction.commit()?;
    /// assert_eq!(people.get("ada")?.unwrap(), "analyst");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfMemory` if too many snapshots, iterators and transactions are open; `Stopped` after a
    /// close.
    pub fn transaction(&self) -> Result<Transaction> {
        Transaction::begin(Arc::clone(&self.handle))
    }

    /// Runs `body` in a transaction and commits it; returns the result of `body`. After a conflict
    /// it is run again with a new transaction, up to
    /// [`crate::limits::TRANSACTION_ATTEMPTS_MAX`] times, with growing pauses. If `body` fails,
    /// nothing is committed.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let accounts = database.keyspace("accounts", Default::default())?;
    /// # use chelonia::{Error, ErrorKind};
    /// # for name in ["ada", "grace"] { accounts.insert(name, 10_u64.to_le_bytes())?; }
    /// let move_money = |from: &str, to: &str, amount: u64| {
    ///     database.transact(|transaction| {
    ///         let mut balance = |name: &str, change: i64| {
    ///             let old = transaction.get(&accounts, name)?.unwrap();
    ///             let old = u64::from_le_bytes(old.as_slice().try_into().unwrap());
    ///             let new = old.checked_add_signed(change).ok_or_else(|| {
    ///                 Error::new(ErrorKind::InvalidArgument, "not enough money")
    ///             })?;
    ///             transaction.insert(&accounts, name, new.to_le_bytes())
    ///         };
    ///         balance(from, -(amount as i64))?;
    ///         balance(to, amount as i64)
    ///     })
    /// };
    /// move_money("ada", "grace", 7)?;
    /// assert!(move_money("ada", "grace", 7).is_err());
    /// assert_eq!(accounts.get("grace")?.unwrap(), 17_u64.to_le_bytes());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `body`, unless it is a `Conflict`; that if all attempts had one; otherwise as
    /// [`Transaction::commit`].
    pub fn transact<T>(&self, body: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_with(CommitOptions::new(), body)
    }

    /// Runs `body` in a transaction and commits it with commit options; a [`crate::Durability`]
    /// converts to them. As [`Database::transact`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let sync = chelonia::Durability::Sync;
    /// database.transact_with(sync, |transaction| transaction.insert(&people, "ada", "analyst"))?;
    /// assert!(people.contains_key("ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Database::transact`]; also `WouldBlock` if a commit would wait longer than the options
    /// allow.
    pub fn transact_with<T>(
        &self,
        options: impl Into<CommitOptions>,
        mut body: impl FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        let options = options.into();
        let mut attempt = 0;
        loop {
            let mut transaction = self.transaction()?;
            let done = body(&mut transaction)
                .and_then(|result| transaction.commit_with(options).map(|()| result));
            attempt += 1;
            match done {
                Err(error)
                    if error.kind() == ErrorKind::Conflict
                        && attempt < TRANSACTION_ATTEMPTS_MAX =>
                {
                    self.handle.pause(attempt - 1);
                }
                done => return done,
            }
        }
    }

    /// Syncs the log: every commit so far survives a power failure when this returns.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// for number in 0..1000_u32 {
    ///     people.insert(number.to_be_bytes(), "new")?;
    /// }
    /// database.sync()?; // One sync for all of them.
    /// # assert!(database.stats().io.log_syncs >= 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Io` if the device failed, which stops all writes; `Stopped` after that; `ReadOnly`.
    pub fn sync(&self) -> Result<()> {
        self.handle.upkeep().sync()
    }

    /// Requests a sync of every commit so far, and returns at once: the result shows when they
    /// survive a power failure, by a callback or as a `Future`. One sync serves all requests that
    /// were made before it began, so a thread can have thousands under way.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let first = database.sync_later();
    /// people.insert("grace", "admiral")?;
    /// let second = database.sync_later();
    /// first.wait()?;
    /// second.wait()?;
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// The errors are those of [`Database::sync`], and come with the result.
    pub fn sync_later(&self) -> PendingSync {
        self.handle.upkeep().sync_later()
    }

    /// Makes a checkpoint: every commit so far is in the data file when this returns, need not be
    /// replayed by the next open, and its log space is released.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// database.checkpoint()?;
    /// assert!(database.stats().background.checkpoints >= 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As a commit.
    pub fn checkpoint(&self) -> Result<()> {
        self.handle.upkeep().checkpoint()
    }

    /// Verifies all stored data, while reads and writes continue: every checksum and every
    /// invariant of the data file, and of the part of the log that a recovery would read. Damage is
    /// listed in the report and is not an error of this call.
    ///
    /// Log segments that checkpoints release meanwhile are reused only after the verification, so
    /// until then the log grows with every write.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let report = database.verify()?;
    /// assert!(report.is_clean(), "{:?}", report.findings);
    /// assert_eq!(report.entries + report.log_entries, 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Stopped` after a close.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.handle.upkeep().verify()
    }

    /// Sends the structure on disk to `out`, item by item: the superblock, then each keyspace with
    /// its tree. A `String` collects the items as text, one per line. Kinds and fields of items may
    /// change with any version. The boundaries of nodes and runs in the items are keys of the user.
    ///
    /// ```
    /// # fn main() -> chelonia::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// let mut text = String::new();
    /// database.dump(&mut text)?;
    /// assert!(text.starts_with("superblock generation "));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As a read: the items before the damage have been sent. Errors of `out` are returned.
    pub fn dump(&self, out: &mut dyn DumpVisitor) -> Result<()> {
        self.handle.upkeep().dump(out)
    }

    /// Returns the current statistics. Totals start at zero with each open.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let stats = database.stats();
    /// assert_eq!((stats.commits.commits, stats.commits.user_bytes), (1, 10));
    /// assert_eq!((&stats.keyspaces[0].name[..], stats.keyspaces[0].engine), ("people", "turtle"));
    /// assert!(stats.memory.used_bytes <= stats.memory.budget_bytes);
    /// assert_eq!(stats.scrub.damaged_blocks, 0);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.upkeep().stats()
    }

    /// Changes the memory budget while the database is open. Caches shrink before this returns;
    /// memtables that are too large are flushed in the background.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// database.set_memory(64 << 20)?;
    /// assert_eq!(database.stats().memory.budget_bytes, 64 << 20);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if it is below the minimum, which the error names; `Stopped` after a
    /// close.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        self.handle.upkeep().set_memory(bytes)
    }

    /// Closes the database: stops background work, makes a checkpoint (so the next open replays
    /// nothing), syncs, and releases the lock. Calls of other handles then fail with `Stopped`; the
    /// handles hold hardly any memory. Dropping all handles closes the database likewise, but
    /// cannot report an error, and makes no checkpoint in a panicking thread.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// database.close()?;
    /// assert_eq!(people.get("ada").unwrap_err().kind(), chelonia::ErrorKind::Stopped);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NoSpace` or `OutOfMemory` if the checkpoint failed: the log stays, and nothing is lost.
    /// `Io`
    /// if the last sync failed, `Stopped` if an earlier failure had stopped writes; commits
    /// acknowledged at level `Sync` are safe in any case. The database is closed even if an error
    /// is returned.
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Database({:?})", self.keyspaces())
    }
}
