//! Scans of a run: either direction, through the block cache, with growing read-ahead.
//!
//! ```text
//!   ascending     head of the next span = end of this one            -> fill [next, next + w)
//!   descending    last block of the next span = start of this one - 1,
//!                 whose header says how far back its head is         -> fill [end - w, end)
//! ```
//!
//! With a span come the blocks of its last entry's overflow. The last of these may be the head of
//! another span; descending, that one has been visited before, and is read again if the window has
//! lost it.
//!
//! The blocks are in a window owned by the cursor ([`window`]). Cursors that are merged
//! start together ([`RunCursor::start`]), so that their first blocks are read in parallel; a caller
//! that is done with one range can move them on to the next ([`RunCursor::move_on`]), and keeps
//! their read-ahead.
//!
//! ```text
//!   located, move_on  ->  stands nowhere  -- start -->  stands on an entry, or at the end
//! ```

mod window;

pub use window::blocks_max as scan_blocks_max;

use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{SortedStream, Update};
use crate::run::block::overflow::receives;
use crate::run::block::{is_of, join_in_place, joined_bytes, overflow_blocks, part_of, span_of};
use crate::run::read::lookup::Run;
use crate::run::read::steps::{Entered, Steps};
use crate::runtime::sync::Arc;
use crate::storage::block::BlockKind;
use std::ops::Range;
use window::{Fill, Window, fill_together};

/// Blocks of entries that a short scan needs, besides the one that it begins in: 16 KiB in all,
/// which costs little more to read than one block. They are read from all sources together, from
/// each in proportion to its share of the entries: a second read would wait for the device again.
const FIRST_BLOCKS: u64 = 3;

/// First read size in blocks for a source that has `part` of the `whole` entries of a range.
#[must_use]
pub fn first_blocks(part: u64, whole: u64) -> u32 {
    let blocks = (2 * FIRST_BLOCKS * part + whole) / (2 * whole).max(1);
    1 + u32::try_from(blocks.min(FIRST_BLOCKS)).unwrap_or(0)
}

/// Entries of a run within a range, tombstones included.
pub struct RunCursor {
    run: Arc<Run>,
    range: Arc<KeyRange>,
    direction: Direction,
    window: Window,
    /// Blocks that can have entries not yet visited.
    open: Range<u32>,
    /// Descending: the block behind the open ones has the end of the entry before it.
    is_shared: bool,
    /// The current span within the window.
    span: Range<usize>,
    steps: Steps,
    /// The error of the blocks that the last entry of the current span overflows into: the entries
    /// before it can be read.
    unread: Option<Error>,
}

/// The blocks of the next span, with those of its overflow if they can be needed.
struct Unit {
    blocks: Range<u32>,
    /// Number of blocks of the span.
    span: u32,
}

impl RunCursor {
    /// Creates a cursor over the entries of `run` within `range`, positioned on the first one in
    /// `direction`.
    pub fn new(
        run: &Arc<Run>,
        range: impl Into<Arc<KeyRange>>,
        direction: Direction,
    ) -> Result<Self> {
        let mut cursor = Self::located(run, range.into(), direction, 1)?;
        Self::start(std::slice::from_mut(&mut cursor))?;
        Ok(cursor)
    }

    /// As [`RunCursor::new`], but unpositioned until [`RunCursor::start`]. The first read is
    /// `first_blocks` blocks, and reads grow.
    pub fn located(
        run: &Arc<Run>,
        range: Arc<KeyRange>,
        direction: Direction,
        first_blocks: u32,
    ) -> Result<Self> {
        Ok(Self {
            open: run.blocks_in(&range)?,
            run: Arc::clone(run),
            range,
            direction,
            window: Window::new(run.storage(), first_blocks, size_of::<Self>()),
            is_shared: false,
            span: 0..0,
            steps: Steps::default(),
            unread: None,
        })
    }

    /// The run.
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Moves to `range`, which lies after the current one in the cursor's direction; unpositioned
    /// until [`RunCursor::start`].
    pub fn move_on(&mut self, range: Arc<KeyRange>) -> Result<()> {
        self.steps.leave();
        // The last span may be needed again, and joining has changed its blocks.
        if !self.span.len().is_multiple_of(BLOCK_BYTES) {
            self.window.forget();
        }
        self.is_shared = false;
        self.unread = None;
        self.span = 0..0;
        self.open = self.run.blocks_in(&range)?;
        self.range = range;
        Ok(())
    }

    /// Positions every cursor on its first entry. Their first blocks are read together.
    pub fn start(cursors: &mut [Self]) -> Result<()> {
        let mut fills = Vec::with_capacity(cursors.len());
        let mut storage = None;
        for cursor in cursors.iter_mut() {
            let Some(first) = cursor.next_block().filter(|it| !cursor.window.held().contains(it))
            else {
                continue;
            };
            let blocks = cursor.fill_from(first);
            storage = Some(cursor.run.storage());
            fills.push(Fill {
                window: &mut cursor.window,
                run: &cursor.run,
                blocks,
                needed: first..first + 1,
            });
        }
        if let Some(storage) = storage {
            fill_together(storage, &mut fills)?;
        }
        cursors.iter_mut().try_for_each(|cursor| {
            cursor.run.dictionary()?;
            cursor.next_span()
        })
    }

    /// True if it must read from the device to reach its first entry.
    pub fn must_read(&self) -> bool {
        let held = self.window.held();
        let mut next = self.next_block().into_iter();
        next.any(|block| !held.contains(&block) && !self.is_cached(block))
    }

    fn is_cached(&self, block: u32) -> bool {
        self.run.cached().cached(block, &self.run.pin()).is_some()
    }

