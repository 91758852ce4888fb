//! Rows of tombstones: a consumer at the head of a queue skips each tombstone once, and no scan
//! that skips an empty range misses a live entry.

use crate::support::{fresh_seed, hex_seed};
use chelonia::internals::{MemoryDirectory, Rng};
use chelonia::{Database, Keyspace, KeyspaceOptions, Snapshot, TurtleOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn open(stepped: bool) -> Database {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = Database::builder("memory").memory(64 << 20);
    let builder = builder.internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = stepped;
    });
    builder.open().unwrap()
}

fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key[key.len() - 8..].try_into().unwrap())
}

#[test]
fn a_queue_skips_each_tombstone_once() {
    const COUNT: u64 = 20_000;
    // Nothing is flushed: all tombstones stay in the memtable.
    let database = open(true);
    let queue = database.keyspace("queue", KeyspaceOptions::new()).unwrap();
    for number in 0..COUNT {
        queue.insert(number.to_be_bytes(), [1; 20]).unwrap();
    }
    for taken in 0..COUNT - 10 {
        let (key, _) = queue.first_key_value().unwrap().unwrap();
        assert_eq!(number(&key), taken);
        queue.remove(&key).unwrap();
        queue.insert((COUNT + taken).to_be_bytes(), [1; 20]).unwrap();
    }
    // Each tombstone is scanned until the empty range is learned.
    let passed = database.stats().scans.tombstones_passed;
    assert!(passed < 100 * COUNT, "{passed} tombstones for {COUNT} entries");
    let before = passed;
    // The same from the other end: a stack.
    for _ in 0..COUNT - 10 {
        let (key, _) = queue.last_key_value().unwrap().unwrap();
        queue.remove(&key).unwrap();
    }
    let passed = database.stats().scans.tombstones_passed - before;
    assert!(passed < 100 * COUNT, "{passed} tombstones for {COUNT} entries");
    assert_eq!(queue.iter().count(), 10);
    assert_eq!(queue.iter().rev().count(), 10);
}

/// The content of a keyspace now, and when a snapshot was taken.
type Model = BTreeMap<Vec<u8>, u8>;

fn key_of(rng: &mut Rng) -> Vec<u8> {
    let mut key = (rng.below(3_000) as u16).to_be_bytes().to_vec();
    // Some keys are prefixes of others.
    key.resize(2 + rng.below(3) as usize, 0);
    key
}

fn check(rng: &mut Rng, keyspace: &Keyspace, snapshot: Option<&Snapshot>, model: &Model) {
    let (mut lower, mut upper) = (key_of(rng), key_of(rng));
    if lower > upper {
        std::mem::swap(&mut lower, &mut upper);
    }
    let iter = match (snapshot, rng.below(4)) {
        (None, 0) => keyspace.iter(),
        (None, _) => keyspace.range(lower.clone()..upper.clone()),
        (Some(snapshot), 0) => snapshot.iter(keyspace),
        (Some(snapshot), _) => snapshot.range(keyspace, lower.clone()..upper.clone()),
    };
    let (mut iter, mut front, mut back) = (iter, Vec::new(), Vec::new());
    // From both ends at once, in any order.
    let turn = rng.below(3);
    loop {
        let from_front = turn == 0 || (turn == 1 && rng.below(2) == 0);
        let entry = if from_front { iter.next() } else { iter.next_back() };
        let Some(entry) = entry else { break };
        let (key, value) = entry.unwrap();
        let end = if from_front { &mut front } else { &mut back };
        end.push((key.to_vec(), value[0]));
    }
    front.extend(back.into_iter().rev());
    let all: Vec<_> = model.iter().map(|(key, value)| (key.clone(), *value)).collect();
    let within = model.range(lower..upper).map(|(key, value)| (key.clone(), *value));
    let within: Vec<_> = within.collect();
    assert!(front == all || front == within, "{front:?} is neither {within:?} nor all");
}

#[test]
fn scans_over_rows_of_tombstones_are_those_of_a_map() {
    for seed in [1, 2, 3, fresh_seed()] {
        let _seed = hex_seed(seed);
        let mut rng = Rng::new(seed);
        let database = open(true);
        let engine = TurtleOptions::new().leaf_bytes(4 << 10);
        let options = KeyspaceOptions::new().engine(engine).checkpoint_distance(20_000);
        let keyspace = database.keyspace("k", options).unwrap();
        let (mut model, mut held) = (Model::new(), Vec::<(Snapshot, Model)>::new());
        for round in 0..1_500_u32 {
            match rng.below(10) {
                0..3 => {
                    // A row of deletions, in an atomic batch or one by one.
                    let mut doomed = [key_of(&mut rng), key_of(&mut rng)];
                    doomed.sort();
                    let doomed = model.range(doomed[0].clone()..doomed[1].clone());
                    let doomed: Vec<_> = doomed.map(|(key, _)| key.clone()).take(500).collect();
                    let mut batch = database.batch();
                    for key in doomed {
                        model.remove(&key);
                        if round % 2 == 0 {
                            batch.remove(&keyspace, key);
                        } else {
                            keyspace.remove(key).unwrap();
                        }
                    }
                    batch.commit().unwrap();
                }
                3..6 => {
                    let (first, count) = (rng.below(2_800) as u16, rng.below(200) as u16);
                    for number in first..first + count {
                        keyspace.insert(number.to_be_bytes(), [round as u8]).unwrap();
                        model.insert(number.to_be_bytes().to_vec(), round as u8);
                    }
                }
                6 => {
                    let key = key_of(&mut rng);
                    keyspace.insert(&key, [round as u8]).unwrap();
                    model.insert(key, round as u8);
                }
                7 if held.len() < 4 => held.push((database.snapshot(), model.clone())),
                7 => drop(held.remove(rng.below(4) as usize)),
                _ => {}
            }
            check(&mut rng, &keyspace, None, &model);
            if let Some((snapshot, model)) = held.first() {
                check(&mut rng, &keyspace, Some(snapshot), model);
            }
        }
    }
}

