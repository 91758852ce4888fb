//! Commits with a time limit: refused without side effects, and never starved.

mod distance;

use super::rotate;
use crate::base::error::ErrorKind;
use crate::engine::EngineKind;
use crate::runtime::clock::Clock;
use crate::runtime::rng::Rng;
use crate::runtime::sync::{Arc, Mutex};
use crate::storage::block::DATA_FILE;
use crate::storage::io::Directory;
use crate::storage::io::fault::{Call, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::{Batch, CommitOptions, Database, Durability, KeyspaceOptions, Stats};
use std::time::Duration;

/// Opens a database with background threads.
fn open(directory: Arc<dyn Directory>) -> Database {
    Database::builder("memory").memory(BUDGET).in_directory(directory).open().unwrap()
}

/// The budget of [`open`].
const BUDGET: u64 = 32 << 20;

/// The time that a write of the slow device takes.
const DEVICE_WRITE: Duration = Duration::from_millis(5);

/// A limit far above the duration of anything here.
const AGES: Duration = Duration::from_mins(10);

#[test]
fn a_commit_without_waiting_is_refused_and_changes_nothing() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let options = CommitOptions::new().no_wait();
    // Nothing can be flushed.
    let flush = keyspace.core.flush.lock();
    let insert = |number: u32| keyspace.insert_with(number.to_be_bytes(), [7; 10_000], options);
    let (mut accepted, mut refused, mut in_a_row) = (0, 0, 0);
    // The caches give up memory meanwhile, which may become free a moment after a refusal.
    while in_a_row < 5 {
        if insert(accepted).is_ok() {
            (accepted, in_a_row) = (accepted + 1, 0);
        } else {
            (refused, in_a_row) = (refused + 1, in_a_row + 1);
            Clock::real().sleep(Duration::from_millis(10));
        }
    }
    assert!((1_000..4_000).contains(&accepted), "{accepted}");
    let stats = || database.stats();
    assert_eq!((stats().commits.would_block, stats().commits.delayed), (refused, 0));

    let before = stats();
    let error = insert(accepted).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let error = keyspace.remove_with(0_u32.to_be_bytes(), options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let mut batch = database.batch();
    batch.insert(&keyspace, accepted.to_be_bytes(), "later").insert(&keyspace, "l", [7; 100_000]);
    let patience = Duration::from_millis(20);
    let options = CommitOptions::from(Durability::Sync).timeout(patience);
    assert_eq!(batch.commit_with(options).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(batch.len(), 2);

    let after = stats();
    assert_eq!(after.commits.would_block, refused + 3);
    let patience = u64::try_from(patience.as_nanos()).unwrap();
    assert_eq!(after.commits.delayed, 1);
    assert!(after.commits.delay_nanos >= patience);
    assert_eq!(after.commits.delay_nanos_max, after.commits.delay_nanos);
    let changed = |stats: &Stats| {
        (stats.commits.commits, stats.last_seqno, stats.io.data_writes, stats.disk.data_used_bytes)
    };
    assert_eq!(changed(&after), changed(&before));
    assert!(!keyspace.contains_key(accepted.to_be_bytes()).unwrap());
    assert!(keyspace.contains_key(0_u32.to_be_bytes()).unwrap());

    // The refused commit succeeds unchanged once the background continues.
    drop(flush);
    batch.commit_with(options.timeout(AGES)).unwrap();
    assert_eq!(keyspace.len().unwrap(), u64::from(accepted) + 2);
    assert_eq!(keyspace.size_of(accepted.to_be_bytes()).unwrap(), Some(5));
}

#[test]
fn commits_without_waiting_report_a_full_device_and_resume_later() {
    let plan = FaultPlan::new();
    let memory = Arc::new(MemoryDirectory::new());
    let database = open(Arc::new(FaultDirectory::new(memory, plan.clone()).unwrap()));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    plan.set_capacity(Some(22 << 20));
    let clock = Clock::real();
    let options = CommitOptions::new().no_wait();
    // Retries, without waiting in the store, until the commit is accepted or finally refused.
    let insert = |number: u64| loop {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        match keyspace.insert_with(key, [7; 1000], options) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && clock.now() < AGES => {
                clock.sleep(Duration::from_millis(1));
            }
            done => break done,
        }
    };
    let mut number = 0;
    let refused = loop {
        match insert(number) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert!(number > 4_000, "{number}");
    plan.set_capacity(None);
    insert(number).unwrap();
    assert_eq!(keyspace.len().unwrap(), number + 1);
}

/// Batches of megabytes stop nothing, and the debt that they leave is paid when they end.
#[test]
fn large_batches_stop_nothing_and_their_merges_are_done() {
    const BATCHES: u64 = 24;
    for engine in EngineKind::ALL {
        let database = open(Arc::new(MemoryDirectory::new()));
        let options = KeyspaceOptions::new().engine(engine);
        let keyspace = database.keyspace("k", options).unwrap();
        let (mut number, mut value) = (0_u64, [0; 500]);
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        for round in 0..BATCHES {
            let mut batch = database.batch();
            while batch.size() + 600 < Batch::limit() / (1 + usize::try_from(round % 8).unwrap()) {
                value[..8].copy_from_slice(&number.to_le_bytes());
                batch.insert(&keyspace, key(number), value);
                number += 1;
            }
            batch.commit().unwrap();
        }
        database.checkpoint().unwrap();
        let debt = || database.stats().keyspaces[0].debt_bytes;
        let patience = Clock::real();
        while debt() > 0 {
            assert!(patience.now() < Duration::from_secs(60), "{engine:?}: {} bytes", debt());
            database.handle.core().maintain_all().unwrap();
            // Other threads may have all workers.
            std::thread::yield_now();
        }
        assert_eq!(keyspace.len().unwrap(), number);
        for number in (0..number).step_by(101) {
            assert_eq!(keyspace.get(key(number)).unwrap().unwrap()[..8], number.to_le_bytes());
        }
        assert!(database.verify().unwrap().is_clean());
    }
}

/// While flushes lag, a batch of megabytes waits as long as the many small commits that it equals:
/// so batches do not outrun flushes and merges.
#[test]
fn a_large_batch_is_delayed_for_its_bytes() {
    for engine in EngineKind::ALL {
        let database = open(Arc::new(MemoryDirectory::new()));
        let core = database.handle.core();
        let options = KeyspaceOptions::new().engine(engine);
        let keyspace = database.keyspace("k", options).unwrap();
        let mut number = 0_u64;
        let mut commit = |bytes: usize| {
            let before = core.pacer.delays();
            let mut batch = database.batch();
            while batch.size() < bytes {
                number += 1;
                batch.insert(&keyspace, number.to_be_bytes(), [7; 1_000]);
            }
            batch.commit().unwrap();
            let after = core.pacer.delays();
            (after.count - before.count, Duration::from_nanos(after.nanos - before.nanos))
        };
        commit(6 << 20);
        // The memtable cannot be flushed, and the last flush took long.
        let flush = keyspace.core.flush.lock();
        rotate(&database, &keyspace);
        core.pacer.flushed(8_000_000, Duration::from_secs(1));
        let (count, delay) = commit(4 << 20);
        assert!(count == 1 && delay > Duration::from_millis(50), "{engine:?}: {count}, {delay:?}");
        let (_, delay) = commit(1 << 10);
        assert!(delay < Duration::from_millis(50), "{engine:?}: {delay:?} for a small commit");
        drop(flush);
        database.checkpoint().unwrap();
        assert_eq!(keyspace.len().unwrap(), number);
    }
}

/// Batches of megabytes, in no order of keys, one after the other, on a device that is slow to
/// write: merges keep up, because each batch is delayed for its bytes. So the debt of an engine has
/// a bound.
#[test]
fn batches_of_megabytes_leave_the_debt_bounded() {
    // Updates that `bminus` absorbs are in its pages at once.
    let with_debt = |engine: &EngineKind| *engine != EngineKind::Bminus;
    for engine in EngineKind::ALL.into_iter().filter(with_debt) {
        // Several leaves of `splinter` are due at a time, each as a whole.
        let debt_max = if engine == EngineKind::Splinter { 3 * BUDGET } else { 3 * BUDGET / 2 };
        let plan = FaultPlan::new();
        let device = Mutex::new(());
        plan.before_call(move |call, file| {
            if call == Call::Write && file == DATA_FILE {
                let _one_at_a_time = device.lock();
                Clock::real().sleep(DEVICE_WRITE);
            }
        });
        let directory = FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan).unwrap();
        let database = open(Arc::new(directory));
        let options = KeyspaceOptions::new().engine(engine);
        let keyspace = database.keyspace("k", options).unwrap();
        let mut rng = Rng::new(7);
        let mut debt_most = 0;
        for mebibytes in (1..=8).cycle().take(32) {
            let mut batch = database.batch();
            while batch.size() < (mebibytes << 20) - 2_000 {
                batch.insert(&keyspace, rng.below(100_000).to_be_bytes(), [7; 1_000]);
            }
            batch.commit().unwrap();
            debt_most = debt_most.max(keyspace.core.engine.debt_bytes());
        }
        assert!(debt_most < debt_max, "{engine:?}: {debt_most}");
    }
}
