//! Orders of events that threads meet by chance only, made on purpose.

use crate::db::{Database, KeyspaceOptions};
use crate::storage::io::memory::MemoryDirectory;
use std::sync::Arc;

fn open(directory: &MemoryDirectory) -> Database {
    let directory = Arc::new(directory.clone());
    let builder = Database::builder("memory").memory(64 << 20);
    let builder = builder.internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
    });
    builder.open().unwrap()
}

#[test]
fn who_comes_to_drain_a_keyspace_after_it_was_dropped_leaves_it_alone() {
    let directory = MemoryDirectory::new();
    let database = open(&directory);
    let (core, options) = (&database.handle, KeyspaceOptions::new());
    let keyspace = database.keyspace("dropped", options.clone()).unwrap();
    for round in 0..2 {
        for number in 0..200_u32 {
            keyspace.insert(number.to_be_bytes(), vec![round; 40_000]).unwrap();
        }
        if round == 0 {
            database.checkpoint().unwrap();
        }
    }
    // The background has listed the keyspaces, with this finalized memtable, and is about to drain.
    {
        let _commit = core.commit.lock();
        core.rotate(&keyspace.core);
    }
    database.drop_keyspace("dropped").unwrap();
    let used = core.storage.stats().space.used_blocks;
    assert!(!core.drain_keyspace(&keyspace.core).unwrap());
    assert!(!core.drain_oldest().unwrap());
    assert_eq!(core.storage.stats().space.used_blocks, used, "space went to what nobody sees");
    drop(keyspace);
    // What it had is used by others, and by nobody twice.
    let other = database.keyspace("other", options).unwrap();
    for number in 0..400_u32 {
        other.insert(number.to_be_bytes(), vec![3; 40_000]).unwrap();
    }
    database.checkpoint().unwrap();
    assert_eq!(core.unreachable_blocks().unwrap(), 0);
    assert!(other.iter().all(|entry| *entry.unwrap().1 == [3; 40_000]));
    assert!(database.verify().unwrap().is_clean());
}
