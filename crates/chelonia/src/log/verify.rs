//! Verification: reads the log as a recovery would, while it is in use.
//!
//! ```text
//!     from (the durable root's)                    upto (`Log::written` at some moment)
//!      |  record  record  ~~damage~~  record  record |  being written
//!      '------------ read, all of it ----------------'
//!                          |          ^
//!                       reported      '- reading resumes at the next block with a record start
//! ```
//! Checked are: that a segment contains the position; every block header; every record by its
//! check, which covers its position, its predecessor, its length and its payload; both copies of
//! the header of every segment that contains one of the blocks. The caller checks the contents of
//! records.
//!
//! Writers continue meanwhile. The part before `upto` is complete and does not change; a
//! [`LogHold`] taken before `from` and `upto` keeps its segments from being recycled. Files are
//! listed after `upto` was taken, so none that matters is missed; others may come and go.
//!
//! [`Verifier::of_readable`] reads a log that is not open in the same way, despite damage: up to
//! the position known to have been durable, and from there on as far as it is intact.
//!
//! Nothing is written. Reads bypass the page cache where the file system allows it.

use crate::base::error::{Error, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES;
use crate::base::logs::LogPosition;
use crate::log::Log;
use crate::log::format::{block_of, block_start};
use crate::log::inventory::Inventory;
use crate::log::reader::{NOT_WRITTEN, PayloadPlace, Reader, Step};
use crate::log::recover::no_beginning;
use crate::log::several::numbers::Numbers;
use crate::log::slots::LogIdentity;
use crate::runtime::sync::Arc;
use crate::storage::io::{Directory, OpenMode};

/// Prevents segments that were in use when it was taken from being recycled or removed.
pub struct LogHold<'a> {
    log: &'a Log,
}

impl Drop for LogHold<'_> {
    fn drop(&mut self) {
        self.log.segments.release_hold();
    }
}

/// Result of a verification.
#[derive(Debug, Default)]
pub struct LogVerified {
    /// Stream bytes that were read and found intact.
    pub bytes: u64,
    /// The damage found, each with file and offset where there is one, in log order.
    pub damage: Vec<Error>,
}

/// A record read back from the log.
#[derive(Clone, Copy, Debug)]
pub struct ReadBack<'a> {
    /// The payload, without the seqno with which it begins in one of several logs.
    pub payload: &'a [u8],
    /// The seqnos of its entries, if the record says so.
    pub numbers: Option<Numbers>,
    /// True if the seqnos of its entries are known: it says them, or everything before it was
    /// intact, so that they can be counted.
    pub seqnos_known: bool,
    /// True if it is known to have been durable.
    pub is_durable: bool,
}

/// Called with each record.
pub type CheckFn<'a> = dyn FnMut(ReadBack<'_>) -> Result<()> + 'a;

/// End of a verification read.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// Up to the written position.
    Written(Lsn),
    /// Up to the end of the readable part after this position, up to which the log was durable.
    Readable(Lsn),
}

impl Until {
    /// The position up to which every record must be readable.
    fn known(self) -> Lsn {
        match self {
            Until::Written(lsn) | Until::Readable(lsn) => lsn,
        }
    }
}

impl Log {
    /// Keeps all current segments; segments trimmed meanwhile are released when the hold is
    /// dropped.
    pub fn hold(&self) -> LogHold<'_> {
        self.segments.hold();
        LogHold { log: self }
    }
}

/// A log read despite damage: its records, one after another, and what was found damaged.
pub struct Verifier {
    inventory: Arc<Inventory>,
    reader: Reader,
    until: Until,
    /// Start of the next record; `None` at the end.
    next: Option<LogPosition>,
    /// The record there, once it was read: its payload and its end.
    pending: Option<(PayloadPlace, LogPosition)>,
    /// Where it ended, and why, unless nothing was written there.
    ended: Option<(Lsn, Error)>,
    found: LogVerified,
}

impl Verifier {
    /// Begins to read `log` of `dir` at `from`, where a recovery would begin, up to `upto`.
    pub fn of_written(
        dir: &dyn Directory,
        log: LogIdentity,
        from: LogPosition,
        upto: Lsn,
    ) -> Result<Self> {
        let inventory = Arc::new(Inventory::scan(dir, log, OpenMode::Read)?);
        let reader = Reader::new(Arc::clone(&inventory));
        Ok(Self::begin(inventory, reader, Until::Written(upto), from))
    }

    /// Begins to read `log`, which is not being written, at `from`. It is known to be durable up to
    /// `durable`, and as far as its own blocks say; damage before that is reported and skipped.
    /// After that the read ends at the first record that cannot be read or is refused.
    pub fn of_readable(
        dir: &dyn Directory,
        log: LogIdentity,
        from: LogPosition,
        durable: Lsn,
    ) -> Result<Self> {
        let inventory = Arc::new(Inventory::scan(dir, log, OpenMode::Read)?);
        let mut reader = Reader::new(Arc::clone(&inventory));
        let evidence = reader.evidence(block_of(from.lsn))?;
        let said = evidence.watermark.map_or(durable, |(lsn, ..)| lsn.max(durable));
        Ok(Self::begin(inventory, reader, Until::Readable(said), from))
    }

