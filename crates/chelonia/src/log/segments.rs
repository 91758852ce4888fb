//! The segment files of a log: prepared ahead, filled, trimmed, recycled.
//!
//! ```text
//!              prepare                take          (the tail moves on)         trim
//!   (no file) ---------> prepared ----------> open ---------------------> full -------> free
//!                           ^                                                            | |
//!                           '----------------------- prepare ----------------------------' |
//!                                                                    release_idle: removed
//! ```
//! `prepare_next` (background) and `reserve` (the tail, when the background was too slow) prepare
//! segments; the tail takes them; a checkpoint trims them. The file name of a segment (its slot)
//! does not determine the order of segments; the headers do.
//!
//! Invariants:
//! 1. A prepared segment's header, size and name are durable, and all its space is allocated. So
//!    the tail never fails for lack of space within it, and a missing header where blocks are found
//!    is damage. Its blocks are zero or left from an earlier use, which their numbers reveal.
//! 2. Block numbers are given to one prepared segment only; if preparing fails they are given again
//!    with a later serial.
//! 3. Only prepared and open segments are mapped (and retired ones, until the next `prepare_next`
//!    or sync unmaps them away from the commit path); they are charged to the budget.
//! 4. `live` holds the full segments that were not trimmed, then the open one, in stream order.
//!    Trimming is deferred while a reader holds the log (`hold`).
//!
//! The first sync of a block that was allocated and never written costs more than later ones,
//! because the file system must record that it is initialized. Where commits wait for syncs, new
//! segments are therefore filled with zeros when they are prepared. Otherwise that would only write
//! everything twice until segments are recycled.
//!
//! Locks: `preparing` (held during I/O), then `state` (never held during I/O).

mod prepare;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::log::format::{block_of, block_start};
use crate::log::slots::LogIdentity;
use crate::memory::budget::{Budget, Charge};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::storage::io::{Directory, File, Region};
use std::collections::{BTreeSet, VecDeque};

/// A log file with the stream blocks it holds (or held, if it is free).
#[derive(Clone, Debug)]
pub struct Segment {
    /// The slot.
    pub slot: u32,
    /// The file.
    pub file: Arc<dyn File>,
    /// The first block of the stream in it.
    pub first_block: u64,
    /// Number of stream blocks it holds.
    pub blocks: u64,
}

impl Segment {
    fn end_block(&self) -> u64 {
        self.first_block + self.blocks
    }

    /// The size of the file.
    pub fn file_bytes(&self) -> u64 {
        (self.blocks + 1) * BLOCK_BYTES_U64
    }
}

/// A segment that is written through its mapped region.
pub struct MappedSegment {
    /// The region of the complete file, including the header block.
    pub region: Box<dyn Region>,
    /// Number of its first stream block.
    pub first_block: u64,
    /// The number after its last block.
    pub end_block: u64,
    /// Charges the mapping to the budget.
    _charge: Option<Charge>,
}

impl MappedSegment {
    /// No segment: it has no blocks. `first_block` is the number that its first block would have.
    pub fn none(first_block: u64) -> Self {
        let region = Box::new(NoRegion);
        Self { region, first_block, end_block: first_block, _charge: None }
    }
}

/// The region of no segment.
#[derive(Debug)]
struct NoRegion;

impl Region for NoRegion {
    #[cfg(any(test, feature = "internals"))]
    fn size(&self) -> usize {
        0
    }

    fn write(&mut self, _offset: usize, _bytes: &[u8]) -> Result<()> {
        Err(Error::internal("the log has no open segment"))
    }
}

/// Sizes of segment files, in bytes with their header block.
#[derive(Clone, Copy, Debug)]
pub struct SegmentSizes {
    /// Size of the first segment; each following one is twice as large.
    pub first: u64,
    /// Maximum size of a requested segment.
    pub max: u64,
}

/// Statistics of the log files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SegmentStats {
    /// Segments that hold live log data.
    pub live: usize,
    /// Prepared segments.
    pub prepared: usize,
    /// Free segments.
    pub free: usize,
    /// Total size of all of them, in bytes.
    pub file_bytes: u64,
    /// Segments created or reused since open.
    pub prepared_total: u64,
}

