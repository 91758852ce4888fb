//! The keyspace handle: reads and writes.

use crate::api::handle::Handle;
use crate::api::iter::Iter;
use crate::base::bytes::{Key, Value};
use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::engine::{EngineOptions, LiveOptions};
use crate::integrity::verify::VerifyReport;
use crate::options::commit::CommitOptions;
use crate::options::compression::Compression;
use crate::runtime::sync::Arc;
use crate::state::keyspace::KeyspaceCore;
use crate::write::writes::Write;
use std::ops::{Bound, RangeBounds};

/// A named ordered map of bytes to bytes. Cheap to clone; all clones are the same keyspace, usable
/// from any number of threads.
///
/// A key has 0 to [`crate::limits::KEY_BYTES_MAX`] bytes, a value 0 to
/// [`crate::limits::VALUE_BYTES_MAX`] bytes. Keys are ordered as byte strings.
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) handle: Arc<Handle>,
    pub(crate) core: Arc<KeyspaceCore>,
}

impl Keyspace {
    /// Returns the name.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// assert_eq!(people.name(), "people");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Sets `key` to `value`, at the database's durability level.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// people.insert("ada", "countess")?;
    /// assert_eq!(people.get("ada")?.unwrap(), "countess");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the key or value is too long; `NoSpace`, `TooManyFiles` or
    /// `OutOfMemory` if the system lacks that resource (nothing was changed: free some and retry);
    /// `Io` if a write failed; `Stopped` after that, or after a close; `ReadOnly`; `NotFound` if
    /// the keyspace was dropped.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with(key, value, CommitOptions::new())
    }

    /// Sets `key` to `value` with commit options; a [`crate::Durability`] converts to them.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert_with("ada", "analyst", chelonia::Durability::Sync)?;
    /// assert!(people.contains_key("ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::insert`]; `WouldBlock` if it would wait longer than the options allow.
    pub fn insert_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: impl Into<CommitOptions>,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_entry(key, Some(value))?;
        let write = Write { keyspace: 0, key, value: Some(value) };
        self.handle.commit(&[&self.core], &[write][..], options.into())
    }

    /// Removes `key`, if it exists.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// people.remove("ada")?;
    /// people.remove("ada")?; // Absent already, which is not an error.
    /// assert!(!people.contains_key("ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.remove_with(key, CommitOptions::new())
    }

    /// Removes `key`, if it exists, with commit options.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// people.remove_with("ada", chelonia::Durability::Sync)?;
    /// assert!(people.is_empty()?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::insert_with`].
    pub fn remove_with(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<CommitOptions>,
    ) -> Result<()> {
        let key = key.as_ref();
        check_entry(key, None)?;
        let write = Write { keyspace: 0, key, value: None };
        self.handle.commit(&[&self.core], &[write][..], options.into())
    }

    /// Returns the value of `key`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// assert_eq!(people.get("ada")?.as_deref(), Some(&b"analyst"[..]));
    /// assert_eq!(people.get("bob")?, None);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` if stored data is damaged (other keys stay readable); `Io` if the device fails;
    /// `NotFound` if the keyspace was dropped; `Stopped` after a close.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.handle.reads().get(&self.core, key.as_ref())
    }

    /// Returns whether `key` exists. Does not read large values.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.size_of(key)?.is_some())
    }

    /// Returns the length in bytes of the value of `key`. Does not read large values.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", vec![0; 1 << 20])?;
    /// assert!(people.contains_key("ada")?);
    /// assert_eq!(people.size_of("ada")?, Some(1 << 20));
    /// assert_eq!(people.size_of("bob")?, None);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn size_of(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        self.handle.reads().size_of(&self.core, key.as_ref())
    }

    /// Counts the entries. Scans all keys, but does not read large values.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn len(&self) -> Result<u64> {
        self.iter().count_entries()
    }

    /// Returns whether there are no entries. Searches for the first key only.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// assert!(people.is_empty()?);
    /// people.insert("ada", "analyst")?;
    /// assert_eq!((people.is_empty()?, people.len()?), (false, 1));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.iter().keys().next().transpose()?.is_none())
    }

    /// Returns the values of `keys`, in the given order, as of one moment. Blocks that are not in
    /// memory are read in parallel, so this is faster than a `get` for each key.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let values = people.multi_get(["bob", "ada"])?;
    /// assert_eq!(values[0], None);
    /// assert_eq!(values[1].as_deref(), Some(&b"analyst"[..]));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.handle.reads().multi_get(&self.core, &keys)
    }

    /// Iterates over the entries whose keys are within `range`, in key order, as of now; for all
    /// entries use [`Keyspace::iter`]. The iterator is double-ended: use `rev` or `next_back` for
    /// descending order. Errors are yielded as `Err` items: those of a read, and `InvalidArgument`
    /// if the range ends before it begins.
    ///
    /// ```
    /// # fn main() -> chelonia::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let keyspace = database.keyspace("k", Default::default())?;
    /// keyspace.insert("ada", "1")?;
    /// keyspace.insert("bob", "2")?;
    /// for entry in keyspace.range("a".."b") {
    ///     let (key, value) = entry?;
    ///     assert_eq!((&key[..], &value[..]), (&b"ada"[..], &b"1"[..]));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn range<K: AsRef<[u8]>, R: RangeBounds<K>>(&self, range: R) -> Iter {
        match checked_range(&range) {
            Ok(range) => self.iter_over(range),
            Err(error) => self.failed_iter(error),
        }
    }

    /// Iterates over the entries whose keys start with `prefix`. As [`Keyspace::range`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("user/ada", "analyst")?;
    /// people.insert("visit/1", "today")?;
    /// let (key, _) = people.prefix("user/").next().unwrap()?;
    /// assert_eq!(key, "user/ada");
    /// assert_eq!(people.prefix("user/").count(), 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        self.iter_over(KeyRange::prefix(prefix.as_ref()))
    }

    /// Iterates over all entries. As [`Keyspace::range`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// people.insert("grace", "admiral")?;
    /// let descending = people.iter().rev().collect::<chelonia::Result<Vec<_>>>()?;
    /// assert_eq!(descending.len(), 2);
    /// assert_eq!(descending[0].0, "grace");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> Iter {
        self.iter_over(KeyRange::all())
    }

    /// Returns the entry with the smallest key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first_key_value(&self) -> Result<Option<(Key, Value)>> {
        self.iter().next().transpose()
    }

    /// Returns the entry with the largest key.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// people.insert("grace", "admiral")?;
    /// assert_eq!(people.first_key_value()?.unwrap().0, "ada");
    /// assert_eq!(people.last_key_value()?.unwrap().0, "grace");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last_key_value(&self) -> Result<Option<(Key, Value)>> {
        self.iter().next_back().transpose()
    }

    /// Verifies all data of the keyspace in the data file, while reads and writes continue: every
    /// checksum and every invariant. Damage is listed in the report and is not an error of this
    /// call. The log, which all
    /// keyspaces share, is verified by [`crate::Database::verify`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// database.checkpoint()?;
    /// let report = people.verify()?;
    /// assert!(report.is_clean(), "{:?}", report.findings);
    /// assert_eq!(report.entries, 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Stopped` after a close; `NotFound` if the keyspace was dropped.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.handle.upkeep().verify_keyspace(&self.core)
    }

    /// Returns the effective checkpoint distance, in bytes of updates: the one that was set,
    /// clipped to the updates that a memtable can hold; if none was set, as many as a memtable can
    /// hold.
    ///
    /// Until the first flush, the memory that updates take is estimated. Keyspaces that are written
    /// at the same time share the memory for writes, so memtables may be flushed earlier; the mean
    /// size of flushed memtables is [`crate::KeyspaceStats::flushed_bytes`] divided by
    /// [`flushes`](crate::KeyspaceStats::flushes).
    #[must_use]
    pub fn checkpoint_distance(&self) -> u64 {
        self.handle.keyspaces().checkpoint_distance(&self.core)
    }

    /// Sets the checkpoint distance: bytes of updates between two checkpoints. A larger distance
    /// makes writes cheaper and takes memory from reads. Takes effect immediately and is stored
    /// with the next checkpoint, at the latest with the close.
    ///
    /// Commits to the keyspace are delayed as its memtables fill, and wait while the active one has
    /// reached the distance and two more wait for a flush; on a full device, where nothing can be
    /// flushed, memtables may take all memory for writes. A distance that exceeds the memory for
    /// writes is clipped: [`Keyspace::checkpoint_distance`] returns the effective one.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.set_checkpoint_distance(4 << 20)?;
    /// assert_eq!(people.checkpoint_distance(), 4 << 20);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if `bytes` is 0; `NotFound` if the keyspace was dropped; `ReadOnly`.
    pub fn set_checkpoint_distance(&self, bytes: u64) -> Result<()> {
        self.handle.keyspaces().set_checkpoint_distance(&self.core, Some(bytes))
    }

    /// Lets the checkpoint distance follow the memory budget again, as before it was set.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let automatic = people.checkpoint_distance();
    /// people.set_checkpoint_distance(1 << 20)?;
    /// people.reset_checkpoint_distance()?;
    /// assert_eq!(people.checkpoint_distance(), automatic);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if the keyspace was dropped; `ReadOnly`.
    pub fn reset_checkpoint_distance(&self) -> Result<()> {
        self.handle.keyspaces().set_checkpoint_distance(&self.core, None)
    }

    /// Returns the engine and its current options.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// assert_eq!(people.engine_options().kind(), chelonia::EngineKind::Turtle);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn engine_options(&self) -> EngineOptions {
        *self.core.engine_options.lock()
    }

    /// Changes those options of the engine that can change while the keyspace is open. Stored with
    /// the next checkpoint, at the latest with the close.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # use chelonia::{AutumnOptions, KeyspaceOptions, LevelOptions};
    /// let options = KeyspaceOptions::new().engine(AutumnOptions::new());
    /// let events = database.keyspace("events", options)?;
    /// let levels = LevelOptions::new().scaling_percent(40);
    /// events.set_live_options(levels)?;
    /// assert_eq!(events.engine_options().levels(), Some(levels));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range or the engine has no such options;
    /// `NotFound` if the keyspace was dropped; `ReadOnly`.
    pub fn set_live_options(&self, options: impl Into<LiveOptions>) -> Result<()> {
        self.handle.keyspaces().set_live_options(&self.core, options.into())
    }

    /// How the values of new runs are stored.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// assert_eq!(people.compression(), chelonia::Compression::None);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.core.compression.mode()
    }

    /// Changes how values are stored: from now on by flushes and merges, so that what is there
    /// changes as it is merged. Stored with the next checkpoint, at the latest with the close.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// # use chelonia::Compression;
    /// people.set_compression(Compression::Fast)?;
    /// assert_eq!(people.compression(), Compression::Fast);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the engine has no compression; `NotFound` if the keyspace was dropped;
    /// `ReadOnly`.
    pub fn set_compression(&self, compression: Compression) -> Result<()> {
        self.handle.keyspaces().set_compression(&self.core, compression)
    }

    fn iter_over(&self, range: KeyRange) -> Iter {
        let reads = self.handle.reads();
        let pin = match reads.pin(&self.core) {
            Ok(pin) => pin,
            Err(error) => return self.failed_iter(error),
        };
        let handle = Arc::clone(&self.handle);
        // After the pin: a keyspace that exists now keeps what the pin reads.
        match reads.check_keyspace(&self.core) {
            Ok(()) => Iter::new(handle, pin, &self.core, range),
            Err(error) => Iter::failed(handle, pin, &self.core, error),
        }
    }

    fn failed_iter(&self, error: Error) -> Iter {
        let pin = self.handle.reads().unheld();
        Iter::failed(Arc::clone(&self.handle), pin, &self.core, error)
    }
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyspace({:?})", self.core.name)
    }
}

/// Fails if a key or value exceeds its limit.
pub(crate) fn check_entry(key: &[u8], value: Option<&[u8]>) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        let (is, limit) = (key.len(), KEY_BYTES_MAX);
        return Err(Error::invalid(format!(
            "a key of {is} bytes is over the limit of {limit} (KEY_BYTES_MAX)"
        )));
    }
    match value {
        Some(value) if value.len() > VALUE_BYTES_MAX => {
            let (is, limit) = (value.len(), VALUE_BYTES_MAX);
            Err(Error::invalid(format!(
                "a value of {is} bytes is over the limit of {limit} (VALUE_BYTES_MAX)"
            )))
        }
        _ => Ok(()),
    }
}

/// The range with owned bounds; fails if it ends before it begins.
pub(crate) fn checked_range<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> Result<KeyRange> {
    let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    let range = KeyRange { lower: own(range.start_bound()), upper: own(range.end_bound()) };
    use Bound::{Excluded, Included};
    match (&range.lower, &range.upper) {
        (Included(lower) | Excluded(lower), Included(upper) | Excluded(upper)) if lower > upper => {
            Err(Error::invalid("the range ends before it begins"))
        }
        _ => Ok(range),
    }
}
