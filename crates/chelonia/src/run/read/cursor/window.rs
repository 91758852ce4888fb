//! The window of a scan: copies of consecutive blocks of one run.
//!
//! A cursor reads blocks into its own window, so that a paused scan pins nothing in the cache. A
//! window grows with every read, from its cursor's first read size to [`WINDOW_BLOCKS_MAX`], but it
//! takes at most a fixed part of the memory that the windows of all scans leave unused. So windows
//! shrink as there are more of them, down to the blocks needed at once:
//!
//! ```text
//!   windows n, their part of the budget P:   w = (P - n w) / 64,  n w = P n / (64 + n) < P
//! ```
//!
//! ```text
//!   blocks of a fill   [ held or cached | ....... missing ....... | held or cached ]
//!                      moved, copied      one read to the window    moved, copied
//!                                         copied to the cache if the fill is small
//! ```
//!
//! So a fill is at most one read, and those of several windows can be read together
//! ([`fill_together`]). Blocks read by a large fill are not put into the cache, so that a long scan
//! does not evict its content. If a read fails, each window is filled with the blocks its cursor
//! needs at once and no read-ahead: a scan returns everything before a damaged block.

use crate::base::error::Result;
use crate::base::limits::BLOCK_BYTES;
use crate::memory::budget::{Charge, Use};
use crate::run::read::lookup::Run;
use crate::storage::Storage;
use crate::storage::cache::Priority;
use crate::storage::data_file::BlockRead;
use crate::storage::io::AlignedBuffer;
use std::ops::Range;

/// The largest window: 1 MiB.
const WINDOW_BLOCKS_MAX: u32 = 256;

/// Windows may use this fraction of the budget (1/8), where more than a block of each is held.
const WINDOWS_PART: u64 = 8;

/// A window takes at most this fraction of what is left of it (1/64): scans hold one per run.
const WINDOW_PART: u64 = 64;

/// Fills of up to this many blocks put the blocks they read into the cache.
const CACHED_BLOCKS_MAX: u32 = 8;

/// Charges are rounded up to this: all scans share the counter, so it should change rarely.
const CHARGED_BYTES: usize = 512;

/// Copies of blocks; see the module documentation.
pub(super) struct Window {
    bytes: AlignedBuffer,
    held: Range<u32>,
    /// Size of the next fill in blocks, if there is memory for it.
    next_blocks: u32,
    /// Bytes of the cursor besides the window.
    beside: usize,
    /// For both. It grows before a read, so that other windows leave less.
    charge: Charge,
}

/// The most blocks of a window, given the windows that exist.
#[must_use]
pub fn blocks_max(storage: &Storage) -> u32 {
    let budget = storage.budget();
    let left = (budget.limit() / WINDOWS_PART).saturating_sub(budget.used_by(Use::Scans));
    let blocks = left / WINDOW_PART / BLOCK_BYTES as u64;
    u32::try_from(blocks).unwrap_or(u32::MAX).clamp(1, WINDOW_BLOCKS_MAX)
}

impl Window {
    /// Creates an empty window, of a cursor of `beside` bytes, whose first fill has `first_blocks`
    /// blocks.
    pub fn new(storage: &Storage, first_blocks: u32, beside: usize) -> Self {
        let next_blocks = first_blocks.clamp(1, WINDOW_BLOCKS_MAX);
        let bytes = beside.next_multiple_of(CHARGED_BYTES) + next_blocks as usize * BLOCK_BYTES;
        let charge = storage.budget().charge(Use::Scans, bytes as u64);
        Self { bytes: AlignedBuffer::new(0), held: 0..0, next_blocks, beside, charge }
    }

    /// Charges `beside` bytes of the cursor besides the window.
    pub fn charge_beside(&mut self, beside: usize) {
        self.beside = beside;
        let bytes = self.bytes.len() + beside.next_multiple_of(CHARGED_BYTES);
        if self.charge.bytes() != bytes as u64 {
            self.charge.resize(bytes as u64);
        }
    }

    /// The blocks in the window.
    pub fn held(&self) -> &Range<u32> {
        &self.held
    }

    /// True if all of `blocks` are held.
    pub fn holds(&self, blocks: &Range<u32>) -> bool {
        self.held.start <= blocks.start && blocks.end <= self.held.end
    }

    /// Suggested size of the next fill, in blocks.
    pub fn next_blocks(&self, storage: &Storage) -> u32 {
        self.next_blocks.min(blocks_max(storage))
    }

    /// A block of the window; it must be held.
    pub fn block(&self, block: u32) -> &[u8] {
        let start = self.offset_of(block);
        &self.bytes[start..start + BLOCK_BYTES]
    }

    /// Where a held block begins in [`Window::bytes`].
    pub fn offset_of(&self, block: u32) -> usize {
        (block - self.held.start) as usize * BLOCK_BYTES
    }

    /// All of the window's memory.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All of the window's memory, mutable, for joining spans in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Clears the window.
    pub fn forget(&mut self) {
        self.held = 0..0;
    }