    /// The next unvisited block.
    fn next_block(&self) -> Option<u32> {
        let last = self.open.end.checked_sub(1).filter(|_| !self.open.is_empty())?;
        Some(if self.direction == Direction::Ascending { self.open.start } else { last })
    }

    /// The next fill of the window, beginning with the unvisited block `first`: cached blocks are
    /// copied when needed, missing ones are read ahead.
    fn fill_from(&self, first: u32) -> Range<u32> {
        let blocks =
            if self.is_cached(first) { 1 } else { self.window.next_blocks(self.run.storage()) };
        match self.direction {
            Direction::Ascending => first..first.saturating_add(blocks).min(self.open.end),
            Direction::Descending => {
                (first + 1).saturating_sub(blocks).max(self.open.start)..first + 1
            }
        }
    }

    /// Moves to the next span that has an entry in the range, and to its first entry.
    fn next_span(&mut self) -> Result<()> {
        self.steps.leave();
        while let Some(place) = self.next_block() {
            let entered = match self.enter_span() {
                Ok(entered) => entered,
                Err(error) => {
                    return Err(self.unread.take().unwrap_or(error)).map_err(self.run.blame(place));
                }
            };
            if entered.last {
                self.open = 0..0;
            }
            if entered.found {
                return Ok(());
            }
            // The range begins behind the last entry, or at it: the blocks after it are unknown.
            if let Some(error) = self.unread.take().filter(|_| !entered.last) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn enter_span(&mut self) -> Result<Entered> {
        let Unit { blocks, span } = match self.direction {
            Direction::Ascending => self.span_ahead()?,
            Direction::Descending => self.span_behind()?,
        };
        let start = self.window.offset_of(blocks.start);
        let length = blocks.len() * BLOCK_BYTES;
        self.span = start..start + length;
        if span > 1 {
            join_in_place(&mut self.window.bytes_mut()[start..start + length])?;
            self.span = start..start + joined_bytes(span);
        }
        let bytes = &self.window.bytes()[self.span.clone()];
        let entries = (bytes, self.run.known_dictionary());
        let entered = self.steps.enter(entries, &self.range, self.direction)?;
        self.window.charge_beside(size_of::<Self>() + self.steps.heap_bytes());
        Ok(entered)
    }

    /// Loads the span that begins at the start of the unvisited blocks into the window.
    fn span_ahead(&mut self) -> Result<Unit> {
        let first = self.open.start;
        if !self.window.held().contains(&first) {
            let blocks = self.fill_from(first);
            self.window.fill(&self.run, blocks, first..first + 1)?;
        }
        let head = self.window.block(first);
        let (span, overflow) = (span_of(head, BlockKind::Data)?, overflow_blocks(head)?);
        if span > self.open.end - first {
            return Err(Error::corrupt("a span extends past the data blocks of its run"));
        }
        let mut end = first + span;
        // An overflow that the open blocks do not have belongs to an entry after the range.
        let is_whole = overflow <= self.open.end - end;
        if is_whole {
            end += overflow;
        }
        if end > self.window.held().end {
            let wanted = self.fill_from(self.window.held().end).end.max(end);
            let filled = self.window.fill(&self.run, first..wanted, first..end);
            if overflow > 0 && filled.is_err() {
                end = first + span;
                self.window.fill(&self.run, first..end, first..end)?;
                self.unread = filled.err();
            } else {
                filled?;
            }
        }
        self.open.start = match overflow {
            0 => end,
            _ if !is_whole || self.unread.is_some() => self.open.end,
            _ => end - u32::from(is_of(self.window.block(end - 1), BlockKind::Data)),
        };
        Ok(Unit { blocks: first..end, span })
    }

    /// Loads the span that ends at the end of the unvisited blocks into the window.
    fn span_behind(&mut self) -> Result<Unit> {
        let last = self.open.end - 1;
        let end = self.open.end + u32::from(self.is_shared);
        if !self.window.holds(&(last..end)) {
            let wanted = self.fill_from(last).start;
            self.window.fill(&self.run, wanted..end, last..end)?;
        }
        let part = part_of(self.window.block(last), BlockKind::Data)?;
        if part > last - self.open.start {
            return Err(Error::corrupt("a span begins before the data blocks of its run"));
        }
        let first = last - part;
        if first < self.window.held().start {
            let wanted = self.fill_from(last).start.min(first);
            self.window.fill(&self.run, wanted..end, first..end)?;
        }
        let head = self.window.block(first);
        let (span, overflow) = (span_of(head, BlockKind::Data)?, overflow_blocks(head)?);
        // The last entry of the last block may overflow after the range.
        let is_cut = !self.is_shared && end == first + span;
        if end != first + span + overflow && !is_cut {
            return Err(Error::corrupt("a span does not end at its last block"));
        }
        self.is_shared = receives(head)?;
        self.open.end = first;
        Ok(Unit { blocks: first..end, span })
    }
}

impl SortedStream for RunCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.steps.key()
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        let bytes = &self.window.bytes()[self.span.clone()];
        self.steps.update(bytes, self.run.known_dictionary())
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        let bytes = &self.window.bytes()[self.span.clone()];
        match self.steps.step((bytes, self.run.known_dictionary()), self.direction) {
            Ok(true) => Ok(()),
            Ok(false) => self.next_span(),
            Err(error) => {
                let error = self.unread.take().unwrap_or(error);
                Err(self.run.blame(self.window.held().start)(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::first_blocks;

    #[test]
    fn sources_are_read_by_their_share() {
        assert_eq!(
            [1, 10, 30, 60, 90, 100].map(|part| first_blocks(part, 100)),
            [1, 1, 2, 3, 4, 4]
        );
        assert_eq!([first_blocks(0, 0), first_blocks(7, 0)], [1, 4]);
    }
}
