//! Positions in the logs of a database: one log, or several where threads have logs of their own.

use crate::base::ids::{Lsn, SeqNo};
use crate::base::limits::LOGS_MAX;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A position in a log where a record starts or the next one will, with the chain value there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct LogPosition {
    /// The position.
    pub lsn: Lsn,
    /// The check of the previous record.
    pub chain: u32,
}

impl LogPosition {
    /// The position at which the log of a new database begins.
    pub const START: LogPosition = LogPosition { lsn: Lsn(0), chain: 0 };
}

/// Where replay begins in each log, and how far each is known to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LogMark {
    /// Replay starts here: every keyspace has absorbed everything up to `seqno`, and no later write
    /// is before this position.
    pub begin: PerLog<LogPosition>,
    /// The log is known to be durable up to here: damage before is corruption, not a torn tail.
    pub durable: PerLog<Lsn>,
    /// The last seqno that replay does not need. With one log, that of the last write before its
    /// position.
    pub seqno: SeqNo,
}

impl LogMark {
    /// The mark of an empty database with `logs` logs.
    #[must_use]
    pub fn new(logs: usize) -> Self {
        let (begin, durable) = (LogPosition::START, LogPosition::START.lsn);
        let seqno = SeqNo::ZERO;
        Self { begin: PerLog::all(begin, logs), durable: PerLog::all(durable, logs), seqno }
    }
}

/// Where a reader begins for one record and for all after it in the order of all writes: in the
/// one log at the record, in several at a position in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Starts<'a> {
    /// The position in the one log.
    One(LogPosition),
    /// A position in each log.
    Each(&'a PerLog<LogPosition>),
}

impl Starts<'_> {
    /// The positions.
    #[must_use]
    pub fn positions(self) -> PerLog<LogPosition> {
        match self {
            Starts::One(position) => PerLog::one(position),
            Starts::Each(positions) => *positions,
        }
    }
}

/// A value for each log, in the order of their numbers; at least one and at most [`LOGS_MAX`].
#[derive(Clone, Copy)]
pub struct PerLog<T> {
    of: [T; LOGS_MAX],
    count: u8,
}

impl<T: Copy + Default> PerLog<T> {
    /// The value of a database with one log.
    #[must_use]
    pub fn one(value: T) -> Self {
        let mut of = [T::default(); LOGS_MAX];
        of[0] = value;
        Self { of, count: 1 }
    }

    /// The same value for each of `count` logs.
    #[must_use]
    pub fn all(value: T, count: usize) -> Self {
        Self::collect(std::iter::repeat_n(value, count))
    }

    /// A value for each log, in order.
    #[must_use]
    pub fn collect(values: impl IntoIterator<Item = T>) -> Self {
        let mut all = Self::one(T::default());
        all.count = 0;
        for value in values.into_iter().take(LOGS_MAX) {
            all.of[usize::from(all.count)] = value;
            all.count += 1;
        }
        debug_assert!(all.count > 0, "a database has a log");
        all.count = all.count.max(1);
        all
    }

    /// Makes another value of each.
    #[must_use]
    pub fn map<U: Copy + Default>(&self, make: impl FnMut(T) -> U) -> PerLog<U> {
        PerLog::collect(self.iter().copied().map(make))
    }
}

impl PerLog<LogPosition> {
    /// Bytes of all logs before these positions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.iter().map(|position| position.lsn.0).sum()
    }
}

impl<T: Copy + Default> Default for PerLog<T> {
    fn default() -> Self {
        Self::one(T::default())
    }
}

impl<T> Deref for PerLog<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.of[..usize::from(self.count)]
    }
}

impl<T> DerefMut for PerLog<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.of[..usize::from(self.count)]
    }
}

impl<T: PartialEq> PartialEq for PerLog<T> {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl<T: Eq> Eq for PerLog<T> {}

impl<T: fmt::Debug> fmt::Debug for PerLog<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self[..], formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_as_many_values_as_there_are_logs() {
        assert_eq!(PerLog::one(7)[..], [7]);
        assert_eq!(PerLog::collect([1, 2, 3]).map(|each| each * 2)[..], [2, 4, 6]);
        assert_eq!(PerLog::all(5, 2), PerLog::collect([5, 5]));
        assert_ne!(PerLog::all(5, 2), PerLog::all(5, 3));
        assert_eq!(PerLog::collect(0..100).len(), LOGS_MAX);
    }
}
