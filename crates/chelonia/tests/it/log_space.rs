//! The log does not grow for ever, whoever is idle.

use crate::support::tiny_options;
use chelonia::Database;
use chelonia::internals::MemoryDirectory;
use std::sync::Arc;

#[test]
fn one_old_record_in_an_idle_keyspace_does_not_keep_the_log() {
    let share = 1 << 20;
    let database = Database::builder("memory")
        .memory(48 << 20)
        .internals(|internals| {
            internals.directory = Some(Arc::new(MemoryDirectory::new()));
            internals.stepped = true;
            internals.write_share = Some(share);
            internals.log_segment_bytes = Some(64 << 10);
        })
        .open()
        .unwrap();
    let idle = database.keyspace("left", tiny_options()).unwrap();
    let busy = database.keyspace("right", tiny_options()).unwrap();
    busy.set_checkpoint_distance(100_000).unwrap();
    idle.insert("old", "record").unwrap();
    let mut largest = 0;
    for number in 0..40_000_u64 {
        busy.insert((number % 3_000).to_be_bytes(), [1; 300]).unwrap();
        if number % 1_000 == 0 {
            largest = largest.max(database.stats().disk.log_file_bytes);
        }
    }
    assert!(largest < 4 * share, "the log had {largest} bytes");
    assert_eq!(idle.get("old").unwrap().unwrap(), b"record");
}

#[test]
fn large_values_count_for_the_checkpoint_distance() {
    let database = Database::builder("memory")
        .memory(48 << 20)
        .internals(|internals| {
            internals.directory = Some(Arc::new(MemoryDirectory::new()));
            internals.stepped = true;
        })
        .open()
        .unwrap();
    let keyspace = database.keyspace("left", tiny_options()).unwrap();
    keyspace.set_checkpoint_distance(1 << 20).unwrap();
    for number in 0..100_u64 {
        keyspace.insert(number.to_be_bytes(), vec![1; 50_000]).unwrap();
    }
    let drains = database.stats().background.drains;
    assert!((3..=6).contains(&drains), "{drains} drains for 5 MB at a distance of 1 MiB");
}

/// Threads that write as fast as they can, with drains in the background that never find an end.
#[test]
fn the_log_and_a_close_do_not_wait_for_writers_to_pause() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let directory = tempfile::tempdir().unwrap();
    let database = Database::builder(directory.path().join("database"))
        .memory(48 << 20)
        .internals(|internals| internals.write_share = Some(2 << 20))
        .open()
        .unwrap();
    let stopped = AtomicBool::new(false);
    let mut largest = 0;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let keyspace = database.keyspace("k", tiny_options()).unwrap();
            let stopped = &stopped;
            scope.spawn(move || {
                let mut number = thread << 32;
                while keyspace.insert(number.reverse_bits().to_be_bytes(), [1; 100]).is_ok() {
                    number += 1;
                }
                stopped.store(true, Ordering::Relaxed);
            });
        }
        while database.stats().background.drains < 40 && !stopped.load(Ordering::Relaxed) {
            largest = largest.max(database.stats().disk.log_file_bytes);
            std::thread::yield_now();
        }
        // Writers go on until this closes the database.
        let drains = database.stats().background.drains;
        database.clone().close().unwrap();
        let more = database.stats().background.drains - drains;
        assert!(more < 4, "{more} drains during the close");
    });
    println!("the log had at most {largest} bytes");
    assert!(largest < 16 << 20, "the log had {largest} bytes");
}
