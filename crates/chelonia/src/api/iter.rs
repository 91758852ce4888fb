//! Iterators: entries in key order from either end, as of one moment, owned and `Send`.
//!
//! An iterator holds a pin. Its two cursors (one from each end, opened on first use) read a view of
//! the keyspace. When a memtable of the view is flushed, the iterator releases the view, and the
//! next call seeks to the last returned key in a new one; so an idle iterator holds no memtables.
//! It closes its cursors likewise when those of all iterators use too much memory
//! (`crate::state::open_cursors`).
//!
//! Where many hidden entries lie in a row, the iterator learns the empty range
//! (`crate::versions::empty_ranges`); later iterators jump over it.
//!
//! Key-only steps ([`Keys`], counting) never read large values.
//!
//! An error is returned once and ends the iterator at both ends, so that callers that ignore errors
//! terminate.

use crate::api::handle::Handle;
use crate::base::bytes::{Key, Value, pair};
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange, move_bound};
use crate::base::stream::{LargeRef, SortedStream, Update};
use crate::merge::Merge;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Mutex, Weak};
use crate::state::health::Health;
use crate::state::keyspace::KeyspaceCore;
use crate::versions::empty_ranges::HIDDEN_MIN;
use crate::versions::history::ViewHolder;
use crate::versions::pins::Pin;
use crate::versions::view::{Buffer, View};
use std::ops::Bound;

/// A cursor, and the view that it reads.
struct Cursor {
    entries: Merge<Box<dyn SortedStream + Send>>,
    // After the entries, so that it is dropped last.
    view: Arc<View>,
}

/// An entry found by a cursor.
enum Found {
    Whole(Key, Value),
    /// The value is in an extent of its own, which stays as long as the view.
    Large(Key, LargeRef, Arc<View>),
    /// Only the key was requested.
    Bare(Key),
}

/// Which part of an entry a step returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Entry,
    Key,
}

impl Found {
    fn key(&self) -> &Key {
        match self {
            Found::Whole(key, _) | Found::Large(key, ..) | Found::Bare(key) => key,
        }
    }

    fn into_key(self) -> Key {
        match self {
            Found::Whole(key, _) | Found::Large(key, ..) | Found::Bare(key) => key,
        }
    }
}

/// The entries of a range, from either end; see [`crate::Keyspace::range`].
///
/// Owned and `Send`. It shows the keyspace as of one moment for as long as it is held. An entry
/// that cannot be read is an `Err` item (as [`crate::Keyspace::get`]) and ends the iterator. To
/// continue behind damage, iterate over the range behind it.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let database = chelonia::Database::open(directory.path().join("d"))?;
/// # let people = database.keyspace("people", Default::default())?;
/// people.insert("ada", "analyst")?;
/// people.insert("grace", "admiral")?;
/// let mut entries = people.iter();
/// people.remove("grace")?; // The iterator still shows it.
/// let (key, value) = entries.next_back().unwrap()?;
/// assert_eq!((&key[..], &value[..]), (&b"grace"[..], &b"admiral"[..]));
/// # Ok::<(), chelonia::Error>(())
/// ```
pub struct Iter {
    // Before the handle, so that the pin is released while the database is still open.
    state: Arc<Mutex<State>>,
    pin: Arc<Pin>,
    keyspace: Arc<KeyspaceCore>,
    handle: Arc<Handle>,
    /// A forked child has received its error.
    is_refused: bool,
    /// The memory of all cursors when this iterator last compared it with its limit.
    scan_bytes_seen: u64,
}

struct State {
    /// The rest of the range; shrinks with every returned entry.
    range: KeyRange,
    front: Option<Cursor>,
    back: Option<Cursor>,
    /// The error that the next call returns; it ends the iterator.
    failure: Option<Error>,
    /// An empty range found by the last call, to be learned.
    gap: Option<KeyRange>,
    is_done: bool,
}

impl ViewHolder for Mutex<State> {
    fn let_go(&self, flushed: &Arc<Buffer>) {
        let mut state = self.lock();
        let State { front, back, .. } = &mut *state;
        for cursor in [front, back] {
            let has = |cursor: &mut Cursor| cursor.view.has(flushed);
            if cursor.take_if(has).is_some() {
                mark(Mark::IteratorLetGo);
            }
        }
    }

    fn close_cursors(&self) {
        // Not if it is in use: it may be reading from the device.
        let cursors = self.try_lock().map(|mut state| (state.front.take(), state.back.take()));
        drop(cursors);
    }
}

