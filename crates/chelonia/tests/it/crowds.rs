//! The memory budget under load, measured: hundreds of keyspaces of every engine, with compressed
//! values and without, snapshots,
//! iterators, large values, batches near the limit, large reads and verifications, each alone and
//! all together, stay within budget + 5% + 16 MiB of resident memory at their peak.
//!
//! A batch under construction belongs to the process, not to the database, and is subtracted.

use super::memory::{child_within, limit, peak_resident_bytes};
use chelonia::internals::Rng;
use chelonia::{
    Batch, Compression, Database, EngineKind, ErrorKind, Iter, Keyspace, KeyspaceOptions, Snapshot,
};

const CHILD: &str = "CHELONIA_TEST_CROWDS";
const CHILD_NAME: &str = "crowds::child_with_a_crowd";

/// Keys of each keyspace.
const KEYS: u64 = 2_000;

/// The size of a full batch: no entry fits any more.
const FULL: usize = Batch::limit() - 1_100;

/// The operations of each round, in addition to 10,000 inserts over all keyspaces.
#[derive(Clone, Copy, Default)]
struct Load {
    keyspaces: usize,
    /// Keyspaces of engines that compress do, by one codec or the other.
    compressed: bool,
    gets: u64,
    scans: u64,
    /// Calls of `multi_get` with 2,000 keys each.
    multi_gets: u64,
    large_values: u64,
    /// Batches over all keyspaces, each of half the largest size.
    batches: u64,
    /// The same, of nearly the largest size.
    full_batches: u64,
    snapshots: u64,
    iterators: u64,
    verifies: u64,
}

/// The loads by name: each part alone, then all of them.
fn load(name: &str) -> Load {
    let few = Load { keyspaces: 4, ..Load::default() };
    let many = Load { keyspaces: 200, ..Load::default() };
    match name {
        "keyspaces" => Load { gets: 3_000, scans: 50, ..many },
        "limit-of-keyspaces" => Load { keyspaces: 1_000, gets: 3_000, scans: 50, ..many },
        "compressed" => Load { compressed: true, gets: 3_000, ..few },
        "limit-of-compressed-keyspaces" => {
            Load { keyspaces: 1_000, compressed: true, gets: 3_000, scans: 50, ..many }
        }
        "pins" => Load { keyspaces: 20, snapshots: 80, iterators: 24, ..few },
        "pins-over-many" => Load { snapshots: 80, iterators: 24, ..many },
        "large-values" => Load { large_values: 40, gets: 3_000, ..few },
        "batches" => Load { batches: 1, ..few },
        "batches-over-many" => Load { batches: 1, ..many },
        "multi-gets" => Load { multi_gets: 20, ..few },
        "verifies" => Load { batches: 1, verifies: 1, ..few },
        "full-batches-over-pins" => {
            Load { full_batches: 3, snapshots: 80, iterators: 24, gets: 3_000, ..many }
        }
        "all" => Load {
            gets: 3_000,
            scans: 50,
            multi_gets: 10,
            large_values: 40,
            batches: 1,
            snapshots: 40,
            iterators: 12,
            verifies: 1,
            ..many
        },
        _ => unreachable!("no load is called {name}"),
    }
}

/// A database under a load.
struct Crowd {
    database: Database,
    keyspaces: Vec<Keyspace>,
    rng: Rng,
    snapshots: Vec<Snapshot>,
    iterators: Vec<Iter>,
}

impl Crowd {
    fn any(&mut self) -> Keyspace {
        let place = self.rng.below(self.keyspaces.len() as u64);
        self.keyspaces[usize::try_from(place).unwrap()].clone()
    }

    fn key(&mut self) -> [u8; 8] {
        self.rng.below(KEYS).to_be_bytes()
    }

    fn insert(&mut self, bytes: u64) {
        let (keyspace, key) = (self.any(), self.key());
        // Something that all values of this keyspace have, and something of its own.
        let text = format!("keyspace {} of this value, {}: ", keyspace.name(), self.rng.next_u64());
        let length = usize::try_from(bytes).unwrap();
        let value: Vec<u8> = text.bytes().cycle().take(length).collect();
        keyspace.insert(key, value).unwrap();
    }

