//! The record cache through the public API: a cached record always equals the stored one.

use chelonia::{Database, Keyspace, KeyspaceOptions};
use std::path::Path;

/// More keys than the block cache of the smallest budget holds.
const RECORDS: u32 = 300_000;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn value(number: u32, version: u32) -> Vec<u8> {
    [number.to_le_bytes(), version.to_le_bytes()].concat().repeat(16)
}

/// Keys that are read repeatedly.
fn hot() -> impl Iterator<Item = u32> {
    (0..2_000).map(|number| number * 149 % RECORDS)
}

fn loaded(path: &Path) -> (Database, Keyspace) {
    let database = Database::builder(path).memory(32 << 20).open().unwrap();
    let keyspace = database.keyspace("default", KeyspaceOptions::default()).unwrap();
    let mut batch = database.batch();
    for number in 0..RECORDS {
        batch.insert(&keyspace, key(number), value(number, 0));
        if number % 1_000 == 999 {
            batch.commit().unwrap();
        }
    }
    database.checkpoint().unwrap();
    (database, keyspace)
}

/// Reads the hot keys, each between other keys that evict its block.
fn read_hot(keyspace: &Keyspace, version: impl Fn(u32) -> Option<u32>) {
    for (round, number) in hot().enumerate() {
        let expected = version(number).map(|version| value(number, version));
        assert_eq!(keyspace.get(key(number)).unwrap().as_deref(), expected.as_deref());
        let cold = (round as u32 * 7_919 + 13) % RECORDS;
        assert!(keyspace.get(key(cold)).unwrap().is_some() || version(cold).is_none());
    }
}

#[test]
fn cached_records_follow_writes_and_snapshots_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (database, keyspace) = loaded(dir.path());
    for _ in 0..3 {
        read_hot(&keyspace, |_| Some(0));
    }
    let filled = database.stats().io;
    assert!(filled.cached_records > 1_000, "{filled:?}");
    assert!(database.stats().memory.record_bytes > 0);
    let before = database.snapshot();
    // Every third hot key gets a new value, every fifth is removed.
    let version = |number: u32| match number {
        number if number % 5 == 0 => None,
        number if number % 3 == 0 => Some(1),
        _ => Some(0),
    };
    for number in hot() {
        match version(number) {
            None => keyspace.remove(key(number)).unwrap(),
            Some(1) => keyspace.insert(key(number), value(number, 1)).unwrap(),
            Some(_) => {}
        }
    }
    read_hot(&keyspace, version);
    // The memtable is flushed; now reads come from the cached records.
    database.checkpoint().unwrap();
    let after = database.snapshot();
    for _ in 0..2 {
        read_hot(&keyspace, version);
        let keys: Vec<_> = hot().map(key).collect();
        let many = |values: Vec<Option<chelonia::Value>>, expected: &dyn Fn(u32) -> Option<u32>| {
            for (number, found) in hot().zip(values) {
                let expected = expected(number).map(|version| value(number, version));
                assert_eq!(found.as_deref(), expected.as_deref(), "key {number}");
            }
        };
        many(keyspace.multi_get(&keys).unwrap(), &version);
        many(before.multi_get(&keyspace, &keys).unwrap(), &|_| Some(0));
        many(after.multi_get(&keyspace, &keys).unwrap(), &version);
        for number in hot().take(300) {
            let old = before.get(&keyspace, key(number)).unwrap();
            assert_eq!(old.as_deref(), Some(value(number, 0).as_slice()));
            let new = after.get(&keyspace, key(number)).unwrap();
            let expected = version(number).map(|version| value(number, version));
            assert_eq!(new.as_deref(), expected.as_deref());
        }
    }
    drop((before, after, keyspace));
    database.close().unwrap();
    let database = Database::open(dir.path()).unwrap();
    assert_eq!(database.stats().io.cached_records, 0);
    let keyspace = database.keyspace("default", KeyspaceOptions::default()).unwrap();
    read_hot(&keyspace, version);
}

#[test]
fn records_of_one_keyspace_are_not_those_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let (database, keyspace) = loaded(dir.path());
    let other = database.keyspace("other", KeyspaceOptions::default()).unwrap();
    other.insert(key(149), b"other").unwrap();
    database.checkpoint().unwrap();
    read_hot(&keyspace, |_| Some(0));
    assert_eq!(other.get(key(149)).unwrap().as_deref(), Some(&b"other"[..]));
    assert_eq!(other.get(key(298)).unwrap(), None);
    drop(other);
    database.drop_keyspace("other").unwrap();
    let again = database.keyspace("other", KeyspaceOptions::default()).unwrap();
    assert_eq!(again.get(key(149)).unwrap(), None);
}

#[test]
fn memory_moves_from_cached_records_to_writes_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let (database, keyspace) = loaded(dir.path());
    for _ in 0..3 {
        read_hot(&keyspace, |_| Some(0));
    }
    for number in 0..60_000 {
        keyspace.insert(key(RECORDS + number), value(number, 0)).unwrap();
        if number % 16 == 0 {
            let memory = database.stats().memory;
            // Slabs that readers still hold are freed later.
            assert!(memory.used_bytes <= memory.budget_bytes + (2 << 20), "{memory:?}");
        }
    }
    read_hot(&keyspace, |_| Some(0));
    database.set_memory(64 << 20).unwrap();
    for _ in 0..3 {
        read_hot(&keyspace, |_| Some(0));
    }
    database.set_memory(32 << 20).unwrap();
    read_hot(&keyspace, |_| Some(0));
    let memory = database.stats().memory;
    assert!(memory.used_bytes <= memory.budget_bytes + (2 << 20), "{memory:?}");
}

/// A key that returns other bytes each time.
struct Shifty<'a>(&'a [[u8; 4]; 2], std::cell::Cell<usize>);

impl AsRef<[u8]> for Shifty<'_> {
    fn as_ref(&self) -> &[u8] {
        let Self(keys, asked) = self;
        asked.set(asked.get() + 1);
        &keys[asked.get() % 2]
    }
}

#[test]
fn the_bytes_of_a_key_are_requested_once() {
    let dir = tempfile::tempdir().unwrap();
    let (database, keyspace) = loaded(dir.path());
    let snapshot = database.snapshot();
    let keys = [key(7), key(8)];
    let shifty: Vec<_> = (0..40).map(|asked| Shifty(&keys, std::cell::Cell::new(asked))).collect();
    for round in 1..=6 {
        let found = match round % 2 {
            0 => keyspace.multi_get(&shifty),
            _ => snapshot.multi_get(&keyspace, &shifty),
        };
        for ((Shifty(_, asked), begun), found) in shifty.iter().zip(0..).zip(found.unwrap()) {
            assert_eq!(asked.get(), begun + round);
            let number = if asked.get() % 2 == 0 { 7 } else { 8 };
            assert_eq!(found.as_deref(), Some(&value(number, 0)[..]));
        }
    }
}
