//! Appending, syncing, trimming, and devices that fail.

use super::sim::{Call, SimDirectory};
use super::*;
use crate::base::error::{Error, ErrorKind};
use crate::log::format::RECORD_BYTES_MAX;
use crate::memory::budget::Use;
use crate::runtime::sync::{AtomicU64, Condvar, Mutex, Ordering};
use crate::storage::io::fault::{Call as FaultCall, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;

#[test]
fn records_of_any_size_come_back_after_every_reopen() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let dir: Arc<dyn Directory> = match seed % 2 {
            0 => Arc::new(MemoryDirectory::new()),
            _ => Arc::new(SimDirectory::new().without_mapping()),
        };
        let options = small();
        let (mut tail, mut log) = create(&dir, &options);
        let mut written: Vec<Vec<u8>> = Vec::new();
        let mut starts = vec![LogPosition::START];
        for _ in 0..4 {
            for _ in 0..rng.below(60) {
                let number = written.len() as u64;
                let bytes = payload(number, random_bytes(&mut rng));
                let end = append(&mut tail, &log, &bytes).unwrap();
                assert_eq!(end, tail.position());
                written.push(bytes);
                starts.push(end);
                match rng.below(8) {
                    0 => log.sync_through(log.written()).unwrap(),
                    1 => *starts.last_mut().unwrap() = tail.seal_block().unwrap(),
                    2 => log.prepare_next().unwrap(),
                    _ => {}
                }
            }
            drop((tail, log));
            // Replay from any record on, with the final durable position.
            let at = usize::try_from(rng.below(starts.len() as u64)).unwrap();
            let (records, read) =
                recover(&dir, &options, starts[at], starts[at].lsn, LogMode::ReadOnly).unwrap();
            assert_eq!(payloads(records), &written[at..]);
            assert!(read.writer.is_none());
            let durable = read.end.lsn;
            let (records, recovered) =
                recover(&dir, &options, LogPosition::START, durable, LogMode::ReadWrite).unwrap();
            assert_eq!(payloads(records), written);
            (tail, log) = recovered.writer.unwrap();
            assert_eq!(tail.position(), recovered.end);
            assert_eq!(log.synced(), recovered.end.lsn);
        }
    }
}

#[test]
fn the_longest_record_spans_many_segments_and_longer_ones_are_refused() {
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let options = options(16 << 10, 1 << 20);
    let (mut tail, log) = create(&dir, &options);
    let bytes = payload(1, RECORD_BYTES_MAX);
    append(&mut tail, &log, &[7]).unwrap();
    append(&mut tail, &log, &bytes).unwrap();
    for wrong in [&[][..], &payload(2, RECORD_BYTES_MAX + 1)] {
        let error = append(&mut tail, &log, wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    append(&mut tail, &log, &[8]).unwrap();
    log.sync_through(log.written()).unwrap();
    let durable = log.synced();
    let (records, _) =
        recover(&dir, &options, LogPosition::START, durable, LogMode::ReadOnly).unwrap();
    assert_eq!(payloads(records), [vec![7], bytes, vec![8]]);
}

#[test]
fn a_new_log_is_small_and_segments_grow_and_are_recycled() {
    let memory = MemoryDirectory::new();
    let dir: Arc<dyn Directory> = Arc::new(memory.clone());
    let options = options(16 << 10, 64 << 10);
    let (mut tail, log) = create(&dir, &options);
    assert!(log.stats().file_bytes <= 32 << 10);
    assert_eq!(options.budget.used_by(Use::Log), 16 << 10);
    for number in 0..2000 {
        let end = append(&mut tail, &log, &payload(number, 1000)).unwrap();
        if log.wants_segment() {
            log.prepare_next().unwrap();
            assert!(!log.wants_segment());
        }
        log.sync_through(end.lsn).unwrap();
        log.trim(end);
        let stats = log.stats();
        assert!(stats.segments_live == 1 && stats.segments_waiting <= 3, "{stats:?}");
        assert!(options.budget.used_by(Use::Log) <= 128 << 10);
    }
    assert!(log.stats().segments_prepared > 20);
    assert!(memory.to_files().len() <= 4);
    log.release_idle();
    assert_eq!(log.stats().segments_waiting, 1);
    assert_eq!(log.stats().payload_bytes, 2000 * 1000);
    drop((tail, log));
    assert_eq!(options.budget.used_by(Use::Log), 0);
}

#[test]
fn segments_that_became_too_large_go_when_they_were_used_up() {
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let options = options(16 << 10, 128 << 10);
    let (mut tail, log) = create(&dir, &options);
    let mut fill = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let end = append(&mut tail, &log, &payload(number, 1000)).unwrap();
            if log.wants_segment() {
                log.prepare_next().unwrap();
            }
            log.trim(end);
        }
        log.prepare_next().unwrap();
        options.budget.used_by(Use::Log)
    };
    assert!(fill(0..1000) >= 128 << 10);
    log.set_segment_bytes_max(32 << 10);
    assert!(fill(1000..2000) <= 64 << 10);
    assert!(log.stats().file_bytes <= 160 << 10, "{:?}", log.stats());
    log.set_segment_bytes_max(128 << 10);
    assert!(fill(2000..3000) >= 128 << 10);
    // Segments smaller than the first one are not requested.
    log.set_segment_bytes_max(0);
    assert_eq!(fill(3000..4000), 32 << 10);
}

