//! The checkpoint distance that was set is obeyed, and what acts is reported.

use crate::engine::EngineKind;
use crate::runtime::sync::{Arc, AtomicBool, Ordering};
use crate::state::keyspace::KeyspaceCore;
use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::{CommitOptions, Database, ErrorKind, Keyspace, KeyspaceOptions, KeyspaceStats};
use std::time::Duration;

const VALUE: [u8; 120] = [7; 120];

/// Opens a database with background threads, and a keyspace of this distance.
fn open(memory: u64, distance: Option<u64>, engine: EngineKind) -> (Database, Keyspace) {
    let directory = Arc::new(MemoryDirectory::new());
    let database = Database::builder("memory").memory(memory).in_directory(directory);
    let database = database.open().unwrap();
    let mut options = KeyspaceOptions::new().engine(engine);
    if let Some(distance) = distance {
        options = options.checkpoint_distance(distance);
    }
    let keyspace = database.keyspace("k", options).unwrap();
    (database, keyspace)
}

fn insert(keyspace: &Keyspace, number: u64) {
    keyspace.insert(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), VALUE).unwrap();
}

fn stats(database: &Database) -> KeyspaceStats {
    database.stats().keyspaces.pop().unwrap()
}

/// Bytes of updates in each memtable of a keyspace, newest first.
fn update_bytes(keyspace: &KeyspaceCore) -> Vec<u64> {
    keyspace.current_view().buffers.iter().map(|buffer| buffer.update_bytes()).collect()
}

#[test]
fn a_commit_waits_once_two_memtables_wait_and_the_third_is_at_the_distance() {
    let distance = 100_000;
    let (database, keyspace) = open(64 << 20, Some(distance), EngineKind::Turtle);
    // Nothing can be flushed.
    let flush = keyspace.core.flush.lock();
    let options = CommitOptions::new().no_wait();
    let mut accepted = 0_u64;
    while keyspace.insert_with(accepted.to_be_bytes(), VALUE, options).is_ok() {
        accepted += 1;
    }
    let refused = keyspace.insert_with(accepted.to_be_bytes(), VALUE, options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    assert_eq!(accepted, 3 * distance.div_ceil(128));
    let patience = CommitOptions::new().timeout(Duration::from_millis(20));
    let refused = keyspace.remove_with("key", patience).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    // A longer distance acts at once, and so does none.
    keyspace.set_checkpoint_distance(2 * distance).unwrap();
    keyspace.insert_with(accepted.to_be_bytes(), VALUE, options).unwrap();
    keyspace.set_checkpoint_distance(distance).unwrap();
    keyspace.remove_with("key", options).unwrap_err();
    keyspace.reset_checkpoint_distance().unwrap();
    keyspace.remove_with("key", options).unwrap();
    keyspace.set_checkpoint_distance(distance).unwrap();
    // Commits to other keyspaces do not wait for it.
    let other = database.keyspace("other", KeyspaceOptions::new()).unwrap();
    other.insert_with("key", VALUE, options).unwrap();
    drop(flush);
    keyspace.insert("key", VALUE).unwrap();
    assert!(keyspace.contains_key((accepted - 1).to_be_bytes()).unwrap());
}

#[test]
fn a_set_distance_is_not_paced_by_the_backlog_of_other_keyspaces() {
    let (database, keyspace) = open(64 << 20, Some(10_000), EngineKind::Turtle);
    // At this rate of flushes all commits below are worth less than the shortest delay; paced by
    // the backlog against the own headroom, each would be worth two of them.
    database.handle.core().pacer.flushed(20_000_000, Duration::from_secs(1));
    let busy = database.keyspace("busy", KeyspaceOptions::new()).unwrap();
    let _flush = busy.core.flush.lock();
    (0..8_000_u64).for_each(|number| busy.insert(number.to_be_bytes(), [7; 1_000]).unwrap());
    {
        let _commit = database.handle.core().commit.lock();
        database.handle.core().rotate(&busy.core);
    }
    assert!(database.stats().background.backlog_bytes > 8_000_000);
    let options = CommitOptions::new().no_wait();
    for number in 0..6_u64 {
        keyspace.insert_with(number.to_be_bytes(), VALUE, options).unwrap();
    }
    assert_eq!(database.stats().commits.would_block, 0);
}

#[test]
fn no_memtable_exceeds_the_distance_by_more_than_a_commit_of_each_thread() {
    let (threads, distance) = (3_u64, 256 << 10);
    for engine in EngineKind::ALL {
        let (database, keyspace) = open(64 << 20, Some(distance), engine);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let write = |thread| {
                let keyspace = &keyspace;
                move || (0..20_000).for_each(|number| insert(keyspace, number * threads + thread))
            };
            let writers: Vec<_> = (0..threads).map(|thread| scope.spawn(write(thread))).collect();
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let found = update_bytes(&keyspace.core);
                    let most = distance + 128 * threads;
                    assert!(found.len() <= 3 && found.iter().all(|it| *it <= most), "{found:?}");
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
        });
        database.checkpoint().unwrap();
        let stats = stats(&database);
        assert_eq!(stats.checkpoint_distance_set_bytes, Some(distance));
        assert_eq!(stats.checkpoint_distance_bytes, distance);
        assert_eq!(stats.flushed_bytes, 60_000 * 128);
        assert_eq!(stats.flushes, stats.flushed_bytes.div_ceil(distance));
    }
}

