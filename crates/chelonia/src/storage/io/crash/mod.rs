//! A directory in memory that models power cuts.
//!
//! A test runs its workload over a [`CrashDirectory`], which records every change and every sync.
//! Afterwards [`CrashDirectory::journal`] computes for any moment of the run which files a power
//! cut could have left then; the test opens a database on such an image (in a `MemoryDirectory`, or
//! in another `CrashDirectory` to cut the power a second time during recovery) and checks it
//! against its model. See `journal` for what is durable when, and what may survive.
//!
//! A fuse ([`CrashDirectory::fail_after`]) stops a running database at a boundary: from then on
//! every call fails.
//!
//! A removed file stays usable through its handles. Locks exclude like the real ones.
//!
//! Thread-safety: any thread may call; effects are ordered by acquisition of the one lock.

mod journal;
mod sparse;
#[cfg(test)]
mod tests;

pub use journal::{Journal, Survivors};

use super::exclusion::LockTable;
use super::{
    Access, Directory, File, IoFacts, LockGuard, OpenMode, Region, SCRATCH_FILE, ScratchPlace,
    check_name,
};
use crate::base::error::{Error, Result};
use crate::base::limits::SECTOR_BYTES;
use crate::runtime::sync::{Arc, Mutex, MutexGuard};
use journal::{Base, Effect, FileNumber};
use sparse::Sparse;
use std::collections::BTreeMap;
use std::io;

/// The maximum file size: offsets of a faulty program are refused.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// A directory in memory whose power can be cut. Clones share the directory.
#[derive(Clone, Debug, Default)]
pub struct CrashDirectory {
    shared: Arc<Shared>,
    is_unmapped: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    lock: LockTable,
}

/// The current content, and the effects that led to it; guarded by the directory's mutex.
#[derive(Clone, Debug, Default)]
struct State {
    base: Base,
    names: BTreeMap<Arc<str>, FileNumber>,
    /// By number.
    files: Vec<Sparse>,
    effects: Vec<Effect>,
    /// The number of effects after which the power is cut.
    fuse: Option<usize>,
}

impl State {
    fn check_power(&self, what: &str, name: &str) -> Result<()> {
        if self.fuse.is_some_and(|fuse| self.effects.len() >= fuse) {
            return Err(Error::io(what, name, io::Error::other("the power is gone")));
        }
        Ok(())
    }

    /// Applies a write and records the sectors it leaves.
    fn write(&mut self, file: FileNumber, bytes: &[u8], offset: u64, mapped: bool) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = end_of(offset, bytes.len() as u64)?;
        let content = &mut self.files[file];
        content.write(offset, bytes);
        let grown = (end > content.size()).then_some(end);
        content.grow(end);
        let sector = SECTOR_BYTES as u64;
        let first = offset / sector * sector;
        let length = usize::try_from(end.next_multiple_of(sector) - first).unwrap_or(0);
        let mut sectors = vec![0; length];
        content.read(first, &mut sectors);
        let sectors = Arc::from(sectors);
        self.effects.push(Effect::Write { file, offset: first, sectors, grown, mapped });
        Ok(())
    }
}

/// The end of a range, if it is within the file size limit.
fn end_of(offset: u64, bytes: u64) -> Result<u64> {
    offset
        .checked_add(bytes)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or_else(|| Error::internal("an offset is beyond what files have"))
}

impl CrashDirectory {
    /// An empty directory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A directory with these files, durable.
    #[must_use]
    pub fn from_files(files: &BTreeMap<String, Vec<u8>>) -> Self {
        let contents =
            files.iter().map(|(name, bytes)| (Arc::from(name.as_str()), Sparse::from_bytes(bytes)));
        let base: Base = contents.collect();
        let state = State {
            names: base.keys().cloned().zip(0..).collect(),
            files: base.values().cloned().collect(),
            base,
            effects: Vec::new(),
            fuse: None,
        };
        Self::with_state(state)
    }

    fn with_state(state: State) -> Self {
        let shared = Shared { state: Mutex::new(state), lock: LockTable::default() };
        Self { shared: Arc::new(shared), is_unmapped: false }
    }

    /// The same directory without mapped regions: the log is written by calls.
    #[must_use]
    pub fn without_mapping(mut self) -> Self {
        self.is_unmapped = true;
        self
    }

    /// The directory as the next process finds it if the current one dies now: unlocked, with every
    /// change so far, those not durable still pending. Later changes of the old process affect only
    /// this directory.
    #[must_use]
    pub fn after_process_death(&self) -> Self {
        Self::with_state(self.shared.state.lock().clone())
    }

    /// The number of effects so far, which is the number of the current boundary.
    #[must_use]
    pub fn boundary(&self) -> usize {
        self.shared.state.lock().effects.len()
    }

    /// The journal of all effects so far.
    #[must_use]
    pub fn journal(&self) -> Journal {
        let state = self.shared.state.lock();
        Journal::new(&state.base, state.effects.clone())
    }

    /// Cuts the power once the directory reaches `boundary`: every later call, including reads,
    /// fails and changes nothing.
    pub fn fail_after(&self, boundary: usize) {
        self.shared.state.lock().fuse = Some(boundary);
    }

    /// True if the power was cut.
    #[must_use]
    pub fn power_is_gone(&self) -> bool {
        self.shared.state.lock().check_power("ask", "").is_err()
    }

