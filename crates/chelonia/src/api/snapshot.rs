//! Snapshots: the whole database as it was at one moment.

use crate::api::iter::Iter;
use crate::api::keyspace::{Keyspace, checked_range};
use crate::base::bytes::Value;
use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::base::stream::LargeRef;
use crate::recovery::handle::Handle;
use crate::runtime::sync::Arc;
use crate::versions::pins::Pin;
use crate::versions::view::{Looked, View};
use std::ops::RangeBounds;

/// All keyspaces as they were when the snapshot was made: exactly the commits up to that moment.
///
/// Cheap to make, to clone and to hold, for as long as the caller likes: it keeps space on disk
/// that would be free by now, never memory of writes. What it takes of memory besides is counted in
/// the budget; when snapshots and iterators together hold half of that, further ones are refused:
/// their reads fail with `OutOfMemory`, and they hold nothing. A keyspace that is younger than the
/// snapshot reads as empty; one that was dropped since reads as it was.
#[derive(Clone)]
pub struct Snapshot {
    // Before the handle: a pin is let go while the database is still open.
    pin: Arc<Pin>,
    handle: Arc<Handle>,
    /// Why nothing can be read through it, if so.
    refused: Option<Error>,
}

impl Snapshot {
    /// This moment; a snapshot that holds nothing, and says why at every read, if pins hold all the
    /// memory that they may.
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        let refused = handle.check_pins().err();
        let pin = if refused.is_none() { handle.pin_all() } else { handle.snapshots.unheld() };
        Self { pin, handle, refused }
    }

    /// The number of the last commit's last write that the snapshot shows.
    #[must_use]
    pub fn seqno(&self) -> u64 {
        self.pin.seqno().0
    }

    /// The value of `key` in `keyspace`, if it had one.
    ///
    /// # Errors
    /// `InvalidArgument` if the keyspace belongs to another database; else as [`Keyspace::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let read = |large: &LargeRef| self.handle.storage.read_large(large);
        let looked = self.look_up(keyspace, key.as_ref(), |value| value, read);
        looked.map_err(|error| self.handle.locate(error))
    }

    /// True if `key` had a value in `keyspace`. As [`Keyspace::contains_key`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.size_of(keyspace, key)?.is_some())
    }

    /// The length in bytes of the value of `key` in `keyspace`, if it had one. As
    /// [`Keyspace::size_of`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn size_of(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        let stored = |large: &LargeRef| Ok(u64::from(large.bytes));
        let looked = self.look_up(keyspace, key.as_ref(), |value| value.len() as u64, stored);
        looked.map_err(|error| self.handle.locate(error))
    }

    /// The number of entries that `keyspace` had, counted one by one. As [`Keyspace::len`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn len(&self, keyspace: &Keyspace) -> Result<u64> {
        self.iter(keyspace).count_entries()
    }

    /// True if `keyspace` had no entry.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn is_empty(&self, keyspace: &Keyspace) -> Result<bool> {
        Ok(self.iter(keyspace).keys().next().transpose()?.is_none())
    }

    /// The values of `keys` in `keyspace`, in the order asked.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let view = self.view(keyspace)?;
        let values = view.multi_get(&keys, self.pin.seqno(), self.handle.sources(&keyspace.core));
        values.map_err(|error| self.handle.locate(error))
    }

    /// Iterates over the entries of `keyspace` whose keys are within `range`, in key order. Read
    /// errors are yielded as `Err` items, `InvalidArgument` if the range ends before it begins or
    /// the keyspace belongs to another database.
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

    /// The entries of `keyspace` whose keys begin with `prefix`. What [`Snapshot::get`] would fail
    /// with comes as an entry.
    #[must_use]
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Iter {
        self.iter_over(keyspace, KeyRange::prefix(prefix.as_ref()))
    }

    /// All entries of `keyspace`. What [`Snapshot::get`] would fail with comes as an entry.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Iter {
        self.iter_over(keyspace, KeyRange::all())
    }

    fn iter_over(&self, keyspace: &Keyspace, range: KeyRange) -> Iter {
        let (handle, pin) = (Arc::clone(&self.handle), Arc::clone(&self.pin));
        if let Err(error) = self.check_held().and_then(|()| self.check_own(keyspace)) {
            return Iter::failed(handle, pin, &keyspace.core, error);
        }
        Iter::new(handle, pin, &keyspace.core, range)
    }

    fn look_up<T>(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        of_value: impl FnOnce(Value) -> T,
        of_large: impl FnOnce(&LargeRef) -> Result<T>,
    ) -> Result<Option<T>> {
        let view = self.view(keyspace)?;
        match view.get(key, self.pin.seqno(), self.handle.sources(&keyspace.core))? {
            Looked::Value(value) => Ok(Some(of_value(value))),
            Looked::Large(large) => of_large(&large).map(Some),
            Looked::Absent => Ok(None),
            Looked::Overwritten | Looked::OnDevice(_) => {
                Err(Error::internal("a write that a snapshot needs was unlinked"))
            }
        }
    }

    fn view(&self, keyspace: &Keyspace) -> Result<Arc<View>> {
        self.handle.health.check_read()?;
        self.check_held()?;
        self.check_own(keyspace)?;
        Ok(keyspace.core.view_at(self.pin.seqno()))
    }

    fn check_held(&self) -> Result<()> {
        self.refused.clone().map_or(Ok(()), Err)
    }

    fn check_own(&self, keyspace: &Keyspace) -> Result<()> {
        if Arc::ptr_eq(&keyspace.handle, &self.handle) {
            return Ok(());
        }
        Err(Error::invalid("a snapshot reads keyspaces of its own database only"))
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(seqno {})", self.pin.seqno())
    }
}
