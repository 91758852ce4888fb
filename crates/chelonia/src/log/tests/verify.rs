//! Verification of a log while it is in use.

use super::*;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::logs::{LogMark, PerLog};
use crate::log::Logs;
use crate::log::verify::{LogVerified, ReadBack};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::io::{Access, OpenMode};

const SEGMENT: u64 = 16 << 10;

/// Creates a log of several segments; returns its number of records.
fn long_log(memory: &MemoryDirectory) -> (LogTail, Arc<Log>, usize) {
    let dir: Arc<dyn Directory> = Arc::new(memory.clone());
    let (mut tail, log) = create(&dir, &options(SEGMENT, SEGMENT));
    let records = 60;
    for number in 0..records {
        append(&mut tail, &log, &payload(number, 900)).unwrap();
    }
    (tail, log, usize::try_from(records).unwrap())
}

/// Returns the number of records read, the number before any damage, and the findings.
fn verify(memory: &MemoryDirectory, upto: Lsn) -> (usize, usize, LogVerified) {
    let (mut records, mut whole_records) = (0, 0);
    let mut check = |record: ReadBack<'_>| {
        records += 1;
        whole_records += usize::from(record.seqnos_known);
        Ok(())
    };
    let verified = Logs::verify(
        memory,
        SALT,
        &PerLog::one(LogPosition::START),
        &PerLog::one(upto),
        &mut check,
    );
    let verified = verified.unwrap();
    (records, whole_records, verified)
}

fn flip(memory: &MemoryDirectory, name: &str, place: u64) {
    let file = memory.open(name, OpenMode::Write, Access::Buffered).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, place).unwrap();
    file.write_at(&[byte[0] ^ 1], place).unwrap();
}

#[test]
fn all_damage_is_reported_and_the_rest_is_read() {
    let memory = MemoryDirectory::new();
    let (_tail, log, records) = long_log(&memory);
    let (read, whole, verified) = verify(&memory, log.written());
    assert_eq!((read, whole, verified.damage.len()), (records, records, 0));
    assert_eq!(verified.bytes, log.stats().stream_bytes);
    let places = [("log-0001", BLOCK_BYTES_U64 + 700), ("log-0003", 2 * BLOCK_BYTES_U64 + 3)];
    places.iter().for_each(|(name, place)| flip(&memory, name, *place));
    let (read, whole, verified) = verify(&memory, log.written());
    assert!(read + 14 > records && read < records, "{read} of {records}");
    // Three segments of three blocks come before the second place, one before the first.
    assert!((10..25).contains(&whole), "{whole} of {records} before the damage");
    assert_eq!(verified.damage.len(), 2, "{:?}", verified.damage);
    for ((name, place), error) in places.iter().zip(&verified.damage) {
        assert_eq!(error.file(), Some(*name), "{error}");
        let block = place / BLOCK_BYTES_U64 * BLOCK_BYTES_U64;
        assert!((block..=*place).contains(&error.offset().unwrap()), "{error}");
    }
    // Bytes after the end are not checked.
    let content = memory.to_files()["log-0000"].len() as u64;
    let before = Lsn(content - 2 * BLOCK_BYTES_U64);
    assert!(verify(&memory, before).2.damage.is_empty());
}

#[test]
fn what_is_held_is_recycled_afterwards() {
    let memory = MemoryDirectory::new();
    let (mut tail, log, records) = long_log(&memory);
    let upto = log.written();
    let live = log.stats().segments_live;
    let (one, two) = (log.hold(), log.hold());
    log.trim(tail.position());
    log.release_idle();
    for number in 0..60 {
        append(&mut tail, &log, &payload(number, 900)).unwrap();
        log.prepare_next().unwrap();
    }
    let (read, _, verified) = verify(&memory, upto);
    assert_eq!((read, verified.damage.len()), (records, 0));
    drop(one);
    assert!(log.stats().segments_live > live, "one of the two still reads");
    drop(two);
    assert!(log.stats().segments_live < live + 8, "the others were trimmed");
    let waiting = log.stats().segments_waiting;
    assert!(waiting >= live - 1, "{waiting} of {live} can be used again");
    // Now they are recycled: a verification from there reports them as missing.
    for number in 0..60 {
        append(&mut tail, &log, &payload(number, 900)).unwrap();
    }
    assert!(!verify(&memory, upto).2.damage.is_empty());
}

#[test]
fn a_log_that_begins_nowhere_is_reported() {
    let memory = MemoryDirectory::new();
    let (_tail, log, records) = long_log(&memory);
    memory.remove("log-0000").unwrap();
    let (read, whole, verified) = verify(&memory, log.written());
    assert_eq!((whole, verified.damage.len()), (0, 1), "{:?}", verified.damage);
    assert!(read > records / 2, "{read} of {records}: the rest is read");
}

#[test]
fn a_mark_that_no_log_reaches_keeps_nobody_busy() {
    let memory = MemoryDirectory::new();
    let (_tail, _log, records) = long_log(&memory);
    flip(&memory, "log-0001", BLOCK_BYTES_U64 + 700);
    let mut taken = 0;
    let mut take = |_: ReadBack<'_>| {
        taken += 1;
        Ok(())
    };
    // A forged superblock: more blocks than can be visited lie between the log and the forged
    // position.
    let durable = PerLog::one(Lsn(u64::MAX / 2));
    let mark = LogMark { durable, ..LogMark::default() };
    let found = Logs::salvage(&memory, SALT, &mark, &mut take).unwrap();
    // The position where the log ends is reported too.
    assert_eq!(found.damage.len(), 2, "{:?}", found.damage);
    assert!(taken + 7 > records && taken < records, "{taken} of {records}");
}

#[test]
fn a_forged_start_at_any_place_is_an_error_or_a_place_in_the_log() {
    let memory = MemoryDirectory::new();
    let (_tail, log, records) = long_log(&memory);
    for place in 0..2 * BLOCK_BYTES_U64 {
        let start = LogPosition { lsn: Lsn(place), ..LogPosition::START };
        let mut read = 0;
        let mut check = |_: ReadBack<'_>| {
            read += 1;
            Ok(())
        };
        let (start, upto) = (PerLog::one(start), PerLog::one(log.written()));
        let verified = Logs::verify(&memory, SALT, &start, &upto, &mut check).unwrap();
        let is_start = place == LogPosition::START.lsn.0;
        assert_eq!(verified.damage.is_empty(), is_start, "at {place}: {:?}", verified.damage);
        assert!(read <= records);
    }
}
