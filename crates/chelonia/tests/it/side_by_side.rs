//! Keyspaces of all engines in one database: a batch is in all of them or in none, a snapshot shows
//! one point in time of all, and after a crash they are at the same commit.

use crate::support::tiny_options;
use chelonia::internals::{CrashDirectory, Directory, Journal, MemoryDirectory, Rng, Survivors};
use chelonia::{
    AutumnOptions, Database, Durability, EngineKind, EngineOptions, Keyspace, KeyspaceOptions,
    LevelOptions, Snapshot,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Batch `number` gives key `number % KEYS` a new value, or removes it, in every keyspace.
const KEYS: u64 = 60;

/// One batch in this many removes its key.
const REMOVES_ONE_IN: u64 = 7;

const BATCHES: u64 = 900;

type State = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(directory: Arc<dyn Directory>) -> Database {
    Database::builder("crash")
        .memory(48 << 20)
        .internals(|internals| {
            internals.directory = Some(directory);
            internals.stepped = true;
            internals.log_segment_bytes = Some(64 << 10);
        })
        .open()
        .unwrap()
}

/// One keyspace per engine.
fn keyspaces(database: &Database) -> Vec<Keyspace> {
    let few = LevelOptions::new().size_ratio(2).scaling_percent(100);
    let options = |engine: EngineKind| {
        tiny_options().engine(match engine {
            EngineKind::Autumn => AutumnOptions::new().table_bytes(4 << 10).levels(few).into(),
            _ => EngineOptions::tiny(engine, 4 << 10),
        })
    };
    EngineKind::ALL
        .iter()
        .map(|engine| database.keyspace(engine.name(), options(*engine)).unwrap())
        .collect()
}

/// Most are small, some are large enough for an extent of their own.
fn value(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let length = if rng.one_in(40) { 33_000 } else { 8 + rng.below(600) };
    let mut value = vec![0; usize::try_from(length).unwrap()];
    rng.fill(&mut value);
    value[..8].copy_from_slice(&number.to_be_bytes());
    value
}

fn removes(number: u64) -> bool {
    number % REMOVES_ONE_IN == REMOVES_ONE_IN - 1
}

/// The contents of every keyspace after this many batches.
fn state_after(batches: u64) -> State {
    let mut state = State::new();
    for number in batches.saturating_sub(KEYS)..batches {
        if !removes(number) {
            state.insert((number % KEYS).to_be_bytes().to_vec(), value(number));
        }
    }
    state
}

fn commit(database: &Database, keyspaces: &[Keyspace], number: u64, level: Durability) {
    let (mut batch, key) = (database.batch(), (number % KEYS).to_be_bytes());
    for keyspace in keyspaces {
        if removes(number) {
            batch.remove(keyspace, key);
        } else {
            batch.insert(keyspace, key, value(number));
        }
    }
    batch.commit_with(level).unwrap();
}

/// Checks by scans and gets that every keyspace has the content after `batches` batches.
fn check(snapshot: &Snapshot, keyspaces: &[Keyspace], batches: u64, what: &str) {
    let state = state_after(batches);
    for keyspace in keyspaces {
        let name = keyspace.name();
        let scanned: State = snapshot
            .iter(keyspace)
            .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert!(scanned == state, "{what}: {name} is not as {batches} batches left it");
        for key in (0..KEYS).map(|key| key.to_be_bytes().to_vec()) {
            let got = snapshot.get(keyspace, &key).unwrap().map(|value| value.to_vec());
            assert!(got.as_ref() == state.get(&key), "{what}: a get of {name} differs");
        }
    }
}

/// The number of batches that the keyspaces contain; panics if it differs among them.
fn batches_shown(keyspaces: &[Keyspace], least: u64, most: u64) -> u64 {
    let shown = |keyspace: &Keyspace| -> State {
        keyspace
            .iter()
            .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect()
    };
    let first = shown(&keyspaces[0]);
    for other in &keyspaces[1..] {
        assert!(shown(other) == first, "{} differs from the first", other.name());
    }
    (least..=most)
        .rev()
        .find(|batches| state_after(*batches) == first)
        .unwrap_or_else(|| panic!("it is no state after {least} to {most} batches"))
}

/// A recorded history.
struct Life {
    journal: Journal,
    /// For each batch the boundaries when it began and when it returned, and its level.
    batches: Vec<(usize, usize, Durability)>,
}

/// Commits all batches, with snapshots held across flushes, merges and checkpoints.
fn live() -> Life {
    let directory = CrashDirectory::new();
    let database = open(Arc::new(directory.clone()));
    let keyspaces = keyspaces(&database);
    let (mut rng, mut batches) = (Rng::new(6), Vec::new());
    let mut held: Vec<(u64, Snapshot)> = Vec::new();
    for number in 0..BATCHES {
        let level = if rng.one_in(9) { Durability::Sync } else { Durability::Process };
        let began = directory.boundary();
        commit(&database, &keyspaces, number, level);
        batches.push((began, directory.boundary(), level));
        if rng.one_in(60) {
            held.push((number + 1, database.snapshot()));
        }
        if rng.one_in(70) {
            database.checkpoint().unwrap();
        }
        if held.len() > 3 {
            let (since, snapshot) = held.remove(0);
            check(&snapshot, &keyspaces, since, "a snapshot that was held");
        }
    }
    for (since, snapshot) in held {
        check(&snapshot, &keyspaces, since, "a snapshot at the end");
    }
    for keyspace in &database.stats().keyspaces {
        let (name, height) = (&keyspace.name, keyspace.engine_stats.height);
        assert!(height >= 2, "the tree of {name} has height {height}: nothing moved in it");
    }
    check(&database.snapshot(), &keyspaces, BATCHES, "the end");
    Life { journal: directory.journal(), batches }
}

#[test]
fn a_crash_leaves_keyspaces_of_all_engines_at_the_same_batch() {
    let life = live();
    let mut rng = Rng::new(66);
    let boundaries = life.journal.boundaries();
    for cut in 0..250 {
        let boundary = usize::try_from(rng.below(boundaries as u64 + 1)).unwrap();
        let process_death = rng.one_in(3);
        let files = if process_death {
            life.journal.image_process_death(boundary)
        } else {
            life.journal.image(boundary, Survivors::Subset(rng.next_u64()))
        };
        let survives = |level: Durability| process_death || level == Durability::Sync;
        let returned = |(_, returned, level): &(usize, usize, Durability)| {
            *returned <= boundary && survives(*level)
        };
        let least = life.batches.iter().rposition(returned).map_or(0, |at| at as u64 + 1);
        let most = life.batches.iter().filter(|(began, ..)| *began < boundary).count() as u64;

        let database = open(Arc::new(MemoryDirectory::from_files(files)));
        if database.keyspaces().len() < EngineKind::ALL.len() {
            assert_eq!(least, 0, "cut {cut}: a keyspace with acknowledged writes is gone");
            continue;
        }
        let keyspaces: Vec<Keyspace> = EngineKind::ALL
            .iter()
            .map(|engine| database.keyspace(engine.name(), KeyspaceOptions::new()).unwrap())
            .collect();
        let shown = batches_shown(&keyspaces, least, most);
        let report = database.verify().unwrap();
        assert!(report.is_clean(), "cut {cut} at {boundary}: {:?}", report.findings);

        // Writes continue, and a snapshot of the recovered state does not change.
        let snapshot = database.snapshot();
        for number in shown..shown + 80 {
            commit(&database, &keyspaces, number, Durability::Process);
        }
        check(&snapshot, &keyspaces, shown, "what the crash left");
        check(&database.snapshot(), &keyspaces, shown + 80, "what came after the crash");
    }
}
