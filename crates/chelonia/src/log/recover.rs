//! Recovery: replays a log from a position, decides where it ends, and continues after that.
//!
//! ```text
//!   from                                   p
//!    |  record  record  record  ...  record | torn, or damaged, or nothing
//!    '----------- replayed -----------------'
//!                                            a watermark beyond p, here or in the superblock:
//!                                                the log was durable further -> `Corrupt`
//!                                            none: not acknowledged as durable -> cut at p
//! ```
//! Opening a log for writing then does the following, in this order:
//! 1. It syncs the replayed segments: after a process crash they may be in the page cache only, and
//!    replayed records must not be lost in a later power failure.
//! 2. It creates a segment with block numbers above all that were seen, whose header says that it
//!    continues p, and makes it durable before the first append. From then on every recovery that
//!    arrives at p continues there, so the bytes after p in the older file are never accepted, even
//!    if they look valid at a later recovery. No bytes before p are overwritten.
//!
//! Until step 2 is done, nothing that a recovery could need has been changed: it may be interrupted
//! at any moment and repeated with the same result. If the segment that begins at p is empty (an
//! earlier recovery created it), the new one takes over the position which that one continued, so
//! that repeated crashes do not accumulate segments. The blocks of the empty one, and on a full
//! device those after p in the segment that contains p, are punched out before step 2, because the
//! new segment may need their space: all of them are beyond the end, and read as never written
//! afterwards.
//!
//! If there is still no space for the new segment, the log is open without one, and step 2 is done
//! by the first append that finds space ([`LogTail::without_segment`]). Until then the end must be
//! found at p again. The bytes after a torn end do not change, but a record that was cut could be
//! accepted later: when its keyspace is dropped, the data that it lacks is not needed any more. So
//! its head is overwritten with zeros, in place. If that fails, so does the recovery.
//!
//! A read-only recovery writes nothing.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::logs::LogPosition;
use crate::log::format::{
    BLOCK_HEADER_BYTES, RECORD_HEAD_BYTES_MAX, SegmentHeader, block_of, block_start, offset_of,
    place,
};
use crate::log::inventory::Inventory;
use crate::log::reader::{PayloadPlace, Reader, Step};
use crate::log::segments::Inherited;
use crate::log::slots::LogIdentity;
use crate::log::tail::LogTail;
use crate::log::{Log, LogOptions};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::Arc;
use crate::storage::io::{Access, Directory, OpenMode};

/// The error for a log without the segment in which replay begins.
pub(in crate::log) fn no_beginning(from: LogPosition) -> Error {
    Error::corrupt(format!(
        "no file log-NNNN holds byte {} of the log, where recovery begins: restore the missing \
         file",
        from.lsn.0
    ))
}

/// Result of replaying a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replay {
    /// Continue with the next record.
    Continue,
    /// The log ends before this record: data it refers to is missing. Damage, if the record was
    /// durable.
    Cut,
}

/// Access mode of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogMode {
    /// Replay and continue writing.
    ReadWrite,
    /// Replay without changing anything.
    ReadOnly,
}

/// Result of a recovery.
pub struct Recovered {
    /// The log to write to; `None` if it was opened read-only.
    pub writer: Option<(LogTail, Arc<Log>)>,
    /// Start of the next record.
    pub end: LogPosition,
    /// Payload bytes of the replayed records.
    pub payload_bytes: u64,
}

/// A log being recovered: its records, one after another, and then the log to write to.
pub struct Recovery {
    dir: Arc<dyn Directory>,
    mode: LogMode,
    inventory: Arc<Inventory>,
    reader: Reader,
    from: LogPosition,
    /// Start of the next record.
    end: LogPosition,
    /// The record there, once it was read: its payload and its end.
    pending: Option<(PayloadPlace, LogPosition)>,
    /// Why there is no further record, once the end is known.
    ended: Option<&'static str>,
    /// True if there is a record at the end, which was cut.
    is_cut: bool,
    payload_bytes: u64,
    /// The segment that begins at `end`, if it was entered through its `continues_from`.
    entered: Option<(usize, SegmentHeader)>,
}

