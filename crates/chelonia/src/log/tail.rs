//! The growing end of the log: [`LogTail`], owned by the thread that orders commits.
//!
//! ```text
//!   open segment                                   prepared segments
//!   | header | block | block | block so far ...... |   | header | block ...
//!                            ^ header  ^ offset        taken when the open segment is full
//! ```
//! Invariants:
//! 1. The space of a record is reserved before its first byte is copied, so only a device error can
//!    leave a partial record. A device error poisons the log, except `NoSpace`, which a write can
//!    meet where the file system does not write in place (btrfs): see below.
//! 2. A block's header is written when the block opens, before anything else in it, and the rest is
//!    cleared then: the segment may hold old blocks. So a reader of the log of a crashed process
//!    sees where it ends, and closing a block early takes no write.
//! 3. `Log::written` is raised after the last byte of a record is in the region, in order.
//!
//! A record whose write fails with `NoSpace` is refused, and the tail keeps its position. The bytes
//! written of the record lie after that position and must not be accepted, nor those that an
//! earlier refused record left further on. So the next record goes to a new segment whose header
//! says that it continues the position, durable before the record is written; a recovery continues
//! after a torn end in the same way (`log/recover.rs`). A process that crashes before that leaves a
//! torn end, or the complete record if all unwritten bytes of it are zeros, like the rest of a
//! cleared block: then a refused commit is present after all. No acknowledged commit is affected:
//! `Log::written` did not move, so no sync counted the bytes after the position, and no watermark
//! names them.

