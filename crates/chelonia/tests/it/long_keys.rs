//! Long keys: memory, the data file and its nodes stay small with keys of up to 65,536 bytes.

use crate::memory::{limit, peak_resident_bytes};
use chelonia::internals::Rng;
use chelonia::{Database, EngineKind, Keyspace, KeyspaceOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const CHILD_LOAD: &str = "CHELONIA_TEST_LONG_KEYS_LOAD";
const CHILD_HISTORY: &str = "CHELONIA_TEST_LONG_KEYS_HISTORY";
const BUDGET: u64 = 32 << 20;
/// Keys of one `multi_get`.
const TOGETHER: u64 = 200;

/// The shared prefix of keys.
#[derive(Clone, Copy)]
enum Keys {
    /// None.
    Random,
    /// All but the last bytes.
    Shared,
    /// All but the last bytes, with few other keys.
    Clusters,
}

impl Keys {
    fn of(name: &str) -> Self {
        match name {
            "random" => Self::Random,
            "shared" => Self::Shared,
            _ => Self::Clusters,
        }
    }

    /// Key `number` of `length` bytes.
    fn key(self, number: u64, length: usize) -> Vec<u8> {
        let mut key = vec![b'p'; length];
        let mut rng = Rng::new(number);
        let from = length.saturating_sub(16);
        match self {
            Self::Random => rng.fill(&mut key),
            Self::Shared => rng.fill(&mut key[from..]),
            Self::Clusters => {
                Rng::new(number % 900).fill(&mut key);
                rng.fill(&mut key[from..]);
            }
        }
        key
    }
}

fn open(path: &Path, engine: EngineKind) -> (Database, Keyspace) {
    // As on a machine of many processors: each thread that works needs memory.
    let database = Database::builder(path).memory(BUDGET).threads(16).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new().engine(engine)).unwrap();
    (database, keyspace)
}

fn get_together(keyspace: &Keyspace, keys: &[Vec<u8>]) -> usize {
    keyspace.multi_get(keys).unwrap().iter().flatten().count()
}

/// The engine, the keys and the path that are passed to a child.
fn arguments(variable: &str) -> Option<(EngineKind, Keys, std::path::PathBuf)> {
    let arguments = std::env::var(variable).ok()?;
    let mut words = arguments.splitn(3, ' ');
    let engine = EngineKind::from_name(words.next().unwrap()).unwrap();
    let keys = Keys::of(words.next().unwrap());
    Some((engine, keys, words.next().unwrap().into()))
}

#[test]
fn child_that_loads_long_keys() {
    let Some((engine, keys, path)) = arguments(CHILD_LOAD) else { return };
    const COUNT: u64 = 3_000;
    let key = |number: u64| keys.key(number, 60_000);
    let (database, keyspace) = open(&path, engine);
    for number in 0..COUNT {
        keyspace.insert(key(number), number.to_le_bytes()).unwrap();
    }
    let some: Vec<Vec<u8>> = (0..TOGETHER).map(|it| key(it * COUNT / TOGETHER)).collect();
    assert_eq!(get_together(&keyspace, &some), some.len());
    assert_eq!(keyspace.iter().map(Result::unwrap).count(), usize::try_from(COUNT).unwrap());
    database.checkpoint().unwrap();
    assert_eq!(get_together(&keyspace, &some), some.len());
    println!("counted {:?}", database.stats().memory);
    database.close().unwrap();
    let (database, keyspace) = open(&path, engine);
    assert_eq!(get_together(&keyspace, &some), some.len());
    let disk = database.stats().disk;
    println!("data {}", disk.data_file_bytes);
    println!("peak {}", peak_resident_bytes());
}

