//! The files of a log, and which of their claims to blocks of the stream hold.
//!
//! A header claims the blocks of its file. Of two claims to one block the later is valid; the other
//! file holds no data.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::logs::LogPosition;
use crate::log::format::{SegmentHeader, block_of, offset_of};
use crate::log::segments::Segment;
use crate::log::slots::LogIdentity;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::Arc;
use crate::storage::io::{Access, Directory, File, OpenMode};
use std::collections::BTreeMap;

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
    pub fn data_behind(&self, index: u64) -> Result<Option<u64>> {
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
    /// The log.
    pub log: LogIdentity,
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
    pub fn scan(dir: &dyn Directory, log: LogIdentity, mode: OpenMode) -> Result<Self> {
        let (mut files, mut stray_slots) = (Vec::new(), Vec::new());
        for name in dir.list()? {
            let Some(slot) = log.slot_of(&name) else { continue };
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
            let header = SegmentHeader::decode(&block, log.salt());
            let header = header.map_err(|error| error.at(&name, 0))?;
            files.push(FoundFile { slot, file, blocks, header });
        }
        let headers = || files.iter().filter_map(|found: &FoundFile| found.header);
        let end_block = headers().map(|header| header.end_block()).max().unwrap_or(0);
        let next_serial = headers().map(|header| header.serial).max().unwrap_or(0) + 1;
        let mut inventory = Self {
            log,
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
    pub fn is_fresh_start(&self, number: u64) -> bool {
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
