//! Scanning a run: either direction, through the block cache, with read-ahead that grows.
//!
//! A cursor copies blocks into a *window* of its own, so that a scan that is paused pins nothing.
//! The window begins as one span and doubles with every refill, up to [`WINDOW_BLOCKS_MAX`] (less
//! with a small budget). Small windows are read through the cache; large ones take from it what is
//! there and read the rest around it, in one piece, so that a long scan does not wash the cache
//! out.
//!
//! ```text
//!   ascending     head of the next span = end of this one            -> window [next, next + w)
//!   descending    last block of the next span = start of this one - 1,
//!                 whose header says how far back its head is         -> window [end - w, end)
//! ```

use crate::base::budget::{Charge, Use};
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{SortedStream, Update};
use crate::base::sync::Arc;
use crate::run::block::{join_in_place, joined_bytes, part_of, span_of};
use crate::run::read::lookup::Run;
use crate::run::read::steps::Steps;
use crate::run::read::stream::blocks_of;
use crate::storage::block::BlockKind;
use crate::storage::cache::Priority;
use std::ops::Range;

/// The largest window: 1 MiB.
const WINDOW_BLOCKS_MAX: u32 = 256;

/// A window is at most one of so many parts of the budget: scans hold one per run.
const WINDOW_BUDGET_DIVISOR: u64 = 512;

/// Windows of up to this many blocks go through the cache.
const CACHED_BLOCKS_MAX: u32 = 8;

/// Entries of a run within a range, tombstones included.
pub struct RunCursor {
    run: Arc<Run>,
    range: KeyRange,
    direction: Direction,
    /// Copies of the blocks `held`.
    window: Vec<u8>,
    held: Range<u32>,
    /// Blocks that can have entries still to come.
    open: Range<u32>,
    /// The blocks of the next refill, and the most of any.
    window_blocks: u32,
    window_blocks_max: u32,
    /// Where the current span is in the window.
    span: Range<usize>,
    steps: Steps,
    charge: Charge,
}

impl RunCursor {
    /// The entries of `run` within `range`, standing on the first one in `direction`.
    pub fn new(run: &Arc<Run>, range: KeyRange, direction: Direction) -> Result<Self> {
        let open = blocks_of(run, &range, &crossbeam_epoch::pin())?;
        let budget = run.storage().budget();
        let part = budget.limit() / WINDOW_BUDGET_DIVISOR / BLOCK_BYTES as u64;
        let most = u32::try_from(part).unwrap_or(u32::MAX);
        let mut cursor = Self {
            run: Arc::clone(run),
            range,
            direction,
            window: Vec::new(),
            held: 0..0,
            open,
            window_blocks: 1,
            window_blocks_max: most.clamp(CACHED_BLOCKS_MAX, WINDOW_BLOCKS_MAX),
            span: 0..0,
            steps: Steps::default(),
            charge: budget.charge(Use::Work, 0),
        };
        cursor.next_span()?;
        Ok(cursor)
    }

    /// Goes to the next span that has an entry in the range, and to the first of them.
    fn next_span(&mut self) -> Result<()> {
        self.steps.leave();
        while !self.open.is_empty() {
            let place = match self.direction {
                Direction::Ascending => self.open.start,
                Direction::Descending => self.open.end - 1,
            };
            let entered = self.enter_span().map_err(self.run.blame(place))?;
            if entered.last {
                self.open = 0..0;
            }
            if entered.found {
                return Ok(());
            }
        }
        Ok(())
    }

    fn enter_span(&mut self) -> Result<crate::run::read::steps::Entered> {
        let blocks = match self.direction {
            Direction::Ascending => self.span_ahead()?,
            Direction::Descending => self.span_behind()?,
        };
        let start = (blocks.start - self.held.start) as usize * BLOCK_BYTES;
        let length = blocks.len() * BLOCK_BYTES;
        join_in_place(&mut self.window[start..start + length])?;
        let span = blocks.end - blocks.start;
        self.span = start..start + joined_bytes(span);
        match self.direction {
            Direction::Ascending => self.open.start = blocks.end,
            Direction::Descending => self.open.end = blocks.start,
        }
        self.steps.enter(&self.window[self.span.clone()], &self.range, self.direction)
    }

