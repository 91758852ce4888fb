//! The memory budget, measured: a process that loads, overwrites, reads, scans and holds snapshots
//! stays within budget + 5% + 16 MiB of resident memory at its peak.

use chelonia::internals::Rng;
use chelonia::limits::BATCH_ENTRY_BYTES;
use chelonia::{Batch, Database, KeyspaceOptions, Result, TurtleOptions};
use std::process::Command;

const CHILD: &str = "CHELONIA_TEST_MEMORY";
const CHILD_LEAVES: &str = "CHELONIA_TEST_LEAVES";
const CHILD_MIXED: &str = "CHELONIA_TEST_MEMORY_MIXED";
const SLACK_BYTES: u64 = 16 << 20;

/// The peak of the process's resident set, in bytes.
pub fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes << 10
}

pub fn limit(budget: u64) -> u64 {
    budget + budget / 20 + SLACK_BYTES
}

/// Writes `bytes` of random records in two keyspaces.
fn write(database: &Database, rng: &mut Rng, bytes: u64, keys: u64) -> Result<()> {
    let small = database.keyspace("small", KeyspaceOptions::new())?;
    let mixed = database.keyspace("mixed", KeyspaceOptions::new())?;
    let mut written = 0;
    while written < bytes {
        let key = rng.below(keys).to_be_bytes();
        let (keyspace, length) = match rng.below(8) {
            0 => (&mixed, 200 + rng.below(9_000)),
            _ => (&small, 100 + rng.below(60)),
        };
        let mut value = vec![0; usize::try_from(length).unwrap()];
        let filled = value.len().min(64);
        rng.fill(&mut value[..filled]);
        keyspace.insert(key, &value)?;
        written += 8 + length;
    }
    Ok(())
}

fn read(database: &Database, rng: &mut Rng, keys: u64) -> Result<()> {
    for name in ["small", "mixed"] {
        let keyspace = database.keyspace(name, KeyspaceOptions::new())?;
        for _ in 0..20_000 {
            keyspace.get(rng.below(keys).to_be_bytes())?;
        }
        for _ in 0..200 {
            let from = rng.below(keys).to_be_bytes();
            for entry in keyspace.range(&from[..]..).take(200) {
                entry?;
            }
        }
    }
    Ok(())
}

#[test]
fn child_that_works_within_a_budget() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let (budget, path) = arguments.split_once(' ').unwrap();
    let budget: u64 = budget.parse().unwrap();
    let database = Database::builder(path).memory(budget).open().unwrap();
    let mut rng = Rng::new(budget);
    // Twice the budget of data, then as many flushes as snapshots.
    let keys = budget / 500;
    write(&database, &mut rng, 2 * budget, keys).unwrap();
    read(&database, &mut rng, keys).unwrap();
    let mut snapshots = Vec::new();
    let each = budget / 40;
    for _ in 0..20 {
        snapshots.push(database.snapshot());
        write(&database, &mut rng, each, keys).unwrap();
        database.checkpoint().unwrap();
    }
    read(&database, &mut rng, keys).unwrap();
    let mixed = database.keyspace("mixed", KeyspaceOptions::new()).unwrap();
    for snapshot in &snapshots {
        assert!(snapshot.iter(&mixed).take(100).all(|entry| entry.is_ok()));
    }
    println!("counted {:?}", database.stats().memory);
    drop(snapshots);
    database.close().unwrap();
    println!("peak {} of {}", peak_resident_bytes(), limit(budget));
}

/// Small entries in the largest leaves, merged by many threads.
#[test]
fn child_with_large_leaves() {
    let Ok(arguments) = std::env::var(CHILD_LEAVES) else { return };
    let (budget, path) = arguments.split_once(' ').unwrap();
    let budget: u64 = budget.parse().unwrap();
    let database = Database::builder(path).memory(budget).threads(4).open().unwrap();
    let options = KeyspaceOptions::new().engine(TurtleOptions::new().leaf_bytes(8 << 20));
    let keyspace = database.keyspace("k", options).unwrap();
    let mut rng = Rng::new(1);
    for _ in 0..1_500_000 {
        keyspace.insert(rng.next_u64().to_be_bytes(), [1; 8]).unwrap();
    }
    database.checkpoint().unwrap();
    println!("counted {:?}", database.stats().memory);
    println!("peak {} of {}", peak_resident_bytes(), limit(budget));
}

