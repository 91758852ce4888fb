//! Rare orders of events between threads.

#![expect(clippy::disallowed_methods, reason = "the other thread that a test lets come by")]

mod jobs;
mod threads;

use super::watched::{On, Watched};
use super::{open, rotate};
use crate::KeyspaceOptions;
use crate::base::error::ErrorKind;
use crate::flush::memtable::FlushPace;
use crate::options::keyspace::Durability;
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::storage::io::crash::{CrashDirectory, Survivors};
use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;

/// Lets other threads make progress. If it is too short, a test only detects less.
fn give_way() {
    (0..2_000).for_each(|_| std::thread::yield_now());
}

#[test]
fn a_late_flush_skips_a_dropped_keyspace() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let (core, options) = (database.handle.core(), KeyspaceOptions::new());
    let keyspace = database.keyspace("dropped", options.clone()).unwrap();
    for round in 0..2 {
        for number in 0..200_u32 {
            keyspace.insert(number.to_be_bytes(), vec![round; 40_000]).unwrap();
        }
        if round == 0 {
            database.checkpoint().unwrap();
        }
    }
    // The background has listed the keyspaces, with this immutable memtable, and is about to flush.
    rotate(&database, &keyspace);
    database.drop_keyspace("dropped").unwrap();
    let used = core.storage.stats().space.used_blocks;
    assert!(!core.flush_keyspace(&keyspace.core).unwrap());
    assert!(!core.flush_oldest(FlushPace::Usual).unwrap());
    assert_eq!(
        core.storage.stats().space.used_blocks,
        used,
        "space was allocated for a dropped keyspace"
    );
    drop(keyspace);
    // Its extents are used by other keyspaces, and none of them twice.
    let other = database.keyspace("other", options).unwrap();
    for number in 0..400_u32 {
        other.insert(number.to_be_bytes(), vec![3; 40_000]).unwrap();
    }
    database.checkpoint().unwrap();
    assert_eq!(core.unreachable_blocks().unwrap(), 0);
    assert!(other.iter().all(|entry| *entry.unwrap().1 == [3; 40_000]));
    assert!(database.verify().unwrap().is_clean());
}

#[test]
fn a_keyspace_is_dropped_during_a_flush() {
    let mut half_absorbed = 0;
    for after in 0..12 {
        let plan = FaultPlan::new();
        let memory = Arc::new(MemoryDirectory::new());
        let database = open(Arc::new(FaultDirectory::new(memory, plan.clone()).unwrap()));
        let core = database.handle.core();
        let keyspace = database.keyspace("dropped", KeyspaceOptions::new()).unwrap();
        keyspace.insert("large", vec![1; 40_000]).unwrap();
        // The memtable is absorbed in two parts: up to the snapshot, and the rest.
        let snapshot = database.snapshot();
        keyspace.insert("large", vec![2; 40_000]).unwrap();
        for number in 0..3_000_u32 {
            keyspace.insert(number.to_be_bytes(), [3; 100]).unwrap();
        }
        rotate(&database, &keyspace);
        plan.fail(Fault {
            failure: Failure::NoSpace,
            sticky: true,
            ..Fault::once(Call::Allocate, after)
        });
        if core.flush_keyspace(&keyspace.core).is_ok() {
            break;
        }
        plan.heal();
        half_absorbed += usize::from(!keyspace.core.flush.lock().versions.is_empty());
        drop(snapshot);
        database.drop_keyspace("dropped").unwrap();
        drop(keyspace);
        database.checkpoint().unwrap();
        assert_eq!(core.unreachable_blocks().unwrap(), 0);
    }
    assert!(half_absorbed > 0, "no flush stopped between its parts");
}

#[test]
fn a_keyspace_is_not_visible_before_it_is_durable() {
    let (directory, watcher) = Watched::new(&MemoryDirectory::new());
    let database = open(Arc::new(directory));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (watched, sink) = (database.clone(), Arc::clone(&seen));
    let look = move || sink.lock().push(watched.keyspaces());
    *watcher.lock() = Some((On::DataSync, Box::new(look)));
    let keyspace = database.keyspace("new", KeyspaceOptions::new()).unwrap();
    *watcher.lock() = None;
    // A thread that sees it could write to it, and get a promise of durability.
    let seen = std::mem::take(&mut *seen.lock());
    assert!(seen.len() > 1 && seen.iter().all(Vec::is_empty), "{seen:?}");
    assert_eq!(database.keyspaces(), ["new"]);
    keyspace.insert("key", "value").unwrap();
    assert!(database.drop_keyspace("new").is_ok());
}

