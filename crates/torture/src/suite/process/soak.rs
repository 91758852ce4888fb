//! A long run under a memory limit: eight times as much data as memory, snapshots held across
//! checkpoints, all data overwritten and deleted again and again.
//!
//! ```text
//!   load 8 x memory -> rounds: overwrite, delete, read back, scan, take and check snapshots
//!                   -> compare everything, verify, close, open, compare again
//! ```
//!
//! Assertions of the process at its end: its resident set never exceeded the budget plus 5%, 16 MiB
//! and the size of the model; it has about as many files open as after the load; the data file is
//! at most twice as long as the live data (seven times in a keyspace of `bminus`); no block is
//! leaked. Five of six units have one engine each, the sixth a keyspace of each.

use crate::marks;
use crate::suite::support::{KINDS, below, compression_of, engines_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{Rng, unreachable_blocks};
use chelonia::{Database, EngineKind, Keyspace, KeyspaceOptions, Result, Snapshot};
use clap::Args;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The memory budget.
const MEMORY: u64 = 32 << 20;

/// The allowance of the tests of memory, in addition to 5%.
const SLACK_BYTES: u64 = 16 << 20;

/// Keys; with [`VALUE_BYTES`] eight times as much as memory.
const KEYS: usize = 1_000_000;

/// The length of most values.
const VALUE_BYTES: usize = 260;

/// Rounds of a unit.
const ROUNDS: u64 = 12;

/// Rounds of the first unit of each kind, which the short profile runs.
const FEW_ROUNDS: u64 = 4;

/// One key in this many is also read by a get in the final comparison.
const GOT_ONE_IN: usize = 20;

/// Operations of a round.
const OPERATIONS: usize = 60_000;

/// Neighbouring keys that are read and overwritten in a round.
const SWEPT: usize = 20_000;

/// Snapshots held at the same time.
const SNAPSHOTS: usize = 3;

/// Files that may be open in addition to those after the load, besides the log: rings for reads
/// come and go.
const FILES_MORE: usize = 16;

/// The log reaches back at most two shares of the budget for memtables, and beyond those of running
/// flushes and of a running checkpoint.
const LOG_BYTES_MAX: u64 = 3 * MEMORY;

/// Keys whose values in a snapshot are remembered.
const REMEMBERED: usize = 300;

/// The arguments of the process that soaks.
#[derive(Args, Debug)]
pub struct SoakChild {
    /// The database
    path: PathBuf,
    /// The number of the unit, from which the engines follow
    unit: u64,
    /// The seed
    seed: u64,
    /// Rounds of overwrites, deletes and reads before the final comparison
    rounds: u64,
}

/// A unit is a process.
pub struct Soak;

impl Test for Soak {
    fn name(&self) -> &'static str {
        "soak"
    }

    fn about(&self) -> &'static str {
        "overwrites eight times as much data as memory, under snapshots; space, memory, values"
    }

    fn short_units(&self) -> u64 {
        KINDS
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "operations", count: 20_000_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("database");
        let rounds = if unit.number < KINDS { FEW_ROUNDS } else { ROUNDS };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("soak-child").arg(&path);
        command.args([unit.number, unit.seed, rounds].map(|number| number.to_string()));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        let marks = serde_json::from_slice(&output.stdout).unwrap();
        marks::add(&marks).unwrap();
        let mut tally = Tally::default();
        tally.add("operations", KEYS as u64 + rounds * OPERATIONS as u64);
        tally.add("lives", 1);
        tally
    }
}

impl SoakChild {
    /// Runs all rounds, and prints the coverage marks; panics if an assertion fails.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn run(&self) -> Result<(), String> {
        let engines = engines_of(self.unit);
        let life = Life::begin(&self.path, &engines, self);
        let mut life = life.map_err(|error| error.to_string())?;
        life.live(self.rounds).map_err(|error| error.to_string())?;
        writeln!(std::io::stdout(), "{}", marks::reached()).map_err(|error| error.to_string())
    }
}

/// The version of each key's value: 0 if it does not exist.
struct Model {
    versions: Vec<u32>,
}

impl Model {
    fn value(&self, key: usize) -> Option<Vec<u8>> {
        value_of(key, self.versions[key])
    }
}

