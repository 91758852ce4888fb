//! Power failures: at any moment, with any part of the unsynced data lost, repeatedly.

use super::sim::SimDirectory;
use super::*;
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::storage::io::crash::{CrashDirectory, Survivors};
use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use std::collections::BTreeMap;

/// A log and its expected content.
struct World {
    sim: SimDirectory,
    dir: Arc<dyn Directory>,
    options: LogOptions,
    tail: LogTail,
    log: Arc<Log>,
    /// Records appended after the trim position, with their ends.
    written: Vec<(LogPosition, Vec<u8>)>,
    /// Number of them that a power failure must preserve.
    durable: usize,
    trimmed: LogPosition,
    next: u64,
}

impl World {
    fn new(options: LogOptions) -> Self {
        let sim = SimDirectory::new();
        let dir: Arc<dyn Directory> = Arc::new(sim.clone());
        let (tail, log) = create(&dir, &options);
        let (written, trimmed) = (Vec::new(), LogPosition::START);
        Self { sim, dir, options, tail, log, written, durable: 0, trimmed, next: 1 }
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(25) {
            0..12 => {
                let bytes = payload(self.next, random_bytes(rng));
                self.next += 1;
                let end = append(&mut self.tail, &self.log, &bytes).unwrap();
                self.written.push((end, bytes));
            }
            12..15 => self.sync(),
            15 => drop(self.tail.seal_block().unwrap()),
            16..18 => self.log.prepare_next().unwrap(),
            18..20 => self.sim.write_back(rng),
            20 => self.log.release_idle(),
            21..23 => self.trim(rng),
            23 => self.tail.leave_block(),
            _ => self.recover(None, rng),
        }
    }

    fn sync(&mut self) {
        self.log.sync_through(self.log.written()).unwrap();
        self.durable = self.written.len();
    }

    /// Trims durable records, as a checkpoint does.
    fn trim(&mut self, rng: &mut Rng) {
        let count = usize::try_from(rng.below(self.durable as u64 + 1)).unwrap();
        if let Some(last) = count.checked_sub(1) {
            self.trimmed = self.written[last].0;
            self.written.drain(..count);
            self.durable -= count;
            self.log.trim(self.trimmed);
        }
    }

    /// Continues with `image`, or, without one, with the current files (a process crash).
    fn recover(&mut self, image: Option<&BTreeMap<String, Vec<u8>>>, rng: &mut Rng) {
        let at_least = if image.is_some() { self.durable } else { self.written.len() };
        if let Some(files) = image {
            self.sim = SimDirectory::from_files(files);
            self.dir = Arc::new(self.sim.clone());
        }
        // The superblock records a part of what is durable.
        let known = match rng.below(3) {
            0 => self.durable.checked_sub(1).map_or(self.trimmed, |last| self.written[last].0),
            _ => self.trimmed,
        };
        let result = recover(&self.dir, &self.options, self.trimmed, known.lsn, LogMode::ReadWrite);
        let (records, recovered) = result.unwrap();
        assert!(records.len() >= at_least, "{} of {at_least} records", records.len());
        assert!(records.len() <= self.written.len());
        for ((_, found), (_, bytes)) in records.iter().zip(&self.written) {
            assert_eq!(found, bytes);
        }
        self.written.truncate(records.len());
        // Replayed records are durable now.
        self.durable = records.len();
        (self.tail, self.log) = recovered.writer.unwrap();
    }

    fn crash(&mut self, rng: &mut Rng) {
        let image = self.sim.crash_image(rng);
        // A read-only recovery gives the same records.
        let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image.clone()));
        let read = recover(&dir, &self.options, self.trimmed, Lsn(0), LogMode::ReadOnly);
        let read = read.unwrap().0.len();
        self.recover(Some(&image), rng);
        assert_eq!(read, self.written.len());
    }
}

#[test]
fn power_cuts_leave_a_prefix_with_everything_synced() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let sizes = [(8 << 10, 8 << 10), (8 << 10, 32 << 10), (16 << 10, 256 << 10)];
        let (first, max) = sizes[usize::try_from(seed % 3).unwrap()];
        let mut world = World::new(options(first, max));
        for _ in 0..6 {
            for _ in 0..rng.below(80) {
                world.step(&mut rng);
            }
            world.crash(&mut rng);
            // Sometimes once more before anything is written.
            while rng.one_in(3) {
                world.crash(&mut rng);
            }
        }
        let waiting = world.log.stats();
        assert!(waiting.segments_live < 200, "seed {seed}: {waiting:?}");
    }
}

