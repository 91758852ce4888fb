//! No thread holds an epoch guard while it waits for the device: memory freed meanwhile would be
//! retained, and threads that need it would wait.

use crate::engine::{EngineKind, EngineOptions};
use crate::options::keyspace::KeyspaceOptions;
use crate::runtime::sync::{Arc, AtomicU64, Ordering};
use crate::storage::io::fault::{Call, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::tests::{open_faulty, rotate};
use crate::{Database, Keyspace};

const KEYS: u64 = 6_000;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Small leaves and nodes, so that there are many.
fn options(engine: EngineKind) -> KeyspaceOptions {
    let engine = match engine {
        EngineKind::Autumn => engine.into(),
        _ => EngineOptions::tiny(engine, 8 << 10),
    };
    KeyspaceOptions::new().engine(engine).checkpoint_distance(100_000)
}

/// Writes every key several times, and some values of several blocks.
fn write(database: &Database, keyspace: &Keyspace, rounds: u64) {
    for round in 0..rounds {
        for number in (0..KEYS).filter(|number| number % rounds <= round) {
            let length = if number % 50 == 0 { 9_000 } else { 100 };
            keyspace.insert(key(number), vec![number.to_le_bytes()[0]; length]).unwrap();
        }
        rotate(database, keyspace);
        database.checkpoint().unwrap();
    }
}

/// Counts reads of the data file by threads without a guard, and by those with one.
fn count_reads(database: &Database, plan: &FaultPlan) -> [Arc<AtomicU64>; 2] {
    let reads = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let (seen, epochs) = (reads.clone(), Arc::clone(database.handle.core().storage.epochs()));
    plan.before_call(move |call, file| {
        if call == Call::Read && file.starts_with("data") {
            seen[usize::from(epochs.is_pinned())].fetch_add(1, Ordering::Relaxed);
        }
    });
    reads
}

/// Reopens the database with nothing in memory, runs `work`, and fails if it read from the device
/// under a guard, or not at all.
fn check(memory: &MemoryDirectory, engine: EngineKind, what: &str, work: fn(&Database, &Keyspace)) {
    let (database, plan) = open_faulty(memory);
    let keyspace = database.keyspace("k", options(engine)).unwrap();
    let reads = count_reads(&database, &plan);
    work(&database, &keyspace);
    let [without, with] = reads.map(|count| count.load(Ordering::Relaxed));
    assert!(without > 3 && with == 0, "{engine:?}, {what}: {without} without, {with} with a guard");
    database.close().unwrap();
}

fn get(database: &Database, keyspace: &Keyspace) {
    let snapshot = database.snapshot();
    for number in 0..KEYS {
        // Half of the keys do not exist.
        let (number, is_there) = if number % 2 == 0 { (number, true) } else { (!number, false) };
        let value = match number % 3 {
            0 => snapshot.get(keyspace, key(number)).unwrap(),
            _ => keyspace.get(key(number)).unwrap(),
        };
        assert_eq!(value.is_some(), is_there);
        assert!(value.is_none_or(|value| value[0] == number.to_le_bytes()[0]));
    }
}

fn multi_get(_: &Database, keyspace: &Keyspace) {
    for first in (0..KEYS).step_by(500) {
        let numbers = (first..first + 500).map(|n| if n % 5 == 0 { !n } else { n });
        let values = keyspace.multi_get(numbers.map(key)).unwrap();
        for (number, value) in (first..).zip(values) {
            assert_eq!(value.is_some(), number % 5 != 0);
            assert!(value.is_none_or(|value| value[0] == number.to_le_bytes()[0]));
        }
    }
}

fn scan(_: &Database, keyspace: &Keyspace) {
    for number in (0..KEYS).step_by(97) {
        assert!(keyspace.range(&key(number)[..]..).next().is_some());
        assert!(keyspace.range(..=&key(number)[..]).next_back().is_some());
    }
    assert_eq!(keyspace.iter().map(Result::unwrap).count() as u64, KEYS);
    assert_eq!(keyspace.iter().rev().map(Result::unwrap).count() as u64, KEYS);
}

fn background(database: &Database, keyspace: &Keyspace) {
    write(database, keyspace, 2);
    get(database, keyspace);
    (0..KEYS).for_each(|number| keyspace.remove(key(number)).unwrap());
    database.checkpoint().unwrap();
    assert!(database.verify().unwrap().is_clean());
}

#[test]
fn nothing_is_pinned_while_the_device_is_read() {
    for engine in EngineKind::ALL {
        let memory = MemoryDirectory::new();
        {
            let (database, _) = open_faulty(&memory);
            let keyspace = database.keyspace("k", options(engine)).unwrap();
            write(&database, &keyspace, 4);
            database.close().unwrap();
        }
        check(&memory, engine, "get", get);
        check(&memory, engine, "multi_get", multi_get);
        check(&memory, engine, "scan", scan);
        check(&memory, engine, "background", background);
    }
}

#[test]
fn nothing_is_pinned_while_a_large_value_is_read() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", vec![7; 100_000]).unwrap();
    let reads = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let (seen, epochs) = (reads.clone(), Arc::clone(database.handle.core().storage.epochs()));
    plan.on_call(move |call, _| {
        if call == Call::Read {
            let is_pinned = epochs.is_pinned();
            seen[usize::from(is_pinned)].fetch_add(1, Ordering::Relaxed);
        }
    });
    let in_memtable = database.snapshot();
    assert_eq!(keyspace.get("key").unwrap().unwrap().len(), 100_000);
    assert_eq!(keyspace.multi_get(["key"]).unwrap()[0].as_ref().unwrap().len(), 100_000);
    assert_eq!(in_memtable.get(&keyspace, "key").unwrap().unwrap().len(), 100_000);
    let reads = reads.map(|count| count.load(Ordering::Relaxed));
    assert!(reads[0] >= 3 && reads[1] == 0, "{reads:?}");
}
