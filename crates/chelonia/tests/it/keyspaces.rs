//! Creation and drop of keyspaces: a keyspace is visible once it is durable, a full device changes
//! nothing, and a dropped keyspace has no memory.

use crate::support::tiny_options;
use chelonia::internals::{
    Call, Clock, Failure, Fault, FaultDirectory, FaultPlan, MemoryDirectory,
};
use chelonia::{Database, Durability, ErrorKind, Keyspace, KeyspaceOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn open(directory: Arc<dyn chelonia::internals::Directory>) -> Database {
    Database::builder("memory")
        .memory(48 << 20)
        .internals(|internals| internals.directory = Some(directory))
        .open()
        .unwrap()
}

#[test]
fn a_new_keyspace_is_visible_to_others_once_it_is_durable() {
    let memory = MemoryDirectory::new();
    let database = open(Arc::new(memory.clone()));
    const COUNT: usize = 100;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                database.keyspace(&format!("{number:03}"), tiny_options()).unwrap();
            }
        });
        let mut seen = 0;
        while seen < COUNT {
            let names = database.keyspaces();
            if names.len() == seen {
                std::thread::yield_now();
                continue;
            }
            seen = names.len();
            let newest = database.keyspace(&names[seen - 1], KeyspaceOptions::new()).unwrap();
            newest.insert_with("key", "acknowledged", Durability::Sync).unwrap();
            // A power cut.
            let files = memory.to_files();
            let after = open(Arc::new(MemoryDirectory::from_files(files)));
            assert!(after.keyspaces().len() >= seen, "{:?} was seen and is gone", names.last());
            let newest = after.keyspace(&names[seen - 1], KeyspaceOptions::new()).unwrap();
            assert_eq!(newest.get("key").unwrap().unwrap(), b"acknowledged");
        }
    });
}

#[test]
fn a_full_device_neither_creates_nor_drops_and_stops_nothing() {
    let (memory, plan) = (MemoryDirectory::new(), FaultPlan::new());
    let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
    let database = open(Arc::new(faulty));
    let keyspace = database.keyspace("stays", tiny_options()).unwrap();
    keyspace.insert("key", "value").unwrap();
    plan.fail(Fault::sticky(Call::Write, 0).with(Failure::NoSpace));
    let created = database.keyspace("new", tiny_options()).unwrap_err();
    assert_eq!(created.kind(), ErrorKind::NoSpace);
    let refused = database.drop_keyspace("stays").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_eq!(database.keyspaces(), ["stays"]);
    assert_eq!(keyspace.get("key").unwrap().unwrap(), b"value");
    plan.heal();
    keyspace.insert("key", "again").unwrap();
    database.drop_keyspace("stays").unwrap();
    assert_eq!(keyspace.get("key").unwrap_err().kind(), ErrorKind::NotFound);
    database.checkpoint().unwrap();
    drop(keyspace);
    assert_eq!(chelonia::internals::unreachable_blocks(&database).unwrap(), 0);
}

#[test]
fn a_dropped_keyspace_has_no_memory_while_handles_exist() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let mut held = Vec::new();
    for number in 0..12_u64 {
        let name = format!("{number}");
        let keyspace = database.keyspace(&name, KeyspaceOptions::new()).unwrap();
        for key in 0..3_000_u64 {
            keyspace.insert(key.to_be_bytes(), vec![1; 1_000]).unwrap();
        }
        keyspace.insert("large", vec![2; 50_000]).unwrap();
        let snapshot = number.is_multiple_of(2).then(|| database.snapshot());
        keyspace.insert("large", vec![3; 60_000]).unwrap();
        database.drop_keyspace(&name).unwrap();
        held.push((keyspace, snapshot));
    }
    // A thread of another test may still hold an epoch guard, without a processor.
    let used = || database.stats().memory.memtable_bytes;
    for _ in 0..1_000 {
        if used() < 4 << 20 {
            break;
        }
        Clock::real().sleep(std::time::Duration::from_millis(10));
    }
    assert!(used() < 4 << 20, "{} bytes of memtables that nobody can write to", used());
    for (keyspace, snapshot) in &held {
        assert_eq!(keyspace.get("large").unwrap_err().kind(), ErrorKind::NotFound);
        if let Some(snapshot) = snapshot {
            assert_eq!(snapshot.get(keyspace, "large").unwrap().unwrap(), [2; 50_000]);
            assert_eq!(snapshot.iter(keyspace).count(), 3_001);
        }
    }
    drop(held);
    database.checkpoint().unwrap();
    assert_eq!(chelonia::internals::unreachable_blocks(&database).unwrap(), 0);
}