fn value_of(key: usize, version: u32) -> Option<Vec<u8>> {
    if version == 0 {
        return None;
    }
    let mut rng = Rng::new((key as u64) << 32 | u64::from(version));
    let length =
        if rng.one_in(2_000) { 40_000 } else { 200 + below(&mut rng, 2 * (VALUE_BYTES - 200)) };
    let mut value = vec![version.to_le_bytes()[0]; length];
    rng.fill(&mut value[..64]);
    Some(value)
}

fn key_of(key: usize) -> [u8; 8] {
    (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// A snapshot, and a part of its expected content.
struct Held {
    snapshot: Snapshot,
    remembered: Vec<(usize, u32)>,
}

/// The number of the key made by [`key_of`].
fn number_of(key: &[u8]) -> usize {
    // Inverts the multiplication.
    let number = u64::from_be_bytes(key.try_into().unwrap());
    usize::try_from(number.wrapping_mul(0xf1de_83e1_9937_733d)).unwrap()
}

struct Life {
    path: PathBuf,
    unit: u64,
    database: Database,
    /// One for each engine; a key is in the one that [`Life::keyspace`] gives.
    keyspaces: Vec<Keyspace>,
    model: Model,
    held: Vec<Held>,
    rng: Rng,
    /// Files open after the load, without those of the log.
    files: usize,
}

/// Opens the database of unit number `unit`, and a keyspace for each engine.
fn open(path: &Path, engines: &[EngineKind], unit: u64) -> Result<(Database, Vec<Keyspace>)> {
    let database = Database::builder(path).memory(MEMORY).open()?;
    let open = |engine: &EngineKind| {
        // All engines together compress in every other unit, and one alone in most.
        let compression = compression_of(*engine, unit + unit / KINDS);
        let options = KeyspaceOptions::new().engine(*engine).compression(compression);
        database.keyspace(engine.name(), options)
    };
    let keyspaces = engines.iter().map(open).collect::<Result<_>>()?;
    Ok((database, keyspaces))
}

impl Life {
    fn begin(path: &Path, engines: &[EngineKind], child: &SoakChild) -> Result<Self> {
        let unit = child.unit;
        let (database, keyspaces) = open(path, engines, unit)?;
        let model = Model { versions: vec![1; KEYS] };
        let (path, held, rng) = (path.to_owned(), Vec::new(), Rng::new(child.seed));
        let mut life = Self { path, unit, database, keyspaces, model, held, rng, files: 0 };
        for key in 0..KEYS {
            life.keyspace(key).insert(key_of(key), value_of(key, 1).unwrap())?;
        }
        life.files = open_files();
        Ok(life)
    }

    /// The keyspace of a key.
    fn keyspace(&self, key: usize) -> &Keyspace {
        &self.keyspaces[key % self.keyspaces.len()]
    }

    fn engine(&self, key: usize) -> EngineKind {
        self.keyspace(key).engine_options().kind()
    }

    fn live(&mut self, rounds: u64) -> Result<()> {
        for round in 0..rounds {
            for _ in 0..OPERATIONS {
                self.step()?;
            }
            self.sweep()?;
            self.hold();
            if round % 3 == 2 {
                self.look_at_snapshots()?;
            }
            let files = open_files();
            assert!(files <= self.files + FILES_MORE, "{files} files, {} before", self.files);
            let log = log_bytes(&self.path);
            assert!(log <= LOG_BYTES_MAX, "{log} bytes of log");
        }
        self.look_at_snapshots()?;
        self.held.clear();
        self.compare()?;
        self.check_space()?;
        let report = self.database.verify()?;
        assert!(report.is_clean(), "{:?}", report.findings);
        let model = 4 * KEYS as u64;
        let allowed = MEMORY + MEMORY / 20 + SLACK_BYTES + model;
        let peak = peak_resident_bytes();
        assert!(peak <= allowed, "{peak} bytes were resident, {allowed} are allowed");
        self.database.clone().close()?;
        let engines: Vec<_> = (0..self.keyspaces.len()).map(|key| self.engine(key)).collect();
        (self.database, self.keyspaces) = open(&self.path, &engines, self.unit)?;
        self.compare()
    }

    fn step(&mut self) -> Result<()> {
        let key = below(&mut self.rng, KEYS);
        match self.rng.below(20) {
            0..10 => self.put(key),
            10 => {
                self.model.versions[key] = 0;
                self.keyspace(key).remove(key_of(key))
            }
            // Ranges of keys, so that complete leaves become empty and fill up again.
            11 if self.rng.one_in(300) => {
                (key..KEYS.min(key + 500)).try_for_each(|key| self.put(key))
            }
            12 if self.rng.one_in(20) => self.scan(key),
            _ => self.get(key),
        }
    }

    /// Reads and then overwrites many neighbouring keys in order, so that cached entries are
    /// replaced in the order in which they were cached.
    fn sweep(&mut self) -> Result<()> {
        let first = below(&mut self.rng, KEYS);
        let from = key_of(first);
        let entries = self.keyspace(first).range(&from[..]..).take(SWEPT);
        let keys = entries.map(|entry| Ok(number_of(&entry?.0))).collect::<Result<Vec<_>>>()?;
        for key in &keys {
            self.get(*key)?;
        }
        keys.into_iter().try_for_each(|key| self.put(key))?;
        self.database.checkpoint()
    }

    fn get(&self, key: usize) -> Result<()> {
        let found = self.keyspace(key).get(key_of(key))?;
        assert!(found.as_deref() == self.model.value(key).as_deref(), "key {key}");
        Ok(())
    }

    fn put(&mut self, key: usize) -> Result<()> {
        let version = self.model.versions[key].max(1) + 1;
        self.model.versions[key] = version;
        self.keyspace(key).insert(key_of(key), value_of(key, version).unwrap())
    }

    /// Reads a range and compares each entry with the model.
    fn scan(&mut self, key: usize) -> Result<()> {
        let from = key_of(key);
        for entry in self.keyspace(key).range(&from[..]..).take(100) {
            let (found, value) = entry?;
            self.check_entry(&found, &value);
        }
        Ok(())
    }

    /// Compares an entry of a scan with the model.
    fn check_entry(&self, found: &[u8], value: &[u8]) {
        let expected = self.model.value(number_of(found));
        assert!(expected.as_deref() == Some(value), "a scan shows an unexpected entry");
    }

    fn hold(&mut self) {
        if self.held.len() == SNAPSHOTS {
            self.held.remove(0);
        }
        let keys = (0..REMEMBERED).map(|_| below(&mut self.rng, KEYS));
        let remembered = keys.map(|key| (key, self.model.versions[key])).collect();
        self.held.push(Held { snapshot: self.database.snapshot(), remembered });
    }

    fn look_at_snapshots(&self) -> Result<()> {
        for Held { snapshot, remembered } in &self.held {
            for (key, version) in remembered {
                let found = snapshot.get(self.keyspace(*key), key_of(*key))?;
                let expected = value_of(*key, *version);
                assert!(found.as_deref() == expected.as_deref(), "a snapshot changed: key {key}");
            }
        }
        Ok(())
    }

    /// Compares every entry with the model, and some gets.
    fn compare(&self) -> Result<()> {
        for key in (0..KEYS).step_by(GOT_ONE_IN) {
            self.get(key)?;
        }
        let there = self.model.versions.iter().filter(|version| **version > 0).count();
        let mut found = 0;
        for keyspace in &self.keyspaces {
            for entry in keyspace.iter() {
                let (key, value) = entry?;
                self.check_entry(&key, &value);
                found += 1;
            }
        }
        assert_eq!(found, there, "missing or unexpected entries");
        Ok(())
    }

    fn check_space(&self) -> Result<()> {
        self.database.checkpoint()?;
        assert_eq!(unreachable_blocks(&self.database)?, 0, "leaked blocks");
        // A home of `bminus` has three times the size of its page, which is half full at least; and
        // a third of the homes may be unused.
        let times = |key| if self.engine(key) == EngineKind::Bminus { 7 } else { 2 };
        let live = |key| self.model.value(key).map_or(0, |value| 8 + value.len() as u64);
        let allowed: u64 = (0..KEYS).map(|key| times(key) * live(key)).sum();
        let disk = self.database.stats().disk;
        let allocated = disk.data_allocated_bytes;
        assert!(allocated <= allowed, "{allocated} bytes on disk, {allowed} are allowed");
        Ok(())
    }
}

/// Files that this process has open, without those of the log.
fn open_files() -> usize {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    // One that is closed meanwhile cannot be followed.
    names.filter_map(|name| std::fs::read_link(name).ok()).filter(|file| !is_log(file)).count()
}

fn is_log(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-"))
}

/// The size of the log files of the database at `path`.
fn log_bytes(path: &Path) -> u64 {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let log = files.filter(|file| is_log(&file.path()));
    log.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

/// The peak of the process's resident set, in bytes.
fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes << 10
}
