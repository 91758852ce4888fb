//! A thread's queue: entries are put in at the tail and deleted at the head, and the head is looked
//! at by a consumer that notes only now and then where it is.
//!
//! ```text
//!   noted place  <= head             tail
//!        |            |                |
//!        x x x x x x  o o o o o o o o  +        x deleted, o there, + the next
//!        [--- a scan starts here, and must pass what was deleted
//! ```
//!
//! A session without a log may see the entries that were there at the last commit: a scan is
//! checked against those.

use super::{Timed, Worker, index};
use crate::driver::clock;
use crate::driver::latency::Kind;
use crate::failure::{Failure, Result};
use crate::workload::keys::Keys;

/// Entries of a queue before its phase begins.
const QUEUE_BACKLOG: u64 = 1000;

/// Entries that a consumer looks at.
const QUEUE_SCAN: u64 = 10;

/// How often a consumer notes where it is: once in so many entries that it deleted.
const QUEUE_NOTE: u64 = 1000;

/// The records whose values queue entries have: none of a table.
const QUEUE_RECORDS: u64 = 1 << 63;

/// The entries `head` .. `tail`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue {
    head: u64,
    tail: u64,
}

impl Worker<'_> {
    /// Fills this thread's queue, which must be empty.
    pub fn fill_queue(&mut self) -> Result<()> {
        for _ in 0..QUEUE_BACKLOG {
            self.queue_push()?;
        }
        self.commit()
    }

    /// Empties it again.
    pub fn drain_queue(&mut self) -> Result<()> {
        while self.queue.head < self.queue.tail {
            self.queue_pop()?;
        }
        self.commit()
    }

    /// Puts an entry in at the tail.
    pub(super) fn queue_push(&mut self) -> Result<Timed> {
        self.write_queue_key(self.queue.tail);
        self.shared.values.write(self.queue_record(self.queue.tail), 0, &mut self.value);
        let timed = self.put(Kind::Insert)?;
        self.queue.tail += 1;
        self.publish_if_committed();
        Ok(timed)
    }

    /// As a consumer does that notes its place now and then: it starts at the place that it noted
    /// and comes by the entries that it has deleted since, up to [`QUEUE_NOTE`] of them.
    pub(super) fn queue_scan(&mut self) -> Result<Timed> {
        let Queue { head, tail } = self.committed_queue;
        self.write_queue_key(head / QUEUE_NOTE * QUEUE_NOTE);
        let count = QUEUE_SCAN.min(tail - head);
        let timed = self.scan_from_key(count)?;
        let numbers = head..head + count;
        if self.entries.len() != index(count) {
            return Err(Failure::wrong("queue: the scan of its head ended too early"));
        }
        let mut expected = Vec::new();
        for ((key, value), number) in self.entries.iter().zip(numbers) {
            Keys::write_queue(self.queue_number(), number, &mut expected);
            if key != expected {
                return Err(Failure::wrong("queue: an entry that is not the next"));
            }
            self.check(self.queue_record(number), value, |seen| seen == 0)?;
        }
        Ok(timed)
    }

    /// Deletes the head; a queue that is empty stays so.
    pub(super) fn queue_pop(&mut self) -> Result<Timed> {
        self.write_queue_key(self.queue.head);
        let start = clock::now();
        self.session.remove(&self.key)?;
        self.written(0)?;
        let timed = Timed::now(Kind::Update, start);
        self.queue.head = (self.queue.head + 1).min(self.queue.tail);
        self.publish_if_committed();
        Ok(timed)
    }

    fn write_queue_key(&mut self, number: u64) {
        Keys::write_queue(self.queue_number(), number, &mut self.key);
    }

    fn queue_number(&self) -> u32 {
        u32::try_from(self.place.thread).unwrap_or(u32::MAX)
    }

    fn queue_record(&self, number: u64) -> u64 {
        QUEUE_RECORDS | self.place.thread << 40 | number
    }
}
