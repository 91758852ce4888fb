//! Transactions: reads and writes over all keyspaces that take effect at once, or not at all.
//!
//! ```text
//!   begin --> [ reads from a snapshot, own updates over it ] --> commit --> check --> batch
//!                                                                            |
//!                                                                            +----> Conflict
//! ```
//!
//! They are optimistic: nobody waits for a transaction, and none is aborted before its commit.
//! `docs/transactions.md` says what is guaranteed and what it costs.
//!
//! | file | content |
//! | --- | --- |
//! | `mod` | the handle |
//! | `iter` | iterators over the snapshot and the transaction's own updates |
//! | `reads`, `updates` | what it has read, and what it will write |
//! | `memory` | the memory of both |
//! | `commit` | the check of its reads |
//! | `swap` | compare and swap, update: the same for one key |

pub(crate) mod commit;
pub(crate) mod iter;
mod memory;
mod reads;
mod swap;
mod updates;

use crate::api::handle::Handle;
use crate::api::keyspace::{Keyspace, check_entry, checked_range};
use crate::api::snapshot::Snapshot;
use crate::base::bytes::Value;
use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::options::commit::CommitOptions;
use crate::runtime::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::versions::recent_writes::Watch;
use iter::TransactionIter;
use reads::ReadSet;
use std::ops::RangeBounds;
use updates::Updates;

/// Distinguishes the savepoints of all transactions of the process.
static TRANSACTIONS: AtomicU64 = AtomicU64::new(0);

/// Reads and writes over all keyspaces of a database that take effect at once, or not at all.
///
/// Reads see the database as it was when the transaction began, with the transaction's own writes.
/// [`Transaction::commit`] applies the writes if no other commit has changed anything that was
/// read, including keys that are new in a range that was read; otherwise it fails with
/// [`crate::ErrorKind::Conflict`] and changes nothing. So transactions are serializable: the
/// outcome is that of running them one after the other, in the order of their commits. A
/// transaction that writes nothing never fails with a conflict.
///
/// Nobody waits for a transaction, and dropping it discards it.
/// [`Database::transact`](crate::Database::transact) runs one again after conflicts:
///
/// ```
/// # use chelonia::{Database, ErrorKind, KeyspaceOptions};
/// # fn main() -> chelonia::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let database = Database::open(directory.path().join("d"))?;
/// let seats = database.keyspace("seats", KeyspaceOptions::default())?;
/// let mut first = database.transaction()?;
/// let mut second = database.transaction()?;
/// for (transaction, name) in [(&mut first, "ada"), (&mut second, "grace")] {
///     if !transaction.contains_key(&seats, "12A")? {
///         transaction.insert(&seats, "12A", name)?;
///     }
/// }
/// first.commit()?;
/// assert_eq!(second.commit().unwrap_err().kind(), ErrorKind::Conflict);
/// assert_eq!(seats.get("12A")?.unwrap(), "ada");
/// # Ok(())
/// # }
/// ```
///
/// Its writes may take as many bytes as a [`crate::Batch`], and the keys that it has read an eighth
/// of the memory budget. Both are counted in the budget, of which all open transactions may use a
/// quarter (at least 16 MiB), large values included; calls that would use more fail with
/// `OutOfMemory`. It holds a snapshot, with what that retains.
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transaction {
    // Before the handle, so that they are released while the database is still open.
    watch: Watch,
    snapshot: Snapshot,
    reads: Mutex<ReadSet>,
    updates: Updates,
    number: u64,
    handle: Arc<Handle>,
}

/// A state of a transaction to go back to: see [`Transaction::savepoint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savepoint {
    transaction: u64,
    number: u64,
}

