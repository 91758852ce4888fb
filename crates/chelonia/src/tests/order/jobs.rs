//! Jobs of engines that are held in the middle, while the keyspace is written, flushed and dropped.

#![expect(clippy::disallowed_methods, reason = "the thread of the job that a test holds")]

use crate::engine::EngineKind;
use crate::runtime::sync::{Arc, Ordering};
use crate::storage::io::memory::MemoryDirectory;
use crate::tests::watched::{On, Watched, Watcher};
use crate::tests::{open, rotate};
use crate::{Database, EngineOptions, Keyspace, KeyspaceOptions};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

const KEYS: u32 = 3_000;

/// A job that stopped before its first write.
struct Held {
    job: JoinHandle<bool>,
    go_on: Sender<()>,
    watcher: Watcher,
}

impl Held {
    /// Lets the job go on to its end.
    fn end(self) {
        self.go_on.send(()).unwrap();
        assert!(self.job.join().unwrap(), "there was a job");
        *self.watcher.lock() = None;
    }
}

fn write(database: &Database, keyspace: &Keyspace, round: u32) {
    for number in 0..KEYS {
        let key = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        if (number + round).is_multiple_of(3) {
            keyspace.insert(key, [u8::try_from(round).unwrap(); 100]).unwrap();
        }
    }
    rotate(database, keyspace);
    assert!(database.handle.core().flush_keyspace(&keyspace.core).unwrap());
}

/// The engines that have jobs beside flushes. Those of `bminus` keep the lock.
fn engines() -> impl Iterator<Item = EngineKind> {
    EngineKind::ALL.into_iter().filter(|engine| *engine != EngineKind::Bminus)
}

/// Opens a stepped database with a keyspace whose engine has a job that runs without the lock.
fn with_work(engine: EngineKind) -> (Database, Keyspace, Watcher) {
    let (directory, watcher) = Watched::new(&MemoryDirectory::new());
    let database = open(Arc::new(directory));
    // Longer than a round, so that no commit flushes; four rounds are more than one memtable.
    let options = KeyspaceOptions::new().checkpoint_distance(200_000);
    let options = options.engine(EngineOptions::tiny(engine, 64 << 10));
    let keyspace = database.keyspace("k", options).unwrap();
    (0..6).for_each(|round| write(&database, &keyspace, round));
    read_until_due(&database, &keyspace);
    (database, keyspace, watcher)
}

/// Reads until the engine has a job, and does the jobs that keep the lock.
fn read_until_due(database: &Database, keyspace: &Keyspace) {
    for _ in 0..10_000 {
        if keyspace.core.engine.wants_maintenance() {
            break;
        }
        assert!(keyspace.iter().all(|entry| entry.is_ok()));
    }
    let stats = || keyspace.core.engine.stats().events;
    let begun = || stats().iter().any(|(name, count)| *name == "level0_merges_begun" && *count > 0);
    while keyspace.core.stored.engine.kind() == EngineKind::Autumn && !begun() {
        assert!(database.handle.core().maintain_next().unwrap());
    }
}

fn hold(database: &Database, watcher: &Watcher) -> Held {
    let ((stopped, is_stopped), (go_on, may_go_on)) = (channel(), channel());
    let gate = Gate { stopped, may_go_on, is_first: true };
    let mut gate = gate;
    *watcher.lock() = Some((On::DataWrite, Box::new(move || gate.pass())));
    let worker = database.clone();
    let job = std::thread::spawn(move || worker.handle.core().maintain_next().unwrap());
    is_stopped.recv().unwrap();
    Held { job, go_on, watcher: Arc::clone(watcher) }
}

struct Gate {
    stopped: Sender<()>,
    may_go_on: Receiver<()>,
    is_first: bool,
}

impl Gate {
    fn pass(&mut self) {
        if std::mem::take(&mut self.is_first) {
            self.stopped.send(()).unwrap();
            self.may_go_on.recv().unwrap();
        }
    }
}

fn ends(database: &Database) -> (u64, u64) {
    let counters = &database.handle.core().counters;
    let read = |count: &crate::runtime::sync::AtomicU64| count.load(Ordering::Relaxed);
    assert_eq!(
        read(&counters.jobs_planned),
        read(&counters.jobs_installed) + read(&counters.jobs_dropped)
    );
    (read(&counters.jobs_installed), read(&counters.jobs_dropped))
}

fn check(database: &Database) {
    database.checkpoint().unwrap();
    database.handle.core().storage.epochs().settle();
    assert_eq!(database.handle.core().unreachable_blocks().unwrap(), 0);
    assert!(database.verify().unwrap().is_clean());
}

#[test]
fn flushes_do_not_wait_for_a_job() {
    for engine in engines() {
        let (database, keyspace, watcher) = with_work(engine);
        let snapshot = database.snapshot();
        let before: Vec<_> = snapshot.iter(&keyspace).map(Result::unwrap).collect();
        let (installed, dropped) = {
            let held = hold(&database, &watcher);
            let core = database.handle.core();
            let read = |count: &crate::runtime::sync::AtomicU64| count.load(Ordering::Relaxed);
            let counts = (read(&core.counters.jobs_installed), read(&core.counters.jobs_dropped));
            // This would wait forever for a job that keeps the lock.
            (6..9).for_each(|round| write(&database, &keyspace, round));
            database.checkpoint().unwrap();
            held.end();
            counts
        };
        // Only a pass of turtle began at a root that is gone.
        let expected = match engine {
            EngineKind::Turtle => (installed, dropped + 1),
            _ => (installed + 1, dropped),
        };
        assert_eq!(ends(&database), expected, "{engine:?}");
        let seen: Vec<_> = snapshot.iter(&keyspace).map(Result::unwrap).collect();
        assert!(seen == before, "{engine:?}: a snapshot changed");
        drop(snapshot);
        for number in 0..KEYS {
            let key = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
            let round = 6 + (3 - (number + 6) % 3) % 3;
            assert_eq!(*keyspace.get(key).unwrap().unwrap(), [u8::try_from(round).unwrap(); 100]);
        }
        check(&database);
    }
}

#[test]
fn a_job_of_a_dropped_keyspace_is_thrown_away() {
    for engine in engines() {
        let (database, keyspace, watcher) = with_work(engine);
        let held = hold(&database, &watcher);
        database.drop_keyspace("k").unwrap();
        drop(keyspace);
        let (installed, dropped) = {
            let counters = &database.handle.core().counters;
            let read = |count: &crate::runtime::sync::AtomicU64| count.load(Ordering::Relaxed);
            (read(&counters.jobs_installed), read(&counters.jobs_dropped))
        };
        held.end();
        assert_eq!(ends(&database), (installed, dropped + 1), "{engine:?}");
        check(&database);
    }
}
