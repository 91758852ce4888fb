//! Iterators of transactions: the entries of its snapshot, with its own updates over them.
//!
//! Both are sorted and are merged from either end. Each step records how far the iterator has read,
//! so that a key which somebody inserts into the part that was passed over is a conflict as well.

use crate::api::handle::Handle;
use crate::api::iter::Iter;
use crate::api::transaction::reads::{RangeRead, ReadSet};
use crate::base::bytes::{Key, Value};
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::runtime::sync::Mutex;
use crate::state::health::Health;
use std::collections::btree_map;

/// The entries of a range as a transaction sees them, from either end; see
/// [`crate::Transaction::range`].
///
/// An entry that cannot be read is an `Err` item (as [`crate::Keyspace::get`]) and ends the
/// iterator. The transaction can read other keys meanwhile, and write after the iterator was
/// dropped.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let database = chelonia::Database::open(directory.path().join("d"))?;
/// # let people = database.keyspace("people", Default::default())?;
/// people.insert("ada", "analyst")?;
/// people.insert("grace", "admiral")?;
/// let mut transaction = database.transaction()?;
/// transaction.remove(&people, "ada")?;
/// transaction.insert(&people, "alan", "mathematician")?;
/// let keys: Result<Vec<_>, _> =
///     transaction.iter(&people).map(|entry| entry.map(|(key, _)| key)).collect();
/// assert_eq!(keys?, ["alan", "grace"]);
/// # Ok::<(), chelonia::Error>(())
/// ```
pub struct TransactionIter<'t> {
    stored: Ends<Iter, Result<(Key, Value)>>,
    own: Ends<OwnUpdates<'t>, (&'t Key, &'t Option<Value>)>,
    handle: &'t Handle,
    reads: &'t Mutex<ReadSet>,
    read: Option<RangeRead>,
    range: KeyRange,
    /// The error that the next call returns; it ends the iterator.
    failure: Option<Error>,
    is_done: bool,
}

type OwnUpdates<'t> =
    std::iter::Flatten<std::option::IntoIter<btree_map::Range<'t, Key, Option<Value>>>>;

/// An iterator whose next item can be looked at from both ends.
struct Ends<I, T> {
    inner: I,
    front: Option<T>,
    back: Option<T>,
}

impl<T, I: DoubleEndedIterator<Item = T>> Ends<I, T> {
    fn new(inner: I) -> Self {
        Self { inner, front: None, back: None }
    }

    /// The next item from this end.
    fn peek(&mut self, direction: Direction) -> Option<&T> {
        let Self { inner, front, back } = self;
        match direction {
            Direction::Ascending => {
                if front.is_none() {
                    *front = inner.next().or_else(|| back.take());
                }
                front.as_ref()
            }
            Direction::Descending => {
                if back.is_none() {
                    *back = inner.next_back().or_else(|| front.take());
                }
                back.as_ref()
            }
        }
    }

    fn take(&mut self, direction: Direction) -> Option<T> {
        self.peek(direction);
        match direction {
            Direction::Ascending => self.front.take(),
            Direction::Descending => self.back.take(),
        }
    }
}

impl<'t> TransactionIter<'t> {
    /// An iterator over `stored` and `own`, both of `range`. `read` is the place of its reads, or
    /// the error that it ends with.
    pub(super) fn new(
        stored: Iter,
        own: Option<btree_map::Range<'t, Key, Option<Value>>>,
        (handle, reads): (&'t Handle, &'t Mutex<ReadSet>),
        range: KeyRange,
        read: Result<RangeRead>,
    ) -> Self {
        let (read, failure) = match read {
            Ok(read) => (Some(read), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            stored: Ends::new(stored),
            own: Ends::new(own.into_iter().flatten()),
            handle,
            reads,
            read,
            range,
            failure,
            is_done: false,
        }
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        if self.is_done {
            return None;
        }
        if !self.handle.reads().is_owner_process() {
            // No lock is taken, as everywhere in a child.
            self.is_done = true;
            return Some(Err(Health::inherited()));
        }
        let entry = match self.failure.take() {
            Some(error) => Some(Err(error)),
            None => self.advance(direction),
        };
        let mut recorded = Ok(());
        if let Some(read) = &mut self.read {
            let mut reads = self.reads.lock();
            match &entry {
                Some(Ok((key, _))) => recorded = reads.extend(read, direction, &self.range, key),
                Some(Err(_)) | None => reads.complete(read, &self.range),
            }
        }
        let entry = match recorded {
            Ok(()) => entry,
            Err(error) => Some(Err(error)),
        };
        self.is_done = !matches!(entry, Some(Ok(_)));
        entry
    }

    fn advance(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        loop {
            let (stored, own) = (self.stored.peek(direction), self.own.peek(direction));
            let stored = match stored {
                Some(Err(_)) => return self.stored.take(direction),
                Some(Ok((key, _))) => Some(key),
                None => None,
            };
            let order = match (stored, own) {
                (None, None) => return None,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(stored), Some((own, _))) => match direction {
                    Direction::Ascending => stored.cmp(own),
                    Direction::Descending => own.cmp(&stored),
                },
            };
            if order.is_lt() {
                return self.stored.take(direction);
            }
            if order.is_eq() {
                // It was overwritten or removed.
                self.stored.take(direction);
            }
            if let Some((key, Some(value))) = self.own.take(direction) {
                return Some(Ok((key.clone(), value.clone())));
            }
        }
    }
}

impl Iterator for TransactionIter<'_> {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Ascending)
    }
}

impl DoubleEndedIterator for TransactionIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Descending)
    }
}

impl std::iter::FusedIterator for TransactionIter<'_> {}

impl std::fmt::Debug for TransactionIter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionIter").field("is_done", &self.is_done).finish_non_exhaustive()
    }
}
