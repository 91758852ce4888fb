//! A memtable as a source of merges, and an empty set of updates.

use crate::base::error::Result;
use crate::base::stream::{LargeRef, SortedStream, SortedUpdates, Update};
use std::ops::Range;

/// Prefetch distance in entries: covers the latency of memory, and fits the first-level cache.
const PREFETCH_RANKS: usize = 16;

/// Prefetch distance of the rest of an entry, whose size is known once its beginning has arrived.
const REST_RANKS: usize = PREFETCH_RANKS / 2;

/// Number of ranks absorbed between two progress reports.
const PROGRESS_RANKS: u64 = 4096;

/// A stream over ranges of ranks of the memtable, in order.
pub struct UpdatesStream<'u> {
    updates: &'u dyn SortedUpdates,
    /// Pending ranges, the next one last.
    waiting: Vec<Range<usize>>,
    current: Range<usize>,
    key: Option<&'u [u8]>,
    /// Large values seen; each comes with exactly one update.
    large: Vec<LargeRef>,
    progress: &'u (dyn Fn(u64) + Sync),
    unreported: u64,
}

impl<'u> UpdatesStream<'u> {
    /// Creates the stream, positioned on the first of `ranks` (ascending, not overlapping).
    pub fn new(
        updates: &'u dyn SortedUpdates,
        mut ranks: Vec<Range<usize>>,
        progress: &'u (dyn Fn(u64) + Sync),
    ) -> Self {
        ranks.reverse();
        let mut stream = Self {
            updates,
            waiting: ranks,
            current: 0..0,
            key: None,
            large: Vec::new(),
            progress,
            unreported: 0,
        };
        stream.stand();
        stream
    }

    /// Reports the remaining progress, and returns the large values that came with the updates.
    pub fn finish(self) -> Vec<LargeRef> {
        (self.progress)(self.unreported);
        self.large
    }

    fn stand(&mut self) {
        while self.current.is_empty() {
            let Some(next) = self.waiting.pop() else {
                self.key = None;
                return;
            };
            self.current = next;
            for rank in self.current.clone().take(PREFETCH_RANKS) {
                self.updates.prefetch(rank);
            }
            for rank in self.current.clone().take(REST_RANKS) {
                self.updates.prefetch_rest(rank);
            }
        }
        self.updates.prefetch(self.current.start + PREFETCH_RANKS);
        self.updates.prefetch_rest(self.current.start + REST_RANKS);
        self.key = Some(self.updates.key(self.current.start));
    }
}

impl SortedStream for UpdatesStream<'_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.key
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.updates.update(self.current.start)
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if let Update::PutLarge(large) = self.updates.update(self.current.start) {
            self.large.push(large);
        }
        self.current.start += 1;
        self.unreported += 1;
        if self.unreported == PROGRESS_RANKS {
            (self.progress)(self.unreported);
            self.unreported = 0;
        }
        self.stand();
        Ok(())
    }
}

/// Empty set of updates, for work that only maintains a tree.
pub struct NoUpdates;

impl SortedUpdates for NoUpdates {
    fn len(&self) -> usize {
        0
    }

    fn key(&self, _index: usize) -> &[u8] {
        &[]
    }

    fn update(&self, _index: usize) -> Update<'_> {
        Update::Delete
    }

    fn bytes_before(&self, _index: usize) -> u64 {
        0
    }

    fn lower_bound(&self, _key: &[u8]) -> usize {
        0
    }

    fn prefetch(&self, _index: usize) {}

    fn prefetch_rest(&self, _index: usize) {}
}
