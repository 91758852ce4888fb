//! Readers and writers on several threads; every read is checked against the order of commits.
//!
//! Each writer numbers its commits. Commit `c` puts `c` under key `c % KEYS` of the writer in a
//! keyspace of each engine, and under the writer's only key in one more, whose keys are overwritten
//! so fast that a reader may have to retry. So the content after `c` commits is known exactly: a
//! snapshot or a scan must show the content after some number of commits of each writer: at least
//! those acknowledged before it was made, at most those begun when it ended, and the same number in
//! all keyspaces. Meanwhile memtables are flushed, checkpoints are made, and other keyspaces are
//! created and dropped.
//!
//! A check *overlaps a write* if a commit that was not acknowledged when the check began had begun
//! before it ended. The interleaving of the threads does not follow from the unit.

use crate::suite::support::{ENGINES, KEYSPACES, compression_of, engine_of, layout_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{MemoryDirectory, Rng, unreachable_blocks};
use chelonia::{
    Database, EngineOptions, FilterKind, Key, Keyspace, KeyspaceOptions, Result, Snapshot, Value,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WRITERS: usize = 3;
const KEYS: u64 = 97;

struct Shared {
    database: Database,
    /// One of each engine.
    keyspaces: [Keyspace; ENGINES],
    newest: Keyspace,
    begun: [AtomicU64; WRITERS],
    acknowledged: [AtomicU64; WRITERS],
    checked: AtomicU64,
    overlapping: AtomicU64,
    done: AtomicBool,
}

fn key(writer: u64, commit: u64) -> Vec<u8> {
    let mut key = writer.to_be_bytes()[7..].to_vec();
    key.extend_from_slice(&(commit % KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

fn value(commit: u64) -> Vec<u8> {
    let mut value = commit.to_le_bytes().to_vec();
    value.resize(8 + usize::try_from(commit % 61).unwrap(), 0x55);
    value
}

fn commit_of(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, self::value(number), "a value that was never written");
    number
}

impl Shared {
    fn open(unit: Unit) -> Self {
        let directory = MemoryDirectory::new();
        let database = Database::builder("memory")
            .memory(48 << 20)
            .threads(2)
            .log_layout(layout_of(unit.number))
            .internals(|internals| internals.directory = Some(Arc::new(directory)))
            .open()
            .unwrap();
        let keyspace = |place: usize| {
            let filters = [FilterKind::Bloom, FilterKind::Quotient];
            let engine = EngineOptions::tiny(engine_of(place as u64), 4 << 10);
            let number = usize::try_from(unit.number).unwrap() + place;
            let options = KeyspaceOptions::new().engine(engine).filter(filters[number % 2]);
            let compression = compression_of(engine_of(place as u64), unit.number);
            let options = options.compression(compression);
            let keyspace = database.keyspace(KEYSPACES[place], options).unwrap();
            keyspace.set_checkpoint_distance(3_000).unwrap();
            keyspace
        };
        Self {
            keyspaces: std::array::from_fn(keyspace),
            newest: database.keyspace("newest", KeyspaceOptions::new()).unwrap(),
            database,
            begun: std::array::from_fn(|_| AtomicU64::new(0)),
            acknowledged: std::array::from_fn(|_| AtomicU64::new(0)),
            checked: AtomicU64::new(0),
            overlapping: AtomicU64::new(0),
            done: AtomicBool::new(false),
        }
    }

    fn write(&self, writer: u64, commits: u64) {
        let slot = usize::try_from(writer).unwrap();
        for commit in 1..=commits {
            self.begun[slot].store(commit, Ordering::SeqCst);
            let mut batch = self.database.batch();
            for keyspace in &self.keyspaces {
                batch.insert(keyspace, key(writer, commit), value(commit));
            }
            batch.insert(&self.newest, writer.to_be_bytes(), value(commit));
            batch.commit().unwrap();
            self.acknowledged[slot].store(commit, Ordering::SeqCst);
        }
    }

    /// Counts `reads` checked entries; `least` was acknowledged before the check began.
    fn count(&self, reads: u64, least: &[u64; WRITERS]) {
        self.checked.fetch_add(reads, Ordering::Relaxed);
        if Self::numbers(&self.begun) != *least {
            self.overlapping.fetch_add(reads, Ordering::Relaxed);
        }
    }

    /// Makes checkpoints, and keyspaces with long names until the catalog has several blocks.
    fn make_checkpoints(&self) {
        let mut made = Vec::new();
        while !self.done.load(Ordering::SeqCst) {
            for _ in 0..MADE_AT_ONCE {
                let name = format!("{:0>200}", made.len());
                let other = self.database.keyspace(&name, KeyspaceOptions::new()).unwrap();
                other.insert("key", &name).unwrap();
                made.push(name);
            }
            self.database.checkpoint().unwrap();
            if made.len() == CROWD {
                for name in made.drain(..) {
                    let other = self.database.keyspace(&name, KeyspaceOptions::new()).unwrap();
                    assert!(other.get("key").unwrap().as_deref() == Some(name.as_bytes()));
                    drop(other);
                    self.database.drop_keyspace(&name).unwrap();
                }
            }
            std::thread::yield_now();
        }
    }

    fn numbers(all: &[AtomicU64; WRITERS]) -> [u64; WRITERS] {
        std::array::from_fn(|writer| all[writer].load(Ordering::SeqCst))
    }

    /// Checks that `entries` are the content after some number of commits of each writer within the
    /// limits; returns the numbers.
    fn check(
        entries: &[(Key, Value)],
        least: &[u64; WRITERS],
        most: &[u64; WRITERS],
    ) -> [u64; WRITERS] {
        assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "not in order");
        let found: BTreeMap<Vec<u8>, u64> =
            entries.iter().map(|(key, value)| (key.to_vec(), commit_of(value))).collect();
        let mut shown = [0; WRITERS];
        for (slot, writer) in (0..WRITERS).zip(0u64..) {
            let own = found.iter().filter(|(key, _)| u64::from(key[0]) == writer);
            let last = own.map(|(_, commit)| *commit).max().unwrap_or(0);
            assert!(least[slot] <= last && last <= most[slot], "{least:?} {last} {most:?}");
            for commit in last.saturating_sub(KEYS - 1).max(1)..=last {
                assert_eq!(found.get(&key(writer, commit)), Some(&commit), "a partial state");
            }
            shown[slot] = last;
        }
        let expected: u64 = shown.iter().map(|last| (*last).min(KEYS)).sum();
        assert_eq!(found.len() as u64, expected, "unexpected entries");
        shown
    }

    fn read_snapshot(&self, snapshot: &Snapshot, least: &[u64; WRITERS]) -> [u64; WRITERS] {
        let read = |(place, keyspace): (usize, &Keyspace)| -> Result<Vec<_>> {
            if place % 2 == 0 {
                return snapshot.iter(keyspace).collect();
            }
            let entries: Vec<_> = snapshot.iter(keyspace).rev().collect::<Result<_>>()?;
            Ok(entries.into_iter().rev().collect())
        };
        let all = self.keyspaces.iter().enumerate().map(read);
        let all: Vec<_> = all.collect::<Result<_>>().unwrap();
        let most = Self::numbers(&self.begun);
        let shown = Self::check(&all[0], least, &most);
        for entries in &all[1..] {
            let other = Self::check(entries, least, &most);
            assert_eq!(shown, other, "keyspaces differ in one snapshot");
        }
        self.count(all.iter().map(|entries| 2 * entries.len() as u64).sum(), least);
        shown
    }

    fn read_snapshots(&self) {
        let mut held: Vec<(Snapshot, [u64; WRITERS])> = Vec::new();
        while !self.done.load(Ordering::SeqCst) {
            let least = Self::numbers(&self.acknowledged);
            let snapshot = self.database.snapshot();
            let shown = self.read_snapshot(&snapshot, &least);
            held.push((snapshot, shown));
            if held.len() > 5 {
                for (snapshot, shown) in held.drain(..) {
                    assert_eq!(self.read_snapshot(&snapshot, &shown), shown, "a snapshot changed");
                }
            }
        }
    }

    fn read_scans(&self) {
        for keyspace in self.keyspaces.iter().cycle() {
            if self.done.load(Ordering::SeqCst) {
                return;
            }
            let least = Self::numbers(&self.acknowledged);
            let entries: Vec<_> = keyspace.iter().collect::<Result<_>>().unwrap();
            Self::check(&entries, &least, &Self::numbers(&self.begun));
            self.count(entries.len() as u64, &least);
        }
    }

    fn read_points(&self, seed: u64) {
        let mut number = seed;
        while !self.done.load(Ordering::SeqCst) {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (writer, residue) = (number >> 33 & 0xff, number >> 41 & 0xffff);
            let writer = writer % WRITERS as u64;
            let keyspace = &self.keyspaces[usize::try_from(number >> 3 & 0xff).unwrap() % ENGINES];
            let slot = usize::try_from(writer).unwrap();
            let latest = |commits: u64| {
                let behind = (commits + KEYS - residue % KEYS) % KEYS;
                commits.saturating_sub(behind)
            };
            let is_newest = number >> 57 & 1 == 1;
            let latest = |commits| if is_newest { commits } else { latest(commits) };
            let acknowledged = self.acknowledged[slot].load(Ordering::SeqCst);
            let least = latest(acknowledged);
            let found = if is_newest {
                self.newest.get(writer.to_be_bytes()).unwrap()
            } else if number & 1 == 0 {
                keyspace.get(key(writer, residue)).unwrap()
            } else {
                keyspace.multi_get([key(writer, residue)]).unwrap().remove(0)
            };
            let most = latest(self.begun[slot].load(Ordering::SeqCst));
            let found = found.map_or(0, |value| commit_of(&value));
            assert!(least <= found && found <= most, "{least} {found} {most}");
            let is_overlapping = self.begun[slot].load(Ordering::SeqCst) != acknowledged;
            self.checked.fetch_add(1, Ordering::Relaxed);
            self.overlapping.fetch_add(u64::from(is_overlapping), Ordering::Relaxed);
        }
    }
}

/// Keyspaces are dropped once there are this many.
const CROWD: usize = 40;

/// Keyspaces created between two checkpoints.
const MADE_AT_ONCE: usize = 8;

/// Commits of each writer in a unit.
const COMMITS: u64 = 6_000;

/// A unit is a run of the threads.
pub struct Readers;

impl Test for Readers {
    fn name(&self) -> &'static str {
        "readers"
    }

    fn about(&self) -> &'static str {
        "checks every read concurrent with writers, flushes and checkpoints against commit order"
    }

    fn short_units(&self) -> u64 {
        2
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "entries checked", count: 50_000_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let shared = Shared::open(unit);
        let mut rng: Rng = unit.rng();
        let seeds = [rng.next_u64(), rng.next_u64()];
        std::thread::scope(|scope| {
            let others = [
                scope.spawn(|| shared.read_snapshots()),
                scope.spawn(|| shared.read_scans()),
                scope.spawn(|| shared.read_points(seeds[0])),
                scope.spawn(|| shared.read_points(seeds[1])),
                scope.spawn(|| shared.make_checkpoints()),
            ];
            let writers: Vec<_> = (0..WRITERS as u64)
                .map(|writer| {
                    let shared = &shared;
                    scope.spawn(move || shared.write(writer, COMMITS))
                })
                .collect();
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            shared.done.store(true, Ordering::SeqCst);
            let read: Vec<_> = others.into_iter().map(|other| other.join()).collect();
            assert!(written.iter().chain(&read).all(std::thread::Result::is_ok));
        });
        let stats = shared.database.stats();
        let snapshot = shared.database.snapshot();
        let all = [COMMITS; WRITERS];
        assert_eq!(shared.read_snapshot(&snapshot, &all), all);
        drop(snapshot);
        assert!(shared.database.verify().unwrap().is_clean());
        shared.database.checkpoint().unwrap();
        assert_eq!(unreachable_blocks(&shared.database).unwrap(), 0);
        let (checked, overlapping) =
            (shared.checked.load(Ordering::Relaxed), shared.overlapping.load(Ordering::Relaxed));
        assert!(10 * overlapping >= 3 * checked, "{overlapping} of {checked} overlap a write");
        assert!(stats.background.flushes > 20, "{} flushes", stats.background.flushes);
        let mut tally = Tally::default();
        tally.add("entries checked", checked);
        tally.add("of them overlapping a write", overlapping);
        tally.add("flushes", stats.background.flushes);
        tally.add("checkpoints", stats.background.checkpoints);
        tally
    }
}
