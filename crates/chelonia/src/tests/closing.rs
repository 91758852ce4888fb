//! Closes during file calls of another thread: such a call ends before the close does, and that
//! thread makes no call afterwards.

#![expect(clippy::disallowed_methods, reason = "the other thread that a test lets come by")]

use super::open;
use crate::base::error::{Error, ErrorKind, Result};
use crate::options::keyspace::Durability;
use crate::runtime::sync::{Arc, Mutex};
use crate::storage::io::Directory;
use crate::storage::io::crash::{CrashDirectory, Survivors};
use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::{Database, Keyspace, KeyspaceOptions, LogLayout};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, ThreadId};

/// A kind of call on a kind of file.
type Place = (Call, String);

/// A call: its kind, and the number of earlier calls of that kind.
type Numbered = (Place, u64);

/// How often a delayed call checks whether the close has returned. With the fence no check sees it;
/// without the fence, there must be enough checks for the close to end.
const LOOKS: usize = 2_000;

/// The recorded calls of one thread.
#[derive(Default)]
struct Calls {
    /// The thread whose calls are counted.
    thread: Option<ThreadId>,
    counts: BTreeMap<Place, u64>,
    delay: Option<Numbered>,
    is_delayed: bool,
    is_closed: bool,
    /// Calls made after the close had returned.
    late: Vec<Place>,
}

/// Records a call; runs before each call, on the thread that makes it.
fn note(calls: &Mutex<Calls>, call: Call, file: &str) {
    let file = if file.starts_with("log-") { "log" } else { file };
    let place = (call, file.to_owned());
    let is_delayed = {
        let mut calls = calls.lock();
        if calls.thread != Some(std::thread::current().id()) {
            return;
        }
        let count = calls.counts.entry(place.clone()).or_default();
        let this = (place.clone(), *count);
        *count += 1;
        let is_delayed = calls.delay == Some(this);
        calls.is_delayed |= is_delayed;
        is_delayed
    };
    if is_delayed {
        for _ in 0..LOOKS {
            if calls.lock().is_closed {
                break;
            }
            std::thread::yield_now();
        }
    }
    let mut calls = calls.lock();
    if calls.is_closed {
        calls.late.push(place);
    }
}

/// Makes calls of every kind; continues after a lack of space.
fn work(database: &Database, keyspace: &Keyspace) -> Result<()> {
    let passing = |done: Result<()>| match done {
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
        done => done,
    };
    let key = |number: u32| number.wrapping_mul(0x9e37_79b9).to_be_bytes();
    for round in 0..6_u32 {
        for number in 0..400 {
            passing(keyspace.insert(key(round << 16 | number), [7; 1000]))?;
        }
        for number in 400..410 {
            let key = key(round << 16 | number);
            passing(keyspace.insert_with(key, vec![8; 50_000], Durability::Sync))?;
            keyspace.get(key)?;
        }
        for number in 0..300 {
            passing(keyspace.remove(key(round << 16 | number)))?;
        }
        if round % 2 == 1 {
            passing(database.checkpoint())?;
            database.verify()?;
            passing(database.keyspace("other", KeyspaceOptions::new()).map(drop))?;
            passing(database.drop_keyspace("other"))?;
        }
        keyspace.iter().try_for_each(|entry| entry.map(drop))?;
        passing(database.handle.core().tick())?;
    }
    Ok(())
}

/// Closes a database while another thread is in the call to be delayed, or after that thread has
/// done its work; then lets the next owner write. Returns the calls of the thread.
fn close_meanwhile(delay: Option<Numbered>) -> Calls {
    let memory = MemoryDirectory::new();
    let plan = FaultPlan::new();
    let directory = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
    let database = open(Arc::new(directory));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    plan.set_capacity(Some(7 << 20));
    let calls = Arc::new(Mutex::new(Calls { delay, ..Calls::default() }));
    let seen = Arc::clone(&calls);
    plan.before_call(move |call, file| note(&seen, call, file));
    let worker = {
        let (database, keyspace, calls) = (database.clone(), keyspace, Arc::clone(&calls));
        std::thread::spawn(move || {
            calls.lock().thread = Some(std::thread::current().id());
            work(&database, &keyspace)
        })
    };
    while !calls.lock().is_delayed && !worker.is_finished() {
        std::thread::yield_now();
    }
    database.handle.close().unwrap();
    calls.lock().is_closed = true;
    let next = open(Arc::new(memory.clone()));
    let keyspace = next.keyspace("next", KeyspaceOptions::new()).unwrap();
    for number in 0..400_u32 {
        keyspace.insert_with(number.to_be_bytes(), [9; 500], Durability::Sync).unwrap();
    }
    if let Err(error) = worker.join().unwrap() {
        assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
    }
    let killed = open(Arc::new(MemoryDirectory::from_files(memory.to_files())));
    let keyspace = killed.keyspace("next", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.iter().map(Result::unwrap).count(), 400);
    std::mem::take(&mut *calls.lock())
}