impl Transaction {
    pub(crate) fn begin(handle: Arc<Handle>) -> Result<Self> {
        // The watch first: what is written after the snapshot is written after the watch began.
        let watch = handle.watch()?;
        let snapshot = Snapshot::new(Arc::clone(&handle));
        snapshot.check_held()?;
        let reads = Mutex::new(ReadSet::new(handle.budget()));
        let updates = Updates::new(handle.budget());
        let number = TRANSACTIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { watch, snapshot, reads, updates, number, handle })
    }

    /// Returns the value of `key` in `keyspace`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut transaction = database.transaction()?;
    /// transaction.insert(&people, "ada", "analyst")?;
    /// assert_eq!(transaction.get(&people, "ada")?.unwrap(), "analyst");
    /// assert_eq!(people.get("ada")?, None); // Not committed yet.
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the keyspace belongs to another database; `OutOfMemory` if the keys
    /// that were read would take more than an eighth of the memory budget, or open transactions
    /// use too much; otherwise as [`Snapshot::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.check_reads(keyspace)?;
        let key = key.as_ref();
        if let Some(own) = self.updates.get(keyspace.core.id, key) {
            return Ok(own.clone());
        }
        let value = self.snapshot.get(keyspace, key)?;
        self.reads.lock().add_key(&keyspace.core, key)?;
        Ok(value)
    }

    /// Returns whether `key` exists in `keyspace`. Does not read large values.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let mut transaction = database.transaction()?;
    /// transaction.remove(&people, "ada")?;
    /// assert!(!transaction.contains_key(&people, "ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.check_reads(keyspace)?;
        let key = key.as_ref();
        if let Some(own) = self.updates.get(keyspace.core.id, key) {
            return Ok(own.is_some());
        }
        let is_there = self.snapshot.contains_key(keyspace, key)?;
        self.reads.lock().add_key(&keyspace.core, key)?;
        Ok(is_there)
    }

    /// Returns the values of `keys` in `keyspace`, in the given order. Blocks that are not in
    /// memory are read in parallel.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let mut transaction = database.transaction()?;
    /// transaction.insert(&people, "grace", "admiral")?;
    /// let values = transaction.multi_get(&people, ["ada", "bob", "grace"])?;
    /// assert_eq!(values[0].as_deref(), Some(&b"analyst"[..]));
    /// assert_eq!(values[1], None);
    /// assert_eq!(values[2].as_deref(), Some(&b"admiral"[..]));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        self.check_reads(keyspace)?;
        let keys: Vec<K> = keys.into_iter().collect();
        let own = |key: &K| self.updates.get(keyspace.core.id, key.as_ref());
        let others: Vec<&[u8]> =
            keys.iter().filter(|key| own(key).is_none()).map(AsRef::as_ref).collect();
        let mut stored = self.snapshot.multi_get(keyspace, &others)?.into_iter();
        {
            let mut reads = self.reads.lock();
            others.iter().try_for_each(|key| reads.add_key(&keyspace.core, key))?;
        }
        let value = |key: &K| match own(key) {
            Some(own) => own.clone(),
            None => stored.next().flatten(),
        };
        Ok(keys.iter().map(value).collect())
    }

    /// Iterates over the entries of `keyspace` whose keys are within `range`, in key order, from
    /// either end. All keys that the iterator passes over count as read, absent ones too. Errors
    /// are yielded as `Err` items: those of [`Transaction::get`], and `InvalidArgument` if the
    /// range ends before it begins.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let jobs = database.keyspace("jobs", Default::default())?;
    /// let mut transaction = database.transaction()?;
    /// assert_eq!(transaction.range(&jobs, "a".."z").count(), 0);
    /// transaction.insert(&jobs, "report", "written")?;
    /// jobs.insert("backup", "running")?; // In the range that was empty before.
    /// assert_eq!(transaction.commit().unwrap_err().kind(), chelonia::ErrorKind::Conflict);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn range<K: AsRef<[u8]>, R: RangeBounds<K>>(
        &self,
        keyspace: &Keyspace,
        range: R,
    ) -> TransactionIter<'_> {
        self.iter_over(keyspace, checked_range(&range))
    }

    /// Iterates over the entries of `keyspace` whose keys start with `prefix`. As
    /// [`Transaction::range`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("user/ada", "analyst")?;
    /// let transaction = database.transaction()?;
    /// let (key, _) = transaction.prefix(&people, "user/").next_back().unwrap()?;
    /// assert_eq!(key, "user/ada");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionIter<'_> {
        self.iter_over(keyspace, Ok(KeyRange::prefix(prefix.as_ref())))
    }

    /// Iterates over all entries of `keyspace`. As [`Transaction::range`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut transaction = database.transaction()?;
    /// transaction.insert(&people, "ada", "analyst")?;
    /// let (key, value) = transaction.iter(&people).next().unwrap()?;
    /// assert_eq!((&key[..], &value[..]), (&b"ada"[..], &b"analyst"[..]));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> TransactionIter<'_> {
        self.iter_over(keyspace, Ok(KeyRange::all()))
    }

    /// Sets `key` of `keyspace` to `value`.
    ///
    /// # Errors
    /// `InvalidArgument` if the key or value is too long, if all writes together are over
    /// [`crate::limits::BATCH_BYTES_MAX`], or if the keyspace belongs to another database;
    /// `OutOfMemory` if open transactions use too much memory; `Stopped` after a close. The
    /// transaction is unchanged then.
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.set(keyspace, key.as_ref(), Some(value.as_ref()))
    }

    /// Removes `key` from `keyspace`, if it exists.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let mut transaction = database.transaction()?;
    /// transaction.insert(&people, "lovelace", "analyst")?;
    /// transaction.remove(&people, "ada")?;
    /// transaction.commit()?;
    /// assert_eq!(people.first_key_value()?.unwrap().0, "lovelace");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`].
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.set(keyspace, key.as_ref(), None)
    }

    /// Returns the number of keys that will be written.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut transaction = database.transaction()?;
    /// transaction.insert(&people, "ada", "analyst")?;
    /// transaction.insert(&people, "ada", "countess")?;
    /// assert_eq!(transaction.updates(), 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn updates(&self) -> usize {
        self.updates.count()
    }

    /// Remembers the current writes, to go back to them with [`Transaction::rollback_to`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut transaction = database.transaction()?;
    /// transaction.insert(&people, "ada", "analyst")?;
    /// let savepoint = transaction.savepoint();
    /// transaction.insert(&people, "ada", "countess")?;
    /// transaction.rollback_to(savepoint)?;
    /// transaction.commit()?;
    /// assert_eq!(people.get("ada")?.unwrap(), "analyst");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint { transaction: self.number, number: self.updates.save() }
    }

    /// Takes back all writes since `savepoint`, which stays valid; later savepoints do not. Reads
    /// since then still count.
    ///
    /// # Errors
    /// `InvalidArgument` if the savepoint is one of another transaction, or after one that was gone
    /// back to.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        if savepoint.transaction != self.number {
            return Err(Error::invalid("the savepoint belongs to another transaction"));
        }
        if self.updates.go_back(savepoint.number) {
            return Ok(());
        }
        Err(Error::invalid("the savepoint is no longer valid: an earlier one was rolled back to"))
    }

    /// Commits the writes at the database's durability level, if nothing that was read has changed
    /// since the transaction began.
    ///
    /// # Errors
    /// `Conflict` if something that was read has changed: run the transaction again; `NotFound` if
    /// something is written, and a keyspace that was read or is written has been dropped; otherwise
    /// as a [`crate::Batch`]. Without writes only those of a sync, at level `Sync`.
    /// Nothing was changed after `Conflict`, `NotFound` and `InvalidArgument`.
    pub fn commit(self) -> Result<()> {
        self.commit_with(CommitOptions::new())
    }

    /// Commits with commit options; a [`crate::Durability`] converts to them. As
    /// [`Transaction::commit`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut transaction = database.transaction()?;
    /// transaction.insert(&people, "ada", "analyst")?;
    /// transaction.commit_with(chelonia::Durability::Sync)?;
    /// assert!(people.contains_key("ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::commit`]; also `WouldBlock` if it would wait longer than the options
    /// allow.
    pub fn commit_with(self, options: impl Into<CommitOptions>) -> Result<()> {
        let Self { watch, snapshot, reads, updates, handle, .. } = &self;
        commit::commit(handle, snapshot, watch, &mut reads.lock(), updates, options.into())
    }

    fn set(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.check_reads(keyspace)?;
        check_entry(key, value)?;
        self.updates.set(&keyspace.core, key, value)
    }

    fn iter_over(&self, keyspace: &Keyspace, range: Result<KeyRange>) -> TransactionIter<'_> {
        let (range, failure) = match range {
            Ok(range) => (range, None),
            Err(error) => (KeyRange::all(), Some(error)),
        };
        let own = match self.is_own(keyspace) && !range.is_empty() && failure.is_none() {
            true => self.updates.range(keyspace.core.id, &range),
            false => None,
        };
        let stored = self.snapshot.iter_over(keyspace, range.clone());
        // Nothing is recorded of a keyspace of another database, whose number may be that of one
        // of this, and in a forked child, where no lock is taken.
        let read = match failure.map_or_else(|| self.check_reads(keyspace), Err) {
            Ok(()) => self.reads.lock().begin_range(&keyspace.core, &range),
            Err(error) => Err(error),
        };
        TransactionIter::new(stored, own, (&self.handle, &self.reads), range, read)
    }

    /// Fails if the keyspace is one of another database, or this one is closed.
    fn check_reads(&self, keyspace: &Keyspace) -> Result<()> {
        self.handle.reads().check()?;
        if self.is_own(keyspace) {
            return Ok(());
        }
        Err(Error::invalid("the keyspace belongs to another database than the transaction"))
    }

    /// True if `keyspace` is one of this database.
    fn is_own(&self, keyspace: &Keyspace) -> bool {
        Arc::ptr_eq(&keyspace.handle, &self.handle)
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction({} updates)", self.updates.count())
    }
}
