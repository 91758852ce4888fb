//! Devices that are full, or report so in the middle of an operation.

mod headroom;
mod no_segment;
mod opens;

use super::{open, open_faulty, rotate};
use crate::base::error::ErrorKind;
use crate::engine::EngineKind;
use crate::flush::background::LogProgress;
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::quota::UNLIMITED;
use crate::{Database, KeyspaceOptions};
use std::collections::BTreeMap;

#[test]
fn a_keyspace_can_be_dropped_on_a_full_device() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("full", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", "value").unwrap();
    // All free space in the file is taken, and the file cannot grow.
    let storage = &database.handle.core().storage;
    let mut taken = Vec::new();
    plan.fail(Fault::sticky(Call::Allocate, 0).with(Failure::NoSpace));
    while let Ok(allocation) = storage.allocate(1, &UNLIMITED) {
        taken.push(allocation.extent);
    }
    // A catalog with one more keyspace does not fit in the space of the previous one.
    let long = "x".repeat(200);
    let names = (0..40).map(|number| format!("{long}{number}"));
    let refused = names.map(|name| database.keyspace(&name, KeyspaceOptions::new()).err());
    let refused: Vec<_> = refused.flatten().collect();
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::NoSpace) && !refused.is_empty());
    keyspace.insert("still", "writable").unwrap();
    assert_eq!(*keyspace.get("key").unwrap().unwrap(), *b"value");
    database.drop_keyspace("full").unwrap();
    assert_eq!(keyspace.get("key").unwrap_err().kind(), ErrorKind::NotFound);
    plan.heal();
    taken.into_iter().for_each(|extent| storage.free(extent).unwrap());
    assert_eq!(database.handle.core().unreachable_blocks().unwrap(), 0);
}

#[test]
fn commits_are_synced_even_if_no_log_segment_can_be_created() {
    for failure in [Failure::NoSpace, Failure::TooManyFiles] {
        let (database, plan) = open_faulty(&MemoryDirectory::new());
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        let core = database.handle.core();
        plan.fail(Fault::sticky(Call::Open, 0).on("log-").with(failure));
        let log = core.log.get().unwrap();
        while !log.wants_segment() {
            keyspace.insert("key", [1; 100]).unwrap();
        }
        let mut progress = LogProgress::default();
        for tick in 1..=10 {
            keyspace.insert("key", [1; 10]).unwrap();
            assert!(core.log_tick(&mut progress).unwrap_err().is_transient());
            assert_eq!(log.synced(), log.written(), "{failure:?}");
            // One attempt at the usual size, and without space for that, one at the smallest.
            let tries = if failure == Failure::NoSpace { 2 } else { 1 };
            assert_eq!(plan.failures(), tries * tick, "one attempt per tick");
            assert!(!log.wants_segment(), "every commit would wake the thread");
        }
        plan.heal();
        core.log_tick(&mut progress).unwrap();
        assert_eq!(log.stats().segments_waiting, 1);
    }
}

#[test]
fn a_failed_creation_of_a_log_segment_stops_all_writes() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let core = database.handle.core();
    let log = core.log.get().unwrap();
    while !log.wants_segment() {
        keyspace.insert("key", [1; 100]).unwrap();
    }
    database.sync().unwrap();
    plan.fail(Fault::once(Call::Map, 0).on("log-"));
    let error = core.log_tick(&mut LogProgress::default()).unwrap_err();
    assert_eq!((error.kind(), plan.failures()), (ErrorKind::Io, 1));
    // Nothing is written besides the log either.
    assert!(core.health.cause().is_some());
    let writes = plan.calls(Call::Write);
    assert_eq!(database.checkpoint().unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(plan.calls(Call::Write), writes);
}