#[test]
fn unset_options_are_taken_from_the_stored_ones() {
    let directory: Arc<dyn chelonia::internals::Directory> = Arc::new(MemoryDirectory::new());
    let database = open(Arc::clone(&directory));
    let options = KeyspaceOptions::new().filter_bits_per_key(9);
    database.keyspace("other", options).unwrap();
    drop(database);
    let database = open(directory);
    database.keyspace("other", KeyspaceOptions::new()).unwrap();
    let error = database.keyspace("other", KeyspaceOptions::new().filter_bits_per_key(10));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn gets_during_a_drop_return_the_value_or_not_found() {
    let database = open(Arc::new(MemoryDirectory::new()));
    for _ in 0..60 {
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        keyspace.insert("changed", "old").unwrap();
        keyspace.insert("removed", "old").unwrap();
        database.checkpoint().unwrap();
        keyspace.insert("changed", "new").unwrap();
        keyspace.remove("removed").unwrap();
        let rounds = AtomicU64::new(0);
        let read = |together: bool| {
            loop {
                rounds.fetch_add(1, Ordering::Relaxed);
                let shown = if together {
                    keyspace.multi_get(["changed", "removed"])
                } else {
                    let one = keyspace.get("changed");
                    one.and_then(|one| Ok(vec![one, keyspace.get("removed")?]))
                };
                match shown {
                    Ok(shown) => {
                        assert_eq!(shown[0].as_deref(), Some(&b"new"[..]), "an old value is back");
                        assert_eq!(shown[1], None, "a removed key is back");
                    }
                    Err(error) => return assert_eq!(error.kind(), ErrorKind::NotFound),
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let read = &read;
                scope.spawn(move || read(thread % 3 == 0));
            }
            while rounds.load(Ordering::Relaxed) < 200 {
                std::thread::yield_now();
            }
            database.drop_keyspace("k").unwrap();
        });
    }
}

/// Uses a keyspace when its thread ends.
struct AtEnd(Keyspace);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let Self(keyspace) = self;
        keyspace.insert("last", "words").unwrap();
        keyspace.insert("large", [7; 50_000]).unwrap();
        assert_eq!(keyspace.get("last").unwrap().unwrap(), *b"words");
        assert_eq!(keyspace.multi_get(["large", "none"]).unwrap().iter().flatten().count(), 1);
        keyspace.remove("first").unwrap();
        assert_eq!(keyspace.iter().count(), 2);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the thread that ends is what is tested")]
fn an_ending_thread_can_write_and_read() {
    thread_local! {
        static AT_END: std::cell::RefCell<Option<AtEnd>> = const { std::cell::RefCell::new(None) };
    }
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("database")).unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let used = keyspace.clone();
    let thread = std::thread::spawn(move || {
        // Set before all thread locals of the store, so that it is dropped after them.
        AT_END.with_borrow_mut(|at_end| *at_end = Some(AtEnd(used.clone())));
        used.insert("first", "words").unwrap();
        database.snapshot().get(&used, "first").unwrap();
    });
    thread.join().unwrap();
    assert_eq!(keyspace.get("last").unwrap().unwrap(), *b"words");
}