/// Keys of all lengths are written, overwritten, removed and read, and compared with a map at the
/// end.
#[test]
fn child_with_a_history_of_long_keys() {
    let Some((engine, keys, path)) = arguments(CHILD_HISTORY) else { return };
    const NAMES: u64 = 2_000;
    let key = |name: u64| {
        let length = usize::try_from(Rng::new(name).below(60_001)).unwrap();
        keys.key(name, length)
    };
    let (database, keyspace) = open(&path, engine);
    let mut rng = Rng::new(1);
    let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut file = 0;
    for step in 0..8_000_u64 {
        let name = rng.below(NAMES);
        match rng.below(10) {
            0..6 => {
                let mut value = step.to_le_bytes().to_vec();
                keyspace.insert(key(name), [&*value, &vec![1; 10_000]].concat()).unwrap();
                value.push(1);
                model.insert(name, value);
            }
            6..8 => {
                keyspace.remove(key(name)).unwrap();
                model.remove(&name);
            }
            _ => {
                let found = keyspace.get(key(name)).unwrap();
                assert_eq!(found.as_deref().map(|it| &it[..9]), model.get(&name).map(|it| &**it));
            }
        }
        if step % 400 == 0 {
            let some: Vec<Vec<u8>> = (0..TOGETHER).map(|_| key(rng.below(NAMES))).collect();
            get_together(&keyspace, &some);
            file = file.max(database.stats().disk.data_file_bytes);
        }
    }
    for name in 0..NAMES {
        let found = keyspace.get(key(name)).unwrap();
        assert_eq!(found.as_deref().map(|it| &it[..9]), model.get(&name).map(|it| &**it));
    }
    println!("counted {:?}", database.stats().memory);
    println!("data {}", file.max(database.stats().disk.data_file_bytes));
    println!("peak {}", peak_resident_bytes());
}

/// Runs `child` in a separate process; returns its peak of resident memory and the size of its data
/// file.
fn run(child: &str, variable: &str, engine: &str, keys: &str) -> (u64, u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--nocapture"])
        .env(variable, format!("{engine} {keys} {}", path.display()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.split_once(name)).unwrap().1;
        line.trim().parse::<u64>().unwrap()
    };
    println!("{engine} {keys}: {text}");
    (number("peak "), number("data "))
}

/// The memory that the allocator may retain with keys that share most of their bytes: several
/// threads allocate and free them in pieces of tens of kilobytes.
const ALLOCATOR_BYTES: u64 = 32 << 20;

/// The caller's memory of one `multi_get`: its keys and values, `own` bytes.
fn stays_within(child: &str, variable: &str, (engine, keys): (&str, &str), own: u64, file: u64) {
    let (peak, data) = run(child, variable, engine, keys);
    let retained = if keys == "random" { 0 } else { ALLOCATOR_BYTES };
    let most = limit(BUDGET) + own + retained;
    println!("{engine} {keys}: {} of {} KiB, data {} MiB", peak >> 10, most >> 10, data >> 20);
    assert!(peak <= most, "{engine} {keys}: {peak} bytes resident, not {most}");
    assert!(data <= file, "{engine} {keys}: a data file of {data} bytes, not {file}");
}

fn load_within(engine: &str, keys: &str) {
    // 180 MB of keys, up to twice that during merges. A call has 12 MB, rounded up.
    let child = "long_keys::child_that_loads_long_keys";
    stays_within(child, CHILD_LOAD, (engine, keys), 16 << 20, 450 << 20);
}

fn history_within(engine: &str, keys: &str) {
    // 60 MB are live, and as much waits to be merged. A call has 8 MB, rounded up.
    let child = "long_keys::child_with_a_history_of_long_keys";
    stays_within(child, CHILD_HISTORY, (engine, keys), 12 << 20, 240 << 20);
}

#[test]
fn a_load_of_random_long_keys_stays_within_the_budget() {
    load_within("turtle", "random");
    load_within("autumn", "random");
    load_within("splinter", "random");
}

#[test]
fn a_load_of_long_keys_that_share_a_prefix_stays_within_the_budget() {
    load_within("turtle", "shared");
    load_within("autumn", "shared");
    load_within("splinter", "shared");
}

#[test]
fn a_load_of_clusters_of_long_keys_stays_within_the_budget() {
    load_within("turtle", "clusters");
    load_within("autumn", "clusters");
    load_within("splinter", "clusters");
}

#[test]
fn a_history_of_random_long_keys_stays_within_the_budget() {
    history_within("turtle", "random");
    history_within("autumn", "random");
    history_within("splinter", "random");
}

#[test]
fn a_history_of_long_keys_that_share_a_prefix_stays_within_the_budget() {
    history_within("turtle", "shared");
    history_within("autumn", "shared");
    history_within("splinter", "shared");
}
