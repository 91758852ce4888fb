//! Devices and processes at their limits: full devices, and too many open files. The torture test
//! `faults` makes every call fail.

use crate::support::tiny_options;
use chelonia::internals::{Call, Failure, Fault, FaultDirectory, FaultPlan, MemoryDirectory};
use chelonia::limits::MEMORY_BYTES_MIN;
use chelonia::{Database, Durability, ErrorKind, KeyspaceOptions, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn open(memory: &MemoryDirectory, plan: &FaultPlan) -> Result<Database> {
    let directory = FaultDirectory::new(Arc::new(memory.clone()), plan.clone())?;
    Database::builder("faults")
        .memory(48 << 20)
        .internals(|internals| {
            internals.directory = Some(Arc::new(directory));
            internals.stepped = true;
            internals.log_segment_bytes = Some(16 << 10);
        })
        .open()
}

/// Commits ascending numbers at level `Sync` until a commit fails; returns the number of
/// acknowledged ones and the error.
fn write(database: &Database, from: u64, count: u64) -> (u64, Option<chelonia::Error>) {
    let run = || -> Result<chelonia::Keyspace> {
        let keyspace = database.keyspace("k", tiny_options())?;
        Ok(keyspace)
    };
    let keyspace = match run() {
        Ok(keyspace) => keyspace,
        Err(error) => return (from, Some(error)),
    };
    for number in from..from + count {
        let value = vec![1; if number % 50 == 9 { 40_000 } else { 90 }];
        let done = keyspace.insert_with(number.to_be_bytes(), value, Durability::Sync);
        if let Err(error) = done {
            return (number, Some(error));
        }
        if number % 70 == 69
            && let Err(error) = database.checkpoint()
        {
            return (number + 1, Some(error));
        }
    }
    (from + count, None)
}

/// The assertions after a failure: reads succeed, and a reopen has everything acknowledged.
fn check(memory: &MemoryDirectory, database: Option<Database>, acknowledged: u64, what: &str) {
    if let Some(database) = database {
        if let Ok(keyspace) = database.keyspace("k", tiny_options()) {
            for number in 0..acknowledged {
                match keyspace.get(number.to_be_bytes()) {
                    Ok(value) => assert!(value.is_some(), "{what}: {number} is gone"),
                    Err(error) => assert_ne!(error.kind(), ErrorKind::Internal, "{what}: {error}"),
                }
            }
        }
        drop(database);
    }
    let healthy = FaultPlan::new();
    let database = open(memory, &healthy).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (after, error) = write(&database, acknowledged, 20);
    assert!(error.is_none(), "{what}: {error:?}");
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    for number in 0..after {
        assert!(keyspace.get(number.to_be_bytes()).unwrap().is_some(), "{what}: {number} is gone");
    }
    assert!(database.verify().unwrap().is_clean(), "{what}");
    database.checkpoint().unwrap();
    assert_eq!(chelonia::internals::unreachable_blocks(&database).unwrap(), 0, "{what}");
}

#[test]
fn too_many_open_files_are_reported_and_writes_resume_once_some_are_closed() {
    let (memory, plan) = (MemoryDirectory::new(), FaultPlan::new());
    let database = open(&memory, &plan).unwrap();
    let (written, error) = write(&database, 0, 20);
    assert!(error.is_none(), "{error:?}");
    plan.fail(Fault::sticky(Call::Open, 0).with(Failure::TooManyFiles));
    let (refused_at, error) = write(&database, written, 100_000);
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::TooManyFiles, "{error}");
    assert!(error.file().unwrap().starts_with("log-"), "{error}");
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    for number in 0..refused_at {
        assert!(keyspace.get(number.to_be_bytes()).unwrap().is_some(), "{number} is gone");
    }
    assert!(keyspace.get(refused_at.to_be_bytes()).unwrap().is_none());
    plan.heal();
    let (acknowledged, error) = write(&database, refused_at, 200);
    assert!(error.is_none(), "{error:?}");
    drop(keyspace);
    check(&memory, Some(database), acknowledged, "too many files");
}