    /// Fills the window with `blocks` of `run`, of which `needed` is needed at once, and enlarges
    /// the next fill.
    pub fn fill(&mut self, run: &Run, blocks: Range<u32>, needed: Range<u32>) -> Result<()> {
        fill_together(run.storage(), &mut [Fill { window: self, run, blocks, needed }])
    }

    /// Moves those of `blocks` that are held to their new places, and makes room for the others;
    /// returns which were held.
    fn make_room(&mut self, run: &Run, blocks: &Range<u32>) -> Range<u32> {
        let kept = self.held.start.max(blocks.start)..self.held.end.min(blocks.end);
        let length = kept.len() * BLOCK_BYTES;
        let (from, to) = match kept.is_empty() {
            true => (0, 0),
            false => {
                (self.offset_of(kept.start), (kept.start - blocks.start) as usize * BLOCK_BYTES)
            }
        };
        let needed = blocks.len() * BLOCK_BYTES;
        let most = blocks_max(run.storage()) as usize * BLOCK_BYTES;
        if self.bytes.len() < needed || self.bytes.len() > needed.max(2 * most) {
            let before = std::mem::replace(&mut self.bytes, AlignedBuffer::new(needed));
            self.bytes[to..to + length].copy_from_slice(&before[from..from + length]);
            self.charge_beside(self.beside);
        } else {
            self.bytes.copy_within(from..from + length, to);
        }
        self.held = 0..0;
        kept
    }

    /// Prepares space for `blocks`, and copies the held and cached ones at either end. The missing
    /// ones are contiguous; returns their place in the window.
    fn begin(&mut self, run: &Run, blocks: &Range<u32>) -> Range<u32> {
        let kept = self.make_room(run, blocks);
        let guard = run.pin();
        let mut missing = blocks.clone();
        let mut copy = |block: u32| {
            if kept.contains(&block) {
                return true;
            }
            let Some(bytes) = run.cached().cached(block, &guard) else { return false };
            let start = (block - blocks.start) as usize * BLOCK_BYTES;
            self.bytes[start..start + BLOCK_BYTES].copy_from_slice(&bytes);
            true
        };
        while !missing.is_empty() && copy(missing.start) {
            missing.start += 1;
        }
        while !missing.is_empty() && copy(missing.end - 1) {
            missing.end -= 1;
        }
        missing
    }

    /// The read that loads `missing` to its place in the window of `blocks`.
    fn read<'a>(
        &'a mut self,
        run: &Run,
        blocks: &Range<u32>,
        missing: &Range<u32>,
    ) -> BlockRead<'a> {
        let start = (missing.start - blocks.start) as usize * BLOCK_BYTES;
        let place = start..start + missing.len() * BLOCK_BYTES;
        BlockRead {
            first: run.block_no(missing.start),
            generation: run.reference().generation,
            buffer: &mut self.bytes[place],
        }
    }

    /// Completes `begin`, once `missing` has been read.
    fn end(&mut self, run: &Run, blocks: &Range<u32>, missing: Range<u32>) {
        self.held = blocks.clone();
        if !missing.is_empty() {
            self.next_blocks = (self.next_blocks * 2).min(WINDOW_BLOCKS_MAX);
        }
        for block in missing.clone() {
            run.cached().count_miss(block);
        }
        if blocks.len() > CACHED_BLOCKS_MAX as usize {
            return;
        }
        let guard = run.pin();
        for block in missing {
            run.cached().insert(block, self.block(block), Priority::Scan, &guard);
        }
    }
}

/// A pending fill of a window.
pub(super) struct Fill<'a> {
    pub window: &'a mut Window,
    pub run: &'a Run,
    /// The blocks to load.
    pub blocks: Range<u32>,
    /// Those of them that its cursor needs at once.
    pub needed: Range<u32>,
}

/// Fills several windows; the missing blocks are read together.
pub(super) fn fill_together(storage: &Storage, fills: &mut [Fill<'_>]) -> Result<()> {
    let outcome = try_fill(storage, fills);
    if outcome.is_ok() || fills.iter().all(|fill| fill.blocks == fill.needed) {
        return outcome;
    }
    for fill in fills.iter_mut() {
        fill.blocks = fill.needed.clone();
    }
    try_fill(storage, fills)
}

fn try_fill(storage: &Storage, fills: &mut [Fill<'_>]) -> Result<()> {
    let missing: Vec<_> =
        fills.iter_mut().map(|fill| fill.window.begin(fill.run, &fill.blocks)).collect();
    let mut reads: Vec<_> = fills
        .iter_mut()
        .zip(&missing)
        .filter(|(_, missing)| !missing.is_empty())
        .map(|(fill, missing)| fill.window.read(fill.run, &fill.blocks, missing))
        .collect();
    if !reads.is_empty() {
        storage.read_many(&mut reads)?;
    }
    drop(reads);
    for (fill, missing) in fills.iter_mut().zip(missing) {
        fill.window.end(fill.run, &fill.blocks, missing);
    }
    Ok(())
}
