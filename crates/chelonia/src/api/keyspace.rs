//! The handle of a keyspace: what users read and write.

use crate::api::iter::Iter;
use crate::base::bytes::{Key, Value};
use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::base::stream::LargeRef;
use crate::engine::{EngineOptions, LiveOptions};
use crate::integrity::verify::VerifyReport;
use crate::options::commit::CommitOptions;
use crate::recovery::handle::Handle;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::keyspace::KeyspaceCore;
use crate::versions::view::{Looked, View};
use crate::write::writes::Write;
use std::ops::{Bound, RangeBounds};

/// A named ordered map of bytes to bytes. Cheap to clone; all clones are the same keyspace, usable
/// from any number of threads.
///
/// Keys are from empty to [`crate::limits::KEY_BYTES_MAX`] bytes, the empty key being an ordinary
/// one; values from empty to [`crate::limits::VALUE_BYTES_MAX`] bytes. Keys are ordered as byte
/// strings.
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) handle: Arc<Handle>,
    pub(crate) core: Arc<KeyspaceCore>,
}

impl Keyspace {
    /// The name it was opened with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Sets `key` to `value`, at the database's durability level.
    ///
    /// # Errors
    /// `InvalidArgument` if the key or the value is over its limit, `NoSpace` if the device is full
    /// (nothing was changed; try again when there is room), `Io` if a write failed, `Stopped` after
    /// that, `ReadOnly`, and `NotFound` if the keyspace was dropped.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with(key, value, CommitOptions::new())
    }

    /// Sets `key` to `value`, in a commit as `options` say (a [`crate::Durability`] will do).
    ///
    /// # Errors
    /// As [`Keyspace::insert`]; also `WouldBlock` if it would have to wait for longer than the
    /// options allow.
    pub fn insert_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: impl Into<CommitOptions>,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_entry(key, Some(value))?;
        let write = Write { keyspace: 0, key, value: Some(value) };
        let committed = self.handle.commit(&[&self.core], &[write][..], options.into());
        committed.map_err(|error| self.handle.locate(error))
    }

    /// Removes `key`; it is no error if there is none.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.remove_with(key, CommitOptions::new())
    }

    /// Removes `key`, in a commit as `options` say (a [`crate::Durability`] will do).
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
        let committed = self.handle.commit(&[&self.core], &[write][..], options.into());
        committed.map_err(|error| self.handle.locate(error))
    }

    /// The value of `key`, if it has one.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged (other keys stay readable), `Io` if the device fails,
    /// `NotFound` if the keyspace was dropped, `Stopped` after a close.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let read = |large: &LargeRef| self.handle.storage.read_large(large);
        self.look_up(key.as_ref(), |value| value, read).map_err(|error| self.handle.locate(error))
    }

    /// True if `key` has a value. Never reads a value that is stored in an extent of its own.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.size_of(key)?.is_some())
    }

    /// The length in bytes of the value of `key`, if it has one. Never reads a value that is stored
    /// in an extent of its own.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn size_of(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        let stored = |large: &LargeRef| Ok(u64::from(large.bytes));
        let looked = self.look_up(key.as_ref(), |value| value.len() as u64, stored);
        looked.map_err(|error| self.handle.locate(error))
    }

    /// The number of entries, as of this moment. They are counted one by one: it takes time and
    /// reads in proportion to their number, though not to the size of large values.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn len(&self) -> Result<u64> {
        self.iter().count_entries()
    }

    /// True if there is no entry. Looks for the first key only.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.iter().keys().next().transpose()?.is_none())
    }

    /// The values of `keys` in the order asked, all of one moment. What is not in memory is read
    /// together, so that this is faster than one `get` after the other.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let pin = self.handle.pin_one(&self.core);
        // After the pin, as in `get`.
        self.check_read()?;
        let view = self.core.view_at(pin.seqno());
        let values = view.multi_get(&keys, pin.seqno(), self.handle.sources(&self.core));
        values.map_err(|error| self.handle.locate(error))
    }

    /// Iterates over the entries whose keys are within `range`, in key order, as of now. The
    /// iterator is double-ended: use `rev` or `next_back` for descending order. Read errors are
    /// yielded as `Err` items, `InvalidArgument` if the range ends before it begins.
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
            Err(error) => {
                let handle = Arc::clone(&self.handle);
                let pin = handle.snapshots.unheld();
                Iter::failed(handle, pin, &self.core, error)
            }
        }
    }

    /// The entries whose keys begin with `prefix`, as of this moment. As [`Keyspace::range`].
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        self.iter_over(KeyRange::prefix(prefix.as_ref()))
    }

    /// All entries, as of this moment. As [`Keyspace::range`].
    #[must_use]
    pub fn iter(&self) -> Iter {
        self.iter_over(KeyRange::all())
    }

    /// The entry with the least key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first_key_value(&self) -> Result<Option<(Key, Value)>> {
        self.iter().next().transpose()
    }

    /// The entry with the greatest key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last_key_value(&self) -> Result<Option<(Key, Value)>> {
        self.iter().next_back().transpose()
    }

    /// Reads everything that the keyspace has in the data file and checks every checksum and every
    /// invariant, while reads and writes go on. Damage is in the report, not an error. The log,
    /// which all keyspaces share, is for [`crate::Database::verify`].
    ///
    /// # Errors
    /// `Stopped` after a close; `NotFound` if the keyspace was dropped.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.core.check_exists()?;
        self.handle.verify_keyspace(&self.core)
    }

    /// The bytes of updates between two checkpoints that are acted on now.
    #[must_use]
    pub fn checkpoint_distance(&self) -> u64 {
        let asked = self.core.distance.load(Ordering::Relaxed);
        self.handle.governor.checkpoint_distance(asked)
    }

    /// Turns the dial between writes and reads: the bytes of updates between two checkpoints. More
    /// makes writes cheaper, and takes memory from reads. Acts at once, and is stored with the next
    /// checkpoint, by a close at the latest. It is a ceiling within the write share of the memory
    /// budget.
    ///
    /// # Errors
    /// `InvalidArgument` if `bytes` is 0; `NotFound` if the keyspace was dropped; `ReadOnly`.
    pub fn set_checkpoint_distance(&self, bytes: u64) -> Result<()> {
        self.handle.check_write()?;
        self.core.check_exists()?;
        if bytes == 0 {
            return Err(Error::invalid("checkpoint_distance is 0; it must be at least 1"));
        }
        self.core.distance.store(bytes, Ordering::Relaxed);
        let acted_on = self.handle.governor.usual_distance(bytes);
        self.core.engine.set_checkpoint_distance(acted_on);
        self.handle.counters.options_changed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The engine and its options.
    #[must_use]
    pub fn engine_options(&self) -> EngineOptions {
        *self.core.engine_options.lock()
    }

    /// Changes options of the engine that may change while the keyspace is open. They are stored
    /// with the next checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range or the engine has no such options;
    /// `NotFound` if the keyspace was dropped; `ReadOnly`.
    pub fn set_live_options(&self, options: impl Into<LiveOptions>) -> Result<()> {
        self.handle.check_write()?;
        self.core.check_exists()?;
        self.core.set_live_options(options.into())?;
        self.handle.counters.options_changed.store(true, Ordering::Relaxed);
        self.handle.signals.wake_flush();
        Ok(())
    }

    /// What `of_value` makes of the value of `key`, or `of_large` of the place of a large one.
    #[inline]
    fn look_up<T>(
        &self,
        key: &[u8],
        of_value: impl FnOnce(Value) -> T,
        of_large: impl FnOnce(&LargeRef) -> Result<T>,
    ) -> Result<Option<T>> {
        self.handle.health.check_read()?;
        let sources = self.handle.sources(&self.core);
        let guard = self.core.view.epochs().pin();
        loop {
            // The number before the view: a newer view shows everything that was visible then.
            let at = self.handle.visibility.visible();
            let view = self.core.view.load(&guard);
            // After the view: that of a keyspace that is being dropped shows less than there was.
            self.core.check_exists()?;
            match view.get_newest(key, at, sources, &guard)? {
                Looked::Value(value) => return Ok(Some(of_value(value))),
                Looked::Absent => return Ok(None),
                Looked::Overwritten => mark(Mark::GetLookedAgain),
                looked @ (Looked::Large(_) | Looked::OnDevice(_)) => {
                    // The view keeps what is read meanwhile.
                    let view = Arc::clone(view);
                    drop(guard);
                    return self.read(key, looked, &view, of_value, of_large);
                }
            }
        }
    }

    /// The same for what has to be read from the device. No guard is held.
    #[cold]
    fn read<T>(
        &self,
        key: &[u8],
        looked: Looked,
        view: &View,
        of_value: impl FnOnce(Value) -> T,
        of_large: impl FnOnce(&LargeRef) -> Result<T>,
    ) -> Result<Option<T>> {
        let looked = match looked {
            Looked::OnDevice(from) => view.read(key, from, self.handle.sources(&self.core))?,
            looked => looked,
        };
        match looked {
            Looked::Value(value) => Ok(Some(of_value(value))),
            Looked::Large(large) => of_large(&large).map(Some),
            Looked::Absent => Ok(None),
            Looked::Overwritten | Looked::OnDevice(_) => {
                Err(Error::internal("a read of a version is not decided"))
            }
        }
    }

    fn check_read(&self) -> Result<()> {
        self.handle.health.check_read()?;
        self.core.check_exists()
    }

    fn iter_over(&self, range: KeyRange) -> Iter {
        let handle = Arc::clone(&self.handle);
        if let Err(error) = handle.check_pins() {
            let pin = handle.snapshots.unheld();
            return Iter::failed(handle, pin, &self.core, error);
        }
        let pin = handle.pin_one(&self.core);
        match self.check_read() {
            Ok(()) => Iter::new(handle, pin, &self.core, range),
            Err(error) => Iter::failed(handle, pin, &self.core, error),
        }
    }
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyspace({:?})", self.core.name)
    }
}

/// Fails if a key or value is over its limit.
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
