//! `verify` also reads the log: it names damage there, and reports none while writers continue.

use crate::support::tiny_options;
use chelonia::internals::{Access, Directory, MemoryDirectory, OpenMode};
use chelonia::{Database, ErrorKind, Keyspace, KeyspaceOptions, VerifyReport};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 4096;
const SEGMENT: u64 = 32 << 10;
/// A value of this size has an extent of its own.
const LARGE: usize = 40_000;

fn open(directory: &MemoryDirectory, read_only: bool) -> Database {
    let directory = Arc::new(directory.clone());
    let builder = Database::builder("memory").memory(64 << 20).read_only(read_only);
    let builder = builder.internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.salt = Some(3);
        internals.log_segment_bytes = Some(SEGMENT);
        internals.leave_log = true;
    });
    builder.open().unwrap()
}

/// A database whose log has several segments, with nothing flushed, and its directory.
fn with_a_long_log() -> (MemoryDirectory, Database) {
    let directory = MemoryDirectory::new();
    let database = open(&directory, false);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..700_u32 {
        // Some records span two blocks, and one several.
        let bytes = if number == 300 { 10_000 } else { number % 300 };
        keyspace.insert(number.to_be_bytes(), vec![7; bytes as usize]).unwrap();
    }
    keyspace.insert("large", vec![8; LARGE]).unwrap();
    (directory, database)
}

/// Flips a bit of a file that is in use.
fn flip(directory: &MemoryDirectory, name: &str, place: usize) {
    let file = directory.open(name, OpenMode::Write, Access::Buffered).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, place as u64).unwrap();
    file.write_at(&[byte[0] ^ 0x20], place as u64).unwrap();
}

/// Fails unless all findings are in this file, and one of them is in the block of `place`, or in
/// the record that begins in the block before and extends into it.
fn assert_named(report: &VerifyReport, name: &str, place: usize) {
    let findings = &report.findings;
    assert!(!findings.is_empty(), "{name} {place} is not reported");
    for finding in findings {
        assert_eq!(finding.kind(), ErrorKind::Corrupt, "{finding}");
    }
    let block = (place / BLOCK * BLOCK) as u64;
    let near = findings.iter().any(|finding| {
        let offset = finding.offset().unwrap();
        // A record that spans blocks is named by its start, possibly in the file before.
        let here = finding.file() == Some(name) && offset <= place as u64;
        here && (offset + BLOCK as u64 >= block || block <= 4 * BLOCK as u64)
    });
    assert!(near || place < 2 * BLOCK, "{name} {place}: {findings:?}");
}

#[test]
fn a_flipped_bit_in_the_log_is_named() {
    let (directory, database) = with_a_long_log();
    let clean = database.verify().unwrap();
    assert!(clean.is_clean(), "{:?}", clean.findings);
    let stats = database.stats();
    assert_eq!(clean.log_bytes, stats.io.log_bytes_written, "all of it is read");
    let files = directory.to_files();
    drop(database);
    for read_only in [false, true] {
        let directory = MemoryDirectory::from_files(files.clone());
        let database = open(&directory, read_only);
        // An open for writing begins a segment after these.
        let logs = files.keys().filter(|name| name.starts_with("log-"));
        let mut tried = 0;
        for name in logs {
            let content = &files[name];
            for place in (0..content.len()).step_by(83).filter(|place| content[*place] == 7) {
                flip(&directory, name, place);
                let report = database.verify().unwrap();
                if place % BLOCK < BLOCK - 8 {
                    assert_named(&report, name, place);
                    tried += 1;
                }
                assert!(report.log_bytes > clean.log_bytes / 2, "the rest is read");
                flip(&directory, name, place);
            }
        }
        assert!(tried > 500, "only {tried} places were tried");
        assert!(database.verify().unwrap().is_clean());
    }
}

#[test]
fn headers_and_large_values_that_the_log_needs_are_read() {
    let (directory, database) = with_a_long_log();
    let named = |name: &str, place: usize| {
        flip(&directory, name, place);
        let report = database.verify().unwrap();
        let names = |error: &chelonia::Error| {
            error.file() == Some(name) && error.offset() == Some((place / 2048 * 2048) as u64)
        };
        assert!(report.findings.iter().any(names), "{name} {place}: {:?}", report.findings);
        flip(&directory, name, place);
    };
    // Either copy of a segment's header, and the header of a block.
    for place in [9, 40, 2048 + 9, 2048 + 40, 3 * BLOCK + 12] {
        named("log-0001", place);
    }
    // One after the other: both are reported.
    flip(&directory, "log-0000", 3 * BLOCK + 500);
    flip(&directory, "log-0003", 3 * BLOCK + 500);
    let findings = database.verify().unwrap().findings;
    let files: Vec<_> = findings.iter().map(|error| error.file().unwrap()).collect();
    assert_eq!(files, ["log-0000", "log-0003"]);
    flip(&directory, "log-0000", 3 * BLOCK + 500);
    flip(&directory, "log-0003", 3 * BLOCK + 500);

    let data = directory.to_files()["data"].clone();
    let value = data.windows(64).position(|bytes| bytes == [8; 64]).unwrap();
    flip(&directory, "data", value + BLOCK);
    let report = database.verify().unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].file(), Some("data"));
    assert_eq!(report.findings[0].offset(), Some(((value + BLOCK) / BLOCK * BLOCK) as u64));
    flip(&directory, "data", value + BLOCK);
    assert!(database.verify().unwrap().is_clean());
}

