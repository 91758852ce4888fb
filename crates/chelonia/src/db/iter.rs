//! Iterators: entries in key order from either end, as of one moment, owned and `Send`.
//!
//! An iterator stands on a pin. Its two cursors (one from each end, opened when first used) stand
//! in the pin's view; when a drain replaces the view, the pin tells the iterator to let go, and the
//! next call finds its place again behind the last key it gave. So an iterator that nobody advances
//! holds no memory of memtables.
//!
//! An error is told once and ends the iterator, from both ends: who collects, counts or passes over
//! errors must come to an end too.

use crate::base::bytes::{Key, Value, pair};
use crate::base::error::{Error, Result};
use crate::base::ids::KeyspaceId;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, Update};
use crate::base::sync::{Arc, Mutex, Weak};
use crate::db::handle::Handle;
use crate::db::snapshots::{Pin, Standing};
use crate::merge::Merge;
use std::ops::Bound;

type Cursor = Merge<Box<dyn SortedStream + Send>>;

/// The entries of a range, from either end; see [`crate::Keyspace::range`].
///
/// Owned and `Send`. It shows one moment, however long it is held and whatever is written
/// meanwhile. An entry is `Err` if it could not be read (as [`crate::Keyspace::get`]); that ends
/// the iterator. To go on behind a damaged place, ask for the range behind it.
pub struct Iter {
    // Before the handle: a pin is let go while the database is still open.
    state: Arc<Mutex<State>>,
    pin: Arc<Pin>,
    handle: Arc<Handle>,
}

struct State {
    keyspace: KeyspaceId,
    /// What is still to come: bounds move inwards with every entry given.
    range: KeyRange,
    front: Option<Cursor>,
    back: Option<Cursor>,
    /// What is told by the next call, and ends the iterator.
    failure: Option<Error>,
    is_done: bool,
}

impl Standing for Mutex<State> {
    fn let_go(&self) {
        let mut state = self.lock();
        state.front = None;
        state.back = None;
    }
}

impl Iter {
    pub(crate) fn new(
        handle: Arc<Handle>,
        pin: Arc<Pin>,
        keyspace: KeyspaceId,
        range: KeyRange,
    ) -> Self {
        let is_done = range.is_empty();
        let state = State { keyspace, range, front: None, back: None, failure: None, is_done };
        let state = Arc::new(Mutex::new(state));
        let standing: Weak<Mutex<State>> = Arc::downgrade(&state);
        pin.register(standing);
        Self { state, pin, handle }
    }

    /// An iterator that only tells an error.
    pub(crate) fn failed(handle: Arc<Handle>, pin: Arc<Pin>, error: Error) -> Self {
        let iter = Self::new(handle, pin, KeyspaceId::default(), KeyRange::all());
        iter.state.lock().failure = Some(error);
        iter
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        let mut state = self.state.lock();
        if let Some(error) = state.failure.take() {
            state.finish();
            return Some(Err(error));
        }
        if state.is_done {
            return None;
        }
        match self.advance(&mut state, direction) {
            Ok(Some(entry)) => Some(Ok(entry)),
            Ok(None) => {
                state.finish();
                None
            }
            Err(error) => {
                state.finish();
                Some(Err(error))
            }
        }
    }

    /// The next entry from this end.
    fn advance(&self, state: &mut State, direction: Direction) -> Result<Option<(Key, Value)>> {
        self.handle.health.check_read()?;
        let State { keyspace, range, front, back, failure, .. } = state;
        let slot = match direction {
            Direction::Ascending => front,
            Direction::Descending => back,
        };
        let cursor = match slot {
            Some(cursor) => cursor,
            None => {
                let Some(view) = self.pin.view(*keyspace) else { return Ok(None) };
                slot.insert(view.cursor(range, direction, self.pin.seqno())?)
            }
        };
        while let Some(key) = cursor.key() {
            if !range.contains(key) {
                // The other end has been here.
                return Ok(None);
            }
            let entry = match cursor.update() {
                Update::Delete => None,
                Update::Put(value) => Some(pair(key, value)),
                Update::PutLarge(large) => {
                    let value = self.handle.storage.read_large(&large)?;
                    Some((Key::copy_from(key), value))
                }
            };
            if let Some((key, value)) = entry {
                let bound = match direction {
                    Direction::Ascending => &mut range.lower,
                    Direction::Descending => &mut range.upper,
                };
                exclude(bound, &key);
                // What cannot be read next is told by the next call: this entry is whole.
                *failure = cursor.advance().err();
                return Ok(Some((key, value)));
            }
            cursor.advance()?;
        }
        Ok(None)
    }
}

/// Moves a bound to just behind `key`, in the buffer that the bound has.
fn exclude(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    let mut buffer = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(buffer) | Bound::Excluded(buffer) => buffer,
        Bound::Unbounded => Vec::new(),
    };
    buffer.clear();
    buffer.extend_from_slice(key);
    *bound = Bound::Excluded(buffer);
}

impl State {
    /// Nothing more comes; what the cursors hold is let go.
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
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Descending)
    }
}

impl std::iter::FusedIterator for Iter {}

impl std::fmt::Debug for Iter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Iter(seqno {})", self.pin.seqno())
    }
}
