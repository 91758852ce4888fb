//! Atomic changes of one key that depend on its value: compare and swap, update.
//!
//! The value is read, and the commit goes through only if nobody wrote the key after the read
//! began. There is no snapshot and no set of reads, as a transaction has them.

use crate::api::keyspace::{Keyspace, check_entry};
use crate::api::transaction::commit::conflict;
use crate::base::bytes::Value;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, SeqNo};
use crate::options::commit::CommitOptions;
use crate::versions::recent_writes::{Checked, Watch};
use crate::write::commit::Condition;
use crate::write::writes::Write;
use std::cell::{Cell, RefCell};

impl Keyspace {
    /// Sets `key` to `new` if its value is `expected`; returns whether it was. `None` stands for
    /// an absent key: as `expected`, or as `new` to remove it. Linearizable.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// assert!(people.compare_and_swap("ada", None, Some(b"analyst"))?);
    /// assert!(!people.compare_and_swap("ada", None, Some(b"countess"))?);
    /// assert!(people.compare_and_swap("ada", Some(b"analyst"), None)?);
    /// assert!(people.is_empty()?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Keyspace::insert`].
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        self.compare_and_swap_with(key, expected, new, CommitOptions::new())
    }

    /// Sets `key` to `new` if its value is `expected`, with commit options; a
    /// [`crate::Durability`] converts to them. As [`Keyspace::compare_and_swap`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let locks = database.keyspace("locks", Default::default())?;
    /// let sync = chelonia::Durability::Sync;
    /// assert!(locks.compare_and_swap_with("printer", None, Some(b"ada"), sync)?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::compare_and_swap`]; `WouldBlock` if it would wait longer than the options
    /// allow.
    pub fn compare_and_swap_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: impl Into<CommitOptions>,
    ) -> Result<bool> {
        let key = key.as_ref();
        check_entry(key, new)?;
        let swapped = self.change(key, options.into(), |current| {
            (current.map(|value| &value[..]) == expected).then_some(new)
        })?;
        Ok(swapped.is_some())
    }

    /// Sets `key` to the result of `change`, which gets the current value; returns the value
    /// before. `None` stands for an absent key: as the argument, or as the result to remove it.
    /// Linearizable: no other write to the key happens in between.
    ///
    /// `change` is called again if another thread wrote the key meanwhile. To change several keys
    /// at once, use a [`crate::Transaction`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let counters = database.keyspace("counters", Default::default())?;
    /// let add_one = |old: Option<&[u8]>| {
    ///     let number = old.map_or(0, |old| u64::from_le_bytes(old.try_into().unwrap()));
    ///     Some((number + 1).to_le_bytes())
    /// };
    /// assert_eq!(counters.update("visits", add_one)?, None);
    /// assert_eq!(counters.update("visits", add_one)?.unwrap(), 1_u64.to_le_bytes());
    /// assert_eq!(counters.get("visits")?.unwrap(), 2_u64.to_le_bytes());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Keyspace::insert`].
    pub fn update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<Value>> {
        self.update_with(key, change, CommitOptions::new())
    }

    /// Sets `key` to the result of `change`, with commit options. As [`Keyspace::update`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let sync = chelonia::Durability::Sync;
    /// people.update_with("ada", |old| old.is_none().then_some("analyst"), sync)?;
    /// assert!(people.contains_key("ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::update`]; `WouldBlock` if it would wait longer than the options allow.
    pub fn update_with<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<V>,
        options: impl Into<CommitOptions>,
    ) -> Result<Option<Value>> {
        let new = |current: Option<&Value>| Some(change(current.map(|value| &value[..])));
        Ok(self.change(key.as_ref(), options.into(), new)?.flatten())
    }

    /// Sets `key` to what `decide` returns for its value, and returns that value; `None` if
    /// `decide` returned no update.
    fn change<V: AsRef<[u8]>>(
        &self,
        key: &[u8],
        options: CommitOptions,
        mut decide: impl FnMut(Option<&Value>) -> Option<Option<V>>,
    ) -> Result<Option<Option<Value>>> {
        for attempt in 0.. {
            let watch = self.handle.watch()?;
            let current = self.get(key)?;
            let Some(new) = decide(current.as_ref()) else { return Ok(None) };
            let new = new.as_ref().map(AsRef::as_ref);
            check_entry(key, new)?;
            let write = Write { keyspace: 0, key, value: new };
            let (checked, watch) = (Cell::new(watch.from()), RefCell::new(watch));
            let unwritten = Unwritten { keyspace: self, key, current: &current, watch, checked };
            match self.handle.commit_if(&[&self.core], &[write][..], options, &unwritten) {
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    drop(unwritten);
                    self.handle.pause(attempt);
                }
                done => return done.map(|()| Some(current)),
            }
        }
        Ok(None)
    }
}

/// The condition of an update: its key was not written since its value was read.
struct Unwritten<'k> {
    keyspace: &'k Keyspace,
    key: &'k [u8],
    current: &'k Option<Value>,
    /// Begun before the value was read.
    watch: RefCell<Watch>,
    /// Writes up to this one are not of the key.
    checked: Cell<SeqNo>,
}

impl Unwritten<'_> {
    fn is_key(&self, keyspace: KeyspaceId, written: &[u8]) -> bool {
        keyspace == self.keyspace.core.id && written == self.key
    }

    fn conflict(&self) -> Error {
        conflict(&self.keyspace.handle, &self.keyspace.core.name)
    }
}

impl Condition for Unwritten<'_> {
    fn check_early(&self) -> Result<()> {
        let is_key = |keyspace: KeyspaceId, written: &[u8]| self.is_key(keyspace, written);
        let checked = self.watch.borrow().recent().check_full(self.checked.get(), is_key);
        match checked {
            Checked::Unchanged(upto) => self.checked.set(upto),
            Checked::Changed(_) => return Err(self.conflict()),
            Checked::Unknown => {
                // The commit has waited while many keys were written. The same value is as good as
                // an unwritten key, from here on.
                let watch = self.keyspace.handle.watch()?;
                if self.keyspace.get(self.key)? != *self.current {
                    return Err(self.conflict());
                }
                self.checked.set(watch.from());
                self.watch.replace(watch);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let is_key = |keyspace: KeyspaceId, written: &[u8]| self.is_key(keyspace, written);
        match self.watch.borrow().recent().check_rest(self.checked.get(), is_key) {
            Checked::Unchanged(_) => Ok(()),
            Checked::Changed(_) | Checked::Unknown => Err(self.conflict()),
        }
    }
}
