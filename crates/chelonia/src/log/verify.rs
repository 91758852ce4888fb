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
//! [`Log::salvage`] reads a log that is not open in the same way, despite damage: up to the
//! position known to have been durable, and from there on as far as it is intact.
//!
//! Nothing is written. Reads bypass the page cache where the file system allows it.

use crate::base::error::{Error, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES;
use crate::log::Log;
use crate::log::format::{LogPosition, block_of, block_start};
use crate::log::reader::{Inventory, Reader, Step};
use crate::log::recover::no_beginning;
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
    /// The payload.
    pub payload: &'a [u8],
    /// True if everything before it was intact.
    pub is_first_part: bool,
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

    /// Reads the log of `dir` from `from`, where a recovery would begin, up to `upto`, and passes
    /// each record to `check`, whose errors are reported as damage too.
    pub fn verify(
        dir: &dyn Directory,
        salt: u64,
        from: LogPosition,
        upto: Lsn,
        check: &mut CheckFn<'_>,
    ) -> Result<LogVerified> {
        let inventory = Inventory::scan(dir, salt, OpenMode::Read)?;
        let reader = Reader::new(&inventory, salt);
        let mut verifier = Verifier::new(&inventory, reader, Until::Written(upto));
        verifier.begin(from, check);
        verifier.check_headers(salt);
        Ok(verifier.found)
    }

    /// Reads a log that is not being written, from `from` on, and passes each record to `take`. It
    /// is known to be durable up to `durable`, and as far as its own blocks say; damage before that
    /// is reported and skipped. After that the read ends at the first unreadable record, or when
    /// `take` fails.
    pub fn salvage(
        dir: &dyn Directory,
        salt: u64,
        from: LogPosition,
        durable: Lsn,
        take: &mut CheckFn<'_>,
    ) -> Result<LogVerified> {
        let inventory = Inventory::scan(dir, salt, OpenMode::Read)?;
        let mut reader = Reader::new(&inventory, salt);
        let evidence = reader.evidence(block_of(from.lsn))?;
        let said = evidence.watermark.map_or(durable, |(lsn, ..)| lsn.max(durable));
        let mut verifier = Verifier::new(&inventory, reader, Until::Readable(said));
        verifier.begin(from, take);
        Ok(verifier.found)
    }
}

struct Verifier<'a> {
    inventory: &'a Inventory,
    reader: Reader<'a>,
    until: Until,
    found: LogVerified,
}

impl<'a> Verifier<'a> {
    fn new(inventory: &'a Inventory, reader: Reader<'a>, until: Until) -> Self {
        Self { inventory, reader, until, found: LogVerified::default() }
    }

    /// Checks everything from `from` on.
    fn begin(&mut self, from: LogPosition, check: &mut CheckFn<'_>) {
        let (begins_in, known) = self.inventory.begin(from);
        self.reader.visited.extend(begins_in);
        let begin = if known {
            Some(from)
        } else {
            self.found.damage.push(no_beginning(from));
            self.resume_behind(block_of(from.lsn))
        };
        if let Some(begin) = begin {
            self.walk(begin, check);
        }
    }

    /// Checks one record after another.
    fn walk(&mut self, from: LogPosition, check: &mut CheckFn<'_>) {
        let mut position = from;
        loop {
            if let Some((_, header)) = self.inventory.continuation(position) {
                // Another jump may follow at once: the record for this segment may have been
                // refused, too.
                position.lsn = block_start(header.first_block);
                continue;
            }
            let is_durable = position.lsn < self.until.known();
            if !is_durable && matches!(self.until, Until::Written(_)) {
                return;
            }
            let wrong = match self.reader.next(position) {
                Ok(Step::Record { payload, end }) => {
                    let is_first_part = self.found.damage.is_empty();
                    let checked = check(ReadBack { payload, is_first_part, is_durable });
                    if !is_durable && checked.is_err() {
                        return;
                    }
                    self.found.bytes += end.lsn.0 - position.lsn.0;
                    let start = std::mem::replace(&mut position, end).lsn;
                    let damage = checked.err().map(|error| self.inventory.locate(error, start));
                    self.found.damage.extend(damage);
                    continue;
                }
                Ok(Step::Skip(next)) => {
                    self.found.bytes += next.lsn.0 - position.lsn.0;
                    position = next;
                    continue;
                }
                Ok(Step::End { why, place }) => self.inventory.damage(place, why),
                Err(error) => self.inventory.locate(error, position.lsn),
            };
            if !is_durable {
                return;
            }
            self.found.damage.push(wrong);
            match self.resume_behind(block_of(position.lsn)) {
                Some(next) => position = next,
                None => return,
            }
        }
    }

    /// The first position after block `number` where the log can be read again.
    fn resume_behind(&mut self, number: u64) -> Option<LogPosition> {
        let mut numbers = self.inventory.numbers_behind(number, block_of(self.until.known()));
        numbers.find_map(|number| self.reader.first_start_in(number).ok().flatten())
    }

    /// Checks the headers of all segments in which an intact block was found: both copies were
    /// durable before the first block was written.
    fn check_headers(&mut self, salt: u64) {
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
