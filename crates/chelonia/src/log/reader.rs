//! Reads a log that may be damaged: finds its files and iterates its records.
//!
//! ```text
//!   Inventory::scan     lists `log-*`, reads their headers, decides which claims to blocks hold
//!   Reader::next        from a position to the record there, or to the reason why there is none
//!   Reader::evidence    watermarks and extent of the blocks after a position
//! ```
//! `log/recover.rs` replays with it, `log/verify.rs` checks with it.
//!
//! Everything read is verified before it is used: a block by its header (salt and number), a record
//! by its check, which covers its position, its predecessor, its length and its payload. A device
//! error is an error, never the end of the log.
//!
//! Reads bypass the page cache where the file system allows it: recovery accepts only data that the
//! device has, also after a failed sync that left clean but unwritten pages behind.
//!
//! Memory: one chunk of blocks, and one payload that spans blocks, which grows only as its blocks
//! are verified.

use crate::base::checksum::checksum;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::log::format::{
    BLOCK_HEADER_BYTES, BlockHeader, Head, LogPosition, RECORD_HEAD_BYTES_MAX, SegmentHeader,
    block_of, block_start, first_start_after, index, offset_of, payload_seed, place, record_check,
};
use crate::log::segments::Segment;
use crate::log::slots::slot_of;
use crate::memory::pages::PageBuffer;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::Arc;
use crate::storage::io::{Access, Directory, File, OpenMode};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks read at once.
const CHUNK_BLOCKS: u64 = 64;

/// A log file found by the scan.
pub struct FoundFile {
    pub slot: u32,
    pub file: Arc<dyn File>,
    /// Capacity of the file in complete stream blocks.
    pub blocks: u64,
    /// Its header, if it has one and its claim to the blocks is valid.
    pub header: Option<SegmentHeader>,
}

impl FoundFile {
    /// The first of its blocks at or after `index` that may hold data: a file may be huge and
    /// sparse.
    fn data_behind(&self, index: u64) -> Result<Option<u64>> {
        let data = self.file.data_from((index + 1) * BLOCK_BYTES_U64)?;
        let next = data.map(|place| (place / BLOCK_BYTES_U64).saturating_sub(1));
        Ok(next.filter(|next| *next < self.blocks))
    }

    /// Converts the file to a segment, to be kept or reused.
    pub fn to_segment(&self) -> Segment {
        let (first_block, blocks) = match &self.header {
            Some(header) => (header.first_block, header.blocks),
            None => (0, self.blocks),
        };
        Segment { slot: self.slot, file: Arc::clone(&self.file), first_block, blocks }
    }
}

/// The files of a log.
pub struct Inventory {
    pub files: Vec<FoundFile>,
    /// Files with a valid header, by their first block.
    by_first_block: BTreeMap<u64, usize>,
    /// Files that do not directly follow the one before, by the position they continue.
    by_continued: BTreeMap<LogPosition, usize>,
    /// Slots of files too small for a block; they hold no data.
    pub stray_slots: Vec<u32>,
    /// All headers claim blocks below this number.
    pub end_block: u64,
    /// All headers have serials below this one.
    pub next_serial: u64,
}

impl Inventory {
    /// Scans all files of the log.
    pub fn scan(dir: &dyn Directory, salt: u64, mode: OpenMode) -> Result<Self> {
        let (mut files, mut stray_slots) = (Vec::new(), Vec::new());
        for name in dir.list()? {
            let Some(slot) = slot_of(&name) else { continue };
            let file = match dir.open(&name, mode, Access::Direct) {
                // A read-only scan may run while the log is written: a free file was just removed.
                Err(error) if mode == OpenMode::Read && error.kind() == ErrorKind::NotFound => {
                    continue;
                }
                opened => opened?,
            };
            let blocks = (file.size()? / BLOCK_BYTES_U64).saturating_sub(1);
            if blocks == 0 {
                stray_slots.push(slot);
                continue;
            }
            let mut block = vec![0; BLOCK_BYTES];
            file.read_at(&mut block, 0)?;
            let header = SegmentHeader::decode(&block, salt).map_err(|error| error.at(&name, 0))?;
            files.push(FoundFile { slot, file, blocks, header });
        }
        let headers = || files.iter().filter_map(|found: &FoundFile| found.header);
        let end_block = headers().map(|header| header.end_block()).max().unwrap_or(0);
        let next_serial = headers().map(|header| header.serial).max().unwrap_or(0) + 1;
        let mut inventory = Self {
            files,
            by_first_block: BTreeMap::new(),
            by_continued: BTreeMap::new(),
            stray_slots,
            end_block,
            next_serial,
        };
        inventory.settle_claims();
        Ok(inventory)
    }