#[test]
fn queues_on_many_threads_lose_nothing() {
    const QUEUES: u64 = 3;
    const TAKEN: u64 = 15_000;
    let database = open(false);
    let engine = TurtleOptions::new().leaf_bytes(4 << 10);
    let options = KeyspaceOptions::new().engine(engine).checkpoint_distance(100_000);
    let keyspace = database.keyspace("queues", options).unwrap();
    let done = AtomicBool::new(false);
    let key_of = |queue: u64, number: u64| [queue.to_be_bytes(), number.to_be_bytes()].concat();
    std::thread::scope(|scope| {
        let work = |queue: u64| {
            let mut rng = Rng::new(queue);
            let (mut head, mut tail) = (0, 0);
            while head < TAKEN {
                // Sometimes the queue becomes empty, so that an insert falls into an empty range.
                for _ in 0..rng.below(200) {
                    keyspace.insert(key_of(queue, tail), [2; 10]).unwrap();
                    tail += 1;
                }
                for _ in 0..rng.below(220) {
                    let first = keyspace.prefix(queue.to_be_bytes()).next().transpose().unwrap();
                    assert_eq!(
                        first.as_ref().map(|(key, _)| number(key)),
                        (head < tail).then_some(head)
                    );
                    if first.is_some() {
                        keyspace.remove(key_of(queue, head)).unwrap();
                        head += 1;
                    }
                }
            }
        };
        let queues: Vec<_> = (0..QUEUES).map(|queue| scope.spawn(move || work(queue))).collect();
        let (database, keyspace, done) = (&database, &keyspace, &done);
        scope.spawn(move || {
            // The content of a queue is always contiguous, from either end.
            while !done.load(Ordering::Relaxed) {
                let snapshot = database.snapshot();
                for queue in 0..QUEUES {
                    let entries = snapshot.prefix(keyspace, queue.to_be_bytes());
                    let numbers: Vec<_> = entries.map(|entry| number(&entry.unwrap().0)).collect();
                    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                    let entries = snapshot.prefix(keyspace, queue.to_be_bytes()).rev();
                    assert_eq!(entries.count(), numbers.len());
                }
            }
        });
        let ended: Vec<_> = queues.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(Result::unwrap);
    });
    assert!(database.stats().background.flushes > 10);
}

#[test]
fn an_empty_range_learned_during_a_write_hides_nothing() {
    const TOMBSTONES: u64 = 200;
    let database = open(true);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..TOMBSTONES {
        keyspace.insert(number.to_be_bytes(), [1]).unwrap();
        keyspace.remove(number.to_be_bytes()).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = [70, 120]
            .map(|mine: u64| {
                let keyspace = &keyspace;
                scope.spawn(move || {
                    let others = TOMBSTONES..;
                    for _ in 0..20_000 {
                        keyspace.insert(mine.to_be_bytes(), [2]).unwrap();
                        let seen = keyspace.iter().any(|entry| number(&entry.unwrap().0) == mine);
                        assert!(seen, "{mine} is hidden");
                        keyspace.remove(mine.to_be_bytes()).unwrap();
                        let seen = keyspace.iter().rev().map(|entry| number(&entry.unwrap().0));
                        assert!(
                            seen.into_iter().all(|seen| seen != mine && !others.contains(&seen))
                        );
                    }
                })
            })
            .into();
        let (keyspace, done) = (&keyspace, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                assert!(keyspace.iter().count() <= 2);
            }
        });
        let ended: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(Result::unwrap);
    });
    assert_eq!(keyspace.iter().count(), 0);
}

#[test]
fn a_batch_over_several_keyspaces_splits_the_empty_ranges_of_each() {
    const TOMBSTONES: u64 = 1_000;
    let database = open(true);
    let names = ["a", "b", "c"];
    let keyspaces = names.map(|name| database.keyspace(name, KeyspaceOptions::new()).unwrap());
    for keyspace in &keyspaces {
        for number in 0..TOMBSTONES {
            keyspace.insert(number.to_be_bytes(), [1]).unwrap();
            keyspace.remove(number.to_be_bytes()).unwrap();
        }
        assert_eq!(keyspace.iter().count(), 0);
        let passed = || database.stats().scans.tombstones_passed;
        let before = passed();
        assert_eq!(keyspace.iter().count() + keyspace.iter().rev().count(), 0);
        assert_eq!(passed(), before, "the gap was not learned");
    }
    for count in [2, 3, 1] {
        for number in [1, TOMBSTONES / 2, TOMBSTONES - 2] {
            let mut batch = database.batch();
            for keyspace in &keyspaces[..count] {
                batch.insert(keyspace, number.to_be_bytes(), [2]);
            }
            batch.commit().unwrap();
            for keyspace in &keyspaces[..count] {
                let found: Vec<_> = keyspace.iter().map(|entry| entry.unwrap().0).collect();
                assert_eq!(found, [number.to_be_bytes()], "over {count} keyspaces");
                assert_eq!(keyspace.iter().rev().count(), 1);
                keyspace.remove(number.to_be_bytes()).unwrap();
                assert_eq!(keyspace.iter().count(), 0);
            }
        }
    }
}