impl Recovery {
    /// Begins to read `log` in `dir` at `from`, a record start or the end of the log.
    pub fn begin(
        dir: &Arc<dyn Directory>,
        log: LogIdentity,
        from: LogPosition,
        mode: LogMode,
    ) -> Result<Self> {
        let open_mode = match mode {
            LogMode::ReadWrite => OpenMode::Write,
            LogMode::ReadOnly => OpenMode::Read,
        };
        if place(block_of(from.lsn), offset_of(from.lsn)) != from.lsn {
            return Err(Error::corrupt("the trim position of the log is not a valid record start"));
        }
        if mode == LogMode::ReadWrite {
            // A removed file that reappeared after a later power failure would claim the serial and
            // the blocks of segments created from now on.
            dir.sync()?;
        }
        let inventory = Arc::new(Inventory::scan(&**dir, log, open_mode)?);
        let (begins_in, known) = inventory.begin(from);
        if !known {
            return Err(no_beginning(from));
        }
        let mut reader = Reader::new(Arc::clone(&inventory));
        // A file that ends at `from` is needed until the log has continued in another one: it alone
        // shows that the log can continue there.
        let ends_there = inventory.ending_at(block_of(from.lsn));
        let ends_there = ends_there.filter(|_| offset_of(from.lsn) == 0);
        reader.visited.extend(begins_in.or(ends_there));
        Ok(Self {
            dir: Arc::clone(dir),
            mode,
            inventory,
            reader,
            from,
            end: from,
            pending: None,
            ended: None,
            is_cut: false,
            payload_bytes: 0,
            entered: None,
        })
    }

    /// The start of the next record, which stays the next until it is accepted; `None` at the end.
    pub fn peek(&mut self) -> Result<Option<LogPosition>> {
        while self.pending.is_none() && self.ended.is_none() {
            if let Some((at, header)) = self.inventory.continuation(self.end) {
                // This moves forward: a header never continues a position after its own first
                // block.
                self.end.lsn = block_start(header.first_block);
                self.entered = Some((at, header));
                mark(Mark::LogWentOnElsewhere);
                self.reader.visited.insert(at);
                continue;
            }
            match self.reader.next(self.end)? {
                Step::Record { payload, end } => self.pending = Some((payload, end)),
                Step::Skip(next) => (self.end, self.entered) = (next, None),
                Step::End { why, .. } => self.ended = Some(why),
            }
        }
        Ok(self.pending.map(|_| self.end))
    }

    /// A position at which a later recovery may begin to read what was not accepted yet.
    pub fn position(&self) -> LogPosition {
        // A segment of which nothing was accepted may be replaced.
        self.entered.map_or(self.end, |(_, header)| header.continues_from)
    }

    /// Adds the place of the next record to the error.
    pub fn locate(&self, error: Error) -> Error {
        self.inventory.locate(error, self.end.lsn)
    }

    /// The payload of the record that was peeked at.
    pub fn payload(&self) -> &[u8] {
        self.pending.map_or(&[], |(payload, _)| self.reader.payload(payload))
    }

    /// Frees the memory of a long payload; the next peek reads it again.
    pub fn forget_payload(&mut self) {
        if self.pending.is_some_and(|(payload, _)| payload == PayloadPlace::Gathered) {
            self.pending = None;
            self.reader.forget_payload();
        }
    }

    /// Goes on after the record that was peeked at.
    pub fn accept(&mut self) {
        self.payload_bytes += self.payload().len() as u64;
        if let Some((_, end)) = self.pending.take() {
            (self.end, self.entered) = (end, None);
        }
    }

    /// Ends the log before the record that was peeked at, or would be.
    pub fn cut(&mut self, why: &'static str) -> Result<()> {
        self.is_cut = self.peek()?.is_some();
        self.pending = None;
        self.ended.get_or_insert(why);
        Ok(())
    }

    /// Ends the reading; fails with `Corrupt` if the log is known to have been durable beyond its
    /// end: up to `durable`, or as far as its own blocks say.
    pub fn judge(&mut self, durable: Lsn) -> Result<Judged> {
        let evidence = self.reader.evidence(block_of(self.end.lsn))?;
        let end = self.end.lsn;
        let said_by = match &evidence.watermark {
            _ if durable > end => "the superblock".to_owned(),
            Some((watermark, file, offset)) if *watermark > end => {
                format!("the block at {offset} of {file}")
            }
            _ => return Ok(Judged { end_block: evidence.end_block }),
        };
        let why = self.ended.unwrap_or_default();
        let reason = format!(
            "the log is damaged before its durable end ({why}; durable according to {said_by})"
        );
        Err(self.inventory.damage(end, &reason))
    }