    /// Indexes the headers. Of two that claim the same block the later one is valid: the earlier
    /// was written by a failed preparation, or reappeared after its file was removed.
    fn settle_claims(&mut self) {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        order.sort_by_key(|at| self.files[*at].header.map(|header| header.serial));
        for at in order.into_iter().rev() {
            let Some(header) = self.files[at].header else { continue };
            if self.overlaps(&header) {
                mark(Mark::LogClaimsOverlapped);
                self.files[at].header = None;
                continue;
            }
            self.by_first_block.insert(header.first_block, at);
            if !header.is_sequel() {
                // Of two that continue the same position the later one is valid: the earlier was
                // empty when the later was created.
                self.by_continued.entry(header.continues_from).or_insert(at);
            }
        }
    }

    fn overlaps(&self, header: &SegmentHeader) -> bool {
        let before = self.by_first_block.range(..header.end_block()).next_back();
        before.and_then(|(_, at)| self.files[*at].header).is_some_and(|claimed| {
            claimed.first_block < header.end_block() && claimed.end_block() > header.first_block
        })
    }

    /// The file that holds block `number`, with the block's offset in it.
    pub fn find(&self, number: u64) -> Option<(usize, u64)> {
        let (_, at) = self.by_first_block.range(..=number).next_back()?;
        let header = self.files[*at].header?;
        let within = number - header.first_block;
        (number < header.end_block()).then_some((*at, (within + 1) * BLOCK_BYTES_U64))
    }

    /// The block numbers after `number`, up to `last`, that a file contains, in order. The given
    /// end of the log may be forged, with more numbers before it than can be visited.
    pub fn numbers_behind(&self, number: u64, last: u64) -> impl Iterator<Item = u64> + use<'_> {
        self.by_first_block.iter().flat_map(move |(first, at)| {
            let found = &self.files[*at];
            let claimed = found.header.map_or(*first, |header| header.end_block());
            let end = claimed.min(first.saturating_add(found.blocks)).min(last.saturating_add(1));
            let mut next = (*first).max(number.saturating_add(1));
            std::iter::from_fn(move || {
                // If holes cannot be queried, the block is read.
                let index = next - *first;
                let index = found.data_behind(index).unwrap_or(Some(index))?;
                next = *first + index + 1;
                (next <= end).then(|| next - 1)
            })
        })
    }

    /// The file that holds the block of `from`, and whether the log can continue there in any file.
    pub fn begin(&self, from: LogPosition) -> (Option<usize>, bool) {
        let number = block_of(from.lsn);
        let begins_in = self.find(number).map(|(at, _)| at);
        let known = begins_in.is_some()
            || self.continuation(from).is_some()
            || (offset_of(from.lsn) == 0 && self.ending_at(number).is_some());
        (begins_in, known)
    }

    /// The file in which a reader at `position` continues, if it is not the same or the next.
    pub fn continuation(&self, position: LogPosition) -> Option<(usize, SegmentHeader)> {
        let at = *self.by_continued.get(&position)?;
        Some((at, self.files[at].header?))
    }

    /// The file whose last block directly precedes block `number`.
    pub fn ending_at(&self, number: u64) -> Option<usize> {
        number.checked_sub(1).and_then(|last| self.find(last)).map(|(at, _)| at)
    }

    /// True if block `number` begins a segment that does not directly follow the one before.
    fn is_fresh_start(&self, number: u64) -> bool {
        let header = self.by_first_block.get(&number).and_then(|at| self.files[*at].header);
        header.is_some_and(|header| !header.is_sequel())
    }

    /// The error for damage of the log at `lsn`.
    pub fn damage(&self, lsn: Lsn, reason: &str) -> Error {
        self.locate(Error::corrupt(reason), lsn)
    }

    /// Adds the location of `lsn` to the error, unless it has one already.
    pub fn locate(&self, error: Error, lsn: Lsn) -> Error {
        let number = block_of(lsn);
        if let Some((at, offset)) = self.find(number) {
            return error.at(self.files[at].file.name(), offset + offset_of(lsn) as u64);
        }
        match self.ending_at(number).map(|at| &self.files[at]) {
            Some(found) => error.at(found.file.name(), (found.blocks + 1) * BLOCK_BYTES_U64),
            None => error,
        }
    }
}

/// Content of the log at a position.
pub enum Step<'a> {
    /// A record.
    Record {
        /// Its payload.
        payload: &'a [u8],
        /// Its end.
        end: LogPosition,
    },
    /// The rest of the block is empty; the log continues here.
    Skip(LogPosition),
    /// No valid record.
    End {
        /// The reason.
        why: &'static str,
        /// Location of the problem: the position, or a later block that the record extends into.
        place: Lsn,
    },
}