#[test]
fn new_segments_are_written_through_only_where_commits_wait_for_syncs() {
    let plan = FaultPlan::new();
    let faulty = FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan.clone()).unwrap();
    let dir: Arc<dyn Directory> = Arc::new(faulty);
    let (_tail, log) = create(&dir, &options(16 << 10, 64 << 10));
    // Counts the writes for preparing this many blocks; each segment is larger than the last.
    let prepare = |blocks| {
        let before = plan.calls(FaultCall::Write);
        log.reserve(blocks).unwrap();
        plan.calls(FaultCall::Write) - before
    };
    // Only the header.
    assert_eq!(prepare(7), 1);
    log.expect_syncs();
    assert!(prepare(7 + 15) > 1);
    // No commit has waited since.
    assert_eq!(prepare(7 + 15 + 15), 1);
}

#[test]
fn many_commits_share_a_sync() {
    const THREADS: u64 = 8;
    let arrived = Arc::new((Mutex::new(0_u64), Condvar::new()));
    let gate = Arc::clone(&arrived);
    let armed = Arc::new(AtomicU64::new(0));
    let is_armed = Arc::clone(&armed);
    // The first sync of a commit lasts until every thread has appended its record.
    let dir: Arc<dyn Directory> = Arc::new(SimDirectory::new().with_hook(Arc::new(move || {
        if is_armed.load(Ordering::SeqCst) == 1 {
            let mut count = gate.0.lock();
            gate.1.wait_while(&mut count, |count| *count < THREADS);
        }
    })));
    let (tail, log) = create(&dir, &options(64 << 10, 64 << 10));
    armed.store(1, Ordering::SeqCst);
    let tail = Mutex::new(tail);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (tail, log, arrived) = (&tail, &log, &arrived);
            scope.spawn(move || {
                let bytes = payload(number, 100);
                let end = append(&mut tail.lock(), log, &bytes).unwrap();
                *arrived.0.lock() += 1;
                arrived.1.notify_all();
                log.sync_through(end.lsn).unwrap();
                assert!(log.synced() >= end.lsn);
            });
        }
    });
    // One by the leader, and one more for threads that came after its sync began.
    let stats = log.stats();
    assert!(stats.syncs <= 2, "{} syncs", stats.syncs);
    assert_eq!(stats.records, THREADS);
    assert_eq!(log.synced(), log.written());
}

#[test]
fn a_full_device_stops_nothing() {
    let sim = SimDirectory::new();
    let dir: Arc<dyn Directory> = Arc::new(sim.clone());
    let options = small();
    let (mut tail, log) = create(&dir, &options);
    sim.set_space_max(40 << 10);
    let mut written = Vec::new();
    let refused = loop {
        let bytes = payload(written.len() as u64, 3000);
        let before = tail.position();
        match append(&mut tail, &log, &bytes) {
            Ok(_) => written.push(bytes),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                assert_eq!(tail.position(), before);
                break bytes;
            }
        }
    };
    assert!(written.len() > 3 && log.check_running().is_ok());
    assert_eq!(log.prepare_next().unwrap_err().kind(), ErrorKind::NoSpace);
    // A record that needs several segments takes all of them or none.
    let long = payload(1000, 200_000);
    assert_eq!(append(&mut tail, &log, &long).unwrap_err().kind(), ErrorKind::NoSpace);
    log.sync_through(log.written()).unwrap();
    let mid = log.synced();
    sim.heal();
    for bytes in [refused, long] {
        append(&mut tail, &log, &bytes).unwrap();
        written.push(bytes);
    }
    let (records, _) = recover(&dir, &options, LogPosition::START, mid, LogMode::ReadOnly).unwrap();
    assert_eq!(payloads(records), written);
}

