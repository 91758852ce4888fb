//! Repeated opens on a device without free space.

use crate::base::error::ErrorKind;
use crate::engine::EngineKind;
use crate::runtime::sync::Arc;
use crate::storage::io::fault::{Call, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::tests::{open, try_open};
use crate::{Database, Keyspace, KeyspaceOptions};
use std::collections::BTreeMap;

/// Opens on a device that holds these files and has `left` bytes.
fn open_full(memory: &MemoryDirectory, left: u64) -> (Database, FaultPlan) {
    let plan = FaultPlan::new();
    let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
    plan.set_capacity(Some(plan.taken_bytes() + left));
    (open(Arc::new(faulty)), plan)
}

fn keyspace(database: &Database, engine: EngineKind) -> Keyspace {
    database.keyspace("k", KeyspaceOptions::new().engine(engine)).unwrap()
}

/// Fills a device, and repeatedly opens the database without any free space.
#[test]
fn repeated_opens_of_a_full_device_succeed() {
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    for engine in EngineKind::ALL {
        for (bytes, is_checkpointed, closes) in [
            (12 << 20, false, false),
            (12 << 20, true, false),
            (40 << 20, false, false),
            (40 << 20, false, true),
            (40 << 20, true, true),
        ] {
            let what = format!("{engine:?} {bytes} {is_checkpointed} {closes}");
            let mut memory = MemoryDirectory::new();
            let (database, plan) = open_full(&memory, bytes);
            let mut there = (0..)
                .take_while(|number| {
                    let put = keyspace(&database, engine).insert(key(*number), [1; 700]);
                    put.is_ok()
                })
                .count() as u64;
            if is_checkpointed {
                database.checkpoint().unwrap();
            }
            // Another program takes the rest.
            plan.set_capacity(Some(plan.taken_bytes()));
            memory = MemoryDirectory::from_files(memory.to_files());
            drop(database);
            for round in 0..5 {
                let (database, plan) = open_full(&memory, 0);
                let k = keyspace(&database, engine);
                assert_eq!(k.iter().map(Result::unwrap).count() as u64, there, "{what} {round}");
                // Some may be refused.
                for _ in 0..20 {
                    match k.remove(key(there - 1)) {
                        Ok(()) => there -= 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
                    }
                }
                drop(k);
                plan.set_capacity(Some(plan.taken_bytes()));
                if closes {
                    if let Err(error) = database.close() {
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}");
                    }
                    memory = MemoryDirectory::from_files(memory.to_files());
                } else {
                    memory = MemoryDirectory::from_files(memory.to_files());
                    drop(database);
                }
            }
            let (database, _plan) = open_full(&memory, 12 << 20);
            let k = keyspace(&database, engine);
            (0..there).for_each(|number| k.remove(key(number)).unwrap());
            assert_eq!(k.iter().count(), 0);
            assert!(database.verify().unwrap().is_clean());
        }
    }
}

/// The files that a crash leaves of 200 entries, all of them in the log only.
fn after_a_crash() -> MemoryDirectory {
    let memory = MemoryDirectory::new();
    let (database, plan) = open_full(&memory, 1 << 30);
    let k = keyspace(&database, EngineKind::Turtle);
    (0..200_u64).for_each(|number| k.insert(number.to_be_bytes(), [1; 1000]).unwrap());
    plan.set_capacity(Some(plan.taken_bytes()));
    MemoryDirectory::from_files(memory.to_files())
}

/// Only the log has space, in its own files: each open takes a segment, and a delete is written to
/// the log, or nothing is.
#[test]
fn repeated_opens_get_a_log_segment_if_only_the_log_has_space() {
    for deletes in [true, false] {
        let mut memory = after_a_crash();
        let mut there = 200;
        for _ in 0..2 {
            let (database, _plan) = open_full(&memory, 0);
            let k = keyspace(&database, EngineKind::Turtle);
            assert_eq!(k.iter().count(), there);
            if deletes {
                there -= 1;
                k.remove((there as u64).to_be_bytes()).unwrap();
            }
            memory = MemoryDirectory::from_files(memory.to_files());
        }
        let (database, _plan) = open_full(&memory, 1 << 20);
        assert_eq!(keyspace(&database, EngineKind::Turtle).iter().count(), there);
        assert!(database.verify().unwrap().is_clean());
    }
}

