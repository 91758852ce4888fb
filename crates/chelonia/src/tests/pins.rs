//! Many pins: their memory, the consistency of each, and that nothing remains after them.

mod unpinned;

use super::{open, rotate};
use crate::base::error::ErrorKind;
use crate::engine::EngineKind;
use crate::runtime::sync::Arc;
use crate::storage::io::memory::MemoryDirectory;
use crate::{Database, Iter, Keyspace, KeyspaceOptions, Snapshot};

const KEYSPACES: usize = 100;
const PINS: u64 = 600;

fn keyspaces(database: &Database, engine: EngineKind) -> Vec<Keyspace> {
    let options = KeyspaceOptions::new().engine(engine);
    let open = |number| database.keyspace(&format!("{number}"), options.clone()).unwrap();
    (0..KEYSPACES).map(open).collect()
}

fn charged(database: &Database) -> u64 {
    database.stats().memory.metadata_bytes
}

/// Rotates and flushes all memtables.
fn drain(database: &Database, keyspaces: &[Keyspace]) {
    keyspaces.iter().for_each(|keyspace| rotate(database, keyspace));
    database.checkpoint().unwrap();
}

/// Checks that key `k` of keyspace `written` has in each snapshot the number of writes before it.
fn check(written: &Keyspace, snapshots: &[Snapshot]) {
    for (number, snapshot) in snapshots.iter().enumerate() {
        let value = snapshot.get(written, "k").unwrap().unwrap();
        assert_eq!(*value, (number as u64).to_le_bytes());
        let first = snapshot.iter(written).next().unwrap().unwrap();
        assert_eq!(*first.1, *value);
    }
}

#[test]
fn snapshots_share_unchanged_versions_and_are_charged() {
    for engine in EngineKind::ALL {
        let database = open(Arc::new(MemoryDirectory::new()));
        let keyspaces = keyspaces(&database, engine);
        for keyspace in &keyspaces {
            keyspace.insert("other", "value").unwrap();
        }
        let [written, second, ..] = &keyspaces[..] else { unreachable!() };
        let before = charged(&database);
        let mut snapshots = Vec::new();
        for number in 0..PINS {
            written.insert("k", number.to_le_bytes()).unwrap();
            snapshots.push(database.snapshot());
        }
        let held = charged(&database) - before;
        assert!((PINS * 200..PINS * 1_000).contains(&held), "{engine:?}: {held} bytes held");
        check(written, &snapshots);
        // All keyspaces are flushed, and one of them at each snapshot.
        drain(&database, &keyspaces);
        check(written, &snapshots);
        let drained = charged(&database) - before;
        assert!(drained < PINS * 8_000, "{engine:?}: {drained} bytes after flushes");
        // Two consecutive flushes, and pins that see the first but not the second.
        second.insert("k", "first").unwrap();
        rotate(&database, second);
        let between = database.snapshot();
        second.insert("k", "second").unwrap();
        drain(&database, &keyspaces);
        assert_eq!(between.get(second, "k").unwrap().unwrap(), *b"first");
        assert_eq!(second.get("k").unwrap().unwrap(), *b"second");
        assert!(snapshots[0].get(second, "k").unwrap().is_none());
        check(written, &snapshots);
        assert_eq!(snapshots[7].get(&keyspaces[9], "other").unwrap().unwrap(), *b"value");
        // In an order that is neither chronological nor the reverse.
        while snapshots.len() > 1 {
            snapshots.swap_remove(snapshots.len() / 2);
        }
        drop((snapshots, between));
        database.checkpoint().unwrap();
        assert_eq!(written.core.lifetimes.lost_bytes(), 0);
        // The view, the engine's newest and the durable root are one version, or two.
        assert!(written.core.lifetimes.held() <= 2);
        let left = charged(&database).saturating_sub(before);
        assert!(left < 200_000, "{engine:?}: {left} bytes stay");
    }
}

#[test]
fn unwritten_keyspaces_get_no_version_for_a_snapshot() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let keyspaces = keyspaces(&database, EngineKind::Turtle);
    let mut snapshots = Vec::new();
    for number in 0..50_u64 {
        keyspaces[0].insert("k", number.to_le_bytes()).unwrap();
        snapshots.push(database.snapshot());
    }
    // Both have entries from before the first snapshot and after the last in one memtable.
    for keyspace in &keyspaces[1..] {
        keyspace.insert("late", "value").unwrap();
    }
    drain(&database, &keyspaces);
    assert!(keyspaces[0].core.lifetimes.held() >= 50);
    assert!(keyspaces[1..].iter().all(|keyspace| keyspace.core.lifetimes.held() <= 3));
    assert!(snapshots.iter().all(|one| one.get(&keyspaces[1], "late").unwrap().is_none()));
}