/// All segments of one log.
pub struct Segments {
    // Constant after open.
    dir: Arc<dyn Directory>,
    log: LogIdentity,
    bytes_first: u64,
    budget: Arc<Budget>,
    // Maximum size of newly prepared segments, in bytes.
    bytes_max: AtomicU64,
    // Set by the tail when the open segment is half full; cleared when one is prepared.
    wanted: AtomicBool,
    // Set by commits that wait for a sync; cleared when a segment was filled with zeros.
    syncs_expected: AtomicBool,
    // True while the device is nearly full: segments are reused, and no files are created.
    growth_held: AtomicBool,
    preparing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: VecDeque<Segment>,
    prepared: VecDeque<(Segment, MappedSegment)>,
    free: Vec<Segment>,
    /// Mappings of full segments, to be dropped away from the commit path.
    retired: Vec<MappedSegment>,
    /// An unused file, so that a recovery on a full device finds one to continue in.
    spare: Option<Segment>,
    /// Slots that have a file.
    slots: BTreeSet<u32>,
    /// The block number of the next segment to prepare.
    next_block: u64,
    next_serial: u64,
    /// The size of the next segment to prepare.
    next_bytes: u64,
    prepared_total: u64,
    /// Number of readers that hold `live`.
    holds: usize,
    /// Trim position deferred while there are holds.
    trim_held: Lsn,
}

impl State {
    fn trim(&mut self, lsn: Lsn) {
        if self.holds > 0 {
            mark(Mark::LogTrimHeld);
            self.trim_held = self.trim_held.max(lsn);
            return;
        }
        while self.live.len() > 1
            && self.live.front().is_some_and(|oldest| oldest.end_block() <= block_of(lsn))
        {
            let oldest = self.live.pop_front();
            self.free.extend(oldest);
        }
        self.check();
    }

    /// Asserts invariants 2 and 4 in debug builds.
    fn check(&self) {
        if cfg!(debug_assertions) {
            let prepared = self.prepared.iter().map(|(segment, _)| segment);
            let mut end = 0;
            for segment in self.live.iter().chain(prepared) {
                assert!(segment.first_block >= end, "block {end} belongs to two segments");
                assert!(self.slots.contains(&segment.slot), "slot {} has a file", segment.slot);
                end = segment.end_block();
            }
            assert!(end <= self.next_block, "blocks up to {end} are given again");
        }
    }
}

/// State found by recovery, for [`Segments::new`].
#[derive(Default)]
pub struct Inherited {
    /// Segments that the log still needs, in stream order.
    pub live: Vec<Segment>,
    /// Segments whose files can be reused.
    pub free: Vec<Segment>,
    /// Slots whose files must not be touched for now.
    pub kept_slots: Vec<u32>,
    /// One more than the highest block number seen.
    pub next_block: u64,
    /// One more than the highest serial seen.
    pub next_serial: u64,
}

impl Segments {
    /// Creates the segments of a log in `dir`, none of them mapped.
    pub fn new(
        dir: Arc<dyn Directory>,
        log: LogIdentity,
        sizes: SegmentSizes,
        budget: Arc<Budget>,
        inherited: Inherited,
    ) -> Result<Self> {
        let whole = |bytes: u64| bytes.is_multiple_of(BLOCK_BYTES_U64);
        if !whole(sizes.first) || !whole(sizes.max) || sizes.first < 2 * BLOCK_BYTES_U64 {
            return Err(Error::invalid("log segments must be at least two complete blocks"));
        }
        if sizes.first > sizes.max {
            return Err(Error::invalid("the first log segment size exceeds the maximum"));
        }
        let held = inherited.live.iter().chain(&inherited.free).map(|segment| segment.slot);
        let state = State {
            slots: held.chain(inherited.kept_slots).collect(),
            live: inherited.live.into(),
            free: inherited.free,
            next_block: inherited.next_block,
            next_serial: inherited.next_serial,
            next_bytes: sizes.first,
            ..State::default()
        };
        Ok(Self {
            dir,
            log,
            bytes_first: sizes.first,
            budget,
            bytes_max: AtomicU64::new(sizes.max),
            wanted: AtomicBool::new(false),
            syncs_expected: AtomicBool::new(false),
            growth_held: AtomicBool::new(false),
            preparing: Mutex::new(()),
            state: Mutex::new(state),
        })
    }

    /// Makes the oldest prepared segment the open one.
    pub fn take(&self) -> Result<MappedSegment> {
        let mut state = self.state.lock();
        let Some((segment, mapped)) = state.prepared.pop_front() else {
            return Err(Error::internal("no log segment is prepared"));
        };
        state.live.push_back(segment);
        state.check();
        Ok(mapped)
    }