/// Reads and writes together: memory moves between cache and memtables repeatedly.
#[test]
fn child_that_reads_and_writes() {
    let Ok(arguments) = std::env::var(CHILD_MIXED) else { return };
    let (budget, path) = arguments.split_once(' ').unwrap();
    let budget: u64 = budget.parse().unwrap();
    let database = Database::builder(path).memory(budget).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let keys = 3 * budget / 128;
    let work = |thread: u64| {
        let mut rng = Rng::new(thread);
        for _ in 0..keys / 2 {
            keyspace.insert(rng.below(keys).to_be_bytes(), [1; 120]).unwrap();
        }
        for _ in 0..1_200_000 {
            // Half of the writes go to a tenth of the keys.
            let most = if rng.below(2) == 0 { keys / 10 } else { keys };
            let key = rng.below(most).to_be_bytes();
            match rng.below(2) {
                0 => keyspace.insert(key, [2; 120]).unwrap(),
                _ => drop(keyspace.get(key).unwrap()),
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    println!("counted {:?}", database.stats().memory);
    println!("peak {} of {}", peak_resident_bytes(), limit(budget));
}

#[test]
fn reads_and_writes_together_stay_within_the_budget() {
    child_within(128, "memory::child_that_reads_and_writes", CHILD_MIXED, &[]);
}

fn within_budget(mebibytes: u64) {
    child_within(mebibytes, "memory::child_that_works_within_a_budget", CHILD, &[]);
}

#[test]
fn the_largest_leaves_fit_the_least_budget() {
    child_within(32, "memory::child_with_large_leaves", CHILD_LEAVES, &[]);
}

/// Runs `child` in a separate process. It finds its arguments in the environment under `variable`:
/// those of `more`, the budget in bytes, and the path of the database.
pub fn child_within(mebibytes: u64, child: &str, variable: &str, more: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let arguments = format!("{} {} {}", more.join(" "), mebibytes << 20, path.display())
        .trim_start()
        .to_owned();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--nocapture"])
        .env(variable, arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let peak = text.lines().find_map(|line| line.split_once("peak ")).unwrap().1;
    let (peak, _) = peak.split_once(' ').unwrap();
    let peak: u64 = peak.parse().unwrap();
    println!("{mebibytes} MiB {more:?}: {text}");
    let is_within = peak <= limit(mebibytes << 20);
    assert!(is_within, "peak {peak} at a budget of {mebibytes} MiB {more:?}: {text}");
}

#[test]
fn resident_memory_stays_within_the_smallest_budget() {
    within_budget(32);
}

#[test]
fn resident_memory_stays_within_a_medium_budget() {
    within_budget(128);
}

#[test]
fn resident_memory_stays_within_a_large_budget() {
    within_budget(512);
}

/// Batches of many small entries take several times their bytes in a memtable, and many threads
/// commit one at the same time.
#[test]
fn many_full_batches_at_once_stay_within_the_write_share() {
    let directory = tempfile::tempdir().unwrap();
    let budget = 32 << 20;
    let database = Database::builder(directory.path().join("d")).memory(budget).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let most = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (database, keyspace, most) = (&database, &keyspace, &most);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..3 {
                    let mut batch = database.batch();
                    while batch.size() + 4 + BATCH_ENTRY_BYTES <= Batch::limit() {
                        let key = rng.next_u64().to_le_bytes();
                        batch.insert(keyspace, &key[..4], "");
                    }
                    batch.commit().unwrap();
                    let used = database.stats().memory.memtable_bytes;
                    most.fetch_max(used, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let most = most.into_inner();
    assert!(most <= budget / 16 * 9 + (2 << 20), "memtables took {most} bytes");
}

/// The same with batches over many keyspaces, and no other writes.
#[test]
fn many_full_batches_over_many_keyspaces_stay_within_the_budget() {
    const KEYSPACES: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let budget = 32 << 20;
    let database = Database::builder(directory.path().join("d")).memory(budget).open().unwrap();
    let open = |number| database.keyspace(&format!("{number}"), KeyspaceOptions::new()).unwrap();
    let keyspaces: Vec<_> = (0..KEYSPACES).map(open).collect();
    let most = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (database, keyspaces, most) = (&database, &keyspaces, &most);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..3 {
                    let mut batch = database.batch();
                    for number in 0..chelonia::limits::BATCH_BYTES_MAX / 1_200 {
                        let key = rng.next_u64().to_le_bytes();
                        batch.insert(&keyspaces[number % KEYSPACES], key, [1; 1_000]);
                    }
                    batch.commit().unwrap();
                    let used = database.stats().memory.memtable_bytes;
                    most.fetch_max(used, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let most = most.into_inner();
    // Admission estimates the memory that each keyspace needs.
    assert!(most <= budget, "memtables took {most} bytes");
}

#[test]
fn a_batch_over_a_thousand_keyspaces_takes_a_block_each() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = chelonia::Database::builder(&path).memory(32 << 20).open().unwrap();
    let keyspaces: Vec<_> = (0..1_000)
        .map(|number| database.keyspace(&number.to_string(), KeyspaceOptions::new()).unwrap())
        .collect();
    let mut batch = database.batch();
    for keyspace in &keyspaces {
        batch.insert(keyspace, "key", "value");
    }
    batch.commit().unwrap();
    let memtables = database.stats().memory.memtable_bytes;
    assert!(memtables <= 5 << 20, "{memtables} bytes of memtables");
    assert!(keyspaces.iter().all(|one| one.get("key").unwrap().unwrap() == *b"value"));
}

#[test]
fn overwriting_one_key_forever_needs_bounded_space() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = chelonia::Database::builder(&path).memory(32 << 20).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", [0; 100]).unwrap();
    // The versions that the snapshot sees are retained, and no others.
    let snapshot = database.snapshot();
    let (mut memtables, mut log, mut data) = (0, 0, 0);
    for number in 0..1_000_000_u64 {
        let mut value = [0; 100];
        value[..8].copy_from_slice(&number.to_le_bytes());
        keyspace.insert("key", value).unwrap();
        if number % 1_000 == 0 {
            let stats = database.stats();
            memtables = memtables.max(stats.memory.memtable_bytes);
            log = log.max(stats.disk.log_file_bytes);
            data = data.max(stats.disk.data_allocated_bytes);
        }
    }
    assert_eq!(keyspace.get("key").unwrap().unwrap()[..8], 999_999_u64.to_le_bytes());
    assert_eq!(snapshot.get(&keyspace, "key").unwrap().unwrap(), [0; 100]);
    // The largest share of writes without reads, which a busy machine reaches later than usual.
    assert!(memtables <= 26 << 20, "{memtables} bytes of memtables");
    assert!(log <= 64 << 20, "{log} bytes of log");
    assert!(data <= 4 << 20, "{data} bytes of data");
}
