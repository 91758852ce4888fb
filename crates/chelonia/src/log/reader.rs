//! Reads a log that may be damaged: iterates its records.
//!
//! ```text
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
use crate::base::error::Result;
use crate::base::ids::Lsn;
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::logs::LogPosition;
use crate::log::format::{
    BLOCK_HEADER_BYTES, BlockHeader, Head, RECORD_HEAD_BYTES_MAX, block_of, block_start,
    first_start_after, index, offset_of, payload_seed, place, record_check,
};
use crate::log::inventory::Inventory;
use crate::memory::pages::PageBuffer;
use crate::runtime::sync::Arc;
use std::collections::BTreeSet;

/// Blocks read at once.
const CHUNK_BLOCKS: u64 = 64;

/// Content of the log at a position.
pub enum Step {
    /// A record.
    Record {
        /// Its payload, for [`Reader::payload`].
        payload: PayloadPlace,
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

/// Where a reader has the payload of the record that it read last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadPlace {
    /// `bytes` bytes from `offset` on in a block of the chunk.
    InBlock { number: u64, offset: usize, bytes: usize },
    /// In the buffer of payloads that span blocks.
    Gathered,
}

/// Why a log ends where nothing was written.
pub const NOT_WRITTEN: &str = "the log has not been written at this position";

/// Watermarks and extent of the blocks after a position.
#[derive(Default)]
pub struct Evidence {
    /// The highest watermark, with the file and offset of its block.
    pub watermark: Option<(Lsn, String, u64)>,
    /// One more than the number of the last block.
    pub end_block: u64,
}

/// Reads the blocks of the files in an inventory.
pub struct Reader {
    inventory: Arc<Inventory>,
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

impl Reader {
    /// Creates a reader of these files.
    pub fn new(inventory: Arc<Inventory>) -> Self {
        let salt = inventory.log.salt();
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
    pub fn next(&mut self, position: LogPosition) -> Result<Step> {
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
        // A checkpoint may claim any position, also one behind which no head fits into the block.
        let Some(head) = self.loaded(number).get(start..start + RECORD_HEAD_BYTES_MAX) else {
            return end("no record starts at this position");
        };
        let (check, length, head_bytes) = match Head::decode(head) {
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
            PayloadPlace::InBlock { number, offset: body, bytes }
        } else {
            PayloadPlace::Gathered
        };
        let sum = checksum(self.payload(payload), self.payload_seed);
        if record_check(position, length, sum) != check {
            return end("record check mismatch");
        }
        Ok(Step::Record { payload, end: LogPosition { lsn: end_lsn, chain: check } })
    }

    /// The payload of the record that the last call of [`Reader::next`] found.
    pub fn payload(&self, place: PayloadPlace) -> &[u8] {
        match place {
            PayloadPlace::InBlock { number, offset, bytes } => {
                self.loaded(number).get(offset..offset + bytes).unwrap_or_default()
            }
            PayloadPlace::Gathered => self.payload.as_slice(),
        }
    }

    /// Continues after a block that was closed early, if the next one says that it was opened after
    /// the same record; or a segment, if the record for the next one was refused.
    fn skip(&mut self, number: u64, position: LogPosition) -> Result<Step> {
        let (next, chain) = (number + 1, position.chain);
        let end = Step::End { why: NOT_WRITTEN, place: position.lsn };
        let left = LogPosition { lsn: block_start(next), chain };
        if self.inventory.continuation(left).is_some() {
            return Ok(Step::Skip(left));
        }
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
        Ok(Step::Skip(left))
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

    /// Frees the buffer of a long payload: the record is read again when its turn comes.
    pub fn forget_payload(&mut self) {
        self.payload.clear(PageBuffer::HEAP_BYTES_MAX);
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
        let inventory = Arc::clone(&self.inventory);
        let found = &inventory.files[at];
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