#[test]
fn no_call_of_a_closed_database_reaches_its_files() {
    let all = close_meanwhile(None).counts;
    assert!(all.len() > 15, "{all:?}");
    let mut delayed = 0;
    for (place, count) in all {
        for number in BTreeSet::from([0, count / 2, count - 1]) {
            let calls = close_meanwhile(Some((place.clone(), number)));
            delayed += u64::from(calls.is_delayed);
            let late: BTreeSet<_> = calls.late.iter().collect();
            assert!(late.is_empty(), "delayed at {place:?} number {number}, came late: {late:?}");
        }
    }
    assert!(delayed > 30, "{delayed}");
}

#[test]
fn a_close_after_a_failure_waits_for_an_append_to_one_of_several_logs() {
    let memory = MemoryDirectory::new();
    let builder = Database::builder("memory").memory(64 << 20);
    let builder = builder.log_layout(LogLayout::PerThread { logs: 2 });
    let database = builder.internals(|internals| {
        internals.directory = Some(Arc::new(memory.clone()));
        internals.stepped = true;
    });
    let database = database.open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("a", "b").unwrap();
    let core = database.handle.core();
    // As a commit that has its place, and copies its record.
    let mut tails = core.log.get().unwrap().lock_tails();
    core.health.stop(Error::internal("the test wants it"));
    thread::scope(|scope| {
        let close = scope.spawn(|| database.handle.close());
        while !core.health.is_closed() {
            thread::yield_now();
        }
        for _ in 0..LOOKS {
            assert!(!close.is_finished(), "the close did not wait");
            thread::yield_now();
        }
        let tail = tails[0].as_mut().unwrap();
        let hash = tail.payload_hash(b"late");
        tail.append(b"late", hash).unwrap();
        let before = memory.to_files();
        drop(tails);
        assert!(close.join().unwrap().is_err());
        assert!(core.log.get().unwrap().lock_tails().iter().all(|tail| tail.is_none()));
        assert_eq!(before, memory.to_files(), "nothing was written after the close");
    });
}

/// With a sparse log a sync leaves its block; the next record is refused; those behind it stay.
#[test]
fn commits_behind_one_that_a_full_device_refused_are_there_after_a_crash() {
    let crash = CrashDirectory::new().without_mapping();
    let plan = FaultPlan::new();
    let open = |directory: Arc<dyn Directory>| {
        let builder = Database::builder("memory").memory(64 << 20);
        let builder = builder.log_layout(LogLayout::Sparse).internals(|internals| {
            internals.directory = Some(directory);
            internals.stepped = true;
            internals.leave_log = true;
        });
        builder.open().unwrap()
    };
    let directory = FaultDirectory::new(Arc::new(crash.clone()), plan.clone()).unwrap();
    let database = open(Arc::new(directory));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert_with("a", "1", Durability::Sync).unwrap();
    for count in 1..4 {
        let fault = Fault::once(Call::RegionWrite, 0).on("log-");
        plan.fail(fault.with(Failure::NoSpace));
        let refused = keyspace.insert_with("refused", "2", Durability::Sync);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
        plan.heal();
        for number in 0..count {
            let key = format!("{count} {number}");
            keyspace.insert_with(key, "3", Durability::Sync).unwrap();
        }
        assert!(database.verify().unwrap().findings.is_empty());
        let journal = crash.journal();
        let image = journal.image(journal.boundaries(), Survivors::All);
        let again = open(Arc::new(MemoryDirectory::from_files(image)));
        let keyspace = again.keyspace("k", KeyspaceOptions::new()).unwrap();
        assert_eq!(keyspace.iter().count(), 1 + (1..=count).sum::<usize>());
    }
}
