//! Recovery, in addition to the crash tests: logs that do not fit into memory, full devices,
//! progress reports, the amount of replay.

use chelonia::internals::{Call, Failure, Fault, FaultDirectory, FaultPlan, MemoryDirectory};
use chelonia::limits::MEMORY_BYTES_MIN;
use chelonia::{
    Database, DatabaseBuilder, Durability, EngineKind, ErrorKind, KeyspaceOptions, RecoveryProgress,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

type Files = BTreeMap<String, Vec<u8>>;

const VALUE: [u8; 1000] = [5; 1000];

/// Entries that take more than half of the write share of the smallest budget, several times.
const MANY: u64 = 60_000;

fn builder(directory: Arc<dyn chelonia::internals::Directory>) -> DatabaseBuilder {
    Database::builder("memory").memory(MEMORY_BYTES_MIN).internals(|internals| {
        internals.directory = Some(directory);
    })
}

/// The files of a database whose process died with `count` entries in the log and nothing flushed.
fn died_with(count: u64) -> Files {
    let memory = MemoryDirectory::new();
    // With this much memory nothing is flushed.
    let database = builder(Arc::new(memory.clone())).memory(1 << 30).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..count {
        keyspace.insert(number.to_be_bytes(), VALUE).unwrap();
    }
    keyspace.insert("large", vec![6; 100_000]).unwrap();
    keyspace.remove(7_u64.to_be_bytes()).unwrap();
    memory.to_files()
}

fn check(database: &Database, count: u64) {
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let mut next = 0_u64;
    for entry in keyspace.iter() {
        let (key, value) = entry.unwrap();
        if *key == *b"large" {
            continue;
        }
        assert_eq!(*key, next.to_be_bytes());
        assert_eq!(*value, VALUE);
        next += if next == 6 { 2 } else { 1 };
    }
    assert_eq!(next, count);
    assert_eq!(keyspace.iter().rev().count() as u64, count);
    assert_eq!(*keyspace.get("large").unwrap().unwrap(), [6; 100_000]);
    for number in (0..count).step_by(97) {
        assert_eq!(*keyspace.get(number.to_be_bytes()).unwrap().unwrap(), VALUE);
    }
}

#[test]
fn a_read_only_open_replays_a_log_larger_than_memory_and_changes_nothing() {
    let files = died_with(MANY);
    let memory = MemoryDirectory::from_files(files.clone());
    let open = || builder(Arc::new(memory.clone())).read_only(true).open().unwrap();
    // The disk statistics of a writer, before it continues the log.
    let crashed = MemoryDirectory::from_files(files.clone());
    let crashed = builder(Arc::new(crashed)).memory(1 << 30).open().unwrap().stats().disk;
    let (one, other) = (open(), open());
    for reader in [&one, &other] {
        check(reader, MANY);
        assert!(reader.stats().memory.memtable_bytes < MEMORY_BYTES_MIN / 16 * 9);
        assert!(reader.stats().background.flushes > 0, "it did fit");
        let disk = reader.stats().disk;
        assert!(disk.scratch_bytes > 20 << 20, "{disk:?}");
        let length = files["data"].len() as u64;
        assert_eq!((disk.data_file_bytes, disk.data_allocated_bytes), (length, length));
        assert_eq!(disk.data_used_bytes, crashed.data_used_bytes);
        assert!(disk.data_used_bytes <= disk.data_allocated_bytes, "{disk:?}");
        let report = reader.verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let keyspace = reader.keyspace("k", KeyspaceOptions::new()).unwrap();
        assert_eq!(keyspace.insert("k", "v").unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(reader.checkpoint().unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    one.close().unwrap();
    drop(other);
    assert!(memory.to_files() == files);
    check(&builder(Arc::new(memory)).open().unwrap(), MANY);
}

#[test]
fn a_read_only_open_without_scratch_space_names_the_memory_it_needs() {
    let files = died_with(MANY);
    let open = |memory_bytes: u64| {
        let plan = FaultPlan::new();
        let memory = Arc::new(MemoryDirectory::from_files(files.clone()));
        let directory = FaultDirectory::new(memory, plan.clone()).unwrap();
        plan.fail(Fault::sticky(Call::Open, 0).on("(scratch").with(Failure::NoSpace));
        builder(Arc::new(directory)).read_only(true).memory(memory_bytes).open()
    };
    let error = open(MEMORY_BYTES_MIN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let text = error.to_string();
    let needed = text.rsplit("about ").next().unwrap().split(' ').next().unwrap();
    let needed: u64 = needed.parse().unwrap_or_else(|_| panic!("{text}"));
    assert!(needed > MANY * 1_000 && needed < MANY * 4_000, "{text}");
    check(&open(needed).unwrap(), MANY);
}

/// Opens it; if the log neither fits into memory nor can be flushed, with the memory that the error
/// names.
fn open_on_a_full_device(builder: impl Fn() -> DatabaseBuilder) -> Database {
    let error = match builder().open() {
        Ok(database) => return database,
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let message = error.to_string();
    let (_, named) = message.split_once("with about ").expect("the error names the memory");
    let bytes = named.split_once(" bytes of memory").expect("in bytes").0;
    builder().memory(bytes.parse().unwrap()).open().unwrap()
}

#[test]
fn a_database_that_filled_its_device_can_be_opened() {
    let (memory, plan) = (MemoryDirectory::new(), FaultPlan::new());
    let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
    let database = builder(Arc::new(faulty)).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    // Space for some flushes with their checkpoints, then for none.
    plan.set_capacity(Some(40 << 20));
    let mut count = 0_u64;
    let error = loop {
        match keyspace.insert(count.to_be_bytes(), VALUE) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let files = memory.to_files();
    let check_all = |database: &Database| {
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        assert_eq!(keyspace.iter().count() as u64, count);
        assert_eq!(*keyspace.get((count - 1).to_be_bytes()).unwrap().unwrap(), VALUE);
    };
    let plan = FaultPlan::new();
    let memory = MemoryDirectory::from_files(files);
    let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
    let directory: Arc<FaultDirectory> = Arc::new(faulty);
    plan.set_capacity(Some(plan.taken_bytes()));
    let new = || builder(Arc::clone(&directory) as _);
    // The size of the log depends on the progress of flushes.
    let reader = open_on_a_full_device(|| new().read_only(true));
    check_all(&reader);
    drop(reader);
    let again = open_on_a_full_device(new);
    check_all(&again);
    plan.set_capacity(None);
    again.checkpoint().unwrap();
    again.keyspace("k", KeyspaceOptions::new()).unwrap().insert("more", "room").unwrap();
    again.close().unwrap();
    let again = builder(directory).open().unwrap();
    assert_eq!(
        again.keyspace("k", KeyspaceOptions::new()).unwrap().iter().count() as u64,
        count + 1
    );
}

#[test]
fn recovery_reports_its_progress() {
    let memory = MemoryDirectory::from_files(died_with(20_000));
    let progress: Arc<Mutex<Vec<RecoveryProgress>>> = Arc::default();
    let report = Arc::clone(&progress);
    let database = builder(Arc::new(memory))
        .on_recovery(move |progress| report.lock().unwrap().push(progress))
        .open()
        .unwrap();
    check(&database, 20_000);
    let progress = progress.lock().unwrap();
    assert!(progress.len() >= 4, "{}", progress.len());
    for pair in progress.windows(2) {
        assert!(pair[0].records < pair[1].records || pair[1] == *progress.last().unwrap());
        assert!(pair[0].log_bytes_done <= pair[1].log_bytes_done);
        assert_eq!(pair[0].log_bytes_total, pair[1].log_bytes_total);
    }
    let last = progress.last().unwrap();
    assert_eq!(last.records, 20_002);
    assert_eq!(last.log_bytes_done, last.log_bytes_total);
    assert!(last.log_bytes_total > 20_000 * 1_008);
}

#[test]
fn only_commits_after_the_last_checkpoint_are_replayed() {
    let memory = MemoryDirectory::new();
    let database = builder(Arc::new(memory.clone())).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let mut written = 0_u64;
    let mut write = |count: u64| {
        for number in written..written + count {
            keyspace.insert(number.to_be_bytes(), VALUE).unwrap();
        }
        written += count;
    };
    let replayed = || {
        let progress: Arc<Mutex<RecoveryProgress>> = Arc::default();
        let report = Arc::clone(&progress);
        let after = builder(Arc::new(MemoryDirectory::from_files(memory.to_files())))
            .on_recovery(move |progress| *report.lock().unwrap() = progress)
            .open()
            .unwrap();
        drop(after);
        let progress = *progress.lock().unwrap();
        progress.records
    };
    for round in 1..=5 {
        write(4_000);
        database.checkpoint().unwrap();
        assert_eq!(replayed(), 0);
        write(100 * round);
        assert_eq!(replayed(), 100 * round);
    }
    // Without an explicit checkpoint: replay is bounded by memory, not by the amount of writes.
    write(4 * MANY);
    let bound = 2 * MEMORY_BYTES_MIN / VALUE.len() as u64;
    let found = replayed();
    assert!(found < bound, "{found} of {written} records, and at most {bound} were expected");
    keyspace.insert_with("last", "one", Durability::Sync).unwrap();
}

/// Writes to both engines, with large values and a dropped keyspace.
fn write_a_little_of_everything(database: &Database) {
    for engine in EngineKind::ALL {
        let options = KeyspaceOptions::new().engine(engine);
        let keyspace = database.keyspace(engine.name(), options).unwrap();
        for number in 0..5_000_u64 {
            keyspace.insert(number.to_be_bytes(), VALUE).unwrap();
        }
        keyspace.insert("large", vec![6; 100_000]).unwrap();
        keyspace.remove(7_u64.to_be_bytes()).unwrap();
    }
    let gone = database.keyspace("gone", KeyspaceOptions::new()).unwrap();
    gone.insert("key", "value").unwrap();
    database.drop_keyspace("gone").unwrap();
}

/// Opens the database; returns it and the number of replayed records.
fn replayed(builder: DatabaseBuilder) -> (Database, u64) {
    let records = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&records);
    let builder = builder.on_recovery(move |progress: RecoveryProgress| {
        *seen.lock().unwrap() = progress.records;
    });
    let database = builder.open().unwrap();
    let records = *records.lock().unwrap();
    (database, records)
}

#[test]
fn a_close_leaves_nothing_to_replay_and_little_log() {
    let closes: [fn(Database); 3] = [
        |database| database.close().unwrap(),
        drop,
        // A close while other handles exist.
        |database| {
            let keyspace = database.keyspace("turtle", KeyspaceOptions::new()).unwrap();
            database.close().unwrap();
            assert_eq!(keyspace.get("large").unwrap_err().kind(), ErrorKind::Stopped);
        },
    ];
    for close in closes {
        let memory = MemoryDirectory::new();
        let database = builder(Arc::new(memory.clone())).open().unwrap();
        write_a_little_of_everything(&database);
        close(database);
        let files = memory.to_files();
        let logs = files.iter().filter(|(name, _)| name.starts_with("log-"));
        let log_bytes: usize = logs.map(|(_, bytes)| bytes.len()).sum();
        assert!(log_bytes <= 3 << 19, "{log_bytes} bytes of log remain");
        let (database, records) = replayed(builder(Arc::new(memory.clone())));
        assert_eq!(records, 0);
        for engine in EngineKind::ALL {
            let keyspace = database.keyspace(engine.name(), KeyspaceOptions::new()).unwrap();
            assert_eq!(keyspace.len().unwrap(), 5_000);
            assert_eq!(*keyspace.get("large").unwrap().unwrap(), [6; 100_000]);
        }
        // A close after nothing was written writes no data.
        database.close().unwrap();
        let length = |files: &Files| files["data"].len();
        assert_eq!(length(&memory.to_files()), length(&files));
    }
}

#[test]
fn a_close_on_a_full_device_retains_the_log_and_reports_it() {
    let memory = MemoryDirectory::new();
    let plan = FaultPlan::new();
    let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
    let database = builder(Arc::new(faulty)).open().unwrap();
    write_a_little_of_everything(&database);
    plan.fail(Fault::sticky(Call::Allocate, 0).on("data").with(Failure::NoSpace));
    assert_eq!(database.close().unwrap_err().kind(), ErrorKind::NoSpace);
    let (database, records) = replayed(builder(Arc::new(memory)));
    assert!(records > 5_000, "{records}");
    for engine in EngineKind::ALL {
        let keyspace = database.keyspace(engine.name(), KeyspaceOptions::new()).unwrap();
        assert_eq!(keyspace.len().unwrap(), 5_000);
    }
    assert!(database.verify().unwrap().is_clean());
}

#[test]
fn a_thread_that_panics_closes_without_a_checkpoint() {
    let memory = MemoryDirectory::new();
    let database = builder(Arc::new(memory.clone())).open().unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        write_a_little_of_everything(&database);
        std::panic::resume_unwind(Box::new("no message for this one"));
    }));
    assert!(panicked.is_err());
    let (_, records) = replayed(builder(Arc::new(memory)));
    assert!(records > 5_000, "{records}");
}

#[test]
fn read_only_opens_see_entries_that_are_only_in_the_log_and_write_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = Database::builder(&path).memory(MEMORY_BYTES_MIN).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..500_u32 {
        keyspace.insert(number.to_be_bytes(), vec![1; 40_000 * usize::from(number == 7)]).unwrap();
    }
    drop((keyspace, database));
    let bytes = |name: &str| std::fs::read(path.join(name)).unwrap();
    let names: Vec<_> = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let before: Vec<_> = names.iter().map(|name| bytes(name)).collect();
    let reader = Database::builder(&path).read_only(true).open().unwrap();
    let keyspace = reader.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.iter().count(), 500);
    assert_eq!(keyspace.get(7_u32.to_be_bytes()).unwrap().unwrap().len(), 40_000);
    assert!(reader.verify().unwrap().is_clean());
    let log_bytes = reader.stats().disk.log_file_bytes;
    let logs = names.iter().filter(|name| name.starts_with("log-"));
    assert_eq!(log_bytes, logs.map(|name| bytes(name).len() as u64).sum::<u64>());
    reader.close().unwrap();
    let after: Vec<_> = names.iter().map(|name| bytes(name)).collect();
    assert!(before == after, "a reader wrote");
}
