//! Power failures at every boundary of a run, and at every boundary of the recoveries after them,
//! with torn sectors of mapped memory; and the real directory.

use super::*;
use crate::storage::io::crash::{CrashDirectory, Survivors};
use crate::storage::io::direct::DirectDirectory;
use crate::storage::io::memory::MemoryDirectory;

/// Expectations from a boundary of the run on.
struct Known {
    boundary: usize,
    /// Records that a power failure must preserve, and their end.
    durable: usize,
    durable_end: Lsn,
    /// Number of records before the trim position, and that position.
    trimmed: usize,
    from: LogPosition,
}

/// Runs all operations of a log; returns the appended records, and the expectations by boundary.
fn run(sim: &CrashDirectory, options: &LogOptions, rng: &mut Rng) -> (Vec<Vec<u8>>, Vec<Known>) {
    let dir: Arc<dyn Directory> = Arc::new(sim.clone());
    let (mut tail, log) = create(&dir, options);
    let (mut written, mut ends) = (Vec::new(), vec![LogPosition::START]);
    let (mut durable, mut trimmed) = (0, 0);
    let mut known = Vec::new();
    for _ in 0..50 {
        match rng.below(10) {
            0..6 => {
                let bytes = payload(written.len() as u64, random_bytes(rng) / 4);
                ends.push(append(&mut tail, &log, &bytes).unwrap());
                written.push(bytes);
            }
            6..8 => {
                log.sync_through(log.written()).unwrap();
                durable = written.len();
            }
            8 => drop(tail.seal_block().unwrap()),
            _ => trimmed = durable,
        }
        let (durable_end, from) = (ends[durable].lsn, ends[trimmed]);
        known.push(Known { boundary: sim.boundary(), durable, durable_end, trimmed, from });
        // A checkpoint is recorded before its log is trimmed.
        log.trim(from);
        if rng.one_in(3) {
            log.prepare_next().unwrap();
        }
    }
    (written, known)
}

/// Recovers an image of a run; returns the records and fails unless they are as expected.
fn check(
    dir: &Arc<dyn Directory>,
    options: &LogOptions,
    written: &[Vec<u8>],
    known: &Known,
    what: &str,
) -> Vec<Vec<u8>> {
    let found = recover(dir, options, known.from, known.durable_end, LogMode::ReadWrite);
    let found = match found {
        Ok((records, _)) => payloads(records),
        Err(error) => panic!("{what}: {error}"),
    };
    let total = known.trimmed + found.len();
    assert!(total >= known.durable && total <= written.len(), "{what}: {total} records");
    assert_eq!(found, written[known.trimmed..total], "{what}");
    found
}

#[test]
fn every_boundary_of_a_run_and_of_its_recovery_can_be_the_last() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let options = options(8 << 10, 16 << 10);
        let sim = CrashDirectory::new();
        let (written, known) = run(&sim, &options, &mut rng);
        let journal = sim.journal();
        // Before the log is created nothing refers to it.
        for boundary in known[0].boundary..=journal.boundaries() {
            let known = known.iter().rfind(|known| known.boundary <= boundary).unwrap();
            let subsets = [Survivors::Subset(rng.next_u64()), Survivors::Subset(rng.next_u64())];
            for survivors in [Survivors::None, Survivors::All, subsets[0], subsets[1]] {
                let image = journal.image(boundary, survivors);
                let what = format!("seed {seed}, boundary {boundary}, {survivors:?}");
                let again = CrashDirectory::from_files(&image);
                let dir: Arc<dyn Directory> = Arc::new(again.clone());
                let found = check(&dir, &options, &written, known, &what);
                if !rng.one_in(8) {
                    continue;
                }
                // The power fails again, during the recovery or right after it.
                let second = again.journal();
                for boundary in 0..=second.boundaries() {
                    let image = second.image(boundary, Survivors::Subset(rng.next_u64()));
                    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image));
                    let what = format!("{what}, then boundary {boundary}");
                    assert_eq!(check(&dir, &options, &written, known, &what), found, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_real_directory_keeps_what_was_written_and_what_was_trimmed_is_used_again() {
    let place = tempfile::tempdir().unwrap();
    let dir: Arc<dyn Directory> = Arc::new(DirectDirectory::open(place.path(), false).unwrap());
    let options = options(16 << 10, 64 << 10);
    let mut rng = Rng::new(4);
    let (mut tail, mut log) = create(&dir, &options);
    let (mut from, mut written, mut number) = (LogPosition::START, Vec::new(), 0);
    for round in 0..6 {
        for _ in 0..60 {
            let bytes = payload(number, random_bytes(&mut rng));
            append(&mut tail, &log, &bytes).unwrap();
            written.push(bytes);
            number += 1;
            if log.wants_segment() {
                log.prepare_next().unwrap();
            }
        }
        if round % 2 == 1 {
            log.sync_through(log.written()).unwrap();
            from = tail.position();
            log.trim(from);
            written.clear();
        }
        // Without a shutdown, like a process crash.
        drop((tail, log));
        let (records, recovered) =
            recover(&dir, &options, from, from.lsn, LogMode::ReadWrite).unwrap();
        assert_eq!(payloads(records), written);
        (tail, log) = recovered.writer.unwrap();
    }
    assert!(log.stats().segments_live + log.stats().segments_waiting < 40);
}
