//! A fence around the files of an open database: no call reaches them after its close has returned.
//!
//! ```text
//!   open: calls enter and leave, counted
//!     |  shut
//!   shutting: calls in progress end, all others are refused with `Stopped`
//!     |  none is in progress
//!   shut: the lock of the directory may be released
//! ```
//! Other threads may be anywhere in a commit, a checkpoint or a read while a database is closed.
//! The next owner may have the same files an instant later, recycled under the same names, so that
//! a late removal, write or read would hit another database.
//!
//! Invariants:
//! 1. When [`Fence::shut`] has returned, no call of a [`FencedDirectory`] or of a file opened
//!    through it is in progress, and none ever begins.
//! 2. A call made within another one (by the `meanwhile` of a read) is refused while the fence is
//!    being shut; it never waits.
//! 3. Regions are not fenced: a copy to one costs less than the count. Their one writer is the tail
//!    of a log, which a close removes under its lock before it shuts the fence.
//!
//! Calls that do not access the files are not fenced: the device's free space, the path, and the
//! lock. Thread-safety: every method may be called from any thread.

use super::{
    Access, Directory, File, IoFacts, LockGuard, OpenMode, ReadRequest, Region, ScratchPlace,
    WriteRequest,
};
use crate::base::error::{Error, ErrorKind, Result};
use crate::runtime::sync::{Arc, AtomicU64, CachePadded, Condvar, Mutex, Ordering};
use std::fmt::{self, Debug, Formatter};
use std::path::Path;

/// Set in the count of calls once the fence is being shut.
const SHUT: u64 = 1 << 63;

/// Counts the calls in progress; see the head of the file.
pub struct Fence {
    /// Calls in progress, and [`SHUT`].
    calls: CachePadded<AtomicU64>,
    last_left: Mutex<()>,
    changed: Condvar,
}

impl Default for Fence {
    fn default() -> Self {
        Self {
            calls: CachePadded(AtomicU64::new(0)),
            last_left: Mutex::new(()),
            changed: Condvar::new(),
        }
    }
}

impl Debug for Fence {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").finish_non_exhaustive()
    }
}

/// A call in progress.
struct Entered<'a> {
    fence: &'a Fence,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let before = self.fence.calls.fetch_sub(1, Ordering::AcqRel);
        if before == SHUT + 1 {
            // `shut` holds this lock from its check of the count until it waits.
            drop(self.fence.last_left.lock());
            self.fence.changed.notify_all();
        }
    }
}

impl Fence {
    /// Waits for calls in progress, and refuses all later ones.
    pub fn shut(&self) {
        self.calls.fetch_or(SHUT, Ordering::AcqRel);
        let mut last_left = self.last_left.lock();
        while self.calls.load(Ordering::Acquire) != SHUT {
            self.changed.wait(&mut last_left);
        }
    }

    /// Counts a call until the result is dropped; `Stopped` once the fence is being shut.
    fn enter(&self) -> Result<Entered<'_>> {
        let before = self.calls.fetch_add(1, Ordering::AcqRel);
        let entered = Entered { fence: self };
        if before & SHUT == 0 {
            return Ok(entered);
        }
        drop(entered);
        Err(Error::new(ErrorKind::Stopped, "the database was closed; reopen it"))
    }
}

/// A directory behind a [`Fence`].
#[derive(Debug)]
pub struct FencedDirectory {
    inner: Arc<dyn Directory>,
    fence: Arc<Fence>,
}

impl FencedDirectory {
    /// `inner` behind `fence`.
    #[must_use]
    pub fn new(inner: Arc<dyn Directory>, fence: Arc<Fence>) -> Self {
        Self { inner, fence }
    }

    fn fenced(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FencedFile { inner, fence: Arc::clone(&self.fence) })
    }
}

impl Directory for FencedDirectory {
    fn open(&self, name: &str, mode: OpenMode, access: Access) -> Result<Arc<dyn File>> {
        let _entered = self.fence.enter()?;
        self.inner.open(name, mode, access).map(|file| self.fenced(file))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.remove(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        let _entered = self.fence.enter()?;
        self.inner.list()
    }

    fn sync(&self) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.sync()
    }