    fn write(&mut self, load: Load) {
        for number in 0..10_000 {
            let bytes = if number % 8 == 0 { 200 } else { 100 } + self.rng.below(60);
            self.insert(bytes);
        }
        for _ in 0..load.large_values {
            let bytes = 32_768 + self.rng.below(300_000);
            self.insert(bytes);
        }
        let sizes = [(load.batches, Batch::limit() / 2), (load.full_batches, FULL)];
        for size in sizes.iter().flat_map(|(count, size)| (0..*count).map(|_| *size)) {
            let mut batch = self.database.batch();
            while batch.size() < size {
                let (keyspace, key) = (self.any(), self.key());
                batch.insert(&keyspace, key, [7; 1_000]);
            }
            batch.commit().unwrap();
        }
    }

    fn read(&mut self, load: Load) {
        for _ in 0..load.gets {
            let key = self.key();
            self.any().get(key).unwrap();
        }
        for _ in 0..load.scans {
            let key = self.key();
            for entry in self.any().range(&key[..]..).take(100) {
                entry.unwrap();
            }
        }
        for _ in 0..load.multi_gets {
            let keys: Vec<_> = (0..2_000).map(|_| self.key()).collect();
            assert_eq!(self.any().multi_get(keys).unwrap().len(), 2_000);
        }
        for _ in 0..load.verifies {
            assert!(self.database.verify().unwrap().is_clean());
        }
    }

    /// Holds pins. Those beyond the budget are refused with an error.
    fn pin(&mut self, load: Load) {
        for _ in 0..load.snapshots {
            self.snapshots.push(self.database.snapshot());
            self.insert(120);
        }
        for _ in 0..load.iterators {
            let key = self.key();
            let mut iterator = self.any().range(&key[..]..);
            if let Some(Err(error)) = iterator.next() {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            }
            self.iterators.push(iterator);
        }
    }
}

#[test]
fn child_with_a_crowd() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let mut arguments = arguments.splitn(3, ' ');
    let mut next = || arguments.next().unwrap();
    let (name, budget, path) = (next(), next(), next());
    let (load, budget) = (load(name), budget.parse().unwrap());
    let database = Database::builder(path).memory(budget).open().unwrap();
    let open = |number: usize| {
        let engine = EngineKind::ALL[number % EngineKind::ALL.len()];
        let compression = match engine {
            EngineKind::Treeline | EngineKind::Bminus => Compression::None,
            _ if !load.compressed => Compression::None,
            _ if number.is_multiple_of(2) => Compression::Fast,
            _ => Compression::Small,
        };
        let options = KeyspaceOptions::new().engine(engine).compression(compression);
        database.keyspace(&number.to_string(), options).unwrap()
    };
    let keyspaces = (0..load.keyspaces).map(open).collect();
    let (snapshots, iterators, rng) = (Vec::new(), Vec::new(), Rng::new(budget));
    let mut crowd = Crowd { database, keyspaces, rng, snapshots, iterators };
    for _ in 0..10 {
        crowd.write(load);
        crowd.read(load);
        crowd.pin(load);
    }
    crowd.database.checkpoint().unwrap();
    println!("counted {:?}", crowd.database.stats().memory);
    let own = match load {
        Load { full_batches: 1.., .. } => FULL,
        Load { batches: 1.., .. } => Batch::limit() / 2,
        _ => 0,
    };
    println!("peak {} of {}", peak_resident_bytes() - own as u64, limit(budget));
}

fn within(mebibytes: u64, name: &str) {
    child_within(mebibytes, CHILD_NAME, CHILD, &[name]);
}

#[test]
fn each_crowd_alone_stays_within_the_least_budget() {
    for name in ["keyspaces", "limit-of-keyspaces", "pins", "pins-over-many", "large-values"] {
        within(32, name);
    }
}

#[test]
fn crowds_of_compressed_keyspaces_stay_within_the_least_budget() {
    for name in ["compressed", "limit-of-compressed-keyspaces"] {
        within(32, name);
    }
}

#[test]
fn batches_and_large_reads_stay_within_the_least_budget() {
    for name in ["batches", "batches-over-many", "multi-gets", "verifies"] {
        within(32, name);
    }
}

/// The worst case known: all memory that cannot be freed at once.
#[test]
fn full_batches_over_hundreds_of_pins_and_keyspaces_stay_within_the_budget() {
    for mebibytes in [32, 64] {
        within(mebibytes, "full-batches-over-pins");
    }
}

#[test]
fn all_crowds_together_stay_within_the_budget() {
    for mebibytes in [32, 64, 256] {
        within(mebibytes, "all");
    }
}