#[test]
fn a_file_that_may_not_grow_is_reported_as_a_full_device() {
    let (memory, plan) = (MemoryDirectory::new(), FaultPlan::new());
    let database = open(&memory, &plan).unwrap();
    let (written, error) = write(&database, 0, 20);
    assert!(error.is_none(), "{error:?}");
    plan.fail(Fault::sticky(Call::Allocate, 0).with(Failure::FileTooLarge));
    let (refused_at, error) = write(&database, written, 100_000);
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    plan.heal();
    let (acknowledged, error) = write(&database, refused_at + 1, 200);
    assert!(error.is_none(), "{error:?}");
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    keyspace.insert(refused_at.to_be_bytes(), "again").unwrap();
    drop(keyspace);
    check(&memory, Some(database), acknowledged, "a file too large");
}

#[test]
fn failing_reads_in_maintenance_stop_no_writes() {
    let (memory, plan) = (MemoryDirectory::new(), FaultPlan::new());
    let directory = FaultDirectory::new(Arc::new(memory), plan.clone()).unwrap();
    let builder = Database::builder("maintenance").memory(32 << 20);
    let builder = builder.internals(|internals| internals.directory = Some(Arc::new(directory)));
    let database = builder.open().unwrap();
    let keyspace = database.keyspace("k", chelonia::KeyspaceOptions::new()).unwrap();
    keyspace.set_checkpoint_distance(1 << 20).unwrap();
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    for number in 0..400_000 {
        keyspace.insert(key(number % 300_000), [1; 150]).unwrap();
    }
    database.checkpoint().unwrap();
    // Scans trigger flushes, and some reads fail: those of scans, or those of flushes.
    let (done, scans) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (keyspace, done, scans) = (&keyspace, &done, &scans);
            scope.spawn(move || {
                let mut number = thread;
                while !done.load(Ordering::Relaxed) {
                    number += 2;
                    let from = key(number);
                    keyspace.range(&from[..]..).take(5).for_each(drop);
                    scans.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..100 {
            plan.fail(Fault::once(Call::Read, number % 40).on("data"));
            while scans.load(Ordering::Relaxed) < 300 * number {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    plan.heal();
    assert!(plan.failures() > 20);
    keyspace.insert("after", "all").unwrap();
    database.checkpoint().unwrap();
    assert!(database.verify().unwrap().is_clean());
}

fn on_a_device_that_can_fail() -> (Database, FaultPlan) {
    let plan = FaultPlan::new();
    let memory = Arc::new(MemoryDirectory::new());
    let directory = Arc::new(FaultDirectory::new(memory, plan.clone()).unwrap());
    let database = Database::builder("memory")
        .memory(MEMORY_BYTES_MIN)
        .internals(|internals| internals.directory = Some(directory))
        .open()
        .unwrap();
    (database, plan)
}

#[test]
fn a_full_device_is_reported_and_writes_resume_once_it_has_space() {
    let (database, plan) = on_a_device_that_can_fail();
    let options = KeyspaceOptions::new().checkpoint_distance(200_000);
    let keyspace = database.keyspace("k", options).unwrap();
    plan.set_capacity(Some(plan.taken_bytes() + (6 << 20)));
    let mut written = 0_u64;
    let error = loop {
        match keyspace.insert(written.to_be_bytes(), [3; 1000]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "the device never became full");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    // Accepted writes can be flushed, and a delete is accepted.
    database.checkpoint().unwrap();
    keyspace.remove(u64::MAX.to_be_bytes()).unwrap();
    for number in 0..written {
        assert_eq!(keyspace.get(number.to_be_bytes()).unwrap().unwrap(), [3; 1000]);
    }
    assert_eq!(keyspace.iter().count() as u64, written);
    plan.set_capacity(None);
    database.checkpoint().unwrap();
    for number in written..written + 5_000 {
        keyspace.insert(number.to_be_bytes(), [3; 1000]).unwrap();
    }
    database.checkpoint().unwrap();
    assert_eq!(keyspace.iter().count() as u64, written + 5_000);
    assert!(database.verify().unwrap().is_clean());
}
