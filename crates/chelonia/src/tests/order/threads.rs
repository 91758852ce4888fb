//! Background threads beside each other: what they wait for, and what they leave behind.

use crate::runtime::clock::Clock;
use crate::runtime::sync::{Arc, Ordering};
use crate::storage::io::Directory;
use crate::storage::io::memory::MemoryDirectory;
use crate::tests::watched::{On, Watched};
use crate::tests::{open, rotate};
use crate::{Database, KeyspaceOptions};
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Time without a wake-up after which threads count as asleep.
const QUIET: Duration = Duration::from_millis(100);

/// How long a test waits for something that must happen before it fails.
const PATIENCE: Duration = Duration::from_mins(1);

/// Opens a database with background threads.
fn threaded(directory: Arc<dyn Directory>) -> Database {
    let builder = Database::builder("memory").memory(32 << 20);
    builder.internals(|internals| internals.directory = Some(directory)).open().unwrap()
}

#[test]
fn helping_threads_sleep_beside_a_flush() {
    let (directory, watcher) = Watched::new(&MemoryDirectory::new());
    let database = threaded(Arc::new(directory));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    (0..2_000_u32).for_each(|key| keyspace.insert(key.to_be_bytes(), [1; 100]).unwrap());
    let ((stopped, is_stopped), (go_on, may_go_on)) = (channel(), channel::<()>());
    let mut is_first = true;
    let gate = move || {
        if std::mem::take(&mut is_first) {
            stopped.send(()).unwrap();
            let _ = may_go_on.recv();
        }
    };
    *watcher.lock() = Some((On::DataWrite, Box::new(gate)));
    rotate(&database, &keyspace);
    is_stopped.recv().unwrap();
    // The flush is held, and another memtable of the keyspace waits for it.
    keyspace.insert("key", "value").unwrap();
    rotate(&database, &keyspace);
    // Soon no thread is woken for a while: one that finds nothing to do wakes nobody.
    let signals = &database.handle.core().signals;
    let mut seen = 0;
    let is_quiet = (0..100).any(|_| {
        let before = seen;
        signals.wait_for_flush(&mut seen, Some(QUIET));
        seen == before
    });
    drop(go_on);
    assert!(is_quiet, "threads wake each other beside a held flush");
}

#[test]
fn a_flush_does_not_wait_for_the_lock_of_another_keyspace() {
    let database = threaded(Arc::new(MemoryDirectory::new()));
    let [one, other] =
        ["one", "other"].map(|name| database.keyspace(name, KeyspaceOptions::new()).unwrap());
    one.insert("key", "value").unwrap();
    other.insert("key", "value").unwrap();
    // As a job that keeps the lock, or a drop that reads the tree.
    let held = one.core.flush.lock();
    rotate(&database, &one);
    while !one.core.is_chosen.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    rotate(&database, &other);
    let patience = Clock::real();
    while !other.core.immutable().is_empty() {
        assert!(patience.now() < PATIENCE, "its memtable waits for the other keyspace");
        std::thread::yield_now();
    }
    drop(held);
}

/// A job that counts the backlog while a flush ends must not store what it counted before: writers
/// would wait for a flush that is over.
#[test]
fn the_backlog_is_right_after_a_job_ended_beside_a_flush() {
    const ROUNDS: u32 = 5_000;
    let database = open(Arc::new(MemoryDirectory::new()));
    let core = database.handle.core();
    let first = database.keyspace("a", KeyspaceOptions::new()).unwrap();
    // Counting many keyspaces takes long.
    let names = (0..100).map(|number| format!("b{number}"));
    let others: Vec<_> =
        names.map(|name| database.keyspace(&name, KeyspaceOptions::new()).unwrap()).collect();
    let barrier = Barrier::new(2);
    let mut stale = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                barrier.wait();
                (0..(round % 100) * 50).for_each(|_| std::hint::spin_loop());
                core.refresh_backlog();
                barrier.wait();
            }
        });
        for round in 0..ROUNDS {
            first.insert(round.to_be_bytes(), "value").unwrap();
            rotate(&database, &first);
            barrier.wait();
            core.flush_keyspace(&first.core).unwrap();
            barrier.wait();
            stale += u32::from(core.counters.immutable_bytes.load(Ordering::Relaxed) > 0);
        }
    });
    drop(others);
    assert_eq!(stale, 0, "of {ROUNDS} rounds left immutable bytes although there are none");
}
