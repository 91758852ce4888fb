//! Reading a run for a merge: ascending, in large pieces.
//!
//! ```text
//!   memory of a piece   [ rest of last piece | cached | missing | cached | missing ....... ]
//!                         ^ moved to the front  copied   read and verified, all together
//! ```
//!
//! Cached blocks are copied and verified again, which does not count as a use: the cache serves
//! readers. Blocks read from the device are not put into the cache: the merged run will soon be
//! gone.
//!
//! Entries are returned in order and within the range; forged blocks give an error instead. A merge
//! relies on this order, and a later check could not identify the bad block.
//!
//! Spans are joined in place; only values that overflow their block are copied. Only the blocks
//! that can have entries of the range are read: the index (through the cache) determines its
//! beginning and end.

mod piece;

use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::stream::{SortedStream, Update};
use crate::memory::budget::{Charge, Use};
use crate::run::block::{is_of, join_in_place, joined_bytes, overflow_blocks, span_of};
use crate::run::read::lookup::Run;
use crate::run::read::steps::Steps;
use crate::runtime::sync::Arc;
use crate::storage::block::BlockKind;
use crate::storage::data_file::BlockRead;
use piece::Piece;
use std::ops::Range;

/// Entries of a run within a range, ascending, tombstones included.
pub struct RunStream {
    run: Arc<Run>,
    range: KeyRange,
    piece: Piece,
    /// Blocks of the run that are in the piece.
    held: Range<u32>,
    /// The head of the next span.
    next: u32,
    /// Blocks from here on have no entries of the range.
    end: u32,
    /// The current span within the piece.
    span: Range<usize>,
    steps: Steps,
    /// For the heap memory of `steps`.
    charge: Charge,
    /// The last key of the span before, if there is one.
    last: Vec<u8>,
    bytes_read: u64,
    uses_cache: bool,
    /// The missing blocks of the piece being loaded.
    missing: Vec<Range<u32>>,
}

impl RunStream {
    /// Creates a stream of the entries of `run` within `range`, positioned on the first.
    pub fn new(run: &Arc<Run>, range: KeyRange) -> Result<Self> {
        Self::begin(run, range, true)
    }

    /// As [`RunStream::new`], but reads even cached blocks from the device.
    pub fn of_device(run: &Arc<Run>, range: KeyRange) -> Result<Self> {
        Self::begin(run, range, false)
    }

    fn begin(run: &Arc<Run>, range: KeyRange, uses_cache: bool) -> Result<Self> {
        let blocks = run.blocks_in(&range)?;
        let mut stream = Self {
            run: Arc::clone(run),
            range,
            piece: Piece::take(run.storage().budget())?,
            held: blocks.start..blocks.start,
            next: blocks.start,
            end: blocks.end,
            span: 0..0,
            steps: Steps::default(),
            charge: run.storage().budget().charge(Use::Work, 0),
            last: Vec::new(),
            bytes_read: 0,
            uses_cache,
            missing: Vec::new(),
        };
        run.dictionary()?;
        stream.next_span()?;
        Ok(stream)
    }

    /// Bytes read from the device so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Moves to the first entry of the next span that has any in the range.
    fn next_span(&mut self) -> Result<()> {
        let has_last = self.leave_span()?;
        while self.next < self.end {
            let first = self.next;
            self.bring_span(first).map_err(self.run.blame(first))?;
            let bytes = &self.piece.bytes()[self.span.clone()];
            let entries = (bytes, self.run.known_dictionary());
            let entered = self
                .steps
                .enter(entries, &self.range, Direction::Ascending)
                .map_err(self.run.blame(first))?;
            if self.charge.bytes() != self.steps.heap_bytes() as u64 {
                self.charge.resize(self.steps.heap_bytes() as u64);
            }
            if entered.last {
                self.end = self.next;
            }
            if entered.found {
                return self.check_entered(has_last).map_err(self.run.blame(first));
            }
        }
        Ok(())
    }