#[test]
fn many_iterators_are_charged_and_show_their_point_in_time() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let before = charged(&database);
    let mut iterators: Vec<Iter> = Vec::new();
    for number in 0..PINS {
        keyspace.insert("k", number.to_le_bytes()).unwrap();
        iterators.push(keyspace.iter());
    }
    let held = charged(&database) - before;
    assert!(held >= PINS * 380, "{held} bytes");
    drain(&database, std::slice::from_ref(&keyspace));
    for (number, mut iterator) in iterators.into_iter().enumerate() {
        let (_, value) = iterator.next().unwrap().unwrap();
        assert_eq!(*value, (number as u64).to_le_bytes());
    }
}

#[test]
fn pins_beyond_half_of_the_budget_are_refused_until_some_are_dropped() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let keyspaces = keyspaces(&database, EngineKind::Turtle);
    let keyspace = &keyspaces[0];
    let budget = database.stats().memory.budget_bytes;
    let mut snapshots = Vec::new();
    let refused = (0..u64::MAX).find_map(|round| {
        keyspaces.iter().for_each(|one| one.insert("k", round.to_le_bytes()).unwrap());
        let snapshot = database.snapshot();
        if round % 50 == 0 {
            drain(&database, &keyspaces);
        }
        let error = snapshot.get(keyspace, "k").err();
        snapshots.push(snapshot);
        error.map(|error| (round, error))
    });
    let (count, error) = refused.unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(charged(&database) > budget / 2);
    // Refused pins hold nothing, and held ones read correctly.
    let refused = snapshots.pop().unwrap();
    assert_eq!(refused.iter(keyspace).next().unwrap().unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(refused.len(keyspace).unwrap_err().kind(), ErrorKind::OutOfMemory);
    let pins = database.handle.core().snapshots.count();
    drop(refused);
    assert_eq!((database.handle.core().snapshots.count(), pins as u64), (pins, count));
    assert_eq!(keyspace.iter().next().unwrap().unwrap_err().kind(), ErrorKind::OutOfMemory);
    check(keyspace, &snapshots);
    // Short-lived pins still succeed.
    assert_eq!(keyspace.get("k").unwrap().unwrap(), count.to_le_bytes());
    assert!(keyspace.multi_get(["k"]).unwrap()[0].is_some());
    assert!(database.verify().unwrap().is_clean());
    snapshots.truncate(snapshots.len() / 2);
    assert_eq!(database.snapshot().get(keyspace, "k").unwrap().unwrap(), count.to_le_bytes());
    assert_eq!(keyspace.iter().next().unwrap().unwrap().1, count.to_le_bytes());
}

/// A view that several pins need is retained once, and dropped with the last of them, in any order
/// of drops.
#[test]
fn a_view_shared_by_pins_is_retained_once_until_the_last_is_dropped() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let keyspaces = keyspaces(&database, EngineKind::Turtle);
    let mut held: Vec<(u64, Snapshot)> = Vec::new();
    for round in 0..8_u64 {
        keyspaces.iter().for_each(|one| one.insert("k", round.to_le_bytes()).unwrap());
        held.extend((0..50).map(|_| (round, database.snapshot())));
        if round % 2 == 1 {
            drain(&database, &keyspaces);
        }
    }
    let versions = || keyspaces.iter().map(|one| one.core.lifetimes.held()).collect::<Vec<_>>();
    // One per round; the newest is that of the view and the durable root.
    assert!(versions().iter().all(|held| *held == 8), "{:?}", versions());
    // An iterator over one keyspace keeps nothing of the others.
    let iterator = keyspaces[0].iter();
    keyspaces.iter().for_each(|one| one.insert("k", 8_u64.to_le_bytes()).unwrap());
    drop(held.split_off(350));
    drain(&database, &keyspaces);
    assert!(
        versions()[0] == 9 && versions()[1..].iter().all(|held| *held == 8),
        "{:?}",
        versions()
    );
    assert_eq!(iterator.last().unwrap().unwrap().1, 7_u64.to_le_bytes());
    while !held.is_empty() {
        let (round, snapshot) = held.swap_remove(held.len() * 2 / 3);
        for keyspace in keyspaces.iter().step_by(9) {
            assert_eq!(snapshot.get(keyspace, "k").unwrap().unwrap(), round.to_le_bytes());
        }
        drop(snapshot);
        let rounds: std::collections::BTreeSet<u64> =
            held.iter().map(|(round, _)| *round).collect();
        let expected = rounds.len() + 1;
        assert!(versions().iter().all(|held| *held == expected), "{rounds:?}: {:?}", versions());
    }
    assert_eq!(database.handle.core().snapshots.count(), 0);
}