#[test]
fn a_large_value_deleted_before_it_is_verified_is_no_damage() {
    let (directory, watcher) = Watched::new(&MemoryDirectory::new());
    let database = open(Arc::new(directory));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("large", vec![1; 40_000]).unwrap();
    let before = database.verify().unwrap();
    assert!(before.is_clean() && before.log_bytes > 0);
    let (written, space, mut times) = (database.clone(), keyspace.clone(), 0_u8);
    // Before the log is read, the values it refers to are overwritten and absorbed, and their space
    // reused.
    let change = move || {
        times += 1;
        if times == 1 {
            space.insert("large", vec![2; 40_000]).unwrap();
            written.checkpoint().unwrap();
            while written.handle.core().unreachable_blocks().unwrap() > 0 {}
            (0..50_u8).for_each(|key| space.insert([key], vec![3; 40_000]).unwrap());
        }
    };
    *watcher.lock() = Some((On::LogRead, Box::new(change)));
    let report = database.verify().unwrap();
    *watcher.lock() = None;
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.log_bytes, before.log_bytes);
    assert_eq!(report.blocks, before.blocks - 10, "the value was already freed");
    assert!(database.verify().unwrap().is_clean());
}

#[test]
fn a_database_opens_after_a_checkpoint_during_a_close() {
    let memory = MemoryDirectory::new();
    let (directory, watcher) = Watched::new(&memory);
    let database = open(Arc::new(directory));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for round in 0..3_u8 {
        for number in 0..4_000_u32 {
            keyspace.insert(number.to_be_bytes(), vec![round; 1000]).unwrap();
        }
        database.checkpoint().unwrap();
    }
    // Another thread runs while the log's idle segments are removed.
    let (other, checkpoints) = (database.clone(), Arc::new(Mutex::new(Vec::new())));
    let started = Arc::clone(&checkpoints);
    let action = move || {
        let other = other.clone();
        started.lock().push(std::thread::spawn(move || other.handle.core().checkpoint_now()));
        give_way();
    };
    *watcher.lock() = Some((On::Remove, Box::new(action)));
    database.handle.close().unwrap();
    *watcher.lock() = None;
    let ended: Vec<_> = checkpoints.lock().drain(..).map(|one| one.join().unwrap()).collect();
    assert!(!ended.is_empty());
    for checkpoint in ended {
        assert_eq!(checkpoint.unwrap_err().kind(), ErrorKind::Stopped);
    }
    drop((database, keyspace));
    let again = open(Arc::new(memory));
    let keyspace = again.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.iter().count(), 4_000);
}

/// The files after a power cut, with all unsynced data lost. Before it two keyspaces were written
/// to and one was flushed while a checkpoint was between its log mark and its versions.
fn cut_behind_a_drain_within_a_checkpoint() -> MemoryDirectory {
    let crash = CrashDirectory::new();
    let database = open(Arc::new(crash.clone()));
    let one = database.keyspace("one", KeyspaceOptions::new()).unwrap();
    let two = database.keyspace("two", KeyspaceOptions::new()).unwrap();
    one.insert("before", "1").unwrap();
    database.sync().unwrap();
    let core = database.handle.core();
    core.counters.undurable_bytes.store(1, Ordering::Relaxed);
    // The checkpointing thread waits for this lock, with its mark taken.
    let held = one.core.latest.lock();
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| core.checkpoint_now());
        while core.counters.undurable_bytes.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        give_way();
        one.insert("first", "1").unwrap();
        two.insert("second", "2").unwrap();
        rotate(&database, &two);
        assert!(core.flush_keyspace(&two.core).unwrap());
        drop(held);
        checkpoint.join().unwrap().unwrap();
    });
    let journal = crash.journal();
    MemoryDirectory::from_files(journal.image(journal.boundaries(), Survivors::None))
}