use crate::base::error::{Error, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES;
use crate::base::logs::LogPosition;
use crate::log::Log;
use crate::log::format::{
    BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockHeader, RECORD_BYTES_MAX, RECORD_HEAD_BYTES_MAX,
    block_of, encode_head, first_start_after, index, offset_of, place, record_check,
};
use crate::log::segments::MappedSegment;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::Arc;

/// The append end of the log. Fields that change with every record come first, so that few cache
/// lines move between threads with the lock that guards the tail.
#[repr(C)]
pub struct LogTail {
    /// Number of the block that is opened next.
    next_block: u64,
    /// Append offset in the open block; [`BLOCK_BYTES`] if it is full or none is open.
    offset: usize,
    /// Check of the last record.
    chain: u32,
    /// True if a record was appended since the last seal.
    unsealed: bool,
    /// True if nothing more is written to the open segment, because it holds bytes of a refused
    /// record or is none at all.
    is_refused: bool,
    open: MappedSegment,
    log: Arc<Log>,
    /// Segments that are full, until the record that filled them is complete.
    full: Vec<MappedSegment>,
    /// Buffer for head and payload together, where a write is a system call.
    joined: Vec<u8>,
    /// A block that is empty after its header.
    blank: Box<[u8; BLOCK_BYTES]>,
}

impl LogTail {
    /// Creates the tail of `log` at the beginning of `open`.
    pub(in crate::log) fn new(log: Arc<Log>, open: MappedSegment, chain: u32) -> Self {
        let next_block = open.first_block;
        Self {
            log,
            open,
            next_block,
            offset: BLOCK_BYTES,
            chain,
            unsealed: false,
            is_refused: false,
            full: Vec::new(),
            joined: Vec::new(),
            blank: Box::new([0; BLOCK_BYTES]),
        }
    }

    /// Creates the tail of `log` at `from`, without a segment: the first append makes one that
    /// continues `from`, or fails and may be repeated. This is the state after a refused record.
    pub(in crate::log) fn without_segment(log: Arc<Log>, from: LogPosition) -> Self {
        let number = block_of(from.lsn);
        let mut tail = Self::new(log, MappedSegment::none(number), from.chain);
        if offset_of(from.lsn) > 0 {
            (tail.next_block, tail.offset) = (number + 1, offset_of(from.lsn));
        }
        tail.is_refused = true;
        debug_assert_eq!(tail.position(), from);
        tail
    }

    /// Start of the next record.
    #[inline]
    #[must_use]
    pub fn position(&self) -> LogPosition {
        let lsn = if self.offset == BLOCK_BYTES {
            place(self.next_block, 0)
        } else {
            place(self.next_block - 1, self.offset)
        };
        LogPosition { lsn, chain: self.chain }
    }

    /// Appends a record; `hash` is [`Log::payload_hash`] of `payload`, computed by the caller
    /// before it took its lock. Returns the end of the record, which survives a process crash now,
    /// and a power failure after [`Log::sync_through_after`] of that position.
    ///
    /// After `NoSpace` and `TooManyFiles` no recovery can accept the record after a later append,
    /// and the call may be repeated. After any other device error every further call fails with
    /// `Stopped`.
    pub fn append(&mut self, payload: &[u8], hash: u64) -> Result<LogPosition> {
        self.log.check_running()?;
        let length = match u32::try_from(payload.len()) {
            Ok(length) if length > 0 && payload.len() <= RECORD_BYTES_MAX => length,
            _ => return Err(Error::invalid("a log record must have 1 byte to 16 MiB")),
        };
        debug_assert_eq!(hash, self.log.payload_hash(payload), "the hash is the payload's");
        self.leave_refused()?;
        let before = (self.next_block, self.offset);
        let check = record_check(self.position(), length, hash);
        let (head, head_bytes) = encode_head(check, length);
        let head = &head[..head_bytes];
        let copied = if self.offset + head_bytes + payload.len() <= BLOCK_BYTES {
            self.copy_within_block(head, payload)
        } else {
            self.reserve(head_bytes + payload.len())?;
            self.copy_across_blocks(head, payload, check)
        };
        copied.map_err(|error| self.refuse(error, before))?;
        if self.offset + RECORD_HEAD_BYTES_MAX > BLOCK_BYTES {
            self.offset = BLOCK_BYTES;
        }
        self.chain = check;
        self.unsealed = true;
        let end = self.position();
        self.log.count_record(u64::from(length));
        self.log.publish(end.lsn);
        Ok(end)
    }

    /// [`Log::payload_hash`] of this log.
    #[inline]
    #[must_use]
    pub fn payload_hash(&self, payload: &[u8]) -> u64 {
        self.log.payload_hash(payload)
    }

    /// True if records are copied into mapped memory.
    #[inline]
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.log.is_mapped()
    }

    /// Makes space for a record of `bytes` bytes. After that, an append into mapped memory fails
    /// only if the log was stopped. `NoSpace` and `TooManyFiles` change nothing.
    pub fn make_space(&mut self, bytes: usize) -> Result<()> {
        self.log.check_running()?;
        self.leave_refused()?;
        if self.offset + RECORD_HEAD_BYTES_MAX + bytes <= BLOCK_BYTES {
            return Ok(());
        }
        self.reserve(RECORD_HEAD_BYTES_MAX + bytes)
    }

    /// Seals the open block: leaves the rest of it empty and opens the next, whose header records
    /// the durable position. Damage before that position is then distinguishable from a torn tail.
    /// Returns the new position; does nothing if no record was appended since the last seal.
    pub fn seal_block(&mut self) -> Result<LogPosition> {
        self.log.check_running()?;
        if !self.unsealed {
            return Ok(self.position());
        }
        self.leave_refused()?;
        if self.next_block == self.open.end_block {
            self.log.reserve(1)?;
        }
        let before = (self.next_block, self.offset);
        self.offset = BLOCK_BYTES;
        let start = first_start_after(0);
        let opened = self.open_block(start, self.chain);
        self.retire_full();
        opened.map_err(|error| self.refuse(error, before))?;
        self.unsealed = false;
        let end = self.position();
        self.log.publish(end.lsn);
        Ok(end)
    }

    /// Leaves the rest of the open block empty: the next record begins in a block of its own.
    /// Writes nothing, see invariant 2.
    pub fn leave_block(&mut self) {
        if self.unsealed && !self.is_refused && self.offset > BLOCK_HEADER_BYTES {
            self.offset = BLOCK_BYTES;
        }
    }

    /// Stops the log, because a record that has its place in the order of all writes is not in it.
    #[cold]
    pub fn stop(&self, error: Error) -> Error {
        self.log.poison(error)
    }

    /// Handles a failed write, with the tail as it was before: `NoSpace` refuses the record, every
    /// other error stops the log.
    #[cold]
    fn refuse(&mut self, error: Error, (next_block, offset): (u64, usize)) -> Error {
        if !error.is_transient() {
            return self.log.poison(error);
        }
        (self.next_block, self.offset) = (next_block, offset);
        self.is_refused = true;
        error
    }

    /// Switches to a new segment if the open one holds bytes of a refused record.
    fn leave_refused(&mut self) -> Result<()> {
        if self.is_refused {
            mark(Mark::LogWentOnBehindRefusal);
            let next = self.log.go_on_behind(self.position())?;
            self.next_block = next.first_block;
            self.offset = BLOCK_BYTES;
            self.log.retire_segment(std::mem::replace(&mut self.open, next));
            self.is_refused = false;
        }
        Ok(())
    }

    /// Reserves the blocks for a record of `bytes` bytes, head included.
    fn reserve(&self, bytes: usize) -> Result<()> {
        let rest = bytes.saturating_sub(BLOCK_BYTES - self.offset);
        let blocks = rest.div_ceil(BLOCK_PAYLOAD_BYTES) as u64;
        let ready = self.open.end_block - self.next_block;
        if blocks > ready { self.log.reserve(blocks - ready) } else { Ok(()) }
    }

    /// The open block's `offset` within the region of the open segment.
    #[inline]
    fn region_offset(&self) -> usize {
        index(self.next_block - self.open.first_block) * BLOCK_BYTES + self.offset
    }

    #[inline]
    fn copy_within_block(&mut self, head: &[u8], payload: &[u8]) -> Result<()> {
        let at = self.region_offset();
        if self.log.is_mapped() {
            // Payload first: a process that crashes in between leaves the head zero.
            self.open.region.write(at + head.len(), payload)?;
            self.open.region.write(at, head)?;
        } else {
            self.write_joined(at, head, payload)?;
        }
        self.offset += head.len() + payload.len();
        Ok(())
    }

    /// Where each write is a system call, writes head and payload in one call.
    #[inline(never)]
    fn write_joined(&mut self, at: usize, head: &[u8], payload: &[u8]) -> Result<()> {
        self.joined.clear();
        self.joined.extend_from_slice(head);
        self.joined.extend_from_slice(payload);
        self.open.region.write(at, &self.joined)
    }

    fn copy_across_blocks(&mut self, head: &[u8], payload: &[u8], check: u32) -> Result<()> {
        let opened = match self.offset == BLOCK_BYTES {
            true => self.open_block(first_start_after(0), self.chain),
            false => Ok(()),
        };
        let copied = opened.and_then(|()| {
            self.retire_full();
            let at = self.region_offset();
            self.offset += head.len();
            self.copy_rest(payload, check)?;
            // The head comes last: a record that is refused has none, whatever was there before.
            let first = self.full.first_mut().unwrap_or(&mut self.open);
            first.region.write(at, head)
        });
        self.retire_full();
        copied
    }

    fn copy_rest(&mut self, payload: &[u8], check: u32) -> Result<()> {
        let mut rest = payload;
        while !rest.is_empty() {
            if self.offset == BLOCK_BYTES {
                self.open_block(first_start_after(rest.len()), check)?;
            }
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - self.offset));
            self.open.region.write(self.region_offset(), now)?;
            self.offset += now.len();
            rest = later;
        }
        Ok(())
    }

    fn retire_full(&mut self) {
        for full in self.full.drain(..) {
            self.log.retire_segment(full);
        }
    }

    /// Writes the header of the next block, in the next segment if the open one is full.
    fn open_block(&mut self, first_start: u16, chain: u32) -> Result<()> {
        if self.next_block == self.open.end_block {
            let next = self.log.take_segment()?;
            self.full.push(std::mem::replace(&mut self.open, next));
            if first_start != first_start_after(0) {
                mark(Mark::LogRecordSpansSegments);
            }
        }
        let number = self.next_block;
        let header = BlockHeader { number, watermark: self.log.synced(), chain, first_start };
        // Watermarks are positions: the log is durable up to there, whatever block holds the
        // position.
        debug_assert!(header.watermark <= Lsn(number * BLOCK_BYTES as u64));
        self.next_block += 1;
        self.offset = 0;
        self.blank[..BLOCK_HEADER_BYTES].copy_from_slice(&header.encode(self.log.salt()));
        // The record being copied fills a block in which no other record starts.
        let cleared = if first_start == 0 { BLOCK_HEADER_BYTES } else { BLOCK_BYTES };
        self.open.region.write(self.region_offset(), &self.blank[..cleared])?;
        self.offset = BLOCK_HEADER_BYTES;
        let (first_block, end_block) = (self.open.first_block, self.open.end_block);
        if self.next_block - first_block == (end_block - first_block) / 2 + 1 {
            self.log.want_segment();
        }
        Ok(())
    }
}
