//! How segments are prepared: in the background, by a writer that needs one, and on a full device.

use super::{MappedSegment, Segment, Segments};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::logs::LogPosition;
use crate::log::format::{SegmentHeader, block_of, block_start, index};
use crate::log::slots::unused_slot;
use crate::memory::budget::Use;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{MutexGuard, Ordering};
use crate::storage::io::{Access, File, OpenMode};

/// Source of zeros for writes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

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

impl Segments {
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
        let made = self.dir.open(&self.log.name(slot), OpenMode::CreateNew, Access::Buffered);
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

    /// One attempt of `prepare`.
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
                state.check();
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

    /// Creates or reuses the file of `header`; its header, size and name are durable then.
    fn make(
        &self,
        slot: u32,
        recycled: bool,
        header: &SegmentHeader,
    ) -> Result<(Segment, MappedSegment)> {
        let name = self.log.name(slot);
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
        file.write_at(&header.encode(self.log.salt()), 0)?;
        file.sync()?;
        if !recycled {
            self.dir.sync()?;
        }
        let region = file.map(0, index(bytes))?;
        let charge = self.budget.charge(Use::Log, bytes);
        let (first_block, blocks) = (header.first_block, header.blocks);
        let segment = Segment { slot, file, first_block, blocks };
        let end_block = header.end_block();
        Ok((segment, MappedSegment { region, first_block, end_block, _charge: Some(charge) }))
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