#[test]
fn no_root_is_ahead_of_the_log_after_a_concurrent_flush() {
    let memory = cut_behind_a_drain_within_a_checkpoint();
    let database = open(Arc::new(memory.clone()));
    let one = database.keyspace("one", KeyspaceOptions::new()).unwrap();
    let two = database.keyspace("two", KeyspaceOptions::new()).unwrap();
    let (first, second) = (one.get("first").unwrap(), two.get("second").unwrap());
    assert!(first.is_some() || second.is_none(), "the second commit is there without the first");
    // New seqnos are above all those of the root: else replay would skip this write.
    two.insert_with("third", "3", Durability::Sync).unwrap();
    let again = open(Arc::new(MemoryDirectory::from_files(memory.to_files())));
    let two = again.keyspace("two", KeyspaceOptions::new()).unwrap();
    assert_eq!(*two.get("third").unwrap().unwrap(), *b"3");
}

#[test]
fn an_iterator_retains_what_it_is_reading() {
    let (directory, watcher) = Watched::new(&MemoryDirectory::new());
    let database = open(Arc::new(directory));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let write = |value: u8| {
        for number in 0..8_000_u32 {
            keyspace.insert(number.to_be_bytes(), [value; 1000]).unwrap();
        }
    };
    write(1);
    rotate(&database, &keyspace);
    assert!(database.handle.core().flush_keyspace(&keyspace.core).unwrap());
    write(2);
    let mut iter = keyspace.iter();
    for _ in 0..10 {
        assert_eq!(*iter.next().unwrap().unwrap().1, [2; 1000]);
    }
    // During its read, another thread flushes: no view shows the previous version any more.
    let (flushed, space, mut threads) = (database.clone(), keyspace.clone(), Vec::new());
    let drain = move || {
        if !threads.is_empty() {
            return;
        }
        let absorbed = || space.core.latest.lock().absorbed;
        let before = absorbed();
        let (other, its) = (flushed.clone(), space.clone());
        threads.push(std::thread::spawn(move || {
            rotate(&other, &its);
            other.handle.core().flush_keyspace(&its.core).unwrap();
        }));
        while absorbed() == before {
            std::thread::yield_now();
        }
        give_way();
        flushed.handle.core().storage.epochs().collect();
        for _ in 0..100 {
            flushed.handle.core().storage.write_large(&[9; 100_000]).unwrap();
        }
    };
    *watcher.lock() = Some((On::DataRead, Box::new(drain)));
    let rest: Vec<_> = iter.map(|entry| *entry.unwrap().1 == [2; 1000]).collect();
    *watcher.lock() = None;
    assert_eq!(rest, [true; 7_990]);
}

#[test]
fn segments_are_written_through_only_for_commits_that_wait_for_a_sync() {
    for (level, is_written_through) in [(Durability::Process, false), (Durability::Sync, true)] {
        let (database, plan) = super::open_faulty(&MemoryDirectory::new());
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        let log = Arc::clone(database.handle.core().log.get().unwrap().first());
        let counts = || (plan.calls_on(Call::Write, "log-"), log.stats().segments_prepared);
        let before = counts();
        for number in 0..300_u32 {
            keyspace.insert_with(number.to_be_bytes(), [7; 1000], level).unwrap();
            // Like the background thread.
            database.handle.core().sync().unwrap();
        }
        let (writes, segments) = counts();
        // A new segment takes one write, of its header.
        let (writes, segments) = (writes - before.0, segments - before.1);
        assert!(segments > 1, "{segments}");
        assert_eq!(writes > segments, is_written_through, "{writes} writes, {segments} segments");
    }
}

#[test]
fn a_failed_checkpoint_releases_nothing_of_the_log() {
    let memory = MemoryDirectory::new();
    let (database, plan) = super::open_faulty(&memory);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let insert = |number: u32| keyspace.insert(number.to_be_bytes(), [7; 1000]).unwrap();
    (0..4_000).for_each(insert);
    super::rotate(&database, &keyspace);
    let core = database.handle.core();
    assert!(core.flush_keyspace(&keyspace.core).unwrap());
    // The data file now has all updates of the log, but no durable root refers to them.
    plan.fail(Fault::once(Call::Write, 0).on("data").with(Failure::NoSpace));
    assert_eq!(core.checkpoint_now().unwrap_err().kind(), ErrorKind::NoSpace);
    // Segments released too early would be reused, and their records lost.
    for number in 4_000..8_000 {
        insert(number);
        if number % 100 == 0 {
            core.tick().unwrap();
        }
    }
    core.sync().unwrap();
    let (again, _) = super::open_faulty(&MemoryDirectory::from_files(memory.to_files()));
    let keyspace = again.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.iter().map(|entry| entry.map(drop).unwrap()).count(), 8_000);
}
