//! Cuts a recorded history, and checks each image that may be left.

use super::database::{NAMES, open, open_to_read, options_of, read};
use super::run::{Run, Space, State};
use crate::test::Tally;
use chelonia::internals::{CrashDirectory, MemoryDirectory, Rng, Survivors, unreachable_blocks};
use chelonia::{Database, Error, ErrorKind, KeyspaceOptions, Result, Salvage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub type Files = BTreeMap<String, Vec<u8>>;

/// Sectors of a block.
const BLOCK_SECTORS: usize = 8;

/// The offset of the second superblock.
const BLOCK_BYTES: u64 = 4096;

/// One image in this many is also opened read-only.
const READ_ONE_IN: u64 = 8;

/// One image in this many is also salvaged.
const SALVAGE_ONE_IN: u64 = 32;

/// The memory of a salvage, for each of its two databases.
const SALVAGE_MEMORY: u64 = 48 << 20;

/// How thoroughly a history is cut.
#[derive(Clone, Copy)]
pub struct Effort {
    /// If at most this many changes are pending, all their subsets are tried.
    pub all_subsets_of: usize,
    /// If more are pending: the number of subsets of each special kind.
    pub subsets: usize,
    /// The recovery of one image in this many is cut as well.
    pub recovery_one_in: u64,
}

/// The name of the main count: images that no unit opened before.
pub const CRASH_STATES: &str = "crash states";

/// A cut, and the states that may be found after it.
#[derive(Clone, Copy)]
struct Cut {
    boundary: usize,
    /// The least number of changes that survived.
    least: usize,
    /// The largest.
    most: usize,
}

/// Cuts one history.
pub struct Cutter<'a> {
    run: &'a Run,
    effort: Effort,
    rng: Rng,
    /// Identifies the history in messages of failures.
    name: String,
    seen: BTreeSet<(u64, usize, usize)>,
    tally: Tally,
}

impl<'a> Cutter<'a> {
    pub fn new(run: &'a Run, effort: Effort, seed: u64, name: String) -> Self {
        let rng = Rng::new(seed ^ 0x5eed);
        Self { run, effort, rng, name, seen: BTreeSet::new(), tally: Tally::default() }
    }

    /// Cuts the power, and kills the process, at each of these boundaries.
    pub fn cut_at(mut self, boundaries: impl IntoIterator<Item = usize>) -> Tally {
        for boundary in boundaries {
            let (least, most) = self.run.bounds(boundary, false);
            let cut = Cut { boundary, least, most };
            for survivors in self.survivors(boundary) {
                let files = self.run.journal.image(boundary, survivors);
                if !self.is_new(&files, cut) {
                    continue;
                }
                let what = format!("{} with {survivors:?}", self.what(boundary));
                self.check(&files, cut, &what);
                self.tally.add("power cuts", 1);
                if self.rng.one_in(self.effort.recovery_one_in) {
                    self.cut_recovery(&files, cut, &what);
                }
            }
            let files = self.run.journal.image_process_death(boundary);
            let (least, most) = self.run.bounds(boundary, true);
            let cut = Cut { boundary, least, most };
            if self.is_new(&files, cut) {
                self.check(&files, cut, &format!("{}, process death", self.what(boundary)));
                self.tally.add("process deaths", 1);
            }
        }
        self.run.events.iter().for_each(|(event, count)| self.tally.add(event, *count));
        self.tally
    }

    fn what(&self, boundary: usize) -> String {
        let effect = self.run.journal.describe(boundary);
        format!("{}: cut at {boundary} ({effect})", self.name)
    }

    fn is_new(&mut self, files: &Files, cut: Cut) -> bool {
        let fingerprint = fingerprint(files);
        let is_new = self.seen.insert((fingerprint, cut.least, cut.most));
        if is_new {
            self.tally.add_distinct(CRASH_STATES, fingerprint);
        }
        is_new
    }