impl Iter {
    pub(crate) fn new(
        handle: Arc<Handle>,
        pin: Arc<Pin>,
        keyspace: &Arc<KeyspaceCore>,
        range: KeyRange,
    ) -> Self {
        let is_done = range.is_empty();
        let state = State { range, front: None, back: None, failure: None, gap: None, is_done };
        let state = Arc::new(Mutex::new(state));
        let standing: Weak<Mutex<State>> = Arc::downgrade(&state);
        if handle.reads().is_owner_process() {
            keyspace.history.stand(standing);
        }
        let (keyspace, is_refused) = (Arc::clone(keyspace), false);
        Self { state, pin, keyspace, handle, is_refused, scan_bytes_seen: 0 }
    }

    /// An iterator that only returns an error.
    pub(crate) fn failed(
        handle: Arc<Handle>,
        pin: Arc<Pin>,
        keyspace: &Arc<KeyspaceCore>,
        error: Error,
    ) -> Self {
        let iter = Self::new(handle, pin, keyspace, KeyRange::all());
        iter.state.lock().failure = Some(error);
        iter
    }

    /// Converts into an iterator over the remaining keys. It does not read large values.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// people.insert("grace", "admiral")?;
    /// let mut keys = people.iter().keys();
    /// assert_eq!(keys.next().unwrap()?, "ada");
    /// assert_eq!(keys.next_back().unwrap()?, "grace");
    /// assert!(keys.next().is_none());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn keys(self) -> Keys {
        Keys { entries: self }
    }

    /// Counts the remaining entries.
    pub(crate) fn count_entries(mut self) -> Result<u64> {
        let mut count = 0;
        while let Some(key) = self.step_key(Direction::Ascending) {
            key?;
            count += 1;
        }
        Ok(count)
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        let entry = match self.step_part(direction, Part::Entry)? {
            Ok(Found::Whole(key, value)) => Ok((key, value)),
            Ok(Found::Large(key, large, _view)) => {
                let value = self.handle.reads().read_large(&large);
                value.map(|value| (key, value)).inspect_err(|_| self.state.lock().finish())
            }
            Ok(Found::Bare(_)) => Err(Error::internal("a step lost the value of its entry")),
            Err(error) => Err(error),
        };
        Some(entry.map_err(|error| self.handle.reads().locate(error)))
    }

    fn step_key(&mut self, direction: Direction) -> Option<Result<Key>> {
        let found = self.step_part(direction, Part::Key)?;
        Some(found.map(Found::into_key).map_err(|error| self.handle.reads().locate(error)))
    }

    /// Skips `count` entries without reading large values; false if there were fewer.
    fn pass_over(&mut self, count: usize, direction: Direction) -> bool {
        (0..count).all(|_| self.step_key(direction).is_some())
    }

    fn step_part(&mut self, direction: Direction, part: Part) -> Option<Result<Found>> {
        if !self.handle.reads().is_owner_process() {
            // No lock is taken, as everywhere in a child.
            let was_refused = std::mem::replace(&mut self.is_refused, true);
            return (!was_refused).then(|| Err(Health::inherited()));
        }
        let (found, gap) = {
            let mut state = self.state.lock();
            (self.step_within(&mut state, direction, part), state.gap.take())
        };
        // Not under the lock of the state, for which the publication of a flush waits.
        if let Some(gap) = gap {
            self.handle.reads().learn_empty_range(&self.keyspace, &gap);
        }
        self.limit_scans();
        found
    }

    /// Closes cursors of other iterators if all cursors use too much memory.
    fn limit_scans(&mut self) {
        let reads = self.handle.reads();
        let used = reads.scan_bytes();
        if used != self.scan_bytes_seen {
            let own = Arc::as_ptr(&self.state).cast();
            reads.limit_scans(used, &self.keyspace, own);
            self.scan_bytes_seen = reads.scan_bytes();
        }
    }

    fn step_within(
        &self,
        state: &mut State,
        direction: Direction,
        part: Part,
    ) -> Option<Result<Found>> {
        if let Some(error) = state.failure.take() {
            state.finish();
            return Some(Err(error));
        }
        if state.is_done {
            return None;
        }
        let entry = self.advance(state, direction, part).transpose();
        if !matches!(entry, Some(Ok(_))) {
            state.finish();
        }
        entry
    }

    /// The next entry from this end.
    fn advance(
        &self,
        state: &mut State,
        direction: Direction,
        part: Part,
    ) -> Result<Option<Found>> {
        self.handle.reads().check()?;
        let State { range, front, back, failure, gap, .. } = state;
        let slot = match direction {
            Direction::Ascending => front,
            Direction::Descending => back,
        };
        let mut passed = self.handle.reads().tombstones();
        let mut hidden = 0;
        loop {
            let cursor = match slot {
                Some(cursor) => cursor,
                None => match self.open(range, direction)? {
                    Some(cursor) => slot.insert(cursor),
                    None => return Ok(None),
                },
            };
            let Cursor { entries: cursor, view } = cursor;
            let Some(key) = cursor.key().filter(|key| range.contains(key)) else {
                // The end of the range, or the position of the other end.
                if hidden >= HIDDEN_MIN {
                    *gap = Some(range.clone());
                }
                return Ok(None);
            };
            let found = found(key, cursor.update(), part, view)?;
            if let Some(found) = found {
                let key = found.key();
                if hidden >= HIDDEN_MIN {
                    *gap = Some(split(range, direction, key).0);
                }
                let bound = match direction {
                    Direction::Ascending => &mut range.lower,
                    Direction::Descending => &mut range.upper,
                };
                move_bound(bound, key, Bound::Excluded);
                // A failure behind this entry is returned by the next call.
                *failure = cursor.advance().err();
                return Ok(Some(found));
            }
            hidden += 1;
            passed.count += 1;
            if hidden == HIDDEN_MIN {
                let (before, mut rest) = split(range, direction, key);
                if self.keyspace.empty_ranges.jump(&mut rest, direction, self.pin.seqno()) {
                    mark(Mark::EmptyRangeSkipped);
                    (*gap, *range, hidden) = (Some(before), rest, 0);
                    *slot = None;
                    continue;
                }
            }
            cursor.advance()?;
        }
    }

    /// A cursor over the rest of `range` behind known empty ranges; `None` if nothing is left.
    fn open(&self, range: &mut KeyRange, direction: Direction) -> Result<Option<Cursor>> {
        let at = self.pin.seqno();
        while !range.is_empty() && self.keyspace.empty_ranges.jump(range, direction, at) {}
        if range.is_empty() {
            return Ok(None);
        }
        let view = self.keyspace.view_at(at);
        let entries = view.cursor(range, direction, at)?;
        Ok(Some(Cursor { entries, view }))
    }
}