#[test]
fn a_flush_without_space_makes_a_checkpoint_that_frees_space() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let core = database.handle.core();
    let write = |value: u8, bytes: usize| {
        for number in 0..400_u32 {
            keyspace.insert(number.to_be_bytes(), vec![value; bytes]).unwrap();
        }
        rotate(&database, &keyspace);
    };
    for by_hand in [false, true] {
        write(1, 20_000);
        core.flush_all_immutable().unwrap();
        write(2, 25_000);
        assert!(core.flush_keyspace(&keyspace.core).unwrap());
        // Before the next checkpoint another memtable is full, and so is the device.
        write(3, 5_000);
        plan.set_capacity(Some(plan.taken_bytes() + (256 << 10)));
        if by_hand {
            database.checkpoint().unwrap();
        } else {
            core.flush_all_immutable().unwrap();
        }
        plan.set_capacity(None);
        assert_eq!(*keyspace.get(7_u32.to_be_bytes()).unwrap().unwrap(), [3; 5_000]);
    }
}

#[test]
fn a_refused_batch_leaks_no_space() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let core = database.handle.core();
    keyspace.insert("key", "value").unwrap();
    core.checkpoint_now().unwrap();
    let used = || core.storage.stats().space.used_blocks;
    let before = used();
    // The file grows by more than the first needs, but not by what all need.
    plan.set_capacity(Some(plan.taken_bytes() + (6 << 20)));
    let mut batch = database.batch();
    for number in 0..20_u32 {
        batch.insert(&keyspace, number.to_be_bytes(), vec![1; 1 << 20]);
    }
    assert_eq!(batch.commit().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(used(), before);
    assert_eq!(core.unreachable_blocks().unwrap(), 0);
    assert_eq!(batch.len(), 20);
    plan.set_capacity(None);
    keyspace.insert("more", vec![2; 1 << 20]).unwrap();
    // Nothing was changed: the same commit succeeds again.
    batch.commit().unwrap();
    assert_eq!((batch.len(), keyspace.len().unwrap()), (0, 22));
}

#[test]
fn a_checkpoint_needs_no_space() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let storage = &database.handle.core().storage;
    // All free space in the file is taken, and the file cannot grow.
    plan.fail(Fault::sticky(Call::Allocate, 0).with(Failure::NoSpace));
    let mut taken = Vec::new();
    while let Ok(allocation) = storage.allocate(1, &UNLIMITED) {
        taken.push(allocation.extent);
    }
    for _ in 0..5 {
        keyspace.insert("key", "value").unwrap();
        database.handle.core().checkpoint_now().unwrap();
    }
    taken.into_iter().for_each(|extent| storage.free(extent).unwrap());
    assert_eq!(database.handle.core().unreachable_blocks().unwrap(), 0);
}

#[test]
fn a_root_that_may_be_durable_is_not_overwritten_after_a_full_device_error() {
    let memory = MemoryDirectory::new();
    let (database, plan) = open_faulty(&memory);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let core = database.handle.core();
    let write = |value: u8| {
        for number in 0..400_u32 {
            keyspace.insert(number.to_be_bytes(), [value; 10_000])?;
        }
        rotate(&database, &keyspace);
        core.flush_keyspace(&keyspace.core)
    };
    write(1).unwrap();
    core.checkpoint_now().unwrap();
    write(2).unwrap();
    // The catalog and one copy of the superblock are written; the other copy is not.
    plan.fail(Fault::once(Call::Write, 2).on("data").with(Failure::NoSpace));
    assert_eq!(core.checkpoint_now().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(write(3).unwrap_err().kind(), ErrorKind::Stopped);
    let again = open(Arc::new(MemoryDirectory::from_files(memory.to_files())));
    let keyspace = again.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert!(keyspace.iter().all(|entry| *entry.unwrap().1 == [2; 10_000]));
    let report = again.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings.first());
}

