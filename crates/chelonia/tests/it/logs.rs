//! Databases with several logs: every thread writes to one of them, and all of it is one order. A
//! sparse log.

use crate::support::{TINY_DISTANCE, tiny_options};
use chelonia::internals::{CrashDirectory, Directory, MemoryDirectory, Survivors};
use chelonia::{Database, DatabaseBuilder, Durability, ErrorKind, KeyspaceOptions, LogLayout};
use std::collections::BTreeSet;
use std::sync::Arc;

const LOGS: usize = 4;
const THREADS: u64 = 6;
const COMMITS: u64 = 400;

fn builder(directory: &Arc<dyn Directory>) -> DatabaseBuilder {
    let builder = Database::builder("memory").memory(48 << 20);
    builder.log_layout(LogLayout::PerThread { logs: LOGS }).internals(|internals| {
        internals.directory = Some(Arc::clone(directory));
        internals.log_segment_bytes = Some(32 << 10);
        internals.leave_log = true;
    })
}

/// Every thread overwrites one key and adds others; the last value of each says how many commits
/// there were.
fn write(database: &Database, durability: Durability) {
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let keyspace = keyspace.clone();
            scope.spawn(move || {
                for number in 0..COMMITS {
                    let key = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    keyspace
                        .insert_with(key, vec![1; (number % 500) as usize], durability)
                        .unwrap();
                    let last = number.to_be_bytes();
                    keyspace.insert_with(thread.to_be_bytes(), last, durability).unwrap();
                }
            });
        }
    });
}

fn check(database: &Database) {
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    for thread in 0..THREADS {
        let last = keyspace.get(thread.to_be_bytes()).unwrap().unwrap();
        assert_eq!(last, (COMMITS - 1).to_be_bytes());
    }
    assert_eq!(keyspace.iter().count() as u64, THREADS * (COMMITS + 1));
    let report = database.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

fn logs_of(names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let logs = names.into_iter().filter(|name| name.starts_with("log-"));
    logs.map(|name| name[..name.len() - 5].to_owned()).collect()
}

#[test]
fn all_writes_of_all_threads_come_back_and_the_layout_stays() {
    let memory = MemoryDirectory::new();
    let directory: Arc<dyn Directory> = Arc::new(memory.clone());
    let database = builder(&directory).open().unwrap();
    write(&database, Durability::Process);
    check(&database);
    assert!(database.stats().io.log_bytes_written > THREADS * COMMITS * 200);
    database.close().unwrap();
    assert_eq!(logs_of(memory.to_files().into_keys()).len(), LOGS);
    // The layout is that of the creation, whatever an open says, and readers follow it too.
    let reader = builder(&directory).read_only(true).log_layout(LogLayout::Shared);
    check(&reader.open().unwrap());
    let database = builder(&directory).log_layout(LogLayout::Shared).open().unwrap();
    check(&database);
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    for thread in 0..THREADS {
        keyspace.remove(thread.to_be_bytes()).unwrap();
    }
    database.close().unwrap();
    let database = builder(&directory).open().unwrap();
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    assert_eq!(keyspace.iter().count() as u64, THREADS * COMMITS);
}

#[test]
fn synced_commits_of_all_threads_survive_the_loss_of_everything_else() {
    let directory = CrashDirectory::new();
    let shared: Arc<dyn Directory> = Arc::new(directory.clone());
    let database = builder(&shared).open().unwrap();
    write(&database, Durability::Sync);
    let image = directory.journal().image(directory.boundary(), Survivors::None);
    assert_eq!(logs_of(image.keys().cloned()).len(), LOGS);
    let left: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image));
    check(&builder(&left).open().unwrap());
}

#[test]
fn the_logs_are_trimmed_by_checkpoints() {
    let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let database = builder(&directory).open().unwrap();
    let keyspace = database.keyspace("k", tiny_options()).unwrap();
    keyspace.set_checkpoint_distance(TINY_DISTANCE).unwrap();
    for _ in 0..8 {
        write(&database, Durability::Process);
        database.checkpoint().unwrap();
    }
    let logs = database.stats().disk.log_file_bytes;
    let written = database.stats().io.log_bytes_written;
    assert!(logs * 2 < written, "{logs} bytes of files for {written} bytes");
}

#[test]
fn a_number_of_logs_out_of_range_is_refused() {
    for logs in [0, 1, chelonia::limits::LOGS_MAX + 1] {
        let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
        let refused = builder(&directory).log_layout(LogLayout::PerThread { logs }).open();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument, "{logs}");
        assert!(directory.list().unwrap().is_empty(), "{logs}: nothing was created");
    }
}

#[test]
fn commits_of_different_syncs_share_no_block_of_a_sparse_log() {
    let blocks = |layout, durability| {
        let memory = MemoryDirectory::new();
        let directory: Arc<dyn Directory> = Arc::new(memory.clone());
        let open = || builder(&directory).log_layout(layout).open().unwrap();
        let database = open();
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        for number in 0..COMMITS {
            keyspace.insert_with(number.to_be_bytes(), [1; 30], durability).unwrap();
        }
        let written = database.stats().io.log_bytes_written.div_ceil(4096);
        drop((keyspace, database));
        // Any other layout of one log continues it.
        let database = builder(&directory).open().unwrap();
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        assert_eq!(keyspace.iter().count() as u64, COMMITS);
        assert!(database.verify().unwrap().is_clean());
        written
    };
    let packed = blocks(LogLayout::Shared, Durability::Sync);
    assert!(packed < COMMITS / 2, "{packed} blocks");
    let sparse = blocks(LogLayout::Sparse, Durability::Sync);
    assert!(sparse >= COMMITS, "{sparse} blocks");
    let unsynced = blocks(LogLayout::Sparse, Durability::Process);
    assert!(unsynced < COMMITS / 2, "{unsynced} blocks");
}