    /// Keeps the last key of the current span, if there is one.
    fn leave_span(&mut self) -> Result<bool> {
        let Some(key) = self.steps.key() else { return Ok(false) };
        // The keys before it are less.
        if !self.range.admits(key) {
            let error =
                Error::corrupt("the keys of a sorted block are out of order or out of range");
            return Err(self.run.blame(self.next.saturating_sub(1))(error));
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.steps.leave();
        Ok(true)
    }

    /// Fails if the first entry of a span is not greater than the last one of the span before.
    fn check_entered(&self, has_last: bool) -> Result<()> {
        let key = self.steps.key().unwrap_or_default();
        if !self.range.reaches(key) || (has_last && key <= &self.last[..]) {
            return Err(Error::corrupt(
                "the keys of a sorted block are out of order or out of range",
            ));
        }
        self.steps.check_value()
    }

    /// Makes the span that begins at block `first` the current one.
    fn bring_span(&mut self, first: u32) -> Result<()> {
        if !self.held.contains(&first) {
            self.fill(first)?;
        }
        let at = |block: u32, held: &Range<u32>| (block - held.start) as usize * BLOCK_BYTES;
        let head = at(first, &self.held);
        let head = &self.piece.bytes()[head..head + BLOCK_BYTES];
        let (span, overflow) = (span_of(head, BlockKind::Data)?, overflow_blocks(head)?);
        if span > self.end - first {
            return Err(Error::corrupt("a span extends past the data blocks of its run"));
        }
        // An overflow past the end belongs to an entry after the range.
        let is_whole = overflow <= self.end - first - span;
        let blocks = if is_whole { span + overflow } else { span };
        if first + blocks > self.held.end {
            self.piece.reach(blocks, self.run.storage().budget())?;
            self.fill(first)?;
        }
        let start = at(first, &self.held);
        self.span = start..start + blocks as usize * BLOCK_BYTES;
        if span > 1 {
            join_in_place(&mut self.piece.bytes_mut()[self.span.clone()])?;
            self.span = start..start + joined_bytes(span);
        }
        let last = &self.piece.bytes()[self.span.clone()][self.span.len() - BLOCK_BYTES..];
        self.next = match overflow {
            0 => first + blocks,
            _ if !is_whole => self.end,
            _ => first + blocks - u32::from(is_of(last, BlockKind::Data)),
        };
        Ok(())
    }

    /// Moves the held blocks from `first` on to the front and reads further ones behind them.
    fn fill(&mut self, first: u32) -> Result<()> {
        let kept = self.held.end.saturating_sub(first);
        if kept > 0 {
            let from = (first - self.held.start) as usize * BLOCK_BYTES;
            let kept_bytes = kept as usize * BLOCK_BYTES;
            self.piece.bytes_mut().copy_within(from..from + kept_bytes, 0);
        }
        let read = first + kept;
        let until = self.end.min(first + self.piece.blocks());
        self.held = first..first;
        self.copy_cached(first, read..until);
        self.read_missing(first)?;
        self.held = first..until;
        Ok(())
    }

    /// Copies the cached ones of `blocks` to a piece that begins with block `first`, and records
    /// the missing ones.
    fn copy_cached(&mut self, first: u32, blocks: Range<u32>) {
        self.missing.clear();
        if !self.uses_cache {
            self.missing.push(blocks);
            return;
        }
        let guard = self.run.pin();
        for block in blocks {
            if let Some(bytes) = self.run.cached().peek(block, &guard) {
                let start = (block - first) as usize * BLOCK_BYTES;
                self.piece.bytes_mut()[start..start + BLOCK_BYTES].copy_from_slice(&bytes);
                continue;
            }
            match self.missing.last_mut() {
                Some(last) if last.end == block => last.end = block + 1,
                _ => self.missing.push(block..block + 1),
            }
        }
    }

    /// Reads the missing blocks to their places in the piece.
    fn read_missing(&mut self, first: u32) -> Result<()> {
        let generation = self.run.reference().generation;
        let mut reads = Vec::with_capacity(self.missing.len());
        let mut rest = self.piece.bytes_mut();
        let mut at = first;
        for missing in &self.missing {
            let (_, from) = rest.split_at_mut((missing.start - at) as usize * BLOCK_BYTES);
            let (buffer, behind) = from.split_at_mut(missing.len() * BLOCK_BYTES);
            let number = self.run.block_no(missing.start);
            reads.push(BlockRead { first: number, generation, buffer });
            self.bytes_read += missing.len() as u64 * BLOCK_BYTES_U64;
            (rest, at) = (behind, missing.end);
        }
        match &mut reads[..] {
            [] => Ok(()),
            reads => self.run.storage().read_many(reads),
        }
    }
}

impl SortedStream for RunStream {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.steps.key()
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        let bytes = &self.piece.bytes()[self.span.clone()];
        self.steps.update(bytes, self.run.known_dictionary())
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        let bytes = &self.piece.bytes()[self.span.clone()];
        match self.steps.step_checked((bytes, self.run.known_dictionary())) {
            Ok(true) => Ok(()),
            Ok(false) => self.next_span(),
            Err(error) => Err(self.run.blame(self.next.saturating_sub(1))(error)),
        }
    }
}