/// If space cannot be returned, the log may have none: then all is readable, and writes wait for
/// space.
#[test]
fn an_open_succeeds_if_the_log_cannot_return_space() {
    let mut memory = after_a_crash();
    let mut refused = 0;
    for _ in 0..4 {
        let plan = FaultPlan::new();
        let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
        plan.set_capacity(Some(plan.taken_bytes()));
        plan.fail(Fault::sticky(Call::PunchHole, 0));
        let database = open(Arc::new(faulty));
        let k = keyspace(&database, EngineKind::Turtle);
        assert_eq!(k.iter().count(), 200);
        if let Err(error) = k.insert(0_u64.to_be_bytes(), [1; 1000]) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            refused += 1;
            database.checkpoint().unwrap_or_else(|error| {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            });
            plan.set_capacity(Some(plan.taken_bytes() + (8 << 20)));
            k.insert(0_u64.to_be_bytes(), [1; 1000]).unwrap();
        }
        memory = MemoryDirectory::from_files(memory.to_files());
    }
    assert!(refused > 0, "no log lacked space");
    let (database, _plan) = open_full(&memory, 1 << 20);
    assert_eq!(keyspace(&database, EngineKind::Turtle).iter().count(), 200);
    assert!(database.verify().unwrap().is_clean());
}

/// A recovery cuts the log at a commit whose large value is lost. That commit stays cut, although
/// no segment records it yet, when its keyspace, and with it the lost value, is dropped.
#[test]
fn a_commit_that_was_cut_stays_cut_when_its_keyspace_is_dropped() {
    for (is_first, is_punched) in [(false, true), (true, true), (true, false)] {
        let memory = MemoryDirectory::new();
        let (mut database, _) = open_full(&memory, 1 << 30);
        let there = |database: &Database| -> Vec<Vec<u8>> {
            let entries = keyspace(database, EngineKind::Turtle).iter();
            entries.map(|entry| entry.unwrap().0.to_vec()).collect()
        };
        database.keyspace("gone", KeyspaceOptions::new()).unwrap();
        keyspace(&database, EngineKind::Turtle).insert("a", "1").unwrap();
        let mut memory = memory;
        if is_first {
            // The commit is the first of its segment.
            memory = MemoryDirectory::from_files(memory.to_files());
            database = open_full(&memory, 1 << 30).0;
        }
        let data = memory.to_files()["data"].clone();
        let gone = database.keyspace("gone", KeyspaceOptions::new()).unwrap();
        let k = keyspace(&database, EngineKind::Turtle);
        let mut batch = database.batch();
        batch.insert(&gone, "large", [1; 100_000]).insert(&k, "b", "2").commit().unwrap();
        k.insert("c", "3").unwrap();
        // A power failure: the large value did not reach the device. Only used segments are left.
        let mut files = memory.to_files();
        files.insert("data".to_owned(), data);
        files.retain(|name, bytes| name == "data" || bytes[4096..].iter().any(|byte| *byte != 0));
        let begin = |files: &BTreeMap<String, Vec<u8>>| {
            let (memory, plan) = (MemoryDirectory::from_files(files.clone()), FaultPlan::new());
            let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
            plan.set_capacity(Some(0));
            if !is_punched {
                plan.fail(Fault::sticky(Call::PunchHole, 0));
            }
            (memory, plan, Arc::new(faulty))
        };
        // If the cut cannot be made durable, the open fails, and a later one finds the same.
        let (_, plan, faulty) = begin(&files);
        drop(open(faulty));
        let last = [Call::Open, Call::Write, Call::Sync].map(|call| plan.calls_on(call, "log-"));
        for (call, calls) in [Call::Open, Call::Write, Call::Sync].into_iter().zip(last) {
            let (memory, plan, faulty) = begin(&files);
            plan.fail(Fault::once(call, calls - 1).on("log-"));
            assert_eq!(try_open(faulty).unwrap_err().kind(), ErrorKind::Io, "{call:?}");
            let failed = MemoryDirectory::from_files(memory.to_files());
            assert_eq!(there(&open_full(&failed, 1 << 30).0), [b"a"], "{call:?}");
        }

        let (memory, plan, faulty) = begin(&files);
        let database = open(faulty);
        assert_eq!(there(&database), [b"a"]);
        let refused = keyspace(&database, EngineKind::Turtle).insert("d", "4").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        plan.set_capacity(Some(plan.taken_bytes() + (64 << 10)));
        database.drop_keyspace("gone").unwrap();
        let memory = MemoryDirectory::from_files(memory.to_files());
        let (database, _plan) = open_full(&memory, 1 << 30);
        assert_eq!(there(&database), [b"a"], "{is_first} {is_punched}");
        assert!(database.verify().unwrap().is_clean());
    }
}