#[test]
fn the_first_failure_of_the_device_stops_the_log_for_good() {
    for (call, later) in [
        (Call::Sync, 0),
        (Call::Store, 0),
        (Call::Store, 5),
        (Call::Write, 1),
        (Call::Open, 0),
        (Call::Map, 0),
        (Call::DirectorySync, 0),
    ] {
        let sim = SimDirectory::new();
        let dir: Arc<dyn Directory> = Arc::new(sim.clone());
        let options = small();
        let (mut tail, log) = create(&dir, &options);
        let mut written = vec![payload(0, 50)];
        append(&mut tail, &log, &written[0]).unwrap();
        log.sync_through(log.written()).unwrap();
        let synced = log.synced();
        sim.fail(call, later);
        let mut number = 0;
        let error = loop {
            number += 1;
            let bytes = payload(number, 700);
            if let Err(error) = append(&mut tail, &log, &bytes) {
                break error;
            }
            written.push(bytes);
            if let Err(error) = log.sync_through(log.written()) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::Io);
        sim.heal();
        let stopped = [
            append(&mut tail, &log, b"more").unwrap_err(),
            tail.seal_block().unwrap_err(),
            log.prepare_next().unwrap_err(),
        ];
        assert!(stopped.iter().all(|error| error.kind() == ErrorKind::Stopped), "{call:?}");
        if log.written() > log.synced() {
            let error = log.sync_through(log.written()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Stopped);
        }
        log.sync_through(synced).unwrap();
        assert!(log.check_running().is_err());
        let synced = log.synced();
        drop((tail, log));
        let (records, _) =
            recover(&dir, &options, LogPosition::START, synced, LogMode::ReadWrite).unwrap();
        assert_eq!(payloads(records), written, "{call:?}");
    }
}

#[test]
fn trimming_keeps_what_a_recovery_from_there_needs() {
    let mut rng = Rng::new(9);
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let options = small();
    let (mut tail, mut log) = create(&dir, &options);
    let mut written: Vec<(LogPosition, Vec<u8>)> = Vec::new();
    let mut trimmed = LogPosition::START;
    for round in 0..200_u64 {
        for _ in 0..rng.below(20) {
            let start = tail.position();
            let bytes = payload(round, random_bytes(&mut rng));
            append(&mut tail, &log, &bytes).unwrap();
            written.push((start, bytes));
        }
        log.sync_through(log.written()).unwrap();
        if rng.one_in(3) {
            let keep = usize::try_from(rng.below(written.len() as u64 + 1)).unwrap();
            trimmed = written.get(keep).map_or(tail.position(), |(start, _)| *start);
            log.trim(trimmed);
            written.drain(..keep);
        }
        if rng.one_in(2) {
            let durable = log.synced();
            drop((tail, log));
            let (records, recovered) =
                recover(&dir, &options, trimmed, durable, LogMode::ReadWrite).unwrap();
            assert_eq!(
                payloads(records),
                written.iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>()
            );
            (tail, log) = recovered.writer.unwrap();
        }
        if rng.one_in(10) {
            log.release_idle();
            assert!(log.stats().segments_waiting <= 1);
        }
    }
}

#[test]
fn commits_syncs_preparing_and_trimming_run_side_by_side() {
    const THREADS: u64 = 4;
    const COMMITS: u64 = 400;
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let options = small();
    let (tail, log) = create(&dir, &options);
    // The tail, the appended records with their starts, and the number of trimmed records.
    let shared = Mutex::new((tail, Vec::<(LogPosition, Vec<u8>)>::new(), 0_usize));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, log) = (&shared, &log);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for commit in 0..COMMITS {
                    let bytes = payload(thread * COMMITS + commit, random_bytes(&mut rng) / 8);
                    let hash = log.payload_hash(&bytes);
                    let end = {
                        let (tail, written, _) = &mut *shared.lock();
                        written.push((tail.position(), bytes.clone()));
                        tail.append(&bytes, hash).unwrap()
                    };
                    assert!(log.written() >= end.lsn);
                    match rng.below(8) {
                        0 => log.prepare_next().unwrap(),
                        1 => drop(shared.lock().0.seal_block().unwrap()),
                        2 => {
                            let (_, written, trimmed) = &mut *shared.lock();
                            let synced = log.synced();
                            let durable = written.partition_point(|(start, _)| start.lsn < synced);
                            if durable > *trimmed + 1 {
                                *trimmed = durable - 1;
                                log.trim(written[*trimmed].0);
                            }
                        }
                        3 => log.release_idle(),
                        4..6 => {
                            log.sync_through(end.lsn).unwrap();
                            assert!(log.synced() >= end.lsn);
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    let (tail, written, trimmed) = shared.into_inner();
    log.sync_through(log.written()).unwrap();
    assert_eq!(log.stats().records, THREADS * COMMITS);
    let (from, durable) = (written[trimmed].0, tail.position().lsn);
    drop((tail, log));
    let (records, _) = recover(&dir, &options, from, durable, LogMode::ReadWrite).unwrap();
    assert_eq!(records, written[trimmed..]);
}

#[test]
fn a_record_that_comes_during_a_sync_is_not_called_durable() {
    let memory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let (mut tail, log) = create(&memory, &small());
    let first = append(&mut tail, &log, b"first").unwrap();
    let referred = || {
        // Data that this record refers to is not covered by the sync in progress.
        append(&mut tail, &log, b"second").map(|_| ())
    };
    log.sync_through_after(first.lsn, referred).unwrap();
    assert_eq!(log.synced(), first.lsn);
    let failed = log.sync_through_after(log.written(), || Err(Error::internal("no device")));
    assert!(failed.is_err());
    assert_eq!(log.sync_through(log.written()).unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(log.synced(), first.lsn);
}
