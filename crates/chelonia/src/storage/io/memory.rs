//! Files in memory: content lives as long as the directory.
//!
//! Handles of the same directory share its files, so a test can close a database and reopen it.
//! Locks exclude like the real ones.

use super::exclusion::LockTable;
use super::{
    Access, Directory, File, IoFacts, LockGuard, OpenMode, Region, SCRATCH_FILE, ScratchPlace,
    check_name,
};
use crate::base::error::{Error, Result};
use crate::runtime::sync::{Arc, Mutex, RwLock};
use std::collections::BTreeMap;
use std::io;

/// A directory whose files are byte vectors. Clones are the same directory.
#[derive(Clone, Debug, Default)]
pub struct MemoryDirectory {
    shared: Arc<Shared>,
    is_unmapped: bool,
}

#[derive(Debug, Default)]
struct Shared {
    files: Mutex<BTreeMap<String, Content>>,
    lock: LockTable,
}

type Content = Arc<RwLock<Vec<u8>>>;

impl MemoryDirectory {
    /// An empty directory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A directory with these files.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn from_files(files: BTreeMap<String, Vec<u8>>) -> Self {
        let files = files.into_iter().map(|(name, bytes)| (name, Arc::new(RwLock::new(bytes))));
        let shared = Shared { files: Mutex::new(files.collect()), lock: LockTable::default() };
        Self { shared: Arc::new(shared), is_unmapped: false }
    }

    /// The same directory without mapped log regions: each write is a call.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn without_mapping(mut self) -> Self {
        self.is_unmapped = true;
        self
    }

    /// A copy of all files.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn to_files(&self) -> BTreeMap<String, Vec<u8>> {
        let files = self.shared.files.lock();
        files.iter().map(|(name, content)| (name.clone(), content.read().clone())).collect()
    }
}

impl Directory for MemoryDirectory {
    fn open(&self, name: &str, mode: OpenMode, _access: Access) -> Result<Arc<dyn File>> {
        check_name(name)?;
        let mut files = self.shared.files.lock();
        let content = match (mode, files.get(name)) {
            (OpenMode::Read | OpenMode::Write, Some(content)) => Arc::clone(content),
            (OpenMode::CreateNew, None) => {
                let content = Content::default();
                files.insert(name.to_owned(), Arc::clone(&content));
                content
            }
            (OpenMode::CreateNew, Some(_)) => {
                return Err(Error::io("create", name, io::ErrorKind::AlreadyExists.into()));
            }
            (_, None) => return Err(Error::io("open", name, io::ErrorKind::NotFound.into())),
        };
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(MemoryFile { name: name.to_owned(), content, writable }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.shared.files.lock().remove(name) {
            Some(_) => Ok(()),
            None => Err(Error::io("remove", name, io::ErrorKind::NotFound.into())),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.shared.files.lock().keys().cloned().collect())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn lock(&self, exclusive: bool, _create: bool) -> Result<Box<dyn LockGuard>> {
        self.shared.lock.take(exclusive)
    }

    fn scratch(&self, _place: ScratchPlace) -> Result<Arc<dyn File>> {
        Ok(scratch())
    }

    fn facts(&self) -> IoFacts {
        IoFacts { direct: false, mapped_log: !self.is_unmapped, name: "memory" }
    }
}

/// An empty file in no directory.
pub(super) fn scratch() -> Arc<dyn File> {
    let content = Content::default();
    Arc::new(MemoryFile { name: SCRATCH_FILE.to_owned(), content, writable: true })
}

#[derive(Debug)]
struct MemoryFile {
    name: String,
    content: Content,
    writable: bool,
}

impl MemoryFile {
    fn check_writable(&self) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(Error::io("write", &self.name, io::ErrorKind::PermissionDenied.into()))
    }
}

/// The index range of `bytes` bytes at `offset`.
fn range(offset: u64, bytes: u64) -> Result<std::ops::Range<usize>> {
    let end = offset.checked_add(bytes).and_then(|end| usize::try_from(end).ok());
    match (usize::try_from(offset), end) {
        (Ok(start), Some(end)) => Ok(start..end),
        _ => Err(Error::internal("an offset is beyond the address space")),
    }
}

impl File for MemoryFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let content = self.content.read();
        let Some(bytes) = content.get(range(offset, buffer.len() as u64)?) else {
            return Err(Error::corrupt("read past the end of the file").at(&self.name, offset));
        };
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        let range = range(offset, bytes.len() as u64)?;
        let mut content = self.content.write();
        if content.len() < range.end {
            content.resize(range.end, 0);
        }
        content[range].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn size(&self) -> Result<u64> {
        Ok(self.content.read().len() as u64)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.check_writable()?;
        self.content.write().resize(range(0, size)?.end, 0);
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_writable()?;
        let end = range(offset, bytes)?.end;
        let mut content = self.content.write();
        if content.len() < end {
            content.resize(end, 0);
        }
        Ok(())
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_writable()?;
        let mut content = self.content.write();
        let range = range(offset, bytes)?;
        let end = range.end.min(content.len());
        if range.start < end {
            content[range.start..end].fill(0);
        }
        Ok(())
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.size()
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        self.check_writable()?;
        let range = range(offset, bytes as u64)?;
        if range.end > self.content.read().len() {
            return Err(Error::internal("a region reaches past the end of its file"));
        }
        Ok(Box::new(MemoryRegion {
            content: Arc::clone(&self.content),
            start: range.start,
            size: bytes,
        }))
    }
}

#[derive(Debug)]
struct MemoryRegion {
    content: Content,
    start: usize,
    size: usize,
}

impl Region for MemoryRegion {
    #[cfg(any(test, feature = "internals"))]
    fn size(&self) -> usize {
        self.size
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let mut content = self.content.write();
        let window = content.get_mut(self.start..self.start + self.size);
        let end = offset.saturating_add(bytes.len());
        match window.and_then(|window| window.get_mut(offset..end)) {
            Some(place) => place.copy_from_slice(bytes),
            None => return Err(Error::internal("a write reaches past the end of its region")),
        }
        Ok(())
    }
}
