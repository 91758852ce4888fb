//! Readers and writers on many threads, with every read checked against the order of commits.
//!
//! Each writer numbers its commits. Commit `c` puts `c` under key `c % KEYS` of the writer's own in
//! both keyspaces. So the content after `c` commits is known exactly, and whatever a snapshot or a
//! scan shows must be the content after some number of commits of each writer: not less than were
//! acknowledged before it was made, not more than had begun when it was done, and the same number
//! in both keyspaces.

use crate::support::tiny_options_of;
use chelonia::internals::MemoryDirectory;
use chelonia::{Database, Key, Keyspace, Result, Snapshot, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WRITERS: u64 = 3;
const KEYS: u64 = 97;

struct Shared {
    database: Database,
    left: Keyspace,
    right: Keyspace,
    begun: [AtomicU64; WRITERS as usize],
    acknowledged: [AtomicU64; WRITERS as usize],
    checked: AtomicU64,
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
    assert_eq!(value, self::value(number), "a value that nobody wrote");
    number
}

impl Shared {
    fn open() -> Self {
        let directory = MemoryDirectory::new();
        let database = Database::builder("memory")
            .memory(48 << 20)
            .threads(2)
            .internals(|internals| internals.directory = Some(Arc::new(directory)))
            .open()
            .unwrap();
        let keyspace = |name: &str| {
            let keyspace = database.keyspace(name, tiny_options_of(name)).unwrap();
            keyspace.set_checkpoint_distance(3_000).unwrap();
            keyspace
        };
        Self {
            left: keyspace("left"),
            right: keyspace("right"),
            database,
            begun: std::array::from_fn(|_| AtomicU64::new(0)),
            acknowledged: std::array::from_fn(|_| AtomicU64::new(0)),
            checked: AtomicU64::new(0),
            done: AtomicBool::new(false),
        }
    }

    fn write(&self, writer: u64, commits: u64) {
        let slot = usize::try_from(writer).unwrap();
        for commit in 1..=commits {
            self.begun[slot].store(commit, Ordering::SeqCst);
            let mut batch = self.database.batch();
            batch.insert(&self.left, key(writer, commit), value(commit));
            batch.insert(&self.right, key(writer, commit), value(commit));
            batch.commit().unwrap();
            self.acknowledged[slot].store(commit, Ordering::SeqCst);
        }
    }

    fn numbers(all: &[AtomicU64; WRITERS as usize]) -> [u64; WRITERS as usize] {
        std::array::from_fn(|writer| all[writer].load(Ordering::SeqCst))
    }

    /// Checks that `entries` are the content after some number of commits of each writer within the
    /// limits, and returns the numbers.
    fn check(
        entries: &[(Key, Value)],
        least: &[u64; WRITERS as usize],
        most: &[u64; WRITERS as usize],
    ) -> [u64; WRITERS as usize] {
        assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "not in order");
        let found: BTreeMap<Vec<u8>, u64> =
            entries.iter().map(|(key, value)| (key.to_vec(), commit_of(value))).collect();
        let mut shown = [0; WRITERS as usize];
        for writer in 0..WRITERS {
            let slot = usize::try_from(writer).unwrap();
            let own = found.iter().filter(|(key, _)| u64::from(key[0]) == writer);
            let last = own.map(|(_, commit)| *commit).max().unwrap_or(0);
            assert!(least[slot] <= last && last <= most[slot], "{least:?} {last} {most:?}");
            for commit in last.saturating_sub(KEYS - 1).max(1)..=last {
                assert_eq!(found.get(&key(writer, commit)), Some(&commit), "a torn state");
            }
            shown[slot] = last;
        }
        let expected: u64 = shown.iter().map(|last| (*last).min(KEYS)).sum();
        assert_eq!(found.len() as u64, expected, "entries that should not be there");
        shown
    }

    fn read_snapshot(
        &self,
        snapshot: &Snapshot,
        least: &[u64; WRITERS as usize],
    ) -> [u64; WRITERS as usize] {
        let left: Vec<_> = snapshot.iter(&self.left).collect::<Result<_>>().unwrap();
        let right: Vec<_> = snapshot.iter(&self.right).rev().collect::<Result<_>>().unwrap();
        let right: Vec<_> = right.into_iter().rev().collect();
        let most = Self::numbers(&self.begun);
        let shown = Self::check(&left, least, &most);
        assert_eq!(shown, Self::check(&right, least, &most), "keyspaces differ in one snapshot");
        self.checked.fetch_add(2 * (left.len() + right.len()) as u64, Ordering::Relaxed);
        shown
    }

    fn read_snapshots(&self) {
        let mut held: Vec<(Snapshot, [u64; WRITERS as usize])> = Vec::new();
        while !self.done.load(Ordering::SeqCst) {
            let least = Self::numbers(&self.acknowledged);
            let snapshot = self.database.snapshot();
            let shown = self.read_snapshot(&snapshot, &least);
            held.push((snapshot, shown));
            if held.len() > 5 {
                for (snapshot, shown) in held.drain(..) {
                    assert_eq!(self.read_snapshot(&snapshot, &shown), shown, "a snapshot moved");
                }
            }
        }
    }

    fn read_scans(&self) {
        while !self.done.load(Ordering::SeqCst) {
            let least = Self::numbers(&self.acknowledged);
            let entries: Vec<_> = self.left.iter().collect::<Result<_>>().unwrap();
            Self::check(&entries, &least, &Self::numbers(&self.begun));
            self.checked.fetch_add(entries.len() as u64, Ordering::Relaxed);
        }
    }

    fn read_points(&self, seed: u64) {
        let mut number = seed;
        while !self.done.load(Ordering::SeqCst) {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (writer, residue) = (number >> 33 & 0xff, number >> 41 & 0xffff);
            let writer = writer % WRITERS;
            let slot = usize::try_from(writer).unwrap();
            let latest = |commits: u64| {
                let behind = (commits + KEYS - residue % KEYS) % KEYS;
                commits.saturating_sub(behind)
            };
            let least = latest(self.acknowledged[slot].load(Ordering::SeqCst));
            let found = if number & 1 == 0 {
                self.right.get(key(writer, residue)).unwrap()
            } else {
                self.right.multi_get([key(writer, residue)]).unwrap().remove(0)
            };
            let most = latest(self.begun[slot].load(Ordering::SeqCst));
            let found = found.map_or(0, |value| commit_of(&value));
            assert!(least <= found && found <= most, "{least} {found} {most}");
            self.checked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn every_read_is_of_a_prefix_of_the_commits() {
    let shared = Shared::open();
    std::thread::scope(|scope| {
        let readers = [
            scope.spawn(|| shared.read_snapshots()),
            scope.spawn(|| shared.read_scans()),
            scope.spawn(|| shared.read_points(1)),
            scope.spawn(|| shared.read_points(99)),
        ];
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let shared = &shared;
                scope.spawn(move || shared.write(writer, 100_000))
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        shared.done.store(true, Ordering::SeqCst);
        let read: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        assert!(written.iter().chain(&read).all(std::thread::Result::is_ok));
    });
    let stats = shared.database.stats();
    println!(
        "{} reads checked, {} drains",
        shared.checked.load(Ordering::Relaxed),
        stats.background.drains
    );
    assert!(stats.background.drains > 50, "too few drains to have tested anything");
    let snapshot = shared.database.snapshot();
    let all = [100_000; WRITERS as usize];
    assert_eq!(shared.read_snapshot(&snapshot, &all), all);
    drop(snapshot);
    assert!(shared.database.verify().unwrap().is_clean());
    shared.database.checkpoint().unwrap();
    assert_eq!(chelonia::internals::unreachable_blocks(&shared.database).unwrap(), 0);
}
