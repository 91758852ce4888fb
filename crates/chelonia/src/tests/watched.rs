//! A directory that runs test code before chosen calls: work of another thread at that moment.

use crate::base::error::Result;
use crate::runtime::sync::{Arc, Mutex};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::io::{
    Access, Directory, File, IoFacts, LockGuard, OpenMode, Region, ScratchPlace,
};

/// The watched calls.
#[derive(Clone, Copy, PartialEq)]
pub enum On {
    /// A sync of the data file.
    DataSync,
    /// A read of a log segment.
    LogRead,
    /// A read of the data file.
    DataRead,
    /// A write to the data file.
    DataWrite,
    /// The removal of a file.
    Remove,
}

/// Runs before each watched call, but not for calls that it makes itself.
pub type Watcher = Arc<Mutex<Option<(On, Box<dyn FnMut() + Send>)>>>;

/// An in-memory directory with a watcher.
pub struct Watched {
    inner: MemoryDirectory,
    watcher: Watcher,
}

impl Watched {
    /// Creates the directory, and the slot for its watcher.
    pub fn new(inner: &MemoryDirectory) -> (Self, Watcher) {
        let watcher = Watcher::default();
        (Self { inner: inner.clone(), watcher: Arc::clone(&watcher) }, watcher)
    }
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
        notify(&self.watcher, On::Remove);
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

    fn scratch(&self, place: ScratchPlace) -> Result<Arc<dyn File>> {
        self.inner.scratch(place)
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

fn notify(watcher: &Watcher, on: On) {
    let Some((watched, mut action)) = watcher.lock().take() else { return };
    if watched == on {
        action();
    }
    *watcher.lock() = Some((watched, action));
}

impl WatchedFile {
    fn notify(&self, on: On) {
        notify(&self.watcher, on);
    }
}

impl File for WatchedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if self.inner.name().starts_with("log-") {
            self.notify(On::LogRead);
        } else {
            self.notify(On::DataRead);
        }
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.inner.name() == "data" {
            self.notify(On::DataWrite);
        }
        self.inner.write_at(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        if self.inner.name() == "data" {
            self.notify(On::DataSync);
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

    fn lock(&self, exclusive: bool) -> Result<Box<dyn LockGuard>> {
        self.inner.lock(exclusive)
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        self.inner.map(offset, bytes)
    }
}