    fn begin(inventory: Arc<Inventory>, reader: Reader, until: Until, from: LogPosition) -> Self {
        let (begins_in, known) = inventory.begin(from);
        // A segment that begins there may have no block yet, and a torn header.
        let has_blocks = |at: &usize| {
            let header = inventory.files[*at].header;
            header.is_some_and(|header| header.first_block < block_of(from.lsn))
        };
        let begins_in = begins_in.filter(has_blocks);
        let found = LogVerified::default();
        let mut verifier =
            Self { inventory, reader, until, next: Some(from), pending: None, ended: None, found };
        verifier.reader.visited.extend(begins_in);
        if !known {
            verifier.found.damage.push(no_beginning(from));
            verifier.next = verifier.resume_behind(block_of(from.lsn));
        }
        verifier
    }

    /// Finds the next record, which stays the next until it is accepted or refused; false at the
    /// end.
    pub fn peek(&mut self) -> bool {
        while let (None, Some(position)) = (self.pending, self.next) {
            if let Some((_, header)) = self.inventory.continuation(position) {
                // Another jump may follow at once: the record for this segment may have been
                // refused, too.
                let lsn = block_start(header.first_block);
                self.next = Some(LogPosition { lsn, ..position });
                continue;
            }
            let is_durable = position.lsn < self.until.known();
            if !is_durable && matches!(self.until, Until::Written(_)) {
                self.next = None;
                break;
            }
            let mut is_written = true;
            let wrong = match self.reader.next(position) {
                Ok(Step::Record { payload, end }) => {
                    self.pending = Some((payload, end));
                    break;
                }
                Ok(Step::Skip(next)) => {
                    self.found.bytes += next.lsn.0 - position.lsn.0;
                    self.next = Some(next);
                    continue;
                }
                Ok(Step::End { why, place }) => {
                    is_written = why != NOT_WRITTEN;
                    self.inventory.damage(place, why)
                }
                Err(error) => self.inventory.locate(error, position.lsn),
            };
            self.next = None;
            if is_durable {
                self.found.damage.push(wrong);
                self.next = self.resume_behind(block_of(position.lsn));
            } else if is_written {
                self.ended = Some((position.lsn, wrong));
            }
        }
        self.pending.is_some()
    }

    /// The record that was peeked at.
    pub fn record(&self) -> Option<ReadBack<'_>> {
        let ((place, _), start) = self.pending.zip(self.next)?;
        Some(ReadBack {
            payload: self.reader.payload(place),
            numbers: None,
            seqnos_known: self.found.damage.is_empty(),
            is_durable: start.lsn < self.until.known(),
        })
    }

    /// Frees the memory of a long payload; the next peek reads it again.
    pub fn forget_payload(&mut self) {
        if self.pending.is_some_and(|(payload, _)| payload == PayloadPlace::Gathered) {
            self.pending = None;
            self.reader.forget_payload();
        }
    }

    /// Goes on after the record that was peeked at, with the result of the caller's check: an error
    /// is damage, or the end of a log that need not be durable there.
    pub fn accept(&mut self, checked: Result<()>) {
        let Some(((_, end), start)) = self.pending.take().zip(self.next) else { return };
        if checked.is_err() && start.lsn >= self.until.known() {
            self.next = None;
            return;
        }
        self.found.bytes += end.lsn.0 - start.lsn.0;
        self.next = Some(end);
        let damage = checked.err().map(|error| self.inventory.locate(error, start.lsn));
        self.found.damage.extend(damage);
    }

    /// Ends the read.
    pub fn finish(self) -> LogVerified {
        self.found
    }

    /// The first position after block `number` where the log can be read again.
    fn resume_behind(&mut self, number: u64) -> Option<LogPosition> {
        let mut numbers = self.inventory.numbers_behind(number, block_of(self.until.known()));
        numbers.find_map(|number| self.reader.first_start_in(number).ok().flatten())
    }

    /// Goes on behind the place where it ended, if there is more: then what is there is damage. For
    /// a log that another one shows to have been durable further on.
    pub fn go_on(&mut self) -> bool {
        let Some((lsn, wrong)) = self.ended.take() else { return false };
        self.until = Until::Readable(Lsn(u64::MAX));
        self.next = self.resume_behind(block_of(lsn));
        self.until = Until::Readable(lsn);
        if self.next.is_some() {
            self.found.damage.push(wrong);
        }
        self.next.is_some()
    }

    /// Records that the record that was peeked at was durable, as another log shows.
    pub fn note_durable(&mut self) {
        if let Some((_, end)) = self.pending {
            self.until = Until::Readable(self.until.known().max(end.lsn));
        }
    }

    /// Number of findings so far.
    pub fn damage_count(&self) -> usize {
        self.found.damage.len()
    }

    /// Checks the headers of all segments in which an intact block was found: both copies were
    /// durable before the first block was written.
    pub fn check_headers(&mut self) {
        let salt = self.inventory.log.salt();
        for at in std::mem::take(&mut self.reader.visited) {
            let found = &self.inventory.files[at];
            let Some(header) = found.header else { continue };
            let mut block = vec![0; BLOCK_BYTES];
            let damage = match found.file.read_at(&mut block, 0) {
                Ok(()) => header.damaged_copy(&block, salt).map(|offset| {
                    let error = Error::corrupt("one copy of a log segment header is damaged");
                    error.at(found.file.name(), offset)
                }),
                Err(error) => Some(error),
            };
            self.found.damage.extend(damage);
        }
    }
}