#[test]
fn a_recovery_that_is_cut_off_can_be_done_again() {
    use super::sim::Call;
    for seed in 0..60 {
        let mut rng = Rng::new(1000 + seed);
        let mut world = World::new(small());
        for _ in 0..60 {
            world.step(&mut rng);
        }
        let mut image = world.sim.crash_image(&mut rng);
        let from = world.trimmed;
        let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image.clone()));
        let first = recover(&dir, &world.options, from, Lsn(0), LogMode::ReadOnly).unwrap();
        let first = payloads(first.0);
        for later in 0..12 {
            let sim = SimDirectory::from_files(&image);
            let dir: Arc<dyn Directory> = Arc::new(sim.clone());
            let calls = [Call::Sync, Call::Write, Call::Allocate, Call::DirectorySync, Call::Map];
            sim.fail(calls[usize::try_from(rng.below(5)).unwrap()], later / 2);
            if let Ok((records, recovered)) =
                recover(&dir, &world.options, from, Lsn(0), LogMode::ReadWrite)
            {
                assert_eq!(payloads(records), first);
                let (mut tail, log) = recovered.writer.unwrap();
                // Appended but not synced: it may or may not exist, and is replayed if it does.
                if let Ok(end) = append(&mut tail, &log, b"not synced") {
                    assert!(end > recovered.end);
                }
            }
            image = sim.crash_image(&mut rng);
            let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image.clone()));
            let (records, _) =
                recover(&dir, &world.options, from, Lsn(0), LogMode::ReadOnly).unwrap();
            let records = payloads(records);
            assert!(records.starts_with(&first), "seed {seed}: records were lost");
            assert!(records[first.len()..].iter().all(|bytes| bytes == b"not synced"));
            if records.len() > first.len() {
                break;
            }
        }
    }
}

#[test]
fn crashes_in_a_row_do_not_pile_up_segments() {
    let options = small();
    let memory = MemoryDirectory::new();
    let dir: Arc<dyn Directory> = Arc::new(memory.clone());
    let (mut tail, log) = create(&dir, &options);
    append(&mut tail, &log, b"one").unwrap();
    drop((tail, log));
    let mut from = LogPosition::START;
    for round in 0..30 {
        let (records, recovered) =
            recover(&dir, &options, from, Lsn(0), LogMode::ReadWrite).unwrap();
        assert_eq!(records.len(), usize::from(round <= 15));
        if round == 15 {
            // A checkpoint: from now on the superblock names the beginning of an empty segment.
            from = recovered.end;
            recovered.writer.unwrap().1.trim(from);
        }
        assert!(memory.to_files().len() <= 5, "{} files", memory.to_files().len());
    }
}

#[test]
fn what_a_recycled_segment_held_before_is_never_believed() {
    let mut rng = Rng::new(77);
    for seed in 0..40 {
        // All segments have one size, so that every one is recycled.
        let mut world = World::new(options(16 << 10, 16 << 10));
        for round in 0..30 {
            for _ in 0..rng.below(12) {
                // The same bytes at the same places of the files, over and over.
                let bytes = payload(7, 1000);
                let end = append(&mut world.tail, &world.log, &bytes).unwrap();
                world.written.push((end, bytes));
            }
            if !rng.one_in(4) {
                world.sync();
                let durable = world.durable;
                if let Some((end, _)) = world.written.get(durable.wrapping_sub(1)) {
                    world.trimmed = *end;
                    world.log.trim(*end);
                    world.written.clear();
                    world.durable = 0;
                }
                world.log.prepare_next().unwrap();
            }
            if round % 5 == 4 {
                world.sim.write_back(&mut rng);
                world.crash(&mut rng);
            }
        }
        assert!(world.next == 1, "seed {seed}");
    }
}

#[test]
fn old_blocks_under_a_new_header_end_the_log() {
    // A segment is not cleared when it is recycled: old blocks remain.
    let memory = MemoryDirectory::new();
    let dir: Arc<dyn Directory> = Arc::new(memory.clone());
    let options = options(16 << 10, 16 << 10);
    let (mut tail, log) = create(&dir, &options);
    while log.stats().segments_prepared < 2 {
        append(&mut tail, &log, &payload(1, 1000)).unwrap();
    }
    let old = memory.to_files()["log-0000"].clone();
    let trimmed = tail.position();
    log.trim(trimmed);
    append(&mut tail, &log, b"new").unwrap();
    log.prepare_next().unwrap();
    let files = memory.to_files();
    assert_ne!(files["log-0000"][..BLOCK_BYTES], old[..BLOCK_BYTES], "the file was recycled");
    assert_eq!(files["log-0000"][BLOCK_BYTES..], old[BLOCK_BYTES..], "it still has its blocks");
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(files));
    let (records, recovered) =
        recover(&dir, &options, trimmed, Lsn(0), LogMode::ReadWrite).unwrap();
    assert_eq!(payloads(records), [b"new"]);
    assert!(recovered.end.lsn.0.is_multiple_of(BLOCK_BYTES_U64));
}