    /// The state; fails if the power was cut.
    fn powered(&self, what: &str, name: &str) -> Result<MutexGuard<'_, State>> {
        let state = self.shared.state.lock();
        state.check_power(what, name)?;
        Ok(state)
    }
}

impl Directory for CrashDirectory {
    fn open(&self, name: &str, mode: OpenMode, _access: Access) -> Result<Arc<dyn File>> {
        check_name(name)?;
        let mut state = self.powered("open", name)?;
        let number = match (mode, state.names.get(name)) {
            (OpenMode::Read | OpenMode::Write, Some(number)) => *number,
            (OpenMode::CreateNew, None) => {
                let (number, shared_name) = (state.files.len(), Arc::<str>::from(name));
                state.files.push(Sparse::default());
                state.names.insert(Arc::clone(&shared_name), number);
                state.effects.push(Effect::Create { name: shared_name, file: number });
                number
            }
            (OpenMode::CreateNew, Some(_)) => {
                return Err(Error::io("create", name, io::ErrorKind::AlreadyExists.into()));
            }
            (_, None) => return Err(Error::io("open", name, io::ErrorKind::NotFound.into())),
        };
        let writable = mode != OpenMode::Read;
        let directory = self.clone();
        Ok(Arc::new(CrashFile { directory, name: name.to_owned(), number, writable }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.powered("remove", name)?;
        let Some((name, _)) = state.names.remove_entry(name) else {
            return Err(Error::io("remove", name, io::ErrorKind::NotFound.into()));
        };
        state.effects.push(Effect::Remove { name });
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        let state = self.powered("list", ".")?;
        Ok(state.names.keys().map(ToString::to_string).collect())
    }

    fn sync(&self) -> Result<()> {
        self.powered("sync the directory", ".")?.effects.push(Effect::SyncDirectory);
        Ok(())
    }

    fn lock(&self, exclusive: bool, _create: bool) -> Result<Box<dyn LockGuard>> {
        drop(self.powered("lock", super::LOCK_FILE)?);
        self.shared.lock.take(exclusive)
    }

    /// In memory, and lost by a power cut.
    fn scratch(&self, _place: ScratchPlace) -> Result<Arc<dyn File>> {
        drop(self.powered("create", SCRATCH_FILE)?);
        Ok(super::memory::scratch())
    }

    fn facts(&self) -> IoFacts {
        IoFacts { direct: false, mapped_log: !self.is_unmapped, name: "crash" }
    }
}

#[derive(Debug)]
struct CrashFile {
    directory: CrashDirectory,
    name: String,
    number: FileNumber,
    writable: bool,
}

impl CrashFile {
    fn powered(&self, what: &str) -> Result<MutexGuard<'_, State>> {
        self.directory.powered(what, &self.name)
    }

    /// The state, to change the file.
    fn writing(&self, what: &str) -> Result<MutexGuard<'_, State>> {
        if self.writable {
            return self.powered(what);
        }
        Err(Error::io(what, &self.name, io::ErrorKind::PermissionDenied.into()))
    }
}

impl File for CrashFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let state = self.powered("read")?;
        let content = &state.files[self.number];
        if end_of(offset, buffer.len() as u64)? > content.size() {
            return Err(Error::corrupt("read past the end of the file").at(&self.name, offset));
        }
        content.read(offset, buffer);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.writing("write")?.write(self.number, bytes, offset, false)
    }

    fn sync(&self) -> Result<()> {
        self.powered("sync")?.effects.push(Effect::Sync { file: self.number });
        Ok(())
    }

    fn size(&self) -> Result<u64> {
        Ok(self.powered("get the size")?.files[self.number].size())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let mut state = self.writing("set the size")?;
        end_of(size, 0)?;
        if state.files[self.number].size() != size {
            state.files[self.number].set_size(size);
            state.effects.push(Effect::Size { file: self.number, size });
        }
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut state = self.writing("allocate")?;
        let end = end_of(offset, bytes)?;
        if bytes > 0 && end > state.files[self.number].size() {
            state.files[self.number].grow(end);
            state.effects.push(Effect::Size { file: self.number, size: end });
        }
        Ok(())
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut state = self.writing("free")?;
        let end = end_of(offset, bytes)?.min(state.files[self.number].size());
        if offset < end {
            let bytes = end - offset;
            state.files[self.number].clear(offset, bytes);
            state.effects.push(Effect::Hole { file: self.number, offset, bytes });
        }
        Ok(())
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.size()
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        let state = self.writing("map")?;
        if end_of(offset, bytes as u64)? > state.files[self.number].size() {
            return Err(Error::internal("a region reaches past the end of its file"));
        }
        drop(state);
        let (directory, name) = (self.directory.clone(), self.name.clone());
        Ok(Box::new(CrashRegion {
            directory,
            name,
            number: self.number,
            start: offset,
            size: bytes,
        }))
    }
}

#[derive(Debug)]
struct CrashRegion {
    directory: CrashDirectory,
    name: String,
    number: FileNumber,
    start: u64,
    size: usize,
}

impl Region for CrashRegion {
    fn size(&self) -> usize {
        self.size
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.size) {
            return Err(Error::internal("a write reaches past the end of its region"));
        }
        let mut state = self.directory.powered("write", &self.name)?;
        let start = self.start + offset as u64;
        if start + bytes.len() as u64 > state.files[self.number].size() {
            return Err(Error::internal("a file was cut while a region of it was open"));
        }
        state.write(self.number, bytes, start, true)
    }
}
