//! Transactions: what conflicts and what does not, what they see of their own writes, and that
//! their outcome is that of some order of them.

use crate::support::{TINY_DISTANCE, fresh_seed, hex_seed, tiny_options};
use chelonia::internals::{
    CrashDirectory, Directory, Mark, MemoryDirectory, Rng, Survivors, reached,
};
use chelonia::{
    Database, Durability, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, LogLayout, Result,
    Transaction,
};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

mod concurrent;
mod random;

pub fn open() -> Database {
    let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let builder = Database::builder("memory").memory(64 << 20);
    builder.internals(|internals| internals.directory = Some(directory)).open().unwrap()
}

fn conflicts(transaction: Transaction) -> bool {
    match transaction.commit() {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            true
        }
    }
}

type Step = fn(&Transaction, &Keyspace) -> Result<()>;

/// Reads of keys from `b` to `e`, where `c` and `d` exist.
const READS: &[(&str, Step, &[&str])] = &[
    ("get", |tx, k| tx.get(k, "c").map(drop), &["c"]),
    ("get of an absent key", |tx, k| tx.get(k, "b").map(drop), &["b"]),
    ("contains_key", |tx, k| tx.contains_key(k, "d").map(drop), &["d"]),
    ("multi_get", |tx, k| tx.multi_get(k, ["b", "d"]).map(drop), &["b", "d"]),
    ("range", |tx, k| tx.range(k, "c".."d").try_for_each(|e| e.map(drop)), &["c", "cc"]),
    ("empty range", |tx, k| tx.range(k, "ca".."cz").try_for_each(|e| e.map(drop)), &["cc"]),
    ("prefix", |tx, k| tx.prefix(k, "d").rev().try_for_each(|e| e.map(drop)), &["d", "dd"]),
    ("all", |tx, k| tx.iter(k).try_for_each(|e| e.map(drop)), &["b", "c", "cc", "d", "dd", "e"]),
    ("first", |tx, k| tx.iter(k).next().unwrap().map(drop), &["b", "c"]),
    ("last", |tx, k| tx.iter(k).next_back().unwrap().map(drop), &["d", "dd", "e"]),
    (
        "exclusive",
        |tx, k| {
            let bounds = (Bound::Excluded("c"), Bound::Excluded("d"));
            tx.range::<&str, _>(k, bounds).try_for_each(|e| e.map(drop))
        },
        &["cc"],
    ),
    (
        "both ends",
        |tx, k| {
            let mut iter = tx.iter(k);
            iter.next_back().unwrap()?;
            iter.next().unwrap()?;
            assert!(iter.next().is_none());
            Ok(())
        },
        &["b", "c", "cc", "d", "dd", "e"],
    ),
    (
        "nothing of an iterator",
        |tx, k| {
            drop(tx.iter(k));
            Ok(())
        },
        &[],
    ),
];

#[test]
fn a_commit_conflicts_with_later_writes_of_what_was_read_and_with_no_others() {
    for engine in EngineKind::ALL {
        for (name, read, reads) in READS {
            for key in ["b", "c", "cc", "d", "dd", "e"] {
                for write in ["insert", "remove", "batch", "transaction", "other keyspace"] {
                    let database = open();
                    let options = KeyspaceOptions::new().engine(engine);
                    let keyspace = database.keyspace("k", options.clone()).unwrap();
                    let other = database.keyspace("o", options).unwrap();
                    for key in ["c", "d"] {
                        keyspace.insert(key, "old").unwrap();
                        other.insert(key, "old").unwrap();
                    }
                    let mut transaction = database.transaction().unwrap();
                    read(&transaction, &keyspace).unwrap();
                    match write {
                        "insert" => keyspace.insert(key, "new").unwrap(),
                        "remove" => keyspace.remove(key).unwrap(),
                        "batch" => {
                            database
                                .batch()
                                .remove(&other, "x")
                                .insert(&keyspace, key, "")
                                .commit()
                                .unwrap();
                        }
                        "transaction" => {
                            database.transact(|tx| tx.insert(&keyspace, key, "new")).unwrap();
                        }
                        _ => other.insert(key, "new").unwrap(),
                    }
                    transaction.insert(&other, "result", "1").unwrap();
                    let expected = reads.contains(&key) && write != "other keyspace";
                    assert_eq!(conflicts(transaction), expected, "{name}, {write} of {key}");
                    assert_eq!(other.contains_key("result").unwrap(), !expected);
                    let stats = database.stats();
                    assert_eq!(stats.commits.conflicts, u64::from(expected));
                    assert_eq!(stats.background.pins, 0);
                }
            }
        }
        if cfg!(debug_assertions) {
            break;
        }
    }
}

