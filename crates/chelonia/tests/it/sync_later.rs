//! Syncs in the background: commits are durable when one says so, however many are under way, and
//! none is forgotten.

use chelonia::internals::{
    Call, CrashDirectory, Directory, Fault, FaultDirectory, FaultPlan, MemoryDirectory, Survivors,
};
use chelonia::{Database, ErrorKind, KeyspaceOptions, LogLayout, PendingSync};
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

fn open(directory: Arc<dyn Directory>, layout: LogLayout) -> Database {
    let builder = Database::builder("memory").memory(48 << 20).log_layout(layout);
    builder.internals(|internals| internals.directory = Some(directory)).open().unwrap()
}

#[test]
fn commits_are_durable_when_their_sync_is_done() {
    for layout in [LogLayout::Shared, LogLayout::PerThread { logs: 3 }, LogLayout::Sparse] {
        let directory = CrashDirectory::new();
        let database = open(Arc::new(directory.clone()), layout);
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        let (sender, done) = mpsc::channel();
        std::thread::scope(|scope| {
            for thread in 0..3_u32 {
                let (keyspace, database, sender) = (&keyspace, &database, sender.clone());
                let directory = &directory;
                scope.spawn(move || {
                    for number in 0..60_u32 {
                        let key = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                        // Some have large values, which are outside of the log.
                        let value = vec![7; if number % 20 == 3 { 40_000 } else { 30 }];
                        keyspace.insert(&key, value).unwrap();
                        let (sender, directory) = (sender.clone(), directory.clone());
                        database.sync_later().on_done(move |result| {
                            result.unwrap();
                            sender.send((key, directory.boundary())).unwrap();
                        });
                    }
                });
            }
        });
        drop(sender);
        let all: Vec<_> = done.iter().take(180).collect();
        assert_eq!(all.len(), 180);
        for (key, boundary) in all.iter().step_by(11) {
            let image = directory.journal().image(*boundary, Survivors::None);
            let left = open(Arc::new(MemoryDirectory::from_files(image)), LogLayout::Shared);
            let keyspace = left.keyspace("k", KeyspaceOptions::new()).unwrap();
            assert!(keyspace.contains_key(key).unwrap(), "it was lost: {layout:?}");
        }
        let syncs = database.stats().io.log_syncs;
        assert!(syncs > 0 && (layout != LogLayout::Shared || syncs < 180), "{syncs} syncs");
    }
}

/// Wakes a thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on(future: PendingSync) -> chelonia::Result<()> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_future_is_woken_and_a_stepped_database_syncs_at_once() {
    let database = Database::in_memory().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..200_u32 {
        keyspace.insert(number.to_be_bytes(), "value").unwrap();
        block_on(database.sync_later()).unwrap();
    }
    let pending: Vec<_> = (0..5_000).map(|_| database.sync_later()).collect();
    pending.into_iter().for_each(|one| one.wait().unwrap());
    let builder = Database::builder("memory").in_memory();
    let stepped = builder.internals(|internals| internals.stepped = true).open().unwrap();
    assert!(stepped.sync_later().is_done());
}

#[test]
fn a_close_completes_what_is_under_way_and_later_ones_fail() {
    for _ in 0..20 {
        let database = Database::in_memory().unwrap();
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        let pending: Vec<_> = (0..50_u32)
            .map(|number| {
                keyspace.insert(number.to_be_bytes(), "value").unwrap();
                database.sync_later()
            })
            .collect();
        let late: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| database.clone().close().unwrap());
            (0..50).map(|_| database.sync_later()).collect()
        });
        pending.into_iter().for_each(|one| one.wait().unwrap());
        for one in late {
            // Before the close or after it, but not for ever.
            if let Err(error) = one.wait() {
                assert_eq!(error.kind(), ErrorKind::Stopped);
            }
        }
        assert_eq!(database.sync_later().wait().unwrap_err().kind(), ErrorKind::Stopped);
    }
}

#[test]
fn a_callback_may_drop_the_last_handle() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let path = directory.path().join("d");
        let database = Database::open(&path).unwrap();
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        keyspace.insert("key", "value").unwrap();
        drop(keyspace);
        let (sender, done) = mpsc::channel();
        let last = database.clone();
        database.sync_later().on_done(move |result| {
            drop(last);
            sender.send(result).unwrap();
        });
        drop(database);
        done.recv().unwrap().unwrap();
        let reopened = Database::open(&path).unwrap();
        let keyspace = reopened.keyspace("k", KeyspaceOptions::new()).unwrap();
        assert_eq!(keyspace.get("key").unwrap().unwrap(), "value");
    }
}

#[test]
fn a_failed_sync_is_the_result() {
    let plan = FaultPlan::new();
    let memory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let directory = FaultDirectory::new(memory, plan.clone()).unwrap();
    let database = open(Arc::new(directory), LogLayout::Shared);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    database.sync_later().wait().unwrap();
    plan.fail(Fault::sticky(Call::Sync, 0).on("log-"));
    keyspace.insert("key", "value").unwrap();
    let pending = [database.sync_later(), database.sync_later()];
    for one in pending {
        let kind = one.wait().unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Io | ErrorKind::Stopped), "{kind:?}");
    }
    assert_eq!(database.sync_later().wait().unwrap_err().kind(), ErrorKind::Stopped);
    assert!(keyspace.contains_key("key").unwrap());
}