#[test]
fn a_block_at_the_place_of_another_is_not_believed() {
    // The block with the watermark is almost empty: only its number distinguishes it from the next.
    let memory = MemoryDirectory::new();
    let dir: Arc<dyn Directory> = Arc::new(memory.clone());
    let options = options(32 << 10, 32 << 10);
    let (mut tail, log) = create(&dir, &options);
    append(&mut tail, &log, b"one").unwrap();
    let end = tail.seal_block().unwrap();
    let mut files = memory.to_files();
    let content = files.get_mut("log-0000").unwrap();
    content.copy_within(2 * BLOCK_BYTES..3 * BLOCK_BYTES, 3 * BLOCK_BYTES);
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(files));
    let (records, recovered) =
        recover(&dir, &options, LogPosition::START, Lsn(0), LogMode::ReadOnly).unwrap();
    assert_eq!((records.len(), recovered.end), (1, end));
}

#[test]
fn a_segment_whose_removal_was_lost_claims_nothing() {
    let options = options(16 << 10, 16 << 10);
    let crash = CrashDirectory::new();
    let plan = FaultPlan::new();
    let inner: Arc<dyn Directory> = Arc::new(crash.clone());
    let dir: Arc<dyn Directory> = Arc::new(FaultDirectory::new(inner, plan.clone()).unwrap());
    let (mut tail, log) = create(&dir, &options);
    while log.stats().segments_live < 2 {
        append(&mut tail, &log, &payload(1, 1000)).unwrap();
    }
    let from = tail.position();
    log.sync_through(log.written()).unwrap();
    // The third one gets half of its header, which is a complete copy, and is removed.
    plan.fail(Fault::once(Call::Write, 0).with(Failure::IoHalfDone));
    log.prepare_next().unwrap_err();
    assert_eq!(plan.failures(), 1);
    drop((tail, log));
    // The next process does not need the first segment and recycles it.
    let crash = crash.after_process_death();
    let dir: Arc<dyn Directory> = Arc::new(crash.clone());
    let (_, recovered) = recover(&dir, &options, from, from.lsn, LogMode::ReadWrite).unwrap();
    let (mut tail, log) = recovered.writer.unwrap();
    append(&mut tail, &log, b"synced").unwrap();
    log.sync_through(log.written()).unwrap();
    // The power failure drops any unsynced operations, such as the removal.
    let (journal, boundary) = (crash.journal(), crash.boundary());
    for lost in 0..=journal.pending(boundary) {
        let image = journal.image(boundary, Survivors::AllBut(lost));
        let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image));
        let written = log.written();
        let (records, _) = recover(&dir, &options, from, written, LogMode::ReadOnly).unwrap();
        assert_eq!(payloads(records), [b"synced"], "without {lost}");
    }
}

#[test]
fn a_segment_that_ends_where_recovery_begins_is_kept_until_the_log_goes_on() {
    let options = options(8 << 10, 8 << 10);
    let memory = MemoryDirectory::new();
    let dir: Arc<dyn Directory> = Arc::new(memory.clone());
    let (mut tail, log) = create(&dir, &options);
    append(&mut tail, &log, b"one").unwrap();
    log.sync_through(log.written()).unwrap();
    tail.leave_block();
    let from = tail.position();
    assert_eq!(from.lsn.0, BLOCK_BYTES_U64, "the only block of the segment is left");
    drop((tail, log));
    // An open fails when it makes the segment in which the log goes on; the next one does not.
    for (call, failure) in [
        (Call::Write, Failure::Io),
        (Call::Write, Failure::IoHalfDone),
        (Call::Sync, Failure::Io),
        (Call::Map, Failure::TooManyFiles),
    ] {
        let plan = FaultPlan::new();
        let inner = Arc::new(MemoryDirectory::from_files(memory.to_files()));
        let faulty = FaultDirectory::new(inner.clone(), plan.clone()).unwrap();
        let faulty: Arc<dyn Directory> = Arc::new(faulty);
        let write = LogMode::ReadWrite;
        plan.fail(Fault::once(call, 0).on("log-").with(failure));
        let opened = recover(&faulty, &options, from, from.lsn, write);
        assert!(opened.is_err() && plan.failures() == 1, "{call:?}");
        let dir: Arc<dyn Directory> = inner;
        let (records, recovered) = recover(&dir, &options, from, from.lsn, write).unwrap();
        assert!(records.is_empty());
        let (mut tail, log) = recovered.writer.unwrap();
        append(&mut tail, &log, b"two").unwrap();
        assert_eq!(payloads(recover(&dir, &options, from, from.lsn, write).unwrap().0), [b"two"]);
    }
}