#[test]
fn free_space_of_the_data_file_is_used_for_the_log() {
    let memory = MemoryDirectory::new();
    let (database, plan) = open_faulty(&memory);
    let first = database.keyspace("first", KeyspaceOptions::new()).unwrap();
    for number in 0..400_u32 {
        first.insert(number.to_be_bytes(), [1; 10_000]).unwrap();
    }
    database.checkpoint().unwrap();
    let last = database.keyspace("last", KeyspaceOptions::new()).unwrap();
    last.insert("key", [2; 10_000]).unwrap();
    database.checkpoint().unwrap();
    drop(first);
    database.drop_keyspace("first").unwrap();
    database.checkpoint().unwrap();
    // Background readers pin the views of the dropped keyspace for some time.
    while database.handle.core().storage.stats().space.free_blocks <= 500 {
        database.handle.core().storage.epochs().collect();
        database.checkpoint().unwrap();
    }
    plan.fail(Fault::sticky(Call::Allocate, 0).on("log-").with(Failure::NoSpace));
    while last.insert("more", [3; 1000]).is_ok() {}
    assert!(database.handle.core().storage.stats().space.free_blocks > 500);
    let plan = FaultPlan::new();
    let memory = Arc::new(MemoryDirectory::from_files(memory.to_files()));
    let faulty = FaultDirectory::new(memory, plan.clone()).unwrap();
    plan.set_capacity(Some(plan.taken_bytes()));
    let again = open(Arc::new(faulty));
    let last = again.keyspace("last", KeyspaceOptions::new()).unwrap();
    assert_eq!(*last.get("more").unwrap().unwrap(), [3; 1000]);
    last.insert("and", "more").unwrap();
}

#[test]
fn a_full_device_is_checked_before_it_is_written_again() {
    let plan = FaultPlan::new();
    let memory = Arc::new(MemoryDirectory::new());
    let faulty = FaultDirectory::new(memory, plan.clone()).unwrap();
    let builder = Database::builder("memory").memory(32 << 20);
    let builder = builder.internals(|internals| internals.directory = Some(Arc::new(faulty)));
    let database = builder.open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    // The log has space, so that writers run out of memory instead.
    for name in ["data", "(scratch"] {
        plan.fail(Fault::sticky(Call::Allocate, 0).on(name).with(Failure::NoSpace));
    }
    let mut count = 0_u64;
    while keyspace.insert(count.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), [3; 100]).is_ok()
    {
        count += 1;
    }
    // However it is woken, the background only checks whether there is space.
    let looks = || plan.calls_on(Call::Open, "(scratch");
    let (tries, asked) = (plan.calls_on(Call::Allocate, "data"), looks());
    while looks() < asked + 20 {
        database.handle.core().signals.wake_flush();
        std::thread::yield_now();
    }
    assert_eq!(plan.calls_on(Call::Allocate, "data"), tries);
    plan.heal();
    database.checkpoint().unwrap();
    keyspace.insert("there is", "room").unwrap();
    database.checkpoint().unwrap();
    assert_eq!(keyspace.iter().count() as u64, count + 1);
}

#[test]
fn maintenance_without_space_is_postponed_until_there_is_space() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let options = KeyspaceOptions::new().engine(EngineKind::Autumn);
    let keyspace = database.keyspace("k", options).unwrap();
    let core = database.handle.core();
    let absorb = |count: u64| {
        for number in 0..count {
            keyspace.insert(number.wrapping_mul(0x9e37_79b9).to_be_bytes(), [1; 10_000]).unwrap();
        }
        rotate(&database, &keyspace);
        core.flush_all_immutable().unwrap();
    };
    while !core.wants_maintenance(&keyspace.core) {
        absorb(400);
    }
    // A merge writes part of its output without success; not even a small one finds space.
    plan.set_capacity(Some(plan.taken_bytes()));
    let mut taken = Vec::new();
    while let Ok(allocation) = core.storage.allocate(1, &UNLIMITED) {
        taken.push(allocation.extent);
    }
    taken.drain(..16.min(taken.len())).for_each(|extent| core.storage.free(extent).unwrap());
    let written = || core.storage.stats().file.blocks_written.iter().sum::<u64>();
    let (before, mut progress) = (written(), LogProgress::default());
    for _ in 0..100 {
        core.log_tick(&mut progress).unwrap();
        core.maintain_all().unwrap();
    }
    let repeated = written() - before;
    assert!(repeated < 2_000, "{repeated} blocks were written without effect");
    assert!(keyspace.core.engine.wants_maintenance() && !core.wants_maintenance(&keyspace.core));
    plan.set_capacity(None);
    taken.into_iter().for_each(|extent| core.storage.free(extent).unwrap());
    absorb(1);
    core.maintain_all().unwrap();
    assert!(!keyspace.core.engine.wants_maintenance());
    assert!(keyspace.core.postponed.lock().is_none());
}