#[test]
fn reads_alone_and_writes_alone_never_conflict() {
    let database = open();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("c", "old").unwrap();
    let reader = database.transaction().unwrap();
    let mut writer = database.transaction().unwrap();
    writer.insert(&keyspace, "c", "written").unwrap();
    // Its own write is not something that it has read.
    assert_eq!(writer.get(&keyspace, "c").unwrap().unwrap(), "written");
    keyspace.insert("c", "new").unwrap();
    assert_eq!(reader.get(&keyspace, "c").unwrap().unwrap(), "old");
    assert!(!conflicts(reader));
    assert!(!conflicts(writer));
    assert_eq!(keyspace.get("c").unwrap().unwrap(), "written");
}

#[test]
fn one_of_two_that_read_what_the_other_writes_conflicts() {
    // Write skew: each is right alone, both together are not.
    let database = open();
    let on_call = database.keyspace("on call", KeyspaceOptions::new()).unwrap();
    on_call.insert("ada", "").unwrap();
    on_call.insert("grace", "").unwrap();
    let leave = |name: &str| {
        let mut transaction = database.transaction().unwrap();
        if transaction.iter(&on_call).count() > 1 {
            transaction.remove(&on_call, name).unwrap();
        }
        transaction
    };
    let (ada, grace) = (leave("ada"), leave("grace"));
    assert!(!conflicts(ada));
    assert!(conflicts(grace));
    assert!(!conflicts(leave("grace")));
    assert_eq!(on_call.len().unwrap(), 1);
}

#[test]
fn a_transaction_sees_its_own_writes_over_its_snapshot_like_a_map() {
    let seed = fresh_seed();
    let _guard = hex_seed(seed);
    let mut rng = Rng::new(seed);
    for _ in 0..30 {
        let database = open();
        let keyspace = database.keyspace("k", tiny_options()).unwrap();
        let key = |rng: &mut Rng| {
            vec![b'a'; rng.below(4) as usize + 1]
                .into_iter()
                .map(|byte| byte + rng.below(3) as u8)
                .collect::<Vec<u8>>()
        };
        let mut model = BTreeMap::new();
        for number in 0..rng.below(60) {
            let key = key(&mut rng);
            keyspace.insert(&key, number.to_be_bytes()).unwrap();
            model.insert(key, number.to_be_bytes().to_vec());
        }
        let mut transaction = database.transaction().unwrap();
        let (mut states, mut own) = (Vec::new(), 0);
        for number in 0..60_u64 {
            let at = key(&mut rng);
            match rng.below(12) {
                0..4 => {
                    transaction.insert(&keyspace, &at, number.to_le_bytes()).unwrap();
                    model.insert(at, number.to_le_bytes().to_vec());
                    own += 1;
                }
                4..6 => {
                    transaction.remove(&keyspace, &at).unwrap();
                    model.remove(&at);
                }
                6 => states.push((transaction.savepoint(), model.clone())),
                7 if !states.is_empty() => {
                    let number = rng.below(states.len() as u64) as usize;
                    transaction.rollback_to(states[number].0).unwrap();
                    model = states[number].1.clone();
                    for (savepoint, _) in states.drain(number + 1..) {
                        let error = transaction.rollback_to(savepoint).unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                    }
                }
                8 => {
                    // Others write, which the transaction does not see.
                    keyspace.insert([&b"z"[..], &at].concat(), "other").unwrap();
                }
                _ => {
                    assert_eq!(
                        transaction.get(&keyspace, &at).unwrap().map(Vec::from),
                        model.get(&at).cloned()
                    );
                    compare_range(&mut rng, &transaction, &keyspace, &model, &at);
                }
            }
        }
        assert!(own > 0 && transaction.updates() <= 60);
        // Ranges without an end were read, and `z...` was written.
        let _ = conflicts(transaction);
    }
}

