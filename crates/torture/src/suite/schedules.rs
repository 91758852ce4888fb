//! The complete store under a scheduler that picks the next thread at every lock and at some atomic
//! operations: writers, a reader, and the background threads of the store, on the simulated disk,
//! whose power is cut at the end. Each commit is a batch over a keyspace of every engine.
//!
//! ```text
//!   schedule   two writers, one reader, flush, log    --> every read shows one point in time
//!              jobs of engines, beside flushes       --> none brings back an older version
//!              power cut anywhere in their writes     --> a prefix per writer, with everything
//!                                                         that was acknowledged as durable
//! ```
//!
//! A schedule is determined by the unit. Needs the feature `shuttle`.

use crate::suite::support::{below, layout_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{
    Clock, CrashDirectory, Directory, MemoryDirectory, Rng, Survivors, begin_execution,
};
use chelonia::{
    Database, Durability, EngineKind, EngineOptions, Keyspace, KeyspaceOptions, LogLayout, Result,
    Snapshot,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner, thread};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Schedules of a unit.
const SCHEDULES: usize = 40;

/// In a schedule by priorities: how often one of them changes.
const CHANGES: usize = 4;

/// Writers.
const WRITERS: usize = 2;

/// Commits of each.
const COMMITS: u64 = 14;

/// Keys of each writer; commit `c` writes `c` under key `c % KEYS`.
const KEYS: u64 = 5;

/// [`KEYS`] as a length.
const KEYS_OF_WRITER: usize = 5;

/// Reads of the reader.
const LOOKS: usize = 4;

/// Scans of each read of it, so that buffered updates are flushed for reads, beside absorbs.
const SCANS: usize = 6;

/// Power cuts of a schedule.
const CUTS: usize = 3;

/// A unit is some schedules.
pub struct Schedules;

impl Test for Schedules {
    fn name(&self) -> &'static str {
        "schedules"
    }

    fn about(&self) -> &'static str {
        "writers, a reader and background threads under many schedules, then power cuts"
    }

    fn short_units(&self) -> u64 {
        60
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "schedules", count: 100_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let (lengths, [installed, dropped]) = explore(unit, SCHEDULES);
        // `--repeat` relies on this.
        assert_eq!(explore(unit, 1).0[0], lengths[0], "a schedule is not determined by its unit");
        let mut tally = Tally::default();
        tally.add("schedules", SCHEDULES as u64);
        tally.add("power cuts", (SCHEDULES * CUTS) as u64);
        tally.add("jobs installed", installed);
        tally.add("jobs dropped", dropped);
        tally
    }
}

/// Runs the first `count` schedules of a unit; returns the lengths of their journals, and how many
/// jobs of engines were installed and dropped.
fn explore(unit: Unit, count: usize) -> (Vec<usize>, [u64; 2]) {
    let lengths: Arc<Mutex<Vec<usize>>> = Arc::default();
    let jobs: Arc<Mutex<[u64; 2]>> = Arc::default();
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(20_000_000);
    config.stack_size = 1 << 20;
    let seed = unit.seed;
    let number = AtomicU64::new(0);
    let run = {
        let (lengths, jobs) = (Arc::clone(&lengths), Arc::clone(&jobs));
        move || {
            let rng = Rng::new(seed ^ number.fetch_add(1, Ordering::Relaxed));
            let (length, [installed, dropped]) = run_schedule(rng);
            lengths.lock().unwrap().push(length);
            let mut jobs = jobs.lock().unwrap();
            *jobs = [jobs[0] + installed, jobs[1] + dropped];
        }
    };
    // Random choice advances all threads a little; priorities let some wait very long.
    if unit.number.is_multiple_of(2) {
        Runner::new(PctScheduler::new_from_seed(seed, CHANGES, count), config).run(run);
    } else {
        Runner::new(RandomScheduler::new_from_seed(seed, count), config).run(run);
    }
    let jobs = *jobs.lock().unwrap();
    (std::mem::take(&mut *lengths.lock().unwrap()), jobs)
}

fn open(directory: Arc<dyn Directory>, stepped: bool, layout: LogLayout) -> Result<Database> {
    let builder = Database::builder("schedules").memory(32 << 20).threads(1).scrub_interval(None);
    let builder = builder.log_layout(layout).internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = stepped;
        internals.clock = Clock::manual();
        internals.salt = Some(5);
        internals.write_share = Some(1 << 20);
        internals.log_segment_bytes = Some(16 << 10);
    });
    builder.open()
}

/// One keyspace per engine; all have the same content.
fn keyspaces(database: &Database) -> Vec<Keyspace> {
    let keyspace = |engine: EngineKind| {
        let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 4 << 10));
        database.keyspace(engine.name(), options.checkpoint_distance(600)).unwrap()
    };
    EngineKind::ALL.into_iter().map(keyspace).collect()
}

fn key(writer: usize, commit: u64) -> [u8; 2] {
    [writer.to_le_bytes()[0], (commit % KEYS).to_le_bytes()[0]]
}

fn value(commit: u64) -> Vec<u8> {
    let length = if commit % 9 == 5 { 33_000 } else { 120 };
    let mut value = vec![commit.to_le_bytes()[0]; length];
    value[..8].copy_from_slice(&commit.to_le_bytes());
    value
}

/// An acknowledged commit: the boundary, the writer, the number, and whether it is durable.
type Acknowledged = (usize, usize, u64, bool);