#[test]
fn a_missing_segment_is_reported_unless_it_is_not_needed() {
    let (directory, database) = with_a_long_log();
    directory.remove("log-0001").unwrap();
    let report = database.verify().unwrap();
    assert!(!report.is_clean());
    assert!(report.findings.iter().all(|error| error.kind() == ErrorKind::Corrupt));
    // After the flush the record is not needed any more.
    database.checkpoint().unwrap();
    let report = database.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.log_bytes, 0);
}

#[test]
fn the_log_of_several_opens_is_read_as_one() {
    let (directory, database) = with_a_long_log();
    let mut bytes = database.verify().unwrap().log_bytes;
    drop(database);
    for round in 0..5_u32 {
        let database = open(&directory, false);
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        keyspace.insert("again", round.to_be_bytes()).unwrap();
        let report = database.verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        assert!(report.log_bytes > bytes, "{} after {bytes}", report.log_bytes);
        bytes = report.log_bytes;
        drop((database, keyspace));
        let reader = open(&MemoryDirectory::from_files(directory.to_files()), true);
        assert_eq!(reader.verify().unwrap().log_bytes, bytes);
    }
}

/// Writes records of all kinds until `stop` is set.
fn write_until(stop: &AtomicBool, database: &Database, keyspace: &Keyspace, seed: u32) {
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let key = [seed, number % 500].map(u32::to_be_bytes).concat();
        match number % 50 {
            0 => keyspace.insert(key, vec![1; LARGE]).unwrap(),
            1 => keyspace.remove(key).unwrap(),
            2 => database.sync().unwrap(),
            _ => keyspace.insert(key, vec![1; 200]).unwrap(),
        }
        if number.is_multiple_of(1_000) {
            database.checkpoint().unwrap();
        }
    }
}

/// Runs `verify` while others write, flush, make checkpoints, and create and drop keyspaces.
fn verify_under_load(database: &Database) {
    let keyspaces: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| database.keyspace(name, tiny_options().checkpoint_distance(30_000)).unwrap())
        .collect();
    let stop = AtomicBool::new(false);
    let mut log_bytes = 0;
    std::thread::scope(|scope| {
        for (seed, keyspace) in (0..).zip(&keyspaces) {
            let stop = &stop;
            scope.spawn(move || write_until(stop, database, keyspace, seed));
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let keyspace = database.keyspace("c", tiny_options()).unwrap();
                keyspace.insert("large", vec![2; LARGE]).unwrap();
                database.drop_keyspace("c").unwrap();
            }
        });
        let mut times = 0;
        while times < 30 || database.stats().commits.commits < 30_000 {
            times += 1;
            let report = database.verify();
            if !report.as_ref().is_ok_and(VerifyReport::is_clean) {
                stop.store(true, Ordering::Relaxed);
            }
            let report = report.unwrap();
            assert!(report.is_clean(), "{:?}", report.findings);
            log_bytes += report.log_bytes;
            eprint!("{} {} | ", report.log_bytes, database.stats().commits.commits);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(log_bytes > 1 << 20, "{log_bytes} bytes of log were read");
}

#[test]
fn concurrent_writers_cause_no_findings() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = Database::builder(&path).memory(64 << 20).open().unwrap();
    verify_under_load(&database);
    let in_memory = Database::builder("memory")
        .memory(64 << 20)
        .internals(|internals| {
            internals.directory = Some(Arc::new(MemoryDirectory::new()));
            internals.log_segment_bytes = Some(SEGMENT);
        })
        .open()
        .unwrap();
    verify_under_load(&in_memory);
}

#[test]
fn the_counts_do_not_depend_on_memory() {
    const WRITES: u32 = 24_000;
    let directory = MemoryDirectory::new();
    let opened = |memory: u64, read_only: bool| {
        let builder = Database::builder("memory").memory(memory).read_only(read_only);
        let directory = Arc::new(directory.clone());
        let builder = builder.internals(|internals| {
            internals.directory = Some(directory);
            internals.leave_log = true;
        });
        builder.open().unwrap()
    };
    // All records stay in the log, more than the smallest memory holds.
    let database = opened(512 << 20, false);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..WRITES {
        keyspace.insert(number.to_be_bytes(), [7; 1000]).unwrap();
    }
    let mut batch = database.batch();
    batch.remove(&keyspace, "a").insert(&keyspace, "b", "c");
    batch.commit().unwrap();
    let counts = |report: &VerifyReport| {
        assert!(report.is_clean(), "{:?}", report.findings);
        (report.blocks, report.entries, report.log_entries)
    };
    let written = counts(&database.verify().unwrap());
    assert_eq!((written.1, written.2), (0, u64::from(WRITES) + 2));
    drop((keyspace, database, batch));
    for memory in [512 << 20, chelonia::limits::MEMORY_BYTES_MIN] {
        let database = opened(memory, true);
        assert_eq!(counts(&database.verify().unwrap()), written);
        let flushes = database.stats().background.flushes;
        assert_eq!(flushes > 0, memory < 512 << 20, "{flushes} flushes");
    }
}