fn compare_range(
    rng: &mut Rng,
    transaction: &Transaction,
    keyspace: &Keyspace,
    model: &BTreeMap<Vec<u8>, Vec<u8>>,
    from: &[u8],
) {
    let mut expected: std::collections::VecDeque<_> =
        model.range(from.to_vec()..).map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut entries = transaction.range(keyspace, from..);
    // From both ends, in any mixture.
    loop {
        let (entry, expected) = match rng.below(2) {
            0 => (entries.next(), expected.pop_front()),
            _ => (entries.next_back(), expected.pop_back()),
        };
        let entry = entry.transpose().unwrap();
        assert_eq!(entry.map(|(key, value)| (Vec::from(key), Vec::from(value))), expected);
        if expected.is_none() {
            break;
        }
    }
    assert!(entries.next().is_none() && entries.next_back().is_none());
}

#[test]
fn a_savepoint_of_another_transaction_is_refused() {
    let database = open();
    let (mut one, mut other) = (database.transaction().unwrap(), database.transaction().unwrap());
    let savepoint = one.savepoint();
    other.savepoint();
    assert_eq!(other.rollback_to(savepoint).unwrap_err().kind(), ErrorKind::InvalidArgument);
    one.rollback_to(savepoint).unwrap();
}

#[test]
fn a_long_transaction_is_compared_by_reading_again() {
    let database = open();
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    let dropped = || {
        let marks: BTreeMap<_, _> = reached().collect();
        (marks[&Mark::RecentWritesDropped], marks[&Mark::TransactionReadAgain])
    };
    keyspace.insert("a", "1").unwrap();
    keyspace.insert("large", vec![7; 50_000]).unwrap();
    for changed in [None, Some("a"), Some("absent"), Some("large"), Some("m50"), Some("m4")] {
        for number in 0..100 {
            keyspace.insert(format!("m{number}"), "there").unwrap();
        }
        let mut transaction = database.transaction().unwrap();
        for key in ["a", "absent", "large"] {
            transaction.get(&keyspace, key).unwrap();
        }
        assert!(transaction.prefix(&keyspace, "m").count() > 99);
        let before = dropped();
        for number in 0..8_000_u32 {
            keyspace.insert([&[b'x'; 40][..], &number.to_be_bytes()].concat(), "new").unwrap();
        }
        match changed {
            Some("m4") => keyspace.remove("m4").unwrap(),
            Some(key) => keyspace.insert(key, "new").unwrap(),
            None => {
                // Written, and the same.
                keyspace.insert("a", "1").unwrap();
                keyspace.insert("large", vec![7; 50_000]).unwrap();
            }
        }
        transaction.insert(&keyspace, "result", "").unwrap();
        assert_eq!(conflicts(transaction), changed.is_some(), "{changed:?}");
        let after = dropped();
        assert!(after.0 > before.0 && after.1 > before.1, "the list of keys was long enough");
        for key in ["absent", "result"] {
            keyspace.remove(key).unwrap();
        }
        keyspace.insert("a", "1").unwrap();
        keyspace.insert("large", vec![7; 50_000]).unwrap();
    }
    assert!(database.stats().background.flushes > 10);
}