    /// All subsets of the pending changes if they are few, else special and random ones.
    fn survivors(&mut self, boundary: usize) -> Vec<Survivors> {
        let pending = self.run.journal.pending(boundary);
        // Both superblocks, in case they are ever in flight at the same time.
        let copies = pending.saturating_sub(2 * BLOCK_SECTORS);
        let mut all = vec![Survivors::TornFrom(copies)];
        if pending <= self.effort.all_subsets_of {
            all.extend((0..1 << pending).map(Survivors::Mask));
            return all;
        }
        all.extend([Survivors::None, Survivors::All]);
        // The record of a commit without its large values.
        all.push(Survivors::Suffix(pending - 2));
        let mut one = || usize::try_from(self.rng.below(pending as u64)).unwrap();
        for _ in 0..self.effort.subsets {
            all.extend([
                Survivors::AllBut(one()),
                Survivors::Only(one()),
                Survivors::Prefix(one()),
            ]);
        }
        all.extend((0..self.effort.subsets).map(|_| Survivors::Subset(self.rng.next_u64())));
        all
    }

    fn open(&self, directory: MemoryDirectory) -> Result<Database> {
        open(Arc::new(directory), self.run.opening)
    }

    /// Opens an image and checks everything.
    fn check(&mut self, files: &Files, cut: Cut, what: &str) {
        let directory = MemoryDirectory::from_files(files.clone());
        let database = match self.open(directory.clone()) {
            Ok(database) => database,
            Err(error) => panic!("{what}: the open failed: {error}"),
        };
        let (found, dials) = read(&database).unwrap_or_else(|error| panic!("{what}: {error}"));
        let flushed = database.stats().background.flushes > 0;
        self.tally.add("recoveries that flushed", u64::from(flushed));
        let run = self.run;
        if !run.states[cut.least..=cut.most].contains(&found) {
            let any = run.states.iter().position(|state| *state == found);
            let (least, most) = (cut.least, cut.most);
            panic!("{what}: not the state after {least} to {most} changes (but after {any:?})");
        }
        for (name, space) in &found {
            let (is, possible) = (dials[name], run.dials(cut.boundary, name, space.made));
            assert!(possible.contains(&is), "{what}: {name:?} has {is:?}");
        }
        let report = database.verify().unwrap();
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        if self.rng.one_in(READ_ONE_IN) {
            self.check_reader(files, &found, what);
        }
        if self.rng.one_in(SALVAGE_ONE_IN) {
            self.check_salvage(files, &found, what);
        }
        let expected = go_on(&database, found, what);
        // The second open replays writes from before and after the cut together.
        database.close().unwrap();
        let again = self.open(directory).unwrap_or_else(|error| panic!("{what}: {error}"));
        let differs = differing(&read(&again).unwrap().0, &expected);
        assert!(differs.is_empty(), "{what}: a second open shows another content: {differs:?}");
        again.checkpoint().unwrap();
        assert_eq!(unreachable_blocks(&again).unwrap(), 0, "{what}: space is leaked");
    }

    /// Opens an image read-only: it has the same content, and nothing is written.
    fn check_reader(&mut self, files: &Files, found: &State, what: &str) {
        let directory = MemoryDirectory::from_files(files.clone());
        let reader = open_to_read(Arc::new(directory.clone()), self.run.opening);
        let reader = match reader {
            Ok(reader) => reader,
            // Neither a keyspace nor the database existed yet.
            Err(error) if found.is_empty() => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: a read-only open: {error}");
                return;
            }
            Err(error) => panic!("{what}: a read-only open: {error}"),
        };
        let differs = differing(&read(&reader).unwrap().0, found);
        assert!(differs.is_empty(), "{what}: a read-only open shows another content: {differs:?}");
        // A superblock torn by the cut is repaired by the next open for writing.
        let torn = |error: &Error| {
            let is_copy = error.offset().is_some_and(|offset| offset <= BLOCK_BYTES);
            error.file() == Some("data") && is_copy
        };
        let findings = reader.verify().unwrap().findings;
        assert!(findings.len() <= 1 && findings.iter().all(torn), "{what}: {findings:?}");
        drop(reader);
        assert!(directory.to_files() == *files, "{what}: a read-only open wrote something");
        self.tally.add("images read without writing", 1);
    }

    /// Salvages an image: a crash damages nothing, so all data is recovered.
    fn check_salvage(&mut self, files: &Files, found: &State, what: &str) {
        let source = MemoryDirectory::from_files(files.clone());
        let saved = MemoryDirectory::new();
        let salvage = Salvage::new("crash", "saved").memory(SALVAGE_MEMORY);
        let salvaged = salvage.directories(Arc::new(source.clone()), Arc::new(saved.clone())).run();
        assert!(source.to_files() == *files, "{what}: a salvage changed its source");
        let report = match salvaged {
            Ok(report) => report,
            Err(error) if found.is_empty() => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: a salvage: {error}");
                return;
            }
            Err(error) => panic!("{what}: a salvage: {error}"),
        };
        assert!(report.is_complete(), "{what}: a salvage lost something: {report:?}");
        let database = self.open(saved).unwrap();
        let differs = differing(&read(&database).unwrap().0, found);
        assert!(differs.is_empty(), "{what}: a salvage has another content: {differs:?}");
        self.tally.add("images salvaged", 1);
    }

    /// Cuts the power at every boundary within the recovery of `files`.
    fn cut_recovery(&mut self, files: &Files, cut: Cut, what: &str) {
        let directory = CrashDirectory::from_files(files);
        let database = open(Arc::new(directory.clone()), self.run.opening).unwrap();
        let (found, _) = read(&database).unwrap();
        let recovered = directory.boundary();
        drop(database);
        let journal = directory.journal();
        for boundary in 0..=recovered {
            let subset = Survivors::Subset(self.rng.next_u64());
            for survivors in [Survivors::None, Survivors::All, subset] {
                let image = journal.image(boundary, survivors);
                if self.is_new(&image, cut) {
                    let what =
                        format!("{what}, then cut in recovery at {boundary} with {survivors:?}");
                    self.check(&image, cut, &what);
                    self.tally.add("cuts in recovery", 1);
                }
            }
        }
        // A state that an open database has shown must not be lost.
        let image = journal.image(recovered, Survivors::None);
        let again = self.open(MemoryDirectory::from_files(image)).unwrap();
        assert!(read(&again).unwrap().0 == found, "{what}: a second cut lost recovered data");
    }
}