    /// Brings the span that begins where the open blocks begin into the window.
    fn span_ahead(&mut self) -> Result<Range<u32>> {
        let first = self.open.start;
        if !self.held.contains(&first) {
            let end = first.saturating_add(self.window_blocks).min(self.open.end);
            self.refill(first..end)?;
        }
        let span = span_of(self.block(first), BlockKind::Data)?;
        if span > self.open.end - first {
            return Err(Error::corrupt("a span reaches past the entries of its run"));
        }
        let end = first + span;
        if end > self.held.end {
            let wanted = first.saturating_add(self.window_blocks).max(end);
            self.refill(first..wanted.min(self.open.end))?;
        }
        Ok(first..end)
    }

    /// Brings the span that ends where the open blocks end into the window.
    fn span_behind(&mut self) -> Result<Range<u32>> {
        let end = self.open.end;
        let last = end - 1;
        if !self.held.contains(&last) {
            let start = end.saturating_sub(self.window_blocks).max(self.open.start);
            self.refill(start..end)?;
        }
        let part = part_of(self.block(last), BlockKind::Data)?;
        if part > last - self.open.start {
            return Err(Error::corrupt("a span begins before the entries of its run"));
        }
        let first = last - part;
        if first < self.held.start {
            let wanted = end.saturating_sub(self.window_blocks).min(first);
            self.refill(wanted.max(self.open.start)..end)?;
        }
        if span_of(self.block(first), BlockKind::Data)? != end - first {
            return Err(Error::corrupt("a span does not end where its last block is"));
        }
        Ok(first..end)
    }

    /// A block of the window; it must be held.
    fn block(&self, block: u32) -> &[u8] {
        let start = (block - self.held.start) as usize * BLOCK_BYTES;
        &self.window[start..start + BLOCK_BYTES]
    }

    /// Makes the window `blocks`, and the next one larger.
    fn refill(&mut self, blocks: Range<u32>) -> Result<()> {
        self.held = 0..0;
        self.window.resize(blocks.len() * BLOCK_BYTES, 0);
        let held = (self.window.capacity() + self.steps.heap_bytes()) as u64;
        if self.charge.bytes() != held {
            self.charge.resize(held);
        }
        if blocks.len() <= CACHED_BLOCKS_MAX as usize {
            self.fill_through_cache(&blocks)?;
        } else {
            self.fill_around_cache(&blocks)?;
        }
        self.held = blocks;
        self.window_blocks = (self.window_blocks * 2).min(self.window_blocks_max);
        Ok(())
    }

    fn fill_through_cache(&mut self, blocks: &Range<u32>) -> Result<()> {
        let guard = crossbeam_epoch::pin();
        let cached = self.run.cached();
        let wanted: Vec<_> = blocks.clone().map(|block| (&**cached, block)).collect();
        let found = self.run.storage().load_many(&wanted, Priority::Scan, &guard)?;
        for (to, from) in self.window.chunks_exact_mut(BLOCK_BYTES).zip(&found) {
            to.copy_from_slice(from);
        }
        Ok(())
    }

    /// Takes from the cache what it has at either end and reads the stretch between from the
    /// device.
    fn fill_around_cache(&mut self, blocks: &Range<u32>) -> Result<()> {
        let guard = crossbeam_epoch::pin();
        let mut missing = blocks.clone();
        let mut copy = |block: u32| {
            let Some(bytes) = self.run.cached().cached(block, &guard) else { return false };
            let start = (block - blocks.start) as usize * BLOCK_BYTES;
            self.window[start..start + BLOCK_BYTES].copy_from_slice(&bytes);
            true
        };
        while !missing.is_empty() && copy(missing.start) {
            missing.start += 1;
        }
        while !missing.is_empty() && copy(missing.end - 1) {
            missing.end -= 1;
        }
        if missing.is_empty() {
            return Ok(());
        }
        drop(guard);
        let start = (missing.start - blocks.start) as usize * BLOCK_BYTES;
        let place = start..start + missing.len() * BLOCK_BYTES;
        let generation = self.run.reference().generation;
        let number = self.run.block_no(missing.start);
        self.run.storage().read_blocks(number, generation, &mut self.window[place])
    }
}

impl SortedStream for RunCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.steps.key()
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.steps.update(&self.window[self.span.clone()])
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        let bytes = &self.window[self.span.clone()];
        match self.steps.step(bytes, self.direction) {
            Ok(true) => Ok(()),
            Ok(false) => self.next_span(),
            Err(error) => Err(self.run.blame(self.held.start)(error)),
        }
    }
}
