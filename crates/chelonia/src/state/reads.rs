//! The reads of an open database: what the public handles may do with its shared state to read it.
//!
//! A read of the newest state takes no pin while it stays in memory: it loads the view under an
//! epoch guard ([`crate::memory::epoch`]). A read at a pin uses the view that the pin retains.
//! Errors name the path of their file, except those of the parts that iterators are made of
//! ([`Reads::locate`] adds it).

use crate::base::bytes::Value;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::SeqNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{LargeRef, SortedStream};
use crate::memory::budget::Use;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::{Core, Counters};
use crate::state::keyspace::KeyspaceCore;
use crate::versions::pins::{Pin, Scope};
use crate::versions::view::{Looked, ReadSources, View};

/// Metadata may use this part of the budget before further pins are refused; when it is large,
/// nearly all of it belongs to pins.
const PINS_PART: u64 = 2;

/// Reads an open database.
#[derive(Clone, Copy)]
pub struct Reads<'a> {
    pub(super) core: &'a Core,
}

impl<'a> Reads<'a> {
    /// The reads of the database that `core` belongs to.
    #[inline]
    pub fn new(core: &'a Core) -> Self {
        Self { core }
    }

    /// Fails once the database is closed, or in a forked child.
    #[inline]
    pub fn check(self) -> Result<()> {
        self.core.health.check_read()
    }

    /// Like [`Reads::check`], and fails once the keyspace was dropped.
    pub fn check_keyspace(self, keyspace: &KeyspaceCore) -> Result<()> {
        self.check()?;
        keyspace.check_exists()
    }

    /// False in a forked child, which must take no locks.
    #[inline]
    pub fn is_owner_process(self) -> bool {
        self.core.health.is_owner_process()
    }

    /// Adds the path of the file that the error names, for users.
    #[cold]
    pub fn locate(self, error: Error) -> Error {
        self.core.locate(error)
    }

    /// Pins this moment over all keyspaces. Fails if pins use too much memory.
    pub fn pin_all(self) -> Result<Arc<Pin>> {
        self.check_pins()?;
        Ok(self.core.snapshots.pin(Scope::All))
    }

    /// Pins this moment over one keyspace. Fails if pins use too much memory.
    pub fn pin(self, keyspace: &KeyspaceCore) -> Result<Arc<Pin>> {
        self.check_pins()?;
        Ok(self.core.pin_one(keyspace))
    }

    /// A pin that retains nothing, for handles that only return an error.
    pub fn unheld(self) -> Arc<Pin> {
        self.core.snapshots.unheld()
    }

    /// Fails if pins use so much memory that no further ones are allowed: a pin uses more memory
    /// with each keyspace that is written later, when it cannot be refused any more.
    fn check_pins(self) -> Result<()> {
        let budget = self.core.storage.budget();
        let (held, limit) = (budget.used_by(Use::Metadata), budget.limit());
        // A forked child is refused elsewhere, and must not take the lock for counting.
        if held <= limit / PINS_PART || !self.is_owner_process() || self.core.snapshots.count() == 0
        {
            return Ok(());
        }
        let text = format!(
            "snapshots and iterators hold {held} bytes of a memory budget of {limit}: drop some of \
             them, or raise the budget"
        );
        Err(Error::new(ErrorKind::OutOfMemory, text))
    }

    /// The newest value of `key`.
    #[inline]
    pub fn get(self, keyspace: &KeyspaceCore, key: &[u8]) -> Result<Option<Value>> {
        let read = |large: &LargeRef| self.read_large(large);
        self.look_up(keyspace, key, |value| value, read).map_err(|error| self.locate(error))
    }

    /// The length in bytes of the newest value of `key`. Does not read large values.
    #[inline]
    pub fn size_of(self, keyspace: &KeyspaceCore, key: &[u8]) -> Result<Option<u64>> {
        let stored = |large: &LargeRef| Ok(u64::from(large.bytes));
        let looked = self.look_up(keyspace, key, |value| value.len() as u64, stored);
        looked.map_err(|error| self.locate(error))
    }

    /// The newest values of `keys`, as of one moment, in the order of `keys`.
    pub fn multi_get<K: AsRef<[u8]>>(
        self,
        keyspace: &KeyspaceCore,
        keys: &[K],
    ) -> Result<Vec<Option<Value>>> {
        let pin = self.core.pin_one(keyspace);
        // After the pin, as in `look_up`.
        self.check_keyspace(keyspace)?;
        let view = keyspace.view_at(pin.seqno());
        let values = view.multi_get(keys, pin.seqno(), self.sources(keyspace));
        values.map_err(|error| self.locate(error))
    }

    /// The value of `key` at the seqno of a pin.
    pub fn get_at(self, keyspace: &KeyspaceCore, key: &[u8], at: SeqNo) -> Result<Option<Value>> {
        let read = |large: &LargeRef| self.read_large(large);
        let looked = self.look_up_at(keyspace, key, at, |value| value, read);
        looked.map_err(|error| self.locate(error))
    }

    /// The length in bytes of the value of `key` at the seqno of a pin. Does not read large values.
    pub fn size_of_at(self, keyspace: &KeyspaceCore, key: &[u8], at: SeqNo) -> Result<Option<u64>> {
        let stored = |large: &LargeRef| Ok(u64::from(large.bytes));
        let looked = self.look_up_at(keyspace, key, at, |value| value.len() as u64, stored);
        looked.map_err(|error| self.locate(error))
    }

