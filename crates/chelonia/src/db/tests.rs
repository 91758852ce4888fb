//! Orders of events that threads meet by chance only, made on purpose.

use crate::base::error::{ErrorKind, Result};
use crate::base::sync::{Arc, Mutex};
use crate::db::{Database, KeyspaceOptions};
use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::io::{Access, Directory, File, IoFacts, LockGuard, OpenMode, Region};

fn open(directory: Arc<dyn Directory>) -> Database {
    let builder = Database::builder("memory").memory(64 << 20);
    let builder = builder.internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
    });
    builder.open().unwrap()
}

/// Finalizes the memtable of a keyspace.
fn rotate(database: &Database, keyspace: &crate::db::Keyspace) {
    let _commit = database.handle.commit.lock();
    database.handle.rotate(&keyspace.core);
}

/// What is watched.
#[derive(Clone, Copy, PartialEq)]
enum On {
    /// A sync of the data file.
    DataSync,
    /// A read of a log segment.
    LogRead,
}

/// Done before each call that is watched, but not for calls that it makes itself.
type Watcher = Arc<Mutex<Option<(On, Box<dyn FnMut() + Send>)>>>;

/// A directory in memory that somebody watches.
struct Watched {
    inner: MemoryDirectory,
    watcher: Watcher,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Directory for Watched {
    fn open(&self, name: &str, mode: OpenMode, access: Access) -> Result<Arc<dyn File>> {
        let inner = self.inner.open(name, mode, access)?;
        Ok(Arc::new(WatchedFile { inner, watcher: Arc::clone(&self.watcher) }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.inner.remove(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.inner.list()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn lock(&self, exclusive: bool, create: bool) -> Result<Box<dyn LockGuard>> {
        self.inner.lock(exclusive, create)
    }

    fn scratch(&self) -> Result<Arc<dyn File>> {
        self.inner.scratch()
    }

    fn facts(&self) -> IoFacts {
        self.inner.facts()
    }
}

struct WatchedFile {
    inner: Arc<dyn File>,
    watcher: Watcher,
}

impl std::fmt::Debug for WatchedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl WatchedFile {
    fn tell(&self, on: On) {
        let Some((watched, mut action)) = self.watcher.lock().take() else { return };
        if watched == on {
            action();
        }
        *self.watcher.lock() = Some((watched, action));
    }
}

impl File for WatchedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if self.inner.name().starts_with("log-") {
            self.tell(On::LogRead);
        }
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.inner.write_at(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        if self.inner.name() == "data" {
            self.tell(On::DataSync);
        }
        self.inner.sync()
    }

    fn size(&self) -> Result<u64> {
        self.inner.size()
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.inner.set_size(size)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.inner.allocate(offset, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.inner.punch_hole(offset, bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.inner.allocated_bytes()
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        self.inner.map(offset, bytes)
    }
}

#[test]
fn who_comes_to_drain_a_keyspace_after_it_was_dropped_leaves_it_alone() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let (core, options) = (&database.handle, KeyspaceOptions::new());
    let keyspace = database.keyspace("dropped", options.clone()).unwrap();
    for round in 0..2 {
        for number in 0..200_u32 {
            keyspace.insert(number.to_be_bytes(), vec![round; 40_000]).unwrap();
        }
        if round == 0 {
            database.checkpoint().unwrap();
        }
    }
    // The background has listed the keyspaces, with this finalized memtable, and is about to drain.
    rotate(&database, &keyspace);
    database.drop_keyspace("dropped").unwrap();
    let used = core.storage.stats().space.used_blocks;
    assert!(!core.drain_keyspace(&keyspace.core).unwrap());
    assert!(!core.drain_oldest().unwrap());
    assert_eq!(core.storage.stats().space.used_blocks, used, "space went to what nobody sees");
    drop(keyspace);
    // What it had is used by others, and by nobody twice.
    let other = database.keyspace("other", options).unwrap();
    for number in 0..400_u32 {
        other.insert(number.to_be_bytes(), vec![3; 40_000]).unwrap();
    }
    database.checkpoint().unwrap();
    assert_eq!(core.unreachable_blocks().unwrap(), 0);
    assert!(other.iter().all(|entry| *entry.unwrap().1 == [3; 40_000]));
    assert!(database.verify().unwrap().is_clean());
}

#[test]
fn a_keyspace_is_dropped_while_its_memtable_is_half_absorbed() {
    let mut half_absorbed = 0;
    for after in 0..12 {
        let plan = FaultPlan::new();
        let memory = Arc::new(MemoryDirectory::new());
        let database = open(Arc::new(FaultDirectory::new(memory, plan.clone()).unwrap()));
        let core = &database.handle;
        let keyspace = database.keyspace("dropped", KeyspaceOptions::new()).unwrap();
        keyspace.insert("large", vec![1; 40_000]).unwrap();
        // The memtable is absorbed in two parts: up to the snapshot, and the rest.
        let snapshot = database.snapshot();
        keyspace.insert("large", vec![2; 40_000]).unwrap();
        for number in 0..3_000_u32 {
            keyspace.insert(number.to_be_bytes(), [3; 100]).unwrap();
        }
        rotate(&database, &keyspace);
        plan.fail(Fault {
            failure: Failure::NoSpace,
            sticky: true,
            ..Fault::once(Call::Allocate, after)
        });
        if core.drain_keyspace(&keyspace.core).is_ok() {
            break;
        }
        plan.heal();
        half_absorbed += usize::from(!keyspace.core.drain.lock().versions.is_empty());
        drop(snapshot);
        database.drop_keyspace("dropped").unwrap();
        drop(keyspace);
        database.checkpoint().unwrap();
        assert_eq!(core.unreachable_blocks().unwrap(), 0);
    }
    assert!(half_absorbed > 0, "no drain stopped between its parts");
}

#[test]
fn nobody_sees_a_keyspace_before_it_is_durable() {
    let watcher = Watcher::default();
    let directory = Watched { inner: MemoryDirectory::new(), watcher: Arc::clone(&watcher) };
    let database = open(Arc::new(directory));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (watched, sink) = (database.clone(), Arc::clone(&seen));
    let look = move || sink.lock().push(watched.keyspaces());
    *watcher.lock() = Some((On::DataSync, Box::new(look)));
    let keyspace = database.keyspace("new", KeyspaceOptions::new()).unwrap();
    *watcher.lock() = None;
    // Whoever saw it could write to it, and be told that this is durable.
    let seen = std::mem::take(&mut *seen.lock());
    assert!(seen.len() > 1 && seen.iter().all(Vec::is_empty), "{seen:?}");
    assert_eq!(database.keyspaces(), ["new"]);
    keyspace.insert("key", "value").unwrap();
    assert!(database.drop_keyspace("new").is_ok());
}

#[test]
fn a_keyspace_stays_if_there_is_no_space_to_drop_it() {
    let plan = FaultPlan::new();
    let memory = Arc::new(MemoryDirectory::new());
    let database = open(Arc::new(FaultDirectory::new(memory, plan.clone()).unwrap()));
    let keyspace = database.keyspace("full", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", "value").unwrap();
    // Fill the free space of the file, so that the next catalog needs more of it.
    let storage = &database.handle.storage;
    let mut taken = Vec::new();
    plan.fail(Fault { failure: Failure::NoSpace, sticky: true, ..Fault::once(Call::Allocate, 0) });
    while let Ok(allocation) = storage.allocate(1) {
        taken.push(allocation.extent);
    }
    let error = database.drop_keyspace("full").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(database.keyspaces(), ["full"]);
    assert_eq!(*keyspace.get("key").unwrap().unwrap(), *b"value");
    keyspace.insert("still", "writable").unwrap();
    plan.heal();
    taken.into_iter().for_each(|extent| storage.free(extent).unwrap());
    database.drop_keyspace("full").unwrap();
    assert_eq!(keyspace.get("key").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(database.handle.unreachable_blocks().unwrap(), 0);
}

#[test]
fn a_large_value_that_is_needless_before_it_is_verified_is_no_damage() {
    let watcher = Watcher::default();
    let directory = Watched { inner: MemoryDirectory::new(), watcher: Arc::clone(&watcher) };
    let database = open(Arc::new(directory));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("large", vec![1; 40_000]).unwrap();
    let before = database.verify().unwrap();
    assert!(before.is_clean() && before.log_bytes > 0);
    let (written, space, mut times) = (database.clone(), keyspace.clone(), 0_u8);
    // The log is about to be read: what it refers to is overwritten, absorbed, and its space used.
    let change = move || {
        times += 1;
        if times == 1 {
            space.insert("large", vec![2; 40_000]).unwrap();
            written.checkpoint().unwrap();
            while written.handle.unreachable_blocks().unwrap() > 0 {}
            (0..50_u8).for_each(|key| space.insert([key], vec![3; 40_000]).unwrap());
        }
    };
    *watcher.lock() = Some((On::LogRead, Box::new(change)));
    let report = database.verify().unwrap();
    *watcher.lock() = None;
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.log_bytes, before.log_bytes);
    assert_eq!(report.blocks, before.blocks - 10, "the value was gone when it was looked at");
    assert!(database.verify().unwrap().is_clean());
}