    fn lock(&self, exclusive: bool, create: bool) -> Result<Box<dyn LockGuard>> {
        self.inner.lock(exclusive, create)
    }

    fn scratch(&self, place: ScratchPlace) -> Result<Arc<dyn File>> {
        let _entered = self.fence.enter()?;
        self.inner.scratch(place).map(|file| self.fenced(file))
    }

    fn facts(&self) -> IoFacts {
        self.inner.facts()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn file_bytes_max(&self) -> Option<u64> {
        self.inner.file_bytes_max()
    }

    fn path(&self) -> Option<&Path> {
        self.inner.path()
    }
}

/// A file of a [`FencedDirectory`].
#[derive(Debug)]
struct FencedFile {
    inner: Arc<dyn File>,
    fence: Arc<Fence>,
}

impl File for FencedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.read_at(buffer, offset)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.read_many(requests)
    }

    fn read_many_while(
        &self,
        requests: &mut [ReadRequest<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.read_many_while(requests, meanwhile)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.write_at(bytes, offset)
    }

    fn write_many(&self, requests: &[WriteRequest<'_>]) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.write_many(requests)
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.write_zeros(offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.sync()
    }

    fn size(&self) -> Result<u64> {
        let _entered = self.fence.enter()?;
        self.inner.size()
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.set_size(size)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.allocate(offset, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        let _entered = self.fence.enter()?;
        self.inner.punch_hole(offset, bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let _entered = self.fence.enter()?;
        self.inner.allocated_bytes()
    }

    fn data_from(&self, offset: u64) -> Result<Option<u64>> {
        let _entered = self.fence.enter()?;
        self.inner.data_from(offset)
    }

    fn lock(&self, exclusive: bool) -> Result<Box<dyn LockGuard>> {
        let _entered = self.fence.enter()?;
        self.inner.lock(exclusive)
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        let _entered = self.fence.enter()?;
        self.inner.map(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sync::AtomicBool;
    use crate::storage::io::memory::MemoryDirectory;

    #[test]
    fn nothing_passes_a_fence_that_is_shut() {
        let (memory, fence) = (MemoryDirectory::new(), Arc::new(Fence::default()));
        let dir = FencedDirectory::new(Arc::new(memory.clone()), Arc::clone(&fence));
        let file = dir.open("file", OpenMode::CreateNew, Access::Direct).unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
        let before = memory.to_files();
        fence.shut();
        fence.shut();
        let mut buffer = [0; 4096];
        let refused = [
            dir.open("file", OpenMode::Write, Access::Direct).map(drop),
            dir.open("other", OpenMode::CreateNew, Access::Direct).map(drop),
            dir.remove("file"),
            dir.list().map(drop),
            dir.sync(),
            dir.scratch(ScratchPlace::Here).map(drop),
            file.read_at(&mut buffer, 0),
            file.read_many(&mut []),
            file.read_many_while(&mut [], &mut || {}),
            file.write_at(&[8; 4096], 0),
            file.write_many(&[]),
            file.write_zeros(0, 4096),
            file.sync(),
            file.size().map(drop),
            file.set_size(0),
            file.allocate(0, 8192),
            file.punch_hole(0, 4096),
            file.allocated_bytes().map(drop),
            file.data_from(0).map(drop),
            file.lock(true).map(drop),
            file.map(0, 4096).map(drop),
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Stopped, "call {at}");
        }
        assert_eq!((memory.to_files(), buffer), (before, [0; 4096]));
    }

    #[test]
    fn a_fence_is_shut_when_the_last_call_has_left() {
        let (fence, left) = (Fence::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let entered = fence.enter().unwrap();
            let shut = scope.spawn(|| {
                fence.shut();
                left.load(Ordering::SeqCst)
            });
            // Refused as soon as the fence is being shut, without waiting for the call in progress.
            while fence.enter().is_ok() {
                std::thread::yield_now();
            }
            left.store(true, Ordering::SeqCst);
            drop(entered);
            assert!(shut.join().unwrap());
        });
    }
}