    /// Takes the mapping of a full segment; the background drops it.
    pub fn retire(&self, mapped: MappedSegment) {
        self.state.lock().retired.push(mapped);
    }

    /// Drops the mappings of full segments.
    pub fn unmap_retired(&self) {
        let retired = std::mem::take(&mut self.state.lock().retired);
        drop(retired);
    }

    /// See [`crate::log::Log::set_segment_bytes_max`].
    pub fn set_bytes_max(&self, bytes: u64) {
        self.bytes_max.store(bytes.max(self.bytes_first), Ordering::Relaxed);
    }

    /// Reports that the open segment is half full.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Reports that a commit waits for a sync: the next new segment is prepared for fast syncs.
    pub fn expect_syncs(&self) {
        if !self.syncs_expected.load(Ordering::Relaxed) {
            self.syncs_expected.store(true, Ordering::Relaxed);
        }
    }

    /// True if `prepare_next` has urgent work.
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The files that hold data between `synced` and `target`, in stream order. They include an
    /// open segment that begins at `target`: its first block's header may carry the watermark.
    pub fn unsynced(&self, synced: Lsn, target: Lsn) -> Vec<Arc<dyn File>> {
        let state = self.state.lock();
        let touched = state.live.iter().filter(|segment| {
            block_start(segment.end_block()) > synced && block_start(segment.first_block) <= target
        });
        touched.map(|segment| Arc::clone(&segment.file)).collect()
    }

    /// Frees the full segments that lie entirely before `lsn`. All of them are kept for reuse, so
    /// that steady operation from checkpoint to checkpoint creates no files; there are never more
    /// files than the log needed at one time, and `release_idle` removes them.
    pub fn trim(&self, lsn: Lsn) {
        self.state.lock().trim(lsn);
    }

    /// Defers trimming until a matching call of [`Segments::release_hold`].
    pub fn hold(&self) {
        self.state.lock().holds += 1;
    }

    /// Releases a hold; the last one frees the segments trimmed meanwhile.
    pub fn release_hold(&self) {
        let mut state = self.state.lock();
        state.holds = state.holds.saturating_sub(1);
        let held = state.trim_held;
        state.trim(held);
    }

    /// Adds a file that is no longer needed.
    pub fn give(&self, segment: Segment) {
        let mut state = self.state.lock();
        state.slots.insert(segment.slot);
        state.free.push(segment);
    }

    /// Removes every segment without live data, except one that is ready to be written. The next
    /// segments start small again.
    pub fn release_idle(&self) {
        self.unmap_retired();
        let keep = {
            let mut state = self.state.lock();
            state.next_bytes = self.bytes_first;
            usize::from(state.prepared.is_empty())
        };
        self.shrink_free(keep);
    }

    /// Removes free segments until at most `keep` are left, the smallest first.
    fn shrink_free(&self, keep: usize) {
        let mut surplus = {
            let mut state = self.state.lock();
            state.free.sort_by_key(|segment| std::cmp::Reverse(segment.blocks));
            let keep = keep.min(state.free.len());
            state.free.split_off(keep)
        };
        surplus.drain(..).for_each(|segment| self.remove(segment.slot));
    }

    /// Returns the statistics of the files.
    pub fn figures(&self) -> SegmentStats {
        let state = self.state.lock();
        let prepared = state.prepared.iter().map(|(segment, _)| segment);
        let all = state.live.iter().chain(&state.free).chain(&state.spare).chain(prepared);
        SegmentStats {
            live: state.live.len(),
            prepared: state.prepared.len(),
            free: state.free.len(),
            file_bytes: all.map(Segment::file_bytes).sum(),
            prepared_total: state.prepared_total,
        }
    }

    /// Removes a file without live data. If that fails, it keeps its slot until the next recovery
    /// finds it; nothing depends on its removal.
    fn remove(&self, slot: u32) {
        let is_gone = match self.dir.remove(&self.log.name(slot)) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if is_gone {
            self.state.lock().slots.remove(&slot);
        }
    }

    /// See [`crate::log::Log::hold_growth`].
    pub fn hold_growth(&self, held: bool) {
        self.growth_held.store(held, Ordering::Relaxed);
    }
}