#[test]
fn batches_over_many_keyspaces_get_memory_eventually() {
    let memory = Arc::new(MemoryDirectory::new());
    let builder = Database::builder("memory").memory(32 << 20);
    let builder = builder.internals(|internals| internals.directory = Some(memory));
    let database = builder.open().unwrap();
    let open = |number| database.keyspace(&format!("{number}"), KeyspaceOptions::new()).unwrap();
    let keyspaces: Vec<_> = (0..200).map(open).collect();
    for round in 0..60_usize {
        let mut batch = database.batch();
        for within in 0..40 {
            batch.insert(&keyspaces[(round * 40 + within) % 200], [1], [2; 5000]);
        }
        batch.commit().unwrap();
        let used = database.stats().memory.memtable_bytes;
        assert!(used <= (32 << 20) / 16 * 10, "{used} bytes of memtables");
    }
    // One batch over all keyspaces.
    let mut batch = database.batch();
    for keyspace in &keyspaces {
        batch.insert(keyspace, [2], [3; 25_000]);
    }
    batch.commit().unwrap();
    let used = database.stats().memory.used_bytes;
    assert!(used <= 32 << 20, "{used} bytes");
}

#[test]
fn deletes_on_a_full_device_are_accepted_and_free_space() {
    for engine in EngineKind::ALL {
        let (database, plan) = open_faulty(&MemoryDirectory::new());
        let options = KeyspaceOptions::new().engine(engine);
        let keyspace = database.keyspace("k", options).unwrap();
        plan.set_capacity(Some(40 << 20));
        let mut rng = Rng::new(7);
        let mut there: BTreeMap<u64, u8> = BTreeMap::new();
        for round in 0..4 {
            let before = there.len();
            loop {
                let (key, value) = (rng.below(1 << 40), rng.next_u64().to_le_bytes()[0]);
                match keyspace.insert(key.to_be_bytes(), [value; 1000]) {
                    Ok(()) => drop(there.insert(key, value)),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace);
                        break;
                    }
                }
            }
            let came = there.len() - before;
            let disk = database.stats().disk;
            assert!(came > 2_000, "{engine:?}, round {round}: {came} came, {disk:?}");
            let gone: Vec<u64> = there.keys().copied().step_by(2).collect();
            for key in gone {
                keyspace.remove(key.to_be_bytes()).unwrap();
                there.remove(&key);
            }
            assert!(there.iter().all(|(key, value)| {
                keyspace.get(key.to_be_bytes()).unwrap().is_some_and(|it| it == [*value; 1000])
            }));
        }
        assert_eq!(keyspace.iter().map(|entry| entry.map(drop).unwrap()).count(), there.len());
        assert!(database.verify().unwrap().is_clean());
        database.checkpoint().unwrap();
        database.handle.core().storage.epochs().settle();
        assert_eq!(database.handle.core().unreachable_blocks().unwrap(), 0);
    }
}

#[test]
fn deletes_get_a_log_segment_from_free_space_of_the_data_file() {
    for engine in EngineKind::ALL {
        for (bytes, keys) in [(40_u64 << 20, 26_000_u64), (60 << 20, 40_000)] {
            let (database, plan) = open_faulty(&MemoryDirectory::new());
            let options = KeyspaceOptions::new().engine(engine);
            let keyspace = database.keyspace("k", options).unwrap();
            plan.set_capacity(Some(bytes));
            // Pages and groups of `treeline` have free space, and slots; pages of `bminus` have
            // several places.
            let keys = match engine {
                EngineKind::Treeline => keys / 2,
                EngineKind::Bminus => keys / 4,
                _ => keys,
            };
            let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            (0..keys).for_each(|number| keyspace.insert(key(number), [1; 1000]).unwrap());
            // Overwrites take the rest, because snapshots keep the old values.
            let overwrite = |number: u64| keyspace.insert(key(number), [2; 1000]).is_ok();
            let mut snapshots = Vec::new();
            let is_full = (0..8).any(|_| {
                snapshots.push(database.snapshot());
                !(0..keys).all(overwrite)
            });
            assert!(is_full, "{engine:?}: the device is not full");
            drop(snapshots);
            for number in 0..keys {
                let removed = keyspace.remove(key(number));
                let disk = || database.stats().disk;
                removed.unwrap_or_else(|error| panic!("{engine:?} {number}: {error} {:?}", disk()));
            }
            assert_eq!(keyspace.iter().count(), 0);
            let again =
                (0..keys).take_while(|number| keyspace.insert(key(*number), [3; 1000]).is_ok());
            assert_eq!(again.count() as u64, keys);
        }
    }
}