    /// Continues the log after its end, unless it is read-only.
    pub fn finish(self, options: &LogOptions, judged: &Judged) -> Result<Recovered> {
        let (end, payload_bytes) = (self.end, self.payload_bytes);
        if self.mode == LogMode::ReadOnly {
            return Ok(Recovered { writer: None, end, payload_bytes });
        }
        let above = self.inventory.end_block.max(block_of(self.from.lsn) + 1);
        let (tail, log) = self.resume(options, judged.end_block.max(above))?;
        let end = tail.position();
        Ok(Recovered { writer: Some((tail, log)), end, payload_bytes })
    }

    /// Continues after the end, in blocks with numbers of at least `next_block`.
    fn resume(self, options: &LogOptions, next_block: u64) -> Result<(LogTail, Arc<Log>)> {
        let Self { dir, inventory, reader, from, end, .. } = self;
        // An empty segment in which the reading ended is replaced, unless it began there: then the
        // superblock refers to its beginning.
        let replaced = self.entered.filter(|(_, header)| from.lsn <= header.continues_from.lsn);
        let continued = replaced.map_or(end, |(_, header)| header.continues_from);
        let mut inherited = Inherited {
            next_block: next_block.max(block_of(end.lsn) + 1),
            next_serial: inventory.next_serial,
            ..Inherited::default()
        };
        let mut old = Vec::new();
        for (at, found) in inventory.files.iter().enumerate() {
            if replaced.is_some_and(|(replaced, _)| replaced == at) {
                mark(Mark::LogEmptySegmentReplaced);
                inherited.kept_slots.push(found.slot);
                let segment = found.to_segment();
                // The replacement may need the space. A record that was cut may have to be
                // overwritten, which must not take space.
                let used = (1 + u64::from(self.is_cut)) * BLOCK_BYTES_U64;
                let _ = segment.file.punch_hole(used, segment.file_bytes() - used);
                old.push(segment);
            } else if reader.visited.contains(&at) {
                found.file.sync()?;
                inherited.live.push(found.to_segment());
            } else {
                inherited.free.push(found.to_segment());
            }
        }
        inherited.live.sort_by_key(|segment| segment.first_block);
        for slot in &inventory.stray_slots {
            mark(Mark::LogStrayRemoved);
            dir.remove(&inventory.log.name(*slot))?;
        }
        let mapped = dir.facts().mapped_log;
        let segments = Log::segments(Arc::clone(&dir), options, inherited)?;
        let open = match segments.begin(continued) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                // The log can be read, and the first append tries again.
                mark(Mark::LogBegunWithoutSpace);
                if self.is_cut {
                    overwrite_head(&*dir, &inventory, end.lsn)?;
                }
                None
            }
            open => Some(open?),
        };
        if open.is_some() {
            old.drain(..).for_each(|segment| segments.give(segment));
        }
        let (tail, log) = Log::begin(segments, (options, mapped), open, continued);
        log.trim(from);
        Ok((tail, log))
    }
}

/// A log that was not durable beyond its end.
pub struct Judged {
    /// One more than the number of the last block found.
    end_block: u64,
}

/// Durably overwrites the head of the record at `lsn` with zeros.
fn overwrite_head(dir: &dyn Directory, inventory: &Inventory, lsn: Lsn) -> Result<()> {
    let Some((at, block)) = inventory.find(block_of(lsn)) else {
        return Err(Error::internal("a record that was read is in no file"));
    };
    mark(Mark::LogCutOverwritten);
    let name = inventory.log.name(inventory.files[at].slot);
    let file = dir.open(&name, OpenMode::Write, Access::Buffered)?;
    let start = block + offset_of(lsn).max(BLOCK_HEADER_BYTES) as u64;
    file.write_at(&[0; RECORD_HEAD_BYTES_MAX], start)?;
    file.sync()
}
