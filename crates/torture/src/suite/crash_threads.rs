//! Power cuts and process deaths while threads write, flush, sync and make checkpoints, on trees of
//! several levels. Each thread overwrites a few keys of its own keyspace, some with large values.
//! After a cut every keyspace is in a state that one of its writes left, no write is missing that
//! was acknowledged at a level that survives, and `verify` finds nothing.
//!
//! The interleaving of the threads does not follow from the unit: a failure may need several
//! attempts to repeat.

use crate::suite::support::{ENGINES, below, engine_of, layout_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{CrashDirectory, Directory, MemoryDirectory, Rng, Survivors};
use chelonia::{
    AutumnOptions, Database, Durability, EngineKind, EngineOptions, Keyspace, KeyspaceOptions,
    LevelOptions, LogLayout,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One thread per engine, and one more.
const THREADS: u64 = ENGINES as u64 + 1;
const KEYS: u64 = 40;
const WRITES: u64 = 500;
const IMAGES: u64 = 60;

/// Memtables of a few entries.
const DISTANCE: u64 = 3_000;

/// The height of the trees when the threads begin: an inner node above inner nodes, a level below a
/// level.
const HEIGHT: u32 = 2;

/// A commit that was acknowledged before a boundary.
struct Acknowledged {
    boundary: usize,
    thread: u64,
    number: u64,
    level: Durability,
}

fn open(directory: Arc<dyn Directory>, stepped: bool, layout: LogLayout) -> Database {
    Database::builder("crash")
        .memory(48 << 20)
        .log_layout(layout)
        .internals(|internals| {
            internals.directory = Some(directory);
            internals.stepped = stepped;
            internals.salt = Some(9);
            internals.write_share = Some(3 << 20);
            internals.log_segment_bytes = Some(64 << 10);
        })
        .open()
        .unwrap()
}

fn keyspace(database: &Database, thread: u64) -> Keyspace {
    let few = LevelOptions::new().size_ratio(2).scaling_percent(100);
    let engine = match engine_of(thread) {
        EngineKind::Autumn => AutumnOptions::new().table_bytes(4 << 10).levels(few).into(),
        engine => EngineOptions::tiny(engine, 4 << 10),
    };
    let options = KeyspaceOptions::new().engine(engine);
    database.keyspace(&format!("thread {thread}"), options).unwrap()
}

fn value(thread: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number * THREADS + thread);
    let length = if rng.one_in(8) { 33_000 + rng.below(9_000) } else { 8 + rng.below(1_500) };
    let mut value = vec![0; usize::try_from(length).unwrap()];
    rng.fill(&mut value);
    value[..8].copy_from_slice(&number.to_be_bytes());
    value
}

/// The number of writes that the keyspace contains, after checking that it is their result.
fn writes_shown(keyspace: &Keyspace, thread: u64) -> u64 {
    let mut found = BTreeMap::new();
    for entry in keyspace.iter() {
        let (key, found_value) = entry.unwrap();
        let number = u64::from_be_bytes(found_value[..8].try_into().unwrap());
        assert_eq!(found_value, value(thread, number), "a value that was never written");
        found.insert(u64::from_be_bytes(key[..].try_into().unwrap()), number);
    }
    let Some(last) = found.values().max().copied() else { return 0 };
    let expected = (last.saturating_sub(KEYS - 1)..=last).map(|number| (number % KEYS, number));
    assert_eq!(found, expected.collect(), "the state never existed");
    last + 1
}

/// Writes until the trees of all keyspaces have several levels; returns the number of writes in
/// each.
fn fill(database: &Database) -> u64 {
    let keyspaces: Vec<Keyspace> = (0..THREADS).map(|one| keyspace(database, one)).collect();
    for keyspace in &keyspaces {
        keyspace.set_checkpoint_distance(DISTANCE).unwrap();
    }
    for number in 0..50 * KEYS {
        let trees = database.stats().keyspaces;
        if number >= KEYS && trees.iter().all(|tree| tree.engine_stats.height >= HEIGHT) {
            return number;
        }
        for (thread, keyspace) in (0..).zip(&keyspaces) {
            keyspace.insert((number % KEYS).to_be_bytes(), value(thread, number)).unwrap();
        }
        if number % KEYS == KEYS - 1 {
            database.checkpoint().unwrap();
        }
    }
    panic!("the trees do not grow");
}

/// Every thread writes, starting with number `filled`.
fn write(
    database: &Database,
    directory: &CrashDirectory,
    filled: u64,
    seed: u64,
) -> Vec<Acknowledged> {
    let acknowledged = Mutex::new(Vec::new());
    let work = |thread: u64, keyspace: Keyspace| {
        let mut rng = Rng::new(seed + thread);
        for number in filled..filled + WRITES {
            let level = if rng.one_in(9) { Durability::Sync } else { Durability::Process };
            let key = (number % KEYS).to_be_bytes();
            keyspace.insert_with(key, value(thread, number), level).unwrap();
            let boundary = directory.boundary();
            let one = Acknowledged { boundary, thread, number, level };
            acknowledged.lock().unwrap().push(one);
            if rng.one_in(150) {
                database.checkpoint().unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let keyspace = keyspace(database, thread);
            let work = &work;
            scope.spawn(move || work(thread, keyspace));
        }
    });
    acknowledged.into_inner().unwrap()
}

fn survivors(rng: &mut Rng, pending: usize) -> Survivors {
    let one = usize::try_from(rng.below(pending.max(1) as u64)).unwrap();
    match rng.below(6) {
        0 => Survivors::None,
        1 => Survivors::All,
        2 => Survivors::AllBut(one),
        3 => Survivors::Only(one),
        4 => Survivors::Prefix(one),
        _ => Survivors::Subset(rng.next_u64()),
    }
}

/// A unit is a run of the threads, and its cuts.
pub struct Threads;

impl Test for Threads {
    fn name(&self) -> &'static str {
        "crash-threads"
    }

    fn about(&self) -> &'static str {
        "cuts a run of threads that write, flush, sync and make checkpoints at the same time"
    }

    fn short_units(&self) -> u64 {
        3
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "cuts", count: 20_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let directory = CrashDirectory::new();
        let database = open(Arc::new(directory.clone()), false, layout_of(unit.number));
        let filled = fill(&database);
        database.sync().unwrap();
        let first = directory.boundary();
        let mut rng = unit.rng();
        let acknowledged = write(&database, &directory, filled, rng.next_u64());
        drop(database);
        let journal = directory.journal();
        for _ in 0..IMAGES {
            let boundary = first + below(&mut rng, journal.boundaries() - first);
            let death = rng.one_in(4);
            let (files, how) = if death {
                (journal.image_process_death(boundary), "the death of the process".to_owned())
            } else {
                let survivors = survivors(&mut rng, journal.pending(boundary));
                (journal.image(boundary, survivors), format!("{survivors:?}"))
            };
            let what = format!("cut at {boundary}, {how}");
            check(files, (filled, &acknowledged), boundary, death, &what);
        }
        let mut tally = Tally::default();
        tally.add("cuts", IMAGES);
        tally
    }
}

/// Opens the image of a cut at `boundary`: it must contain the first `filled` writes of each
/// thread, and the later ones that were acknowledged.
fn check(
    files: BTreeMap<String, Vec<u8>>,
    (filled, acknowledged): (u64, &[Acknowledged]),
    boundary: usize,
    death: bool,
    what: &str,
) {
    let database = open(Arc::new(MemoryDirectory::from_files(files)), true, LogLayout::Shared);
    for thread in 0..THREADS {
        let promised = acknowledged.iter().filter(|one| {
            let survives = death || one.level == Durability::Sync;
            one.thread == thread && one.boundary <= boundary && survives
        });
        let promised = promised.map(|one| one.number + 1).max().unwrap_or(filled);
        let shown = writes_shown(&keyspace(&database, thread), thread);
        assert!(shown >= promised, "{what}: {promised} promised, {shown} found");
    }
    let report = database.verify().unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.findings);
}
