//! Storage over memory, and a failing file, for the tests of the layers above.

use super::Storage;
use crate::base::error::{Error, ErrorKind, Result};
use crate::memory::budget::Budget;
use crate::runtime::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::io::{Access, Directory, File, OpenMode, Region};

/// The salt of every storage made here.
pub const SALT: u64 = 0x5a17;

impl Storage {
    /// A new storage over files in memory with `memory` bytes of budget, with its directory.
    #[must_use]
    pub fn testing(memory: u64) -> (Arc<Storage>, MemoryDirectory) {
        let dir = MemoryDirectory::new();
        let opened = Storage::create(&dir, &Budget::new(memory), SALT).unwrap();
        (opened.storage, dir)
    }
}

/// A file in memory on a device of limited size, whose writes fail from a chosen one on. It records
/// the calls made to it.
#[derive(Debug)]
pub struct LimitedFile {
    inner: Arc<dyn File>,
    /// `allocate` beyond this many bytes fails.
    pub bytes_max: AtomicU64,
    /// The number of writes and syncs that succeed.
    pub calls_left: AtomicU64,
    /// The calls made, in order, with offset and length.
    pub log: Mutex<Vec<(&'static str, u64, u64)>>,
}

impl LimitedFile {
    /// An empty file named `data` that may have `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let dir = MemoryDirectory::new();
        let inner = dir.open("data", OpenMode::CreateNew, Access::Direct).unwrap();
        Self {
            inner,
            bytes_max: AtomicU64::new(bytes_max),
            calls_left: AtomicU64::new(u64::MAX),
            log: Mutex::new(Vec::new()),
        }
    }

    fn count_down(&self) -> Result<()> {
        let left = self
            .calls_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| Error::new(ErrorKind::Io, "the device is gone"))
    }
}

impl File for LimitedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if let Err(error) = self.count_down() {
            // The failing write is torn: half of it is written.
            self.inner.write_at(&bytes[..bytes.len() / 2], offset)?;
            self.inner.write_at(&vec![0xee; bytes.len() / 2], offset + bytes.len() as u64 / 2)?;
            return Err(error);
        }
        self.log.lock().push(("write", offset, bytes.len() as u64));
        self.inner.write_at(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        self.log.lock().push(("sync", 0, 0));
        self.count_down()
    }

    fn size(&self) -> Result<u64> {
        self.inner.size()
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.log.lock().push(("set_size", size, 0));
        self.inner.set_size(size)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        if offset + bytes > self.bytes_max.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::NoSpace, "the device is full"));
        }
        self.log.lock().push(("allocate", offset, bytes));
        self.inner.allocate(offset, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.log.lock().push(("punch", offset, bytes));
        self.inner.punch_hole(offset, bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.inner.allocated_bytes()
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        self.inner.map(offset, bytes)
    }
}