/// The last commit of each writer that a keyspace contains, after checking that it contains all
/// commits before.
fn shown(
    entries: impl Iterator<Item = Result<(chelonia::Key, chelonia::Value)>>,
) -> [u64; WRITERS] {
    let mut found = [[0; KEYS_OF_WRITER]; WRITERS];
    for entry in entries {
        let (key, value) = entry.unwrap();
        let commit = u64::from_le_bytes(value[..8].try_into().unwrap());
        assert_eq!(&value[..], self::value(commit), "a value that was never written");
        found[usize::from(key[0])][usize::from(key[1])] = commit;
    }
    found.map(|of_writer| {
        let last = of_writer.iter().copied().max().unwrap();
        for commit in last.saturating_sub(KEYS - 1).max(1)..=last {
            let there = of_writer[usize::try_from(commit % KEYS).unwrap()];
            assert_eq!(there, commit, "the state never existed: {of_writer:?}");
        }
        last
    })
}

/// The last commit of each writer that a snapshot contains, the same in every keyspace.
fn shown_in(snapshot: &Snapshot, spaces: &[Keyspace]) -> [u64; WRITERS] {
    let first = shown(snapshot.iter(&spaces[0]));
    for space in &spaces[1..] {
        assert_eq!(shown(snapshot.iter(space)), first, "a partial batch");
    }
    first
}

/// Runs one schedule; returns the length of its journal, and how many jobs were installed and
/// dropped.
fn run_schedule(mut rng: Rng) -> (usize, [u64; 2]) {
    begin_execution();
    let directory = CrashDirectory::new();
    let database = open(Arc::new(directory.clone()), false, layout_of(rng.next_u64())).unwrap();
    let spaces = keyspaces(&database);
    let first = directory.boundary();
    let acknowledged: Arc<Mutex<Vec<Acknowledged>>> = Arc::default();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (spaces, database) = (spaces.clone(), database.clone());
            let (directory, acknowledged) = (directory.clone(), Arc::clone(&acknowledged));
            thread::spawn(move || {
                for commit in 1..=COMMITS {
                    let durable = commit % 5 == writer as u64;
                    let level = if durable { Durability::Sync } else { Durability::Process };
                    let mut batch = database.batch();
                    for space in &spaces {
                        batch.insert(space, key(writer, commit), value(commit));
                    }
                    batch.commit_with(level).unwrap();
                    let when = directory.boundary();
                    acknowledged.lock().unwrap().push((when, writer, commit, durable));
                    if commit == 9 && writer == 0 {
                        database.checkpoint().unwrap();
                    }
                }
            })
        })
        .collect();
    let reader = {
        let (spaces, database) = (spaces.clone(), database.clone());
        let acknowledged = Arc::clone(&acknowledged);
        thread::spawn(move || read(&database, &spaces, &acknowledged))
    };
    for thread in writers.into_iter().chain([reader]) {
        thread.join().unwrap();
    }
    assert_eq!(shown_in(&database.snapshot(), &spaces), [COMMITS; WRITERS]);
    drop(spaces);
    let background = database.stats().background;
    let jobs = [background.jobs_installed, background.jobs_dropped];
    database.close().unwrap();
    let acknowledged = acknowledged.lock().unwrap();
    (0..CUTS).for_each(|_| check_cut(&directory, first, &acknowledged, &mut rng));
    (directory.boundary(), jobs)
}

/// Checks that each read shows one point in time, not before an earlier one.
fn read(database: &Database, spaces: &[Keyspace], acknowledged: &Mutex<Vec<Acknowledged>>) {
    for space in spaces.iter().cycle().take(LOOKS) {
        let least = last_of(&acknowledged.lock().unwrap(), usize::MAX, false);
        let snapshot = database.snapshot();
        let before = shown_in(&snapshot, spaces);
        assert!(
            (0..WRITERS).all(|writer| before[writer] >= least[writer]),
            "an acknowledged commit is not visible"
        );
        for _ in 1..SCANS {
            let _ = shown(space.iter());
        }
        let now = shown(space.iter());
        assert!(
            (0..WRITERS).all(|writer| now[writer] >= before[writer]),
            "a later read shows an earlier state"
        );
        assert_eq!(shown(snapshot.iter(space).rev()), before, "a snapshot changed");
        for (writer, last) in (0..WRITERS).zip(now).filter(|(_, last)| *last > 0) {
            let found = space.get(key(writer, last)).unwrap().unwrap();
            let commit = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!(
                commit >= last && commit % KEYS == last % KEYS,
                "a later get shows an earlier value"
            );
        }
    }
}

/// Cuts the power somewhere after boundary `first`, and checks that nothing promised is lost.
fn check_cut(
    directory: &CrashDirectory,
    first: usize,
    acknowledged: &[Acknowledged],
    rng: &mut Rng,
) {
    let journal = directory.journal();
    let boundary = first + below(rng, journal.boundaries() - first);
    let survivors = match rng.below(3) {
        0 => Survivors::None,
        1 => Survivors::All,
        _ => Survivors::Subset(rng.next_u64()),
    };
    let image = MemoryDirectory::from_files(journal.image(boundary, survivors));
    let database = open(Arc::new(image), true, LogLayout::Shared).unwrap();
    let least = last_of(acknowledged, boundary, true);
    let found = shown_in(&database.snapshot(), &keyspaces(&database));
    let is_there = (0..WRITERS).all(|writer| found[writer] >= least[writer]);
    assert!(is_there, "cut at {boundary}: {least:?} promised, {found:?} found");
    assert!(database.verify().unwrap().is_clean());
}

/// The last commit of each writer acknowledged up to a boundary, at any level or as durable.
fn last_of(all: &[Acknowledged], boundary: usize, durable: bool) -> [u64; WRITERS] {
    let mut last = [0; WRITERS];
    for (when, writer, commit, is_durable) in all {
        if *when <= boundary && (*is_durable || !durable) {
            last[*writer] = last[*writer].max(*commit);
        }
    }
    last
}