    /// The values of `keys` at the seqno of a pin, in the order of `keys`.
    pub fn multi_get_at<K: AsRef<[u8]>>(
        self,
        keyspace: &KeyspaceCore,
        keys: &[K],
        at: SeqNo,
    ) -> Result<Vec<Option<Value>>> {
        self.check()?;
        let values = keyspace.view_at(at).multi_get(keys, at, self.sources(keyspace));
        values.map_err(|error| self.locate(error))
    }

    /// Reads a large value. The caller retains the view that refers to it.
    pub fn read_large(self, large: &LargeRef) -> Result<Value> {
        self.core.storage.read_large(large)
    }

    /// Counts the tombstones that a scan skips.
    pub fn tombstones(self) -> TombstoneCounter<'a> {
        TombstoneCounter { counters: &self.core.counters, count: 0 }
    }

    /// Remembers the part of `range` in which nothing is alive: see
    /// [`crate::versions::empty_ranges`]. Called without locks: it waits for commits under way.
    pub fn learn_empty_range(self, keyspace: &KeyspaceCore, range: &KeyRange) {
        let Some(watch) = keyspace.empty_ranges.watch(range) else { return };
        match self.first_live_key(keyspace, range) {
            Ok((alive, since)) => keyspace.empty_ranges.confirm(watch, alive.as_deref(), since),
            // A read of that range reports the error.
            Err(_) => keyspace.empty_ranges.give_up(watch),
        }
    }

    /// The first live key of `range`, and the seqno at which it is.
    fn first_live_key(
        self,
        keyspace: &KeyspaceCore,
        range: &KeyRange,
    ) -> Result<(Option<Vec<u8>>, SeqNo)> {
        let given = SeqNo(self.core.commit.lock().next_seqno.0.saturating_sub(1));
        self.core.visibility.wait_until_visible(given)?;
        let pin = self.core.pin_one(keyspace);
        let view = keyspace.view_at(pin.seqno());
        let mut cursor = view.cursor(range, Direction::Ascending, pin.seqno())?;
        let mut passed = self.tombstones();
        while let Some(key) = cursor.key().filter(|key| range.contains(key)) {
            if !cursor.update().is_delete() {
                return Ok((Some(key.to_vec()), pin.seqno()));
            }
            passed.count += 1;
            cursor.advance()?;
        }
        Ok((None, pin.seqno()))
    }

    /// The sources of views of `keyspace` besides their memtables and versions.
    #[inline]
    fn sources<'s>(self, keyspace: &'s KeyspaceCore) -> ReadSources<'s>
    where
        'a: 's,
    {
        ReadSources {
            storage: &self.core.storage,
            records: &self.core.records,
            epoch: &keyspace.cache_epoch,
        }
    }

    /// Looks up the newest value of `key`, and maps it, or the reference to a large value.
    #[inline]
    fn look_up<T>(
        self,
        keyspace: &KeyspaceCore,
        key: &[u8],
        of_value: impl FnOnce(Value) -> T,
        of_large: impl FnOnce(&LargeRef) -> Result<T>,
    ) -> Result<Option<T>> {
        self.check()?;
        let sources = self.sources(keyspace);
        let guard = keyspace.view.epochs().pin();
        loop {
            // The number before the view: a newer view shows everything that was visible then.
            let at = self.core.visibility.visible();
            let view = keyspace.view.load(&guard);
            // After the view: the view of a keyspace that is being dropped may be empty already.
            keyspace.check_exists()?;
            match view.get_newest(key, at, sources, &guard)? {
                Looked::Value(value) => return Ok(Some(of_value(value))),
                Looked::Absent => return Ok(None),
                Looked::Overwritten => mark(Mark::GetLookedAgain),
                looked @ (Looked::Large(_) | Looked::OnDevice(_)) => {
                    // The view keeps the data that is read.
                    let view = Arc::clone(view);
                    drop(guard);
                    return self.read(keyspace, key, looked, &view, of_value, of_large);
                }
            }
        }
    }

    /// Continues a lookup that must read the device, without an epoch guard: nothing that other
    /// threads free waits for the device.
    #[cold]
    fn read<T>(
        self,
        keyspace: &KeyspaceCore,
        key: &[u8],
        looked: Looked,
        view: &View,
        of_value: impl FnOnce(Value) -> T,
        of_large: impl FnOnce(&LargeRef) -> Result<T>,
    ) -> Result<Option<T>> {
        let looked = match looked {
            Looked::OnDevice(from) => view.read(key, from, self.sources(keyspace))?,
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

    /// Like [`Reads::look_up`], at the seqno of a pin.
    fn look_up_at<T>(
        self,
        keyspace: &KeyspaceCore,
        key: &[u8],
        at: SeqNo,
        of_value: impl FnOnce(Value) -> T,
        of_large: impl FnOnce(&LargeRef) -> Result<T>,
    ) -> Result<Option<T>> {
        self.check()?;
        match keyspace.view_at(at).get(key, at, self.sources(keyspace))? {
            Looked::Value(value) => Ok(Some(of_value(value))),
            Looked::Large(large) => of_large(&large).map(Some),
            Looked::Absent => Ok(None),
            Looked::Overwritten | Looked::OnDevice(_) => {
                Err(Error::internal("a write that a snapshot needs was unlinked"))
            }
        }
    }
}

/// Counts the tombstones that a scan skips; adds them to the totals when dropped.
pub struct TombstoneCounter<'a> {
    counters: &'a Counters,
    /// The count so far.
    pub count: u64,
}

impl Drop for TombstoneCounter<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.counters.tombstones_passed.fetch_add(self.count, Ordering::Relaxed);
        }
    }
}