/// Watermarks and extent of the blocks after a position.
#[derive(Default)]
pub struct Evidence {
    /// The highest watermark, with the file and offset of its block.
    pub watermark: Option<(Lsn, String, u64)>,
    /// One more than the number of the last block.
    pub end_block: u64,
}

/// Reads the blocks of the files in an inventory.
pub struct Reader<'a> {
    inventory: &'a Inventory,
    salt: u64,
    payload_seed: u64,
    chunk: Vec<u8>,
    /// The number of the first block in the chunk.
    chunk_first: u64,
    /// The last header that was verified.
    header: Option<BlockHeader>,
    /// Buffer for a payload that spans blocks.
    payload: PageBuffer,
    /// Files in which valid blocks were found.
    pub visited: BTreeSet<usize>,
}

impl<'a> Reader<'a> {
    /// Creates a reader of these files.
    pub fn new(inventory: &'a Inventory, salt: u64) -> Self {
        Self {
            inventory,
            salt,
            payload_seed: payload_seed(salt),
            chunk: Vec::new(),
            chunk_first: 0,
            header: None,
            payload: PageBuffer::new(),
            visited: BTreeSet::new(),
        }
    }

    /// Reads the record at `position`.
    pub fn next(&mut self, position: LogPosition) -> Result<Step<'_>> {
        let (number, offset) = (block_of(position.lsn), offset_of(position.lsn));
        let start = if offset == 0 { BLOCK_HEADER_BYTES } else { offset };
        let end = |why| Ok(Step::End { why, place: position.lsn });
        let Some(header) = self.enter(number)? else {
            let (why, place) = ("the block does not belong to this log", block_start(number));
            return Ok(Step::End { why, place });
        };
        let first_start = usize::from(header.first_start);
        if first_start == 0 || start < first_start {
            return end("no record starts at this position");
        }
        if start == first_start && header.chain != position.chain {
            return end("the preceding records are not those it was written after");
        }
        let Some(room) = self.loaded(number).get(start..) else {
            return end("no record starts at this position");
        };
        let (check, length, head_bytes) = match Head::decode(&room[..RECORD_HEAD_BYTES_MAX]) {
            Head::Record { check, length, head_bytes } => (check, length, head_bytes),
            Head::Damaged => return end("a record head is invalid"),
            Head::Empty => return self.skip(number, position),
        };
        let body = start + head_bytes;
        let bytes = index(u64::from(length));
        let end_lsn = if body + bytes <= BLOCK_BYTES {
            place(number, body + bytes)
        } else {
            match self.gather(number, body, bytes, check)? {
                Ok(end) => end,
                Err(place) => return Ok(Step::End { why: "a record is incomplete", place }),
            }
        };
        let payload = if body + bytes <= BLOCK_BYTES {
            &self.loaded(number)[body..body + bytes]
        } else {
            self.payload.as_slice()
        };
        if record_check(position, length, checksum(payload, self.payload_seed)) != check {
            return end("record check mismatch");
        }
        Ok(Step::Record { payload, end: LogPosition { lsn: end_lsn, chain: check } })
    }

    /// Continues after a block that was closed early, if the next one says that it was opened after
    /// the same record.
    fn skip(&mut self, number: u64, position: LogPosition) -> Result<Step<'_>> {
        let (next, chain) = (number + 1, position.chain);
        let end =
            Step::End { why: "the log has not been written at this position", place: position.lsn };
        if self.inventory.is_fresh_start(next) {
            return Ok(end);
        }
        let header = self.enter(next)?;
        let follows = header.is_some_and(|header| {
            header.first_start == first_start_after(0) && header.chain == chain
        });
        if !follows {
            return Ok(end);
        }
        Ok(Step::Skip(LogPosition { lsn: block_start(next), chain }))
    }

    /// Collects a payload of `bytes` bytes that begins at `offset` of block `number`, in
    /// `self.payload`. Returns its end, or the beginning of the first invalid block.
    fn gather(
        &mut self,
        number: u64,
        offset: usize,
        bytes: usize,
        check: u32,
    ) -> Result<std::result::Result<Lsn, Lsn>> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear(PageBuffer::HEAP_BYTES_MAX);
        payload.put(&self.loaded(number)[offset..]);
        let mut last = number;
        let mut end = BLOCK_BYTES;
        while payload.len() < bytes {
            last += 1;
            let rest = bytes - payload.len();
            let header = if self.inventory.is_fresh_start(last) { None } else { self.enter(last)? };
            let follows = header.is_some_and(|header| {
                header.first_start == first_start_after(rest) && header.chain == check
            });
            if !follows {
                self.payload = payload;
                return Ok(Err(block_start(last)));
            }
            end = BLOCK_BYTES.min(BLOCK_HEADER_BYTES + rest);
            payload.put(&self.loaded(last)[BLOCK_HEADER_BYTES..end]);
        }
        self.payload = payload;
        Ok(Ok(place(last, end)))
    }

    /// The first record start in block `number`, if the block belongs to this log and has one.
    pub fn first_start_in(&mut self, number: u64) -> Result<Option<LogPosition>> {
        let header = self.enter(number)?.filter(|header| header.first_start != 0);
        Ok(header.map(|header| {
            let lsn = place(number, usize::from(header.first_start));
            LogPosition { lsn, chain: header.chain }
        }))
    }

    /// Loads block `number` and returns its header, or `None` if there is no such block.
    fn enter(&mut self, number: u64) -> Result<Option<BlockHeader>> {
        if self.header.is_some_and(|header| header.number == number) && self.holds(number) {
            return Ok(self.header);
        }
        self.header = None;
        if !self.load(number)? {
            return Ok(None);
        }
        let header = BlockHeader::decode(self.loaded(number), self.salt);
        self.header = header.filter(|header| header.number == number);
        if self.header.is_some() {
            self.visited.extend(self.inventory.find(number).map(|(at, _)| at));
        }
        Ok(self.header)
    }

    fn holds(&self, number: u64) -> bool {
        let blocks = (self.chunk.len() / BLOCK_BYTES) as u64;
        (self.chunk_first..self.chunk_first + blocks).contains(&number)
    }

    /// The bytes of a block that is in the chunk.
    fn loaded(&self, number: u64) -> &[u8] {
        let start = index(number.saturating_sub(self.chunk_first)).saturating_mul(BLOCK_BYTES);
        self.chunk.get(start..start.saturating_add(BLOCK_BYTES)).unwrap_or(&[])
    }

    /// Loads the chunk of block `number`; false if no file has the block.
    fn load(&mut self, number: u64) -> Result<bool> {
        if self.holds(number) {
            return Ok(true);
        }
        let Some((at, offset)) = self.inventory.find(number) else { return Ok(false) };
        let found = &self.inventory.files[at];
        let claimed = found.header.map_or(0, |header| header.end_block() - number);
        // The file may have been truncated.
        let in_file = (found.blocks + 1).saturating_sub(offset / BLOCK_BYTES_U64);
        let blocks = CHUNK_BLOCKS.min(claimed).min(in_file);
        if blocks == 0 {
            return Ok(false);
        }
        // If the read fails, the chunk must be empty.
        self.chunk.clear();
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.resize(index(blocks) * BLOCK_BYTES, 0);
        found.file.read_at(&mut chunk, offset)?;
        self.chunk = chunk;
        self.chunk_first = number;
        Ok(true)
    }

    /// Scans the blocks with numbers from `number` on, in any file.
    pub fn evidence(&mut self, number: u64) -> Result<Evidence> {
        let mut evidence = Evidence { watermark: None, end_block: number };
        self.chunk = Vec::new();
        for found in &self.inventory.files {
            if found.header.is_some_and(|header| header.end_block() <= number) {
                continue;
            }
            let mut index_in_file = 0;
            while let Some(next) = found.data_behind(index_in_file)? {
                index_in_file = next;
                let blocks = CHUNK_BLOCKS.min(found.blocks - index_in_file);
                let mut chunk = vec![0; index(blocks) * BLOCK_BYTES];
                found.file.read_at(&mut chunk, (index_in_file + 1) * BLOCK_BYTES_U64)?;
                for block in chunk.chunks_exact(BLOCK_BYTES) {
                    let expected = found.header.map(|header| header.first_block + index_in_file);
                    let header = BlockHeader::decode(block, self.salt).filter(|header| {
                        header.number >= number && expected.is_none_or(|at| at == header.number)
                    });
                    index_in_file += 1;
                    if let Some(header) = header {
                        let offset = index_in_file * BLOCK_BYTES_U64;
                        evidence.add(&header, found.file.name(), offset);
                    }
                }
            }
        }
        Ok(evidence)
    }
}

impl Evidence {
    fn add(&mut self, header: &BlockHeader, file: &str, offset: u64) {
        self.end_block = self.end_block.max(header.number + 1);
        if self.watermark.as_ref().is_none_or(|(best, ..)| header.watermark > *best) {
            self.watermark = Some((header.watermark, file.to_owned(), offset));
        }
    }
}
