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

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::log::format::{LogPosition, SegmentHeader, block_of, block_start, index};
use crate::log::slots::{slot_name, unused_slot};
use crate::memory::budget::{Budget, Charge, Use};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::storage::io::{Access, Directory, File, OpenMode, Region};
use std::collections::{BTreeSet, VecDeque};

/// Source of zeros for writes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

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

    fn file_bytes(&self) -> u64 {
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
    _charge: Charge,
}

/// Sizes of segment files, in bytes with their header block.
#[derive(Clone, Copy, Debug)]
pub struct SegmentSizes {
    /// Size of the first segment; each following one is twice as large.
    pub first: u64,
    /// Maximum size of a requested segment.
    pub max: u64,
}

/// Requested size of the next segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Twice the size of the one before.
    Usual,
    /// The smallest, or any free segment: the device is full.
    Least,
    /// A header and one stream block, or any free segment: the device is almost completely full.
    OneBlock,
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
    salt: u64,
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
        salt: u64,
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
            salt,
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

    /// Prepares the first segment that this process writes; its data continues `from`.
    pub fn begin(&self, from: LogPosition) -> Result<MappedSegment> {
        let guard = self.preparing.lock();
        match self.prepare(&guard, Some(from), 0) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.give_rest_back(from);
                self.prepare(&guard, Some(from), 0)
                    .or_else(|_| self.prepare_of(&guard, Some(from), 0, Wanted::OneBlock))?;
            }
            prepared => prepared?,
        }
        drop(guard);
        self.take()
    }

    /// Punches out the space of the segment in which the log ended at `from`, after that position:
    /// it is not read or written before the segment is reused. It reads as never written.
    fn give_rest_back(&self, from: LogPosition) {
        let end = block_of(from.lsn) + 1;
        let last = self.state.lock().live.back().cloned();
        if let Some(last) = last.filter(|last| (last.first_block..last.end_block()).contains(&end))
        {
            let used = (1 + end - last.first_block) * BLOCK_BYTES_U64;
            // On failure no space is gained.
            let _ = last.file.punch_hole(used, last.file_bytes() - used);
        }
    }

    /// Unmaps retired segments, and prepares a segment if none is prepared.
    pub fn prepare_next(&self) -> Result<()> {
        self.unmap_retired();
        let guard = self.preparing.lock();
        // The request may be repeated if this fails; a writer that needs the segment makes it.
        self.wanted.store(false, Ordering::Relaxed);
        if self.state.lock().prepared.is_empty() {
            return self.prepare(&guard, None, 0);
        }
        Ok(())
    }

    /// Ensures that prepared segments hold at least `blocks` blocks.
    pub fn reserve(&self, blocks: u64) -> Result<()> {
        let guard = self.preparing.lock();
        loop {
            let ready: u64 =
                self.state.lock().prepared.iter().map(|(segment, _)| segment.blocks).sum();
            if ready >= blocks {
                return Ok(());
            }
            // One large segment is better than many small ones.
            mark(Mark::LogSegmentMadeByCommit);
            let missing = (blocks - ready).saturating_add(1).saturating_mul(BLOCK_BYTES_U64);
            self.prepare(&guard, None, missing)?;
        }
    }

    /// Makes the oldest prepared segment the open one.
    pub fn take(&self) -> Result<MappedSegment> {
        let mut state = self.state.lock();
        let Some((segment, mapped)) = state.prepared.pop_front() else {
            return Err(Error::internal("no log segment is prepared"));
        };
        state.live.push_back(segment);
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
        let is_gone = match self.dir.remove(&slot_name(slot)) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if is_gone {
            self.state.lock().slots.remove(&slot);
        }
    }

    /// Prepares one segment of `bytes_min` bytes or more (unless the limit is less), which
    /// continues `from` or directly follows the one before. On a device without space for the usual
    /// size, a free segment is reused, or the smallest size is used. On failure the state is
    /// unchanged, except for a serial and free files that may have been removed.
    fn prepare(
        &self,
        preparing: &MutexGuard<'_, ()>,
        from: Option<LogPosition>,
        bytes_min: u64,
    ) -> Result<()> {
        match self.prepare_of(preparing, from, bytes_min, Wanted::Usual) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                mark(Mark::LogSegmentSmallForSpace);
                self.prepare_of(preparing, from, bytes_min, Wanted::Least)?;
            }
            prepared => prepared?,
        }
        if from.is_none() {
            self.keep_spare(preparing);
        }
        Ok(())
    }

    /// Creates the spare file if there is none and space for it. Recovery treats it as a free
    /// segment: it has no header.
    fn keep_spare(&self, _preparing: &MutexGuard<'_, ()>) {
        let slot = {
            let mut state = self.state.lock();
            if state.spare.is_some() || self.growth_held.load(Ordering::Relaxed) {
                return;
            }
            let slot = unused_slot(&state.slots);
            state.slots.insert(slot);
            slot
        };
        let made = self.dir.open(&slot_name(slot), OpenMode::CreateNew, Access::Buffered);
        match made.and_then(|file| file.allocate(0, self.bytes_first).map(|()| file)) {
            Ok(file) => {
                let blocks = self.bytes_first / BLOCK_BYTES_U64 - 1;
                let spare = Segment { slot, file, first_block: 0, blocks };
                self.state.lock().spare = Some(spare);
            }
            // A later segment retries.
            Err(_) => self.remove(slot),
        }
    }

    /// Prepares the segment in which the log continues after `from` because refused bytes follow
    /// that position, and makes it the open one. Segments prepared before become free: their blocks
    /// have lower numbers.
    pub fn go_on_behind(&self, from: LogPosition) -> Result<MappedSegment> {
        let guard = self.preparing.lock();
        {
            let mut state = self.state.lock();
            let prepared = std::mem::take(&mut state.prepared);
            for (segment, mapped) in prepared {
                state.free.push(segment);
                state.retired.push(mapped);
            }
        }
        self.prepare(&guard, Some(from), 0)?;
        drop(guard);
        self.take()
    }

    /// See [`crate::log::Log::hold_growth`].
    pub fn hold_growth(&self, held: bool) {
        self.growth_held.store(held, Ordering::Relaxed);
    }

    fn prepare_of(
        &self,
        _preparing: &MutexGuard<'_, ()>,
        from: Option<LogPosition>,
        bytes_min: u64,
        wanted: Wanted,
    ) -> Result<()> {
        let (mut segment_header, recycled, slot, outgrown) = {
            let mut state = self.state.lock();
            let most = self.bytes_max.load(Ordering::Relaxed);
            let usual = match wanted {
                Wanted::Usual => state.next_bytes,
                Wanted::Least => self.bytes_first,
                Wanted::OneBlock => 2 * BLOCK_BYTES_U64,
            };
            let bytes = usual.max(bytes_min).min(most);
            let (fit, mut outgrown) = take_fitting(&mut state.free, bytes, most);
            if fit.is_none() && from.is_none() && self.growth_held.load(Ordering::Relaxed) {
                state.free.append(&mut outgrown);
                let text = "the device is nearly full: the log may not grow; free space";
                return Err(Error::new(ErrorKind::NoSpace, text));
            }
            let blocks = fit.as_ref().map_or(bytes / BLOCK_BYTES_U64 - 1, |fit| fit.blocks);
            let slot = fit.as_ref().map_or_else(|| unused_slot(&state.slots), |fit| fit.slot);
            state.slots.insert(slot);
            let continues_from = LogPosition { lsn: block_start(state.next_block), chain: 0 };
            let (first_block, serial) = (state.next_block, state.next_serial);
            state.next_serial += 1;
            let header = SegmentHeader { serial, first_block, blocks, continues_from };
            (header, fit.is_some(), slot, outgrown)
        };
        if wanted != Wanted::Usual {
            // They are too small, and their space is needed.
            outgrown.iter().for_each(|segment| self.remove(segment.slot));
        }
        if let Some(from) = from {
            segment_header.continues_from = from;
        }
        match self.make(slot, recycled, &segment_header) {
            Ok((segment, mapped)) => {
                let mut state = self.state.lock();
                state.next_block = segment.end_block();
                state.next_bytes = segment.file_bytes().saturating_mul(2).max(self.bytes_first);
                state.prepared.push_back((segment, mapped));
                state.prepared_total += 1;
                self.wanted.store(false, Ordering::Relaxed);
                drop(state);
                if wanted == Wanted::Usual {
                    outgrown.iter().for_each(|segment| self.remove(segment.slot));
                }
                Ok(())
            }
            Err(error) => {
                mark(Mark::LogSegmentNotMade);
                self.remove(slot);
                if wanted == Wanted::Usual {
                    self.state.lock().free.extend(outgrown);
                }
                Err(error)
            }
        }
    }

    /// Creates or reuses the file of `header` so that invariant 1 holds.
    fn make(
        &self,
        slot: u32,
        recycled: bool,
        header: &SegmentHeader,
    ) -> Result<(Segment, MappedSegment)> {
        let name = slot_name(slot);
        let bytes = (header.blocks + 1) * BLOCK_BYTES_U64;
        let mode = if recycled { OpenMode::Write } else { OpenMode::CreateNew };
        let file = self.dir.open(&name, mode, Access::Buffered)?;
        file.allocate(0, bytes)?;
        if !recycled && self.syncs_expected.load(Ordering::Relaxed) {
            write_zeros(&*file, BLOCK_BYTES_U64, bytes)?;
            // A commit that waits for the next sync sets it again.
            self.syncs_expected.store(false, Ordering::Relaxed);
        }
        // Old blocks are not cleared: that would double the bytes written by the log.
        file.write_at(&header.encode(self.salt), 0)?;
        file.sync()?;
        if !recycled {
            self.dir.sync()?;
        }
        let region = file.map(0, index(bytes))?;
        let charge = self.budget.charge(Use::Log, bytes);
        let (first_block, blocks) = (header.first_block, header.blocks);
        let segment = Segment { slot, file, first_block, blocks };
        let end_block = header.end_block();
        Ok((segment, MappedSegment { region, first_block, end_block, _charge: charge }))
    }
}

/// Takes the smallest free segment from `bytes` to `most` bytes out of `free`, and those to be
/// removed: segments larger than `most`, and all if none fits.
fn take_fitting(free: &mut Vec<Segment>, bytes: u64, most: u64) -> (Option<Segment>, Vec<Segment>) {
    let fits = |segment: &Segment| (bytes..=most).contains(&segment.file_bytes());
    let fitting = free.iter().enumerate().filter(|(_, segment)| fits(segment));
    match fitting.min_by_key(|(_, segment)| segment.blocks).map(|(at, _)| at) {
        Some(at) => {
            let fit = free.swap_remove(at);
            (Some(fit), free.extract_if(.., |segment| segment.file_bytes() > most).collect())
        }
        None => {
            if !free.is_empty() {
                mark(Mark::LogSegmentsOutgrown);
            }
            (None, std::mem::take(free))
        }
    }
}

/// Writes zeros from `start` to `end`.
fn write_zeros(file: &dyn File, start: u64, end: u64) -> Result<()> {
    let mut at = start;
    while at < end {
        let count = ZEROS.len().min(index(end - at));
        file.write_at(&ZEROS[..count], at)?;
        at += count as u64;
    }
    Ok(())
}
