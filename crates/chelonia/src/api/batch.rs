//! Batches: several writes, to one keyspace or many, that are committed atomically.
//!
//! ```text
//!   filling -- insert, remove --> filling       failed commit: unchanged
//!      ^                             |
//!      +---- commit, clear ----------+
//! ```

use crate::api::handle::Handle;
use crate::api::keyspace::{Keyspace, check_entry};
use crate::base::error::{Error, Result};
use crate::base::limits::BATCH_BYTES_MAX;
use crate::options::commit::CommitOptions;
use crate::runtime::sync::Arc;
use crate::state::keyspace::KeyspaceCore;
use crate::write::writes::{Write, WriteList, counted_bytes};

/// Writes that are committed atomically: readers see all of them or none, also after a crash. Of
/// several writes to a key, the last one wins.
///
/// A successful commit empties the batch, which can then be filled again; after an error the batch
/// is unchanged, so that the commit can be retried:
///
/// ```
/// # use chelonia::{Database, KeyspaceOptions};
/// # fn main() -> chelonia::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let database = Database::open(directory.path().join("d"))?;
/// let people = database.keyspace("people", KeyspaceOptions::default())?;
/// database.batch().insert(&people, "ada", "analyst").remove(&people, "grace").commit()?;
///
/// let mut batch = database.batch();
/// for number in 0..100_000_u32 {
///     batch.insert(&people, number.to_be_bytes(), [7; 100]);
///     if batch.size() > chelonia::Batch::limit() / 2 {
///         batch.commit()?;
///     }
/// }
/// batch.commit()?;
/// # assert_eq!((batch.len(), people.len()?), (0, 100_001));
/// # Ok(())
/// # }
/// ```
///
/// A batch holds copies of its keys and values, which do not count in the database's memory budget.
/// Its [`Batch::size`] may be at most [`Batch::limit`]. An invalid entry is not added, and it makes
/// [`Batch::commit`] fail until the batch is cleared.
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch {
    handle: Arc<Handle>,
    keyspaces: Vec<Arc<KeyspaceCore>>,
    writes: WriteList,
    /// See [`Batch::size`].
    size: usize,
    /// The error of the first invalid entry.
    error: Option<Error>,
}

impl Batch {
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        let (keyspaces, writes) = (Vec::new(), WriteList::default());
        Self { handle, keyspaces, writes, size: 0, error: None }
    }

    /// Sets `key` of `keyspace` to `value`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut batch = database.batch();
    /// batch.insert(&people, "ada", "analyst").insert(&people, "grace", "admiral");
    /// batch.commit()?;
    /// assert_eq!(people.len()?, 2);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> &mut Self {
        self.push(keyspace, key.as_ref(), Some(value.as_ref()))
    }

    /// Removes `key` from `keyspace`, if it exists.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// database.batch().remove(&people, "ada").insert(&people, "lovelace", "analyst").commit()?;
    /// assert_eq!(people.first_key_value()?.unwrap().0, "lovelace");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut Self {
        self.push(keyspace, key.as_ref(), None)
    }

    /// Returns the number of writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.count()
    }

    /// Returns whether the batch has no writes.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut batch = database.batch();
    /// assert!(batch.is_empty());
    /// batch.insert(&people, "ada", "analyst").remove(&people, "ada");
    /// assert_eq!(batch.len(), 2);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.count() == 0
    }

    /// Returns the bytes that count against [`Batch::limit`]: for every entry the key, the value if
    /// it is shorter than [`crate::limits::LARGE_VALUE_BYTES_MIN`] (longer ones are stored apart),
    /// and [`crate::limits::BATCH_ENTRY_BYTES`].
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the largest [`Batch::size`] that can be committed,
    /// [`crate::limits::BATCH_BYTES_MAX`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut batch = database.batch();
    /// batch.insert(&people, "ada", "analyst");
    /// assert_eq!(batch.size(), 3 + 7 + chelonia::limits::BATCH_ENTRY_BYTES);
    /// assert!(batch.size() < chelonia::Batch::limit());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub const fn limit() -> usize {
        BATCH_BYTES_MAX
    }

    /// Removes all writes, and the error of an invalid entry.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut batch = database.batch();
    /// batch.insert(&people, vec![0; 1 << 20], "the key is too long");
    /// assert!(batch.commit().is_err());
    /// batch.clear();
    /// batch.insert(&people, "ada", "analyst").commit()?;
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn clear(&mut self) {
        self.keyspaces.clear();
        // Large values may have made it as long as anything.
        self.writes.clear(2 * BATCH_BYTES_MAX);
        self.size = 0;
        self.error = None;
    }

    /// Commits the batch at the database's durability level and empties it. After an error it is
    /// unchanged.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut batch = database.batch();
    /// batch.insert(&people, "ada", "analyst");
    /// assert!(people.is_empty()?);
    /// batch.commit()?;
    /// assert_eq!((batch.len(), people.len()?), (0, 1));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::insert`]; also `InvalidArgument` if an entry or the batch exceeds its limit,
    /// or a keyspace belongs to another database. After `InvalidArgument` nothing was changed.
    pub fn commit(&mut self) -> Result<()> {
        self.commit_with(CommitOptions::new())
    }

    /// Commits the batch with commit options and empties it; a [`crate::Durability`] converts to
    /// them.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let mut batch = database.batch();
    /// batch.insert(&people, "ada", "analyst");
    /// batch.commit_with(chelonia::Durability::Sync)?;
    /// assert!(people.contains_key("ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Batch::commit`]; also `WouldBlock` if it would wait longer than the options allow.
    pub fn commit_with(&mut self, options: impl Into<CommitOptions>) -> Result<()> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let keyspaces: Vec<_> = self.keyspaces.iter().collect();
        self.handle.commit(&keyspaces, &self.writes, options.into())?;
        self.clear();
        Ok(())
    }

    fn push(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> &mut Self {
        if !Arc::ptr_eq(&keyspace.handle, &self.handle) {
            let wrong =
                || Error::invalid("the keyspace belongs to another database than the batch");
            self.error.get_or_insert_with(wrong);
            return self;
        }
        if let Err(error) = check_entry(key, value) {
            self.error.get_or_insert(error);
            return self;
        }
        let known = self.keyspaces.iter().position(|own| own.id == keyspace.core.id);
        let index = known.unwrap_or_else(|| {
            self.keyspaces.push(Arc::clone(&keyspace.core));
            self.keyspaces.len() - 1
        });
        self.size += counted_bytes(key, value);
        self.writes.push(Write { keyspace: index, key, value });
        self
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} writes)", self.writes.count())
    }
}