#[test]
fn a_log_write_without_space_is_refused_and_later_ones_are_accepted() {
    for failure in [Failure::NoSpace, Failure::IoHalfDone] {
        for after in 0..12 {
            let memory = MemoryDirectory::new().without_mapping();
            let (database, plan) = open_faulty(&memory);
            let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
            let mut there = BTreeMap::new();
            let put = |number: u32, bytes: usize| {
                keyspace.insert(number.to_be_bytes(), vec![number.to_le_bytes()[0]; bytes])
            };
            (0..5).for_each(|number| {
                put(number, 700).unwrap();
                there.insert(number, 700);
            });
            plan.fail(Fault::once(Call::RegionWrite, after).on("log-").with(failure));
            for number in 5..40 {
                // Some records lie within a block, some span several blocks, some span segments.
                let bytes = [30, 3_000, 9_000, 20_000][number as usize % 4];
                match put(number, bytes) {
                    Ok(()) => drop(there.insert(number, bytes)),
                    Err(error) if failure == Failure::NoSpace => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace);
                    }
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Stopped));
                    }
                }
                if number == 20 {
                    let synced = database.sync();
                    assert_eq!(synced.is_ok(), failure == Failure::NoSpace, "{synced:?}");
                }
            }
            assert_eq!(plan.failures(), 1);
            if failure == Failure::NoSpace {
                assert!(there.len() >= 39, "{failure:?} {after}: {}", there.len());
                assert!(database.verify().unwrap().is_clean());
            }
            // The process dies.
            let again = open(Arc::new(MemoryDirectory::from_files(memory.to_files())));
            let keyspace = again.keyspace("k", KeyspaceOptions::new()).unwrap();
            for (number, bytes) in &there {
                let found = keyspace.get(number.to_be_bytes()).unwrap().unwrap();
                assert_eq!(
                    *found,
                    vec![number.to_le_bytes()[0]; *bytes],
                    "{failure:?} {after} {number}"
                );
            }
            assert_eq!(keyspace.iter().count(), there.len(), "{failure:?} {after}");
            assert!(again.verify().unwrap().is_clean());
        }
    }
}

#[test]
fn an_open_gets_a_log_segment_on_a_device_full_of_foreign_files() {
    let memory = MemoryDirectory::new();
    let (database, _plan) = open_faulty(&memory);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..200_u32 {
        keyspace.insert(number.to_be_bytes(), [1; 1000]).unwrap();
    }
    let plan = FaultPlan::new();
    let memory = Arc::new(MemoryDirectory::from_files(memory.to_files()));
    let faulty = FaultDirectory::new(memory, plan.clone()).unwrap();
    plan.set_capacity(Some(plan.taken_bytes()));
    let again = open(Arc::new(faulty));
    let keyspace = again.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.iter().count(), 200);
    keyspace.remove(7_u32.to_be_bytes()).unwrap();
}

#[test]
fn deletes_on_a_device_full_of_foreign_files_do_not_repeat_failed_work() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..20_000).for_each(|number| keyspace.insert(key(number), [1; 1000]).unwrap());
    database.checkpoint().unwrap();
    (0..2_000).for_each(|number| keyspace.insert(key(number), [2; 1000]).unwrap());
    // Nothing is left, and nothing is freed.
    plan.set_capacity(Some(plan.taken_bytes().min(1 << 20)));
    let tries = || plan.calls_on(Call::Allocate, "data");
    let before = tries();
    let removed = (0..4_000).filter(|number| keyspace.remove(key(*number)).is_ok()).count();
    assert!(removed > 100, "{removed}");
    assert!(tries() - before < 1_000, "{} for {removed} deletes", tries() - before);
    plan.set_capacity(None);
    (0..20_000).for_each(|number| keyspace.remove(key(number)).unwrap());
    assert_eq!(keyspace.iter().count(), 0);
}