#[test]
fn transactions_count_their_memory_and_are_limited() {
    let database = open();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let used = || database.stats().memory.work_bytes;
    let before = used();
    let mut transaction = database.transaction().unwrap();
    for number in 0..5_000_u32 {
        transaction.insert(&keyspace, number.to_be_bytes(), [1; 100]).unwrap();
    }
    assert!(used() > before + 5_000 * 104, "{before} {}", used());
    let error = loop {
        if let Err(error) = transaction.insert(&keyspace, "x", vec![1; 30_000]) {
            break error;
        }
        let key = format!("large {}", transaction.updates());
        if let Err(error) = transaction.insert(&keyspace, key, vec![1; 30_000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("BATCH_BYTES_MAX"), "{error}");
    let updates = transaction.updates();
    transaction.commit().unwrap();
    assert_eq!(keyspace.len().unwrap(), updates as u64);
    let reader = database.transaction().unwrap();
    let error = (0..).find_map(|number: u32| reader.get(&keyspace, number.to_le_bytes()).err());
    assert_eq!(error.unwrap().kind(), ErrorKind::OutOfMemory);
    assert!(used() > before + (7 << 20));
    drop(reader);
    assert!(used() < before + (1 << 20), "{before} {}", used());
}

#[test]
fn a_transaction_over_a_dropped_keyspace_fails() {
    let database = open();
    let keyspace = |name| database.keyspace(name, KeyspaceOptions::new()).unwrap();
    for name in ["read", "written"] {
        let (read, written) = (keyspace("read"), keyspace("written"));
        read.insert("a", "1").unwrap();
        let mut transaction = database.transaction().unwrap();
        assert!(transaction.contains_key(&read, "a").unwrap());
        transaction.insert(&written, "b", "2").unwrap();
        database.drop_keyspace(name).unwrap();
        assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::NotFound, "{name}");
    }
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let (database, foreign) = (open(), open());
    let own = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let other = foreign.keyspace("k", KeyspaceOptions::new()).unwrap();
    let mut transaction = database.transaction().unwrap();
    transaction.insert(&own, "a", "1").unwrap();
    let errors = [
        transaction.get(&other, "a").unwrap_err(),
        transaction.contains_key(&other, "a").unwrap_err(),
        transaction.multi_get(&other, ["a"]).unwrap_err(),
        transaction.iter(&other).next().unwrap().unwrap_err(),
        transaction.insert(&other, "a", "2").unwrap_err(),
        transaction.remove(&other, "a").unwrap_err(),
        transaction.insert(&own, vec![0; 1 << 20], "").unwrap_err(),
        transaction.range(&own, "b".."a").next().unwrap().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    assert_eq!(transaction.updates(), 1);
    transaction.commit().unwrap();
    assert_eq!(own.get("a").unwrap().unwrap(), "1");
    let mut late = database.transaction().unwrap();
    late.insert(&own, "b", "").unwrap();
    database.close().unwrap();
    assert_eq!(late.get(&own, "a").unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(late.insert(&own, "b", "").unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(late.commit().unwrap_err().kind(), ErrorKind::Stopped);
}

#[test]
fn a_keyspace_of_another_database_is_no_part_of_what_was_read() {
    for is_flooded in [false, true] {
        for change in ["a", "other"] {
            let (database, foreign) = (open(), open());
            let own = database.keyspace("k", KeyspaceOptions::new()).unwrap();
            let other = foreign.keyspace("k", KeyspaceOptions::new()).unwrap();
            let flooded = database.keyspace("flooded", KeyspaceOptions::new()).unwrap();
            own.insert("a", "1").unwrap();
            let mut transaction = database.transaction().unwrap();
            assert!(transaction.iter(&other).next().unwrap().is_err());
            drop(transaction.range(&other, "a"..));
            assert_eq!(transaction.range(&own, "a"..="a").next().unwrap().unwrap().1, "1");
            transaction.get(&own, "b").unwrap();
            transaction.insert(&own, "a", "stale").unwrap();
            own.insert(change, "2").unwrap();
            for number in 0..if is_flooded { 1_200_u32 } else { 0 } {
                flooded.insert([&[7; 1_000][..], &number.to_be_bytes()].concat(), "").unwrap();
            }
            assert_eq!(conflicts(transaction), change == "a", "{is_flooded}");
        }
    }
}

#[test]
fn keyspaces_whose_writes_were_taken_back_are_no_part_of_the_commit() {
    let database = open();
    let keyspace = |name| database.keyspace(name, KeyspaceOptions::new()).unwrap();
    let (first, second) = (keyspace("first"), keyspace("second"));
    let mut transaction = database.transaction().unwrap();
    let savepoint = transaction.savepoint();
    transaction.insert(&first, "a", "1").unwrap();
    transaction.rollback_to(savepoint).unwrap();
    transaction.insert(&second, "b", "2").unwrap();
    database.drop_keyspace("first").unwrap();
    transaction.commit().unwrap();
    assert_eq!(second.get("b").unwrap().unwrap(), "2");
}

#[test]
fn a_savepoint_that_was_left_behind_stays_invalid() {
    let database = open();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let mut transaction = database.transaction().unwrap();
    let first = transaction.savepoint();
    transaction.insert(&keyspace, "a", "1").unwrap();
    let second = transaction.savepoint();
    transaction.rollback_to(first).unwrap();
    transaction.insert(&keyspace, "b", "1").unwrap();
    let third = transaction.savepoint();
    assert_ne!(second, third);
    let error = transaction.rollback_to(second).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    transaction.rollback_to(third).unwrap();
    assert_eq!(transaction.updates(), 1);
}

#[test]
fn the_memory_of_all_open_transactions_is_bounded() {
    let database = open();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let used = || database.stats().memory.work_bytes;
    let before = used();
    // Bounds of ranges, replaced updates that a savepoint keeps, and many transactions.
    let ranges = database.transaction().unwrap();
    let long = vec![7; 60_000];
    let refused = (0..500_u32).find_map(|number| {
        let from = [&long[..], &number.to_be_bytes()].concat();
        ranges.range(&keyspace, from..).next().map(Result::unwrap_err)
    });
    assert_eq!(refused.unwrap().kind(), ErrorKind::OutOfMemory);
    assert!(used() > before + (6 << 20) && used() < before + (10 << 20));
    let mut replaced = database.transaction().unwrap();
    replaced.savepoint();
    let mut replace = || replaced.insert(&keyspace, "key", vec![1; 30_000]);
    let refused = (0..3_000).find_map(|_| replace().err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert!(used() < before + (17 << 20));
    // Neither is in the way of others.
    assert!(keyspace.iter().next().is_none());
    assert_eq!(database.snapshot().len(&keyspace).unwrap(), 0);
    drop(ranges);
    replaced.insert(&keyspace, "key", "last").unwrap();
    replaced.commit().unwrap();
    assert!(used() <= before);
}

#[test]
fn a_read_only_database_has_transactions_that_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let database = Database::open(&path).unwrap();
    database.keyspace("k", KeyspaceOptions::new()).unwrap().insert("a", "1").unwrap();
    drop(database);
    let database = Database::builder(&path).read_only(true).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let mut transaction = database.transaction().unwrap();
    assert_eq!(transaction.get(&keyspace, "a").unwrap().unwrap(), "1");
    assert!(database.transact(|reads| reads.contains_key(&keyspace, "a")).unwrap());
    transaction.insert(&keyspace, "a", "2").unwrap();
    assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(keyspace.update("a", |_| Some("2")).unwrap_err().kind(), ErrorKind::ReadOnly);
    let error = keyspace.compare_and_swap("a", Some(b"1"), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert!(!keyspace.compare_and_swap("a", Some(b"2"), None).unwrap());
}

#[test]
fn transactions_survive_a_crash_whole_or_not_at_all() {
    for layout in [LogLayout::Shared, LogLayout::PerThread { logs: 3 }] {
        let directory = CrashDirectory::new();
        let open = |directory: Arc<dyn Directory>| {
            let builder = Database::builder("memory").memory(48 << 20).log_layout(layout);
            builder.internals(|internals| internals.directory = Some(directory)).open().unwrap()
        };
        let database = open(Arc::new(directory.clone()));
        let left = database.keyspace("left", tiny_options()).unwrap();
        let right = database.keyspace("right", tiny_options()).unwrap();
        let count = 3 * TINY_DISTANCE / 100;
        let mut synced = Vec::new();
        for number in 0..count {
            let sync = if number % 10 == 0 { Durability::Sync } else { Durability::Process };
            database
                .transact_with(sync, |transaction| {
                    assert_eq!(transaction.iter(&left).count() as u64, number);
                    transaction.insert(&left, number.to_be_bytes(), [1; 100])?;
                    transaction.insert(&right, number.to_be_bytes(), [2; 100])
                })
                .unwrap();
            if sync == Durability::Sync {
                synced.push((directory.boundary(), number + 1));
            }
        }
        for (boundary, at_least) in synced {
            let image = directory.journal().image(boundary, Survivors::None);
            let database = open(Arc::new(MemoryDirectory::from_files(image)));
            let length =
                |name| database.keyspace(name, KeyspaceOptions::new()).unwrap().len().unwrap();
            assert_eq!(length("left"), length("right"));
            assert!(length("left") >= at_least);
        }
    }
}
