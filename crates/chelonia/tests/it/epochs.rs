//! Databases of one process do not wait for each other's readers, nor for epochs of the
//! application.

use chelonia::internals::{Call, FaultDirectory, FaultPlan, MemoryDirectory};
use chelonia::{CommitOptions, Database, Keyspace, KeyspaceOptions};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const MEMORY: u64 = 32 << 20;

/// A timeout: reached only if a test fails.
const FOR_EVER: Duration = Duration::from_secs(120);

fn open(directory: &MemoryDirectory, plan: &FaultPlan) -> Database {
    let faulty = FaultDirectory::new(Arc::new(directory.clone()), plan.clone()).unwrap();
    let builder = Database::builder("memory").memory(MEMORY);
    builder.internals(|internals| internals.directory = Some(Arc::new(faulty))).open().unwrap()
}

/// Writes six times the memory budget.
fn write_much(keyspace: &Keyspace) {
    let value = [7; 4_000];
    for number in 0..6 * MEMORY / 4_000 {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        keyspace.insert_with(key, value, CommitOptions::new().timeout(FOR_EVER)).unwrap();
    }
}

#[test]
fn a_thread_with_an_epoch_guard_of_the_application_can_write() {
    let database = open(&MemoryDirectory::new(), &FaultPlan::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let guard = crossbeam_epoch::pin();
    write_much(&keyspace);
    drop(guard);
    database.close().unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a thread that hangs is left behind")]
fn a_snapshot_dropped_by_an_epoch_of_the_application_does_not_deadlock() {
    let (done, ended) = mpsc::channel();
    let work = std::thread::spawn(move || {
        let database = open(&MemoryDirectory::new(), &FaultPlan::new());
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        let is_dropped = Arc::new(AtomicBool::new(false));
        for number in 0..200_u64 {
            keyspace.insert(number.to_be_bytes(), [7; 100]).unwrap();
            let (snapshot, sees) = (database.snapshot(), Arc::clone(&is_dropped));
            let guard = crossbeam_epoch::pin();
            guard.defer(move || {
                drop(snapshot);
                sees.store(true, Ordering::Release);
            });
            guard.flush();
            drop(guard);
            database.checkpoint().unwrap();
        }
        while !is_dropped.load(Ordering::Acquire) {
            crossbeam_epoch::pin().flush();
        }
        database.close().unwrap();
        done.send(()).unwrap();
    });
    ended.recv_timeout(FOR_EVER).unwrap();
    work.join().unwrap();
}

thread_local! {
    /// The next read of this thread hangs.
    static HANGS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` while a get of the database that is passed to it hangs in a read of the device.
fn while_a_read_hangs(work: impl FnOnce(&Keyspace)) {
    let (directory, plan) = (MemoryDirectory::new(), FaultPlan::new());
    {
        let database = open(&directory, &plan);
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        (0..1_000_u64).for_each(|number| keyspace.insert(number.to_be_bytes(), [7; 100]).unwrap());
        database.checkpoint().unwrap();
        database.close().unwrap();
    }
    let database = open(&directory, &plan);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let (hangs, is_hanging) = mpsc::channel();
    let (release, is_released) = mpsc::channel::<()>();
    let is_released = Mutex::new(is_released);
    plan.before_call(move |call, file| {
        if call == Call::Read && file.starts_with("data") && HANGS.replace(false) {
            hangs.send(()).unwrap();
            // Until the other end of the channel is dropped.
            let _ = is_released.lock().unwrap().recv();
        }
    });
    std::thread::scope(|scope| {
        // Also dropped if this fails.
        let release = release;
        let reader = scope.spawn(|| {
            HANGS.set(true);
            keyspace.get(17_u64.to_be_bytes()).unwrap()
        });
        is_hanging.recv().unwrap();
        work(&keyspace);
        assert!(!reader.is_finished());
        drop(release);
        assert_eq!(reader.join().unwrap().unwrap(), [7; 100]);
    });
    database.close().unwrap();
}

#[test]
fn a_read_that_hangs_stalls_no_other_database() {
    let other = open(&MemoryDirectory::new(), &FaultPlan::new());
    while_a_read_hangs(|_| write_much(&other.keyspace("k", KeyspaceOptions::new()).unwrap()));
    other.close().unwrap();
}

#[test]
fn a_read_that_hangs_stalls_no_writer_of_its_own_database() {
    while_a_read_hangs(write_much);
}