#[test]
fn a_distance_beyond_the_memory_is_reported_as_clipped() {
    for distance in [Some(1 << 30), None] {
        let (database, keyspace) = open(32 << 20, distance, EngineKind::Turtle);
        let before = keyspace.checkpoint_distance();
        assert!(before < 16 << 20, "{before}");
        (0..200_000).for_each(|number| insert(&keyspace, number));
        let stats = stats(&database);
        assert_eq!(stats.checkpoint_distance_set_bytes, distance);
        assert_eq!(stats.checkpoint_distance_bytes, keyspace.checkpoint_distance());
        // The mean that acted; the write share may have moved meanwhile.
        let (mean, reported) =
            (stats.flushed_bytes / stats.flushes, keyspace.checkpoint_distance());
        assert!(mean.abs_diff(reported) < reported / 4, "{mean} acted, {reported} reported");
        assert!(mean.abs_diff(before) < before / 3, "{mean} acted, {before} reported at first");
    }
}

/// The flush succeeded, the checkpoint after it found the device full, and the next memtables wait.
#[test]
fn a_commit_does_not_wait_for_a_flush_while_a_checkpoint_has_no_space() {
    let plan = FaultPlan::new();
    let faulty = FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan.clone()).unwrap();
    let database = Database::builder("memory").memory(64 << 20).in_directory(Arc::new(faulty));
    let database = database.open().unwrap();
    let distance = 100_000;
    let options = KeyspaceOptions::new().checkpoint_distance(distance);
    let keyspace = database.keyspace("k", options).unwrap();
    let core = database.handle.core();
    let checkpoint = core.checkpoint.lock();
    let per_distance = distance.div_ceil(128);
    (0..=per_distance).for_each(|number| insert(&keyspace, number));
    while core.counters.flushes.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    // The flush thread waits for the checkpoint.
    let no_wait = CommitOptions::new().no_wait();
    let mut number = per_distance;
    while keyspace.insert_with(number.to_be_bytes(), VALUE, no_wait).is_ok() {
        number += 1;
    }
    plan.fail(Fault::sticky(Call::Write, 0).on("data").with(Failure::NoSpace));
    plan.fail(Fault::sticky(Call::Allocate, 0).with(Failure::NoSpace));
    drop(checkpoint);
    let patience = CommitOptions::new().timeout(Duration::from_secs(20));
    keyspace.insert_with("key", VALUE, patience).unwrap();
    plan.heal();
    database.checkpoint().unwrap();
    assert!(keyspace.contains_key("key").unwrap());
}
