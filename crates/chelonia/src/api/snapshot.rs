//! Snapshots: all keyspaces of a database as of one moment.

use crate::api::handle::Handle;
use crate::api::iter::Iter;
use crate::api::keyspace::{Keyspace, checked_range};
use crate::base::bytes::Value;
use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::runtime::sync::Arc;
use crate::versions::pins::Pin;
use std::ops::RangeBounds;

/// A consistent view of all keyspaces: exactly the commits before the snapshot was taken.
///
/// Cheap to take, clone and hold. It retains disk space that would otherwise be free, but no
/// memtables. Its own memory is counted in the budget; when snapshots and iterators use half of the
/// budget, the reads of further ones fail with `OutOfMemory`. A keyspace created after the snapshot
/// reads as empty; one dropped later is still readable.
#[derive(Clone)]
pub struct Snapshot {
    // Before the handle, so that the pin is released while the database is still open.
    pin: Arc<Pin>,
    handle: Arc<Handle>,
    /// The error of all reads, if the snapshot was refused.
    refused: Option<Error>,
}

impl Snapshot {
    /// A snapshot of now; one that holds nothing and whose reads fail, if pins use all the memory
    /// that they may use.
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        let reads = handle.reads();
        let (pin, refused) = match reads.pin_all() {
            Ok(pin) => (pin, None),
            Err(error) => (reads.unheld(), Some(error)),
        };
        Self { pin, handle, refused }
    }

    /// Returns the sequence number of the last write that the snapshot sees.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let before = database.snapshot();
    /// people.insert("ada", "analyst")?;
    /// assert_eq!(database.snapshot().seqno(), before.seqno() + 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn seqno(&self) -> u64 {
        self.pin.seqno().0
    }

    /// Returns the value of `key` in `keyspace`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let snapshot = database.snapshot();
    /// people.insert("ada", "countess")?;
    /// assert_eq!(snapshot.get(&people, "ada")?.unwrap(), "analyst");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the keyspace belongs to another database; otherwise as
    /// [`Keyspace::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.check(keyspace)?;
        self.handle.reads().get_at(&keyspace.core, key.as_ref(), self.pin.seqno())
    }

    /// Returns whether `key` exists in `keyspace`. As [`Keyspace::contains_key`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.size_of(keyspace, key)?.is_some())
    }

    /// Returns the length in bytes of the value of `key` in `keyspace`. As [`Keyspace::size_of`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let snapshot = database.snapshot();
    /// people.remove("ada")?;
    /// assert!(snapshot.contains_key(&people, "ada")?);
    /// assert_eq!(snapshot.size_of(&people, "ada")?, Some(7));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn size_of(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        self.check(keyspace)?;
        self.handle.reads().size_of_at(&keyspace.core, key.as_ref(), self.pin.seqno())
    }

    /// Counts the entries of `keyspace`. As [`Keyspace::len`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn len(&self, keyspace: &Keyspace) -> Result<u64> {
        self.iter(keyspace).count_entries()
    }

    /// Returns whether `keyspace` has no entries.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let snapshot = database.snapshot();
    /// people.insert("ada", "analyst")?;
    /// assert!(snapshot.is_empty(&people)?);
    /// assert_eq!(snapshot.len(&people)?, 0);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn is_empty(&self, keyspace: &Keyspace) -> Result<bool> {
        Ok(self.iter(keyspace).keys().next().transpose()?.is_none())
    }

    /// Returns the values of `keys` in `keyspace`, in the given order.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let values = database.snapshot().multi_get(&people, ["ada", "bob"])?;
    /// assert_eq!(values[0].as_deref(), Some(&b"analyst"[..]));
    /// assert_eq!(values[1], None);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.check(keyspace)?;
        self.handle.reads().multi_get_at(&keyspace.core, &keys, self.pin.seqno())
    }

    /// Iterates over the entries of `keyspace` whose keys are within `range`, in key order. Errors
    /// are yielded as `Err` items: those of a read, and `InvalidArgument` if the range ends before
    /// it begins or the keyspace belongs to another database.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// people.insert("grace", "admiral")?;
    /// let snapshot = database.snapshot();
    /// people.remove("ada")?;
    /// assert_eq!(snapshot.range(&people, "a".."b").count(), 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn range<K: AsRef<[u8]>, R: RangeBounds<K>>(&self, keyspace: &Keyspace, range: R) -> Iter {
        match checked_range(&range) {
            Ok(range) => self.iter_over(keyspace, range),
            Err(error) => {
                let (handle, pin) = (Arc::clone(&self.handle), Arc::clone(&self.pin));
                Iter::failed(handle, pin, &keyspace.core, error)
            }
        }
    }

    /// Iterates over the entries of `keyspace` whose keys start with `prefix`. As
    /// [`Snapshot::range`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("user/ada", "analyst")?;
    /// let snapshot = database.snapshot();
    /// people.insert("user/bob", "builder")?;
    /// let (key, _) = snapshot.prefix(&people, "user/").next_back().unwrap()?;
    /// assert_eq!(key, "user/ada");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Iter {
        self.iter_over(keyspace, KeyRange::prefix(prefix.as_ref()))
    }

    /// Iterates over all entries of `keyspace`. As [`Snapshot::range`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let snapshot = database.snapshot();
    /// people.remove("ada")?;
    /// let (key, value) = snapshot.iter(&people).next().unwrap()?;
    /// assert_eq!((&key[..], &value[..]), (&b"ada"[..], &b"analyst"[..]));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Iter {
        self.iter_over(keyspace, KeyRange::all())
    }

    /// Fails if the snapshot was refused.
    pub(crate) fn check_held(&self) -> Result<()> {
        self.refused.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn iter_over(&self, keyspace: &Keyspace, range: KeyRange) -> Iter {
        let (handle, pin) = (Arc::clone(&self.handle), Arc::clone(&self.pin));
        if let Err(error) = self.check(keyspace) {
            return Iter::failed(handle, pin, &keyspace.core, error);
        }
        Iter::new(handle, pin, &keyspace.core, range)
    }

    /// Fails if the snapshot was refused, or the keyspace is one of another database.
    fn check(&self, keyspace: &Keyspace) -> Result<()> {
        self.check_held()?;
        if Arc::ptr_eq(&keyspace.handle, &self.handle) {
            return Ok(());
        }
        Err(Error::invalid("the keyspace belongs to another database than the snapshot"))
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(seqno {})", self.pin.seqno())
    }
}
