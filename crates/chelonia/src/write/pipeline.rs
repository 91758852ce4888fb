//! Steps 3 to 5 of a commit: its place in the order of all commits, its entries, its visibility.
//!
//! ```text
//!   commit lock    prepare --> append --> placed       seqnos and tickets in the order of the log
//!   no lock                                apply       many commits at a time
//!   no lock                                complete    visible in the order of the tickets
//! ```
//!
//! Where threads have logs of their own, the append is done without the commit lock
//! (`pipeline/own_log.rs`).
//!
//! The pipeline knows no keyspace and no file: [`Tail`] is the log's end, [`Entries`] is what a
//! commit does at each step.
//!
//! Invariants:
//! 1. Seqnos and tickets are taken if and only if the record is in the log; in one of several, a
//!    record that cannot follow its seqnos stops all writes.
//! 2. A ticket that was taken is completed; after a panic or a failed append in between, nothing
//!    becomes visible any more, and all writes stop.

use crate::base::error::{Error, Result};
use crate::base::ids::{Lsn, SeqNo};
use crate::base::logs::{LogPosition, Starts};
use crate::log::LogTail;
use crate::runtime::sync::Mutex;
use crate::state::core::CommitState;
use crate::state::health::Health;
use crate::versions::visibility::{TICKETS_MAX, Visibility};

/// The end of the log.
pub trait Tail {
    /// Where the next record begins.
    fn position(&self) -> LogPosition;

    /// Appends a record with this hash; returns where it ends. After `NoSpace` and the like nothing
    /// was appended.
    fn append(&mut self, record: &[u8], hash: u64) -> Result<LogPosition>;

    /// The hash of a record that is complete only now.
    fn hash(&self, record: &[u8]) -> u64;

    /// Makes space for a record of `bytes` bytes; `NoSpace` and the like change nothing.
    fn make_space(&mut self, bytes: usize) -> Result<()>;

    /// True if no append fails for lack of space once it was made.
    fn is_space_sure(&self) -> bool;

    /// Refuses all later appends, because the record of a place that was taken is missing; returns
    /// the error as one that does not pass.
    fn stop(&self, error: Error) -> Error;
}

impl Tail for LogTail {
    #[inline]
    fn position(&self) -> LogPosition {
        self.position()
    }

    #[inline]
    fn append(&mut self, record: &[u8], hash: u64) -> Result<LogPosition> {
        self.append(record, hash)
    }

    #[inline]
    fn hash(&self, record: &[u8]) -> u64 {
        self.payload_hash(record)
    }

    #[inline]
    fn make_space(&mut self, bytes: usize) -> Result<()> {
        self.make_space(bytes)
    }

    #[inline]
    fn is_space_sure(&self) -> bool {
        self.is_mapped()
    }

    fn stop(&self, error: Error) -> Error {
        self.stop(error)
    }
}

/// Where a commit is in the log and in the order of all writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// Where a reader of its record, and of all after it, begins.
    pub starts: Starts<'a>,
    /// The seqnos of its first and last entry.
    pub first: SeqNo,
    pub last: SeqNo,
}

/// The entries of a commit, and the memtables that take them.
pub trait Entries {
    /// How many there are: one or more.
    fn count(&self) -> usize;

    /// Bytes of keys and values.
    fn bytes(&self) -> u64;

    /// The log record and its hash.
    fn record(&self) -> (&[u8], u64);

    /// The log record in one of several logs, which begins with the first seqno of its entries. May
    /// be called again with another.
    fn numbered(&mut self, first: SeqNo) -> &[u8];

    /// Called first, under the commit lock. An error ends the commit; it has changed nothing.
    fn prepare(&mut self) -> Result<()>;

    /// Called under the commit lock once the record is in the log.
    fn placed(&mut self, place: Place<'_>);

    /// Inserts the entries, with consecutive seqnos from that of [`Entries::placed`] on. A panic
    /// stops all writes.
    fn apply(&mut self);
}

/// The order of commits, and who sees them.
pub struct Pipeline<'p, T: Tail = LogTail, const TICKETS: u64 = TICKETS_MAX> {
    pub order: &'p Mutex<CommitState<T>>,
    pub visibility: &'p Visibility<TICKETS>,
    pub health: &'p Health,
}

impl<T: Tail, const TICKETS: u64> Pipeline<'_, T, TICKETS> {
    /// Commits `entries`; returns the end of their record when they are visible. After a transient
    /// error, such as `NoSpace`, nothing has changed.
    pub fn commit(&self, entries: &mut impl Entries) -> Result<Lsn> {
        let (ticket, last, end) = self.place(entries)?;
        let unfinished = Unfinished { pipeline: self };
        entries.apply();
        std::mem::forget(unfinished);
        self.visibility.complete(ticket, last)?;
        Ok(end)
    }

    /// Takes a ticket and seqnos, and appends the record. Returns the ticket, the last seqno and
    /// the end of the record.
    fn place(&self, entries: &mut impl Entries) -> Result<(u64, SeqNo, Lsn)> {
        debug_assert!(entries.count() > 0, "an empty commit has no seqno");
        let mut order = self.order.lock();
        entries.prepare()?;
        let CommitState { tail, next_seqno, next_ticket, totals, .. } = &mut *order;
        // Only a close takes the tail.
        let Some(tail) = tail else { return Err(Health::closed()) };
        self.visibility.wait_for_slot(*next_ticket)?;
        let start = tail.position();
        let (record, hash) = entries.record();
        let end =
            tail.append(record, hash).map_err(|error| self.health.stop_unless_harmless(error))?;
        debug_assert!(end.lsn > start.lsn, "a record has a length");
        let (first, ticket) = (*next_seqno, *next_ticket);
        let last = SeqNo(first.0 + entries.count() as u64 - 1);
        entries.placed(Place { starts: Starts::One(start), first, last });
        *next_ticket += 1;
        *next_seqno = last.next();
        totals.commits += 1;
        totals.entries += entries.count() as u64;
        totals.user_bytes += entries.bytes();
        Ok((ticket, last, end.lsn))
    }
}

/// A commit between its place in the order and its completion. Dropped only by a panic, or after a
/// failed append to one of several logs, which has stopped the database with its own error: later
/// writes could never become visible, so the database stops instead of waiting.
struct Unfinished<'a, 'p, T: Tail, const TICKETS: u64> {
    pipeline: &'a Pipeline<'p, T, TICKETS>,
}

impl<T: Tail, const TICKETS: u64> Drop for Unfinished<'_, '_, T, TICKETS> {
    fn drop(&mut self) {
        self.pipeline.health.stop(Error::internal("a commit was aborted by a panic"));
        self.pipeline.visibility.abandon();
    }
}

mod own_log;
#[cfg(test)]
mod tests;
