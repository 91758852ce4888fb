//! Power cuts at every write, sync, growth, creation and removal of a run, with subsets of what was
//! not synced surviving; and cuts inside the recovery after that.
//!
//! After every cut: the database opens; its content is that of a prefix of the commits, not shorter
//! than what was acknowledged at a level that survives; `verify` finds nothing; no space is lost;
//! it can be written again, and opens once more with the same content.

use crate::support::{Model, fresh_seed, hex_seed, tiny_options_of};
use chelonia::internals::{
    CrashDirectory, Directory, Journal, MemoryDirectory, Rng, Survivors, tick,
};
use chelonia::{Database, Durability, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

const KEYSPACES: [&str; 2] = ["left", "right"];

type Files = BTreeMap<String, Vec<u8>>;

/// A run: the state after each commit, and what was promised at which boundary.
struct Run {
    journal: Journal,
    /// `states[i]` is the content after `i` commits.
    states: Vec<Model>,
    /// For each commit, the boundary when it began and the one when it was acknowledged.
    commits: Vec<(usize, usize)>,
    /// From this boundary on, so many commits survive a power cut.
    durable: Vec<(usize, usize)>,
}

fn open(directory: Arc<dyn Directory>) -> Result<Database> {
    Database::builder("crash")
        .memory(64 << 20)
        .internals(|internals| {
            internals.directory = Some(directory);
            internals.stepped = true;
            internals.salt = Some(7);
            internals.log_segment_bytes = Some(16 << 10);
        })
        .open()
}

/// Makes the keyspaces if need be.
fn prepare(database: &Database) -> Result<()> {
    for name in KEYSPACES {
        database.keyspace(name, tiny_options_of(name))?.set_checkpoint_distance(1_500)?;
    }
    Ok(())
}

/// Runs `verbs` random verbs on a crash-recording directory.
fn record(seed: u64, verbs: usize) -> Run {
    let directory = CrashDirectory::new();
    let database = open(Arc::new(directory.clone())).unwrap();
    prepare(&database).unwrap();
    let mut rng = Rng::new(seed);
    let mut model: Model =
        KEYSPACES.iter().map(|name| ((*name).to_owned(), BTreeMap::new())).collect();
    let mut run = Run {
        journal: directory.journal(),
        states: vec![model.clone()],
        commits: Vec::new(),
        durable: vec![(directory.boundary(), 0)],
    };
    for _ in 0..verbs {
        let began = directory.boundary();
        let committed = match rng.below(21) {
            0 => {
                database.checkpoint().unwrap();
                None
            }
            1 => {
                database.sync().unwrap();
                None
            }
            2 => {
                tick(&database).unwrap();
                continue;
            }
            3 => {
                // Counts as a commit: everything of the keyspace goes, and it does not come back.
                let name = KEYSPACES[usize::try_from(rng.below(2)).unwrap()];
                database.drop_keyspace(name).unwrap();
                model.get_mut(name).unwrap().clear();
                Some(Durability::Sync)
            }
            _ => Some(commit_something(&database, &mut model, &mut rng)),
        };
        let ended = directory.boundary();
        prepare(&database).unwrap();
        if committed.is_some() {
            run.states.push(model.clone());
            run.commits.push((began, ended));
        }
        if committed != Some(Durability::Process) && committed != Some(Durability::Memory) {
            run.durable.push((ended, run.commits.len()));
        }
    }
    run.journal = directory.journal();
    drop(database);
    run
}

fn commit_something(database: &Database, model: &mut Model, rng: &mut Rng) -> Durability {
    let level = match rng.below(6) {
        0 => Durability::Sync,
        1 => Durability::Memory,
        _ => Durability::Process,
    };
    let mut batch = database.batch();
    let entries = if rng.one_in(3) { 1 + rng.below(12) } else { 1 };
    for _ in 0..entries {
        let name = KEYSPACES[usize::try_from(rng.below(2)).unwrap()];
        let keyspace = database.keyspace(name, tiny_options_of(name)).unwrap();
        let key = rng.below(60).to_string().into_bytes();
        if rng.one_in(4) {
            batch.remove(&keyspace, &key);
            model.get_mut(name).unwrap().remove(&key);
        } else {
            let length = match rng.below(40) {
                0 => 33_000 + rng.below(20_000),
                1 => rng.below(9_000),
                _ => rng.below(300),
            };
            let mut value = vec![0; usize::try_from(length).unwrap()];
            rng.fill(&mut value);
            batch.insert(&keyspace, &key, &value);
            model.get_mut(name).unwrap().insert(key, value);
        }
    }
    batch.commit_with(level).unwrap();
    level
}

fn content(database: &Database) -> Result<Model> {
    let mut model = Model::new();
    for name in KEYSPACES {
        let mut space = BTreeMap::new();
        if database.keyspaces().iter().any(|existing| existing == name) {
            for entry in database.keyspace(name, tiny_options_of(name))?.iter() {
                let (key, value) = entry?;
                space.insert(key.to_vec(), value.to_vec());
            }
        }
        model.insert(name.to_owned(), space);
    }
    Ok(model)
}

impl Run {
    /// How many commits must at least have survived a cut at `boundary`, and how many may have.
    fn bounds(&self, boundary: usize, process_death: bool) -> (usize, usize) {
        let begun = self.commits.iter().filter(|(began, _)| *began < boundary).count();
        let acknowledged = self.commits.iter().filter(|(_, ended)| *ended <= boundary).count();
        let durable = self.durable.iter().filter(|(since, _)| *since <= boundary);
        let durable = durable.map(|(_, commits)| *commits).max().unwrap_or(0);
        (if process_death { acknowledged } else { durable }, begun)
    }

    /// Opens the image and checks everything; returns how many commits survived.
    fn check(&self, files: &Files, (least, most): (usize, usize), what: &str) -> usize {
        let directory = MemoryDirectory::from_files(files.clone());
        let database = match open(Arc::new(directory.clone())) {
            Ok(database) => database,
            Err(error) => panic!("{what}: it does not open: {error}"),
        };
        let found = content(&database).unwrap_or_else(|error| panic!("{what}: {error}"));
        let survived = (least..=most).rev().find(|commits| self.states[*commits] == found);
        let Some(survived) = survived else {
            let any = self.states.iter().position(|state| *state == found);
            panic!("{what}: not a prefix of {least} to {most} commits (it is {any:?})");
        };
        let report = database.verify().unwrap();
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        prepare(&database).unwrap();
        let left = database.keyspace("left", tiny_options_of("left")).unwrap();
        left.insert("after", "the crash").unwrap();
        drop(left);
        database.checkpoint().unwrap();
        assert_eq!(chelonia::internals::unreachable_blocks(&database).unwrap(), 0, "{what}");
        database.close().unwrap();
        let again = open(Arc::new(directory)).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut expected = self.states[survived].clone();
        expected.get_mut("left").unwrap().insert(b"after".to_vec(), b"the crash".to_vec());
        assert!(content(&again).unwrap() == expected, "{what}: different after a second open");
        survived
    }

    /// The images of a power cut at `boundary`: all subsets of what was pending if they are few,
    /// else the telling ones and some at random.
    fn survivors(&self, boundary: usize, rng: &mut Rng, random: usize) -> Vec<Survivors> {
        let pending = self.journal.pending(boundary);
        if pending <= 4 {
            return (0..1 << pending).map(Survivors::Mask).collect();
        }
        let mut all = vec![Survivors::None, Survivors::All];
        for _ in 0..random {
            let one = usize::try_from(rng.below(pending as u64)).unwrap();
            all.push(match rng.below(4) {
                0 => Survivors::AllBut(one),
                1 => Survivors::Only(one),
                2 => Survivors::Prefix(one),
                _ => Survivors::Subset(rng.next_u64()),
            });
        }
        all
    }
}

/// Cuts inside the recovery of `files`.
fn cut_recovery(run: &Run, files: &Files, bounds: (usize, usize), rng: &mut Rng, what: &str) {
    let directory = CrashDirectory::from_files(files);
    let Ok(database) = open(Arc::new(directory.clone())) else { panic!("{what}") };
    let survived = run.states.iter().rposition(|state| *state == content(&database).unwrap());
    let recovered = directory.boundary();
    drop(database);
    let journal = directory.journal();
    for _ in 0..6 {
        let boundary = usize::try_from(rng.below(recovered as u64 + 1)).unwrap();
        let survivors = match rng.below(3) {
            0 => Survivors::None,
            1 => Survivors::All,
            _ => Survivors::Subset(rng.next_u64()),
        };
        let image = journal.image(boundary, survivors);
        let what = format!("{what}, then cut in recovery at {boundary} with {survivors:?}");
        run.check(&image, bounds, &what);
    }
    let image = journal.image(recovered, Survivors::None);
    let exactly = survived.map_or(bounds, |commits| (commits, commits));
    run.check(&image, exactly, &format!("{what}, then cut after recovery"));
}

/// Checks a run with cuts at every `stride`-th boundary; returns how many different images that
/// were.
fn cut_everywhere(seed: u64, verbs: usize, stride: usize, random: usize) -> usize {
    let _seed = hex_seed(seed);
    let run = record(seed, verbs);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut seen = BTreeSet::new();
    let first = run.durable[0].0;
    let offset = usize::try_from(rng.below(stride as u64)).unwrap();
    for boundary in (0..=run.journal.boundaries()).skip(offset).step_by(stride) {
        let bounds = run.bounds(boundary, false);
        for survivors in run.survivors(boundary, &mut rng, random) {
            let files = run.journal.image(boundary, survivors);
            if !seen.insert(fingerprint(&files)) {
                continue;
            }
            let effect = run.journal.describe(boundary);
            let what = format!("seed {seed:#x}: cut at {boundary} ({effect}) with {survivors:?}");
            let bounds = if boundary < first { (0, 0) } else { bounds };
            run.check(&files, bounds, &what);
            if rng.one_in(40) {
                cut_recovery(&run, &files, bounds, &mut rng, &what);
            }
        }
        let files = run.journal.image_process_death(boundary);
        if seen.insert(fingerprint(&files)) {
            let what = format!("seed {seed:#x}: process death at {boundary}");
            run.check(&files, run.bounds(boundary, true), &what);
        }
    }
    seen.len()
}

fn fingerprint(files: &Files) -> u64 {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    hasher.finish()
}

#[test]
fn cuts_everywhere_in_short_runs() {
    let images: usize = (0..12).map(|seed| cut_everywhere(0xdead_0000 + seed, 16, 1, 6)).sum();
    println!("{images} images");
    assert!(images > 1_000, "{images} images only");
}

#[test]
fn cuts_all_over_long_runs() {
    let images: usize = (0..3).map(|seed| cut_everywhere(0xbeef_0000 + seed, 250, 23, 3)).sum();
    println!("{images} images");
}

#[test]
fn cuts_in_a_run_that_nobody_made_before() {
    let images = cut_everywhere(fresh_seed(), 80, 5, 3);
    println!("{images} images");
}