/// Splits `range` at `key`: the part before it in this direction, and the part from it on.
fn split(range: &KeyRange, direction: Direction, key: &[u8]) -> (KeyRange, KeyRange) {
    let KeyRange { lower, upper } = range.clone();
    let key = key.to_vec();
    match direction {
        Direction::Ascending => (
            KeyRange { lower, upper: Bound::Excluded(key.clone()) },
            KeyRange { lower: Bound::Included(key), upper },
        ),
        Direction::Descending => (
            KeyRange { lower: Bound::Excluded(key.clone()), upper },
            KeyRange { lower, upper: Bound::Included(key) },
        ),
    }
}

impl State {
    /// Ends the iterator and releases the cursors.
    fn finish(&mut self) {
        self.is_done = true;
        self.front = None;
        self.back = None;
    }
}

impl Iterator for Iter {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Ascending)
    }

    /// Counts the remaining items, including an error. Does not read large values.
    fn count(self) -> usize {
        self.keys().count()
    }

    /// Does not read large values of skipped entries.
    fn nth(&mut self, n: usize) -> Option<Self::Item> {
        if self.pass_over(n, Direction::Ascending) { self.next() } else { None }
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Descending)
    }

    fn nth_back(&mut self, n: usize) -> Option<Self::Item> {
        if self.pass_over(n, Direction::Descending) { self.next_back() } else { None }
    }
}

impl std::iter::FusedIterator for Iter {}

impl Drop for Iter {
    fn drop(&mut self) {
        if !self.handle.reads().is_owner_process() {
            // Dropping these would take locks.
            std::mem::forget(Arc::clone(&self.state));
            std::mem::forget(Arc::clone(&self.keyspace));
        }
    }
}

impl std::fmt::Debug for Iter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Iter(seqno {})", self.pin.seqno())
    }
}

/// The keys of a range, from either end, without their values; see [`Iter::keys`].
///
/// It shows the same moment as the [`Iter`]. A key that cannot be read is an `Err` item and ends
/// it.
#[derive(Debug)]
pub struct Keys {
    entries: Iter,
}

impl Iterator for Keys {
    type Item = Result<Key>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.step_key(Direction::Ascending)
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.entries.step_key(Direction::Descending)
    }
}

impl std::iter::FusedIterator for Keys {}

/// The part of an entry that was asked for; `None` for a tombstone.
fn found(key: &[u8], update: Update<'_>, part: Part, view: &Arc<View>) -> Result<Option<Found>> {
    Ok(match update {
        Update::Delete => None,
        _ if part == Part::Key => Some(Found::Bare(Key::copy_from(key))),
        Update::Put(value) => {
            let (key, value) = pair(key, value);
            Some(Found::Whole(key, value))
        }
        Update::PutCompressed(value) => Some(Found::Whole(Key::copy_from(key), value.to_value()?)),
        Update::PutLarge(large) => Some(Found::Large(Key::copy_from(key), large, Arc::clone(view))),
    })
}