/// The keyspaces that two states do not have in common, each with its numbers of entries.
fn differing(one: &State, other: &State) -> Vec<(String, Option<usize>, Option<usize>)> {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differ = names.into_iter().filter(|name| one.get(*name) != other.get(*name));
    let entries = |state: &State, name| state.get(name).map(|space| space.entries.len());
    differ.map(|name| (name.clone(), entries(one, name), entries(other, name))).collect()
}

/// A hash that identifies an image. It is computed in four lanes of words, which need not wait for
/// each other, because there are tens of thousands of images.
fn fingerprint(files: &Files) -> u64 {
    const LANES: usize = 4;
    let mix =
        |mixed: u64, word: u64| (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let mut lanes = [0_u64; LANES];
    for (name, content) in files {
        let bytes = name.bytes().map(u64::from);
        lanes[0] = bytes.chain([content.len() as u64]).fold(lanes[0], mix);
        let (rows, rest) = content.as_chunks::<{ 8 * LANES }>();
        for row in rows {
            let (words, _) = row.as_chunks::<8>();
            for (profile, word) in lanes.iter_mut().zip(words) {
                *profile = mix(*profile, u64::from_le_bytes(*word));
            }
        }
        lanes[0] = rest.iter().map(|byte| u64::from(*byte)).fold(lanes[0], mix);
    }
    lanes.into_iter().fold(0, mix)
}

/// Writes to a recovered database, creates a keyspace, and recreates a dropped one; returns the
/// content.
fn go_on(database: &Database, found: State, what: &str) -> State {
    let mut expected = found;
    let stored = KeyspaceOptions::new;
    let entry = (b"after".to_vec(), b"the crash".to_vec());
    let names: Vec<String> = expected.keys().cloned().collect();
    let insert = |name: &str, expected: &mut State| {
        database.keyspace(name, stored()).unwrap().insert(&entry.0, &entry.1).unwrap();
        let space = expected.get_mut(name).unwrap();
        Arc::make_mut(&mut space.entries).insert(entry.0.clone(), entry.1.clone());
    };
    if let Some(name) = names.first() {
        insert(name, &mut expected);
    }
    if let Some(name) = names.get(1) {
        database.drop_keyspace(name).unwrap();
        expected.remove(name);
    }
    // The name was in use just now, or before the cut, or never.
    let free = NAMES.into_iter().find(|name| !expected.contains_key(*name));
    let name = free.unwrap_or("fourth");
    let keyspace = database.keyspace(name, options_of(5)).unwrap();
    assert!(keyspace.iter().next().is_none(), "{what}: a new keyspace is not empty");
    expected.insert(name.to_owned(), Space { made: 5, entries: Arc::default() });
    insert(name, &mut expected);
    expected
}
