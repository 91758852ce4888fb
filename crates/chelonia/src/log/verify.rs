//! Verification: reads the log back as a recovery would, while it is in use.
//!
//! ```text
//!     from (the durable root's)                    upto (`Log::written` of some moment)
//!      |  record  record  ~~damage~~  record  record |  being written
//!      '------------ read, all of it ----------------'
//!                          |          ^
//!                          '- told ---' goes on at the next block that says where a record starts
//! ```
//! What is checked: that the position has a segment; every block header; every record by its check,
//! which binds its place, its predecessor, its length and its payload; both copies of the header of
//! every segment that holds one of the blocks. What a record says is checked by the caller.
//!
//! Writers go on meanwhile. What is before `upto` is complete and does not change; a [`LogHold`]
//! that was taken before `from` and `upto` were keeps its segments from being used again. Files are
//! listed after `upto` was taken, so none that matters is missed; others may come and go.
//!
//! [`Log::salvage`] reads the same of a log that nobody has open, whatever of it is damaged: up to
//! where it is known to have been durable, and from there on as far as it is whole.
//!
//! Nothing is written. Reads go around the page cache where the file system allows it.

use crate::base::error::{Error, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES;
use crate::log::Log;
use crate::log::format::{LogPosition, block_of, block_start};
use crate::log::reader::{Inventory, Reader, Step};
use crate::log::recover::no_beginning;
use crate::storage::io::{Directory, OpenMode};

/// While it lives, no segment that was not free before is recycled or removed.
pub struct LogHold<'a> {
    log: &'a Log,
}

impl Drop for LogHold<'_> {
    fn drop(&mut self) {
        self.log.segments.release_hold();
    }
}

/// What a verification read and found.
#[derive(Debug, Default)]
pub struct LogVerified {
    /// Bytes of the stream that were read and found good.
    pub bytes: u64,
    /// What is wrong, each with file and offset where there is one, in the order of the log.
    pub damage: Vec<Error>,
}

/// A record that was read back.
#[derive(Clone, Copy, Debug)]
pub struct ReadBack<'a> {
    /// What it carries.
    pub payload: &'a [u8],
    /// Everything before it was good.
    pub is_first_part: bool,
    /// It is known to have been durable.
    pub is_durable: bool,
}

/// Called with every record.
pub type CheckFn<'a> = dyn FnMut(ReadBack<'_>) -> Result<()> + 'a;

/// How far the log is read.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// To where it was written.
    Written(Lsn),
    /// To the end of what can be read behind this place, up to which it was durable.
    Readable(Lsn),
}

impl Until {
    /// Up to here everything must be there.
    fn known(self) -> Lsn {
        match self {
            Until::Written(lsn) | Until::Readable(lsn) => lsn,
        }
    }
}

impl Log {
    /// Keeps the log as long as it is from now on; what is trimmed meanwhile goes afterwards.
    pub fn hold(&self) -> LogHold<'_> {
        self.segments.hold();
        LogHold { log: self }
    }

    /// Reads the log of `dir` from `from`, where a recovery would begin, up to `upto`, and hands
    /// every record to `check`, whose errors are damage too.
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

    /// Reads what there is of a log that nobody writes, from `from` on, and hands every record to
    /// `take`. It is known to be durable up to `durable`, and to where its own blocks say; what is
    /// damaged before is told and passed over. Behind that it ends where it cannot be read, or
    /// where `take` fails.
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

    /// Checks record after record.
    fn walk(&mut self, from: LogPosition, check: &mut CheckFn<'_>) {
        let mut position = from;
        loop {
            if let Some((_, header)) = self.inventory.continuation(position) {
                // Maybe to go on from there at once: what was to be written there was refused, too.
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

    /// The first place behind block `number` where the log can be read again.
    fn resume_behind(&mut self, number: u64) -> Option<LogPosition> {
        let mut numbers = self.inventory.numbers_behind(number, block_of(self.until.known()));
        numbers.find_map(|number| self.reader.first_start_in(number).ok().flatten())
    }

    /// Reads the headers of all segments in which a block was found good: both copies were durable
    /// before the first block was written.
    fn check_headers(&mut self, salt: u64) {
        for at in std::mem::take(&mut self.reader.visited) {
            let found = &self.inventory.files[at];
            let Some(header) = found.header else { continue };
            let mut block = vec![0; BLOCK_BYTES];
            let damage = match found.file.read_at(&mut block, 0) {
                Ok(()) => header.damaged_copy(&block, salt).map(|offset| {
                    let error = Error::corrupt("a copy of a log segment's header is damaged");
                    error.at(found.file.name(), offset)
                }),
                Err(error) => Some(error),
            };
            self.found.damage.extend(damage);
        }
    }
}
