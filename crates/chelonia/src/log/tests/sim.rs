//! A directory in memory that tracks what is durable, and fails on request.
//!
//! A crash image takes, sector by sector, either the last synced or the last written content, and
//! decides at random about unsynced sizes and names. To make states in between durable too, tests
//! call [`SimDirectory::write_back`] at any time, as a kernel does.

use crate::base::error::{Error, Result};
use crate::base::limits::SECTOR_BYTES;
use crate::runtime::rng::Rng;
use crate::runtime::sync::{Arc, Mutex};
use crate::storage::io::{
    Access, Directory, File, IoFacts, LockGuard, OpenMode, Region, ScratchPlace,
};
use std::collections::BTreeMap;
use std::io;

/// The calls that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Open,
    Write,
    Store,
    Sync,
    Allocate,
    Map,
    DirectorySync,
}

type Hook = Arc<dyn Fn() + Send + Sync>;
type Shared = Arc<Mutex<World>>;

#[derive(Default)]
struct World {
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    files: Vec<Bytes>,
    fault: Option<(Call, u64)>,
    space_max: Option<usize>,
    calls: u64,
    syncs: u64,
    unmapped: bool,
}

#[derive(Clone, Default)]
struct Bytes {
    now: Vec<u8>,
    durable: Vec<u8>,
}

impl World {
    fn call(&mut self, call: Call) -> Result<()> {
        self.calls += 1;
        match &mut self.fault {
            Some((which, 0)) if *which == call => {
                Err(Error::io("simulated", "log", io::ErrorKind::TimedOut.into()))
            }
            Some((which, later)) if *which == call => {
                *later -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn grow(&mut self, file: usize, size: usize) -> Result<()> {
        let used: usize = self.names.values().map(|file| self.files[*file].now.len()).sum();
        let more = size.saturating_sub(self.files[file].now.len());
        if self.space_max.is_some_and(|max| more > 0 && used + more > max) {
            return Err(Error::io("allocate", "log", io::ErrorKind::StorageFull.into()));
        }
        if more > 0 {
            self.files[file].now.resize(size, 0);
        }
        Ok(())
    }
}

#[derive(Clone)]
pub struct SimDirectory {
    world: Shared,
    on_sync: Option<Hook>,
}

impl std::fmt::Debug for SimDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimDirectory")
    }
}

impl SimDirectory {
    pub fn new() -> Self {
        Self { world: Shared::default(), on_sync: None }
    }

    /// Creates a directory with these files, all durable.
    pub fn from_files(files: &BTreeMap<String, Vec<u8>>) -> Self {
        let mut world = World::default();
        for (name, bytes) in files {
            world.names.insert(name.clone(), world.files.len());
            world.files.push(Bytes { now: bytes.clone(), durable: bytes.clone() });
        }
        world.durable_names = world.names.clone();
        Self { world: Arc::new(Mutex::new(world)), on_sync: None }
    }

    /// Calls `hook` at the beginning of every sync of a file.
    pub fn with_hook(mut self, hook: Hook) -> Self {
        self.on_sync = Some(hook);
        self
    }

    /// Disables mapping of regions.
    pub fn without_mapping(self) -> Self {
        self.world.lock().unmapped = true;
        self
    }

    /// Makes calls of one kind fail from the `later`-th next on.
    pub fn fail(&self, call: Call, later: u64) {
        self.world.lock().fault = Some((call, later));
    }

    pub fn heal(&self) {
        let mut world = self.world.lock();
        (world.fault, world.space_max) = (None, None);
    }

    /// Limits the total size of all files.
    pub fn set_space_max(&self, bytes: usize) {
        self.world.lock().space_max = Some(bytes);
    }

    pub fn syncs(&self) -> u64 {
        self.world.lock().syncs
    }

    /// The files that the next process sees.
    pub fn files_now(&self) -> BTreeMap<String, Vec<u8>> {
        let world = self.world.lock();
        world.names.iter().map(|(name, at)| (name.clone(), world.files[*at].now.clone())).collect()
    }

    /// Makes some written sectors durable.
    pub fn write_back(&self, rng: &mut Rng) {
        let mut world = self.world.lock();
        for file in &mut world.files {
            file.durable = torn(file, rng);
        }
    }

    /// A possible state after a power failure.
    pub fn crash_image(&self, rng: &mut Rng) -> BTreeMap<String, Vec<u8>> {
        let world = self.world.lock();
        let mut names = world.durable_names.clone();
        for (name, at) in &world.names {
            if world.durable_names.get(name) != Some(at) && rng.one_in(2) {
                names.insert(name.clone(), *at);
            }
        }
        for name in world.durable_names.keys() {
            if !world.names.contains_key(name) && rng.one_in(2) {
                names.remove(name);
            }
        }
        names.into_iter().map(|(name, at)| (name, torn(&world.files[at], rng))).collect()
    }
}

/// A random mixture of the durable and the written state of a file.
fn torn(file: &Bytes, rng: &mut Rng) -> Vec<u8> {
    let (mut image, other) = if rng.one_in(2) {
        (file.now.clone(), &file.durable)
    } else {
        (file.durable.clone(), &file.now)
    };
    // From "nearly all of one" to "half and half".
    let rarity = 1 + rng.below(6);
    for (index, sector) in other.chunks(SECTOR_BYTES).enumerate() {
        let start = index * SECTOR_BYTES;
        if let Some(place) = image.get_mut(start..start + sector.len())
            && rng.one_in(rarity)
        {
            place.copy_from_slice(sector);
        }
    }
    image
}

#[derive(Clone)]
struct SimFile {
    name: String,
    at: usize,
    world: Shared,
    on_sync: Option<Hook>,
}

impl std::fmt::Debug for SimFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Directory for SimDirectory {
    fn open(&self, name: &str, mode: OpenMode, _access: Access) -> Result<Arc<dyn File>> {
        let mut world = self.world.lock();
        world.call(Call::Open)?;
        let at = match (mode, world.names.get(name)) {
            (OpenMode::CreateNew, None) => {
                world.files.push(Bytes::default());
                let at = world.files.len() - 1;
                world.names.insert(name.to_owned(), at);
                at
            }
            (OpenMode::CreateNew, Some(_)) => {
                return Err(Error::io("create", name, io::ErrorKind::AlreadyExists.into()));
            }
            (_, Some(at)) => *at,
            (_, None) => return Err(Error::io("open", name, io::ErrorKind::NotFound.into())),
        };
        let (world, on_sync) = (Arc::clone(&self.world), self.on_sync.clone());
        Ok(Arc::new(SimFile { name: name.to_owned(), at, world, on_sync }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.world.lock().names.remove(name) {
            Some(_) => Ok(()),
            None => Err(Error::io("remove", name, io::ErrorKind::NotFound.into())),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.world.lock().names.keys().cloned().collect())
    }

    fn sync(&self) -> Result<()> {
        let mut world = self.world.lock();
        world.call(Call::DirectorySync)?;
        world.durable_names = world.names.clone();
        Ok(())
    }

    fn lock(&self, _exclusive: bool, _create: bool) -> Result<Box<dyn LockGuard>> {
        Err(Error::internal("the log takes no locks of directories"))
    }

    fn scratch(&self, _place: ScratchPlace) -> Result<Arc<dyn File>> {
        Err(Error::internal("the log needs no scratch files"))
    }

    fn facts(&self) -> IoFacts {
        IoFacts { direct: false, mapped_log: !self.world.lock().unmapped, name: "sim" }
    }
}

impl File for SimFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        match self.world.lock().files[self.at].now.get(start..start + buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(Error::corrupt("the file ends too early").at(&self.name, offset)),
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut world = self.world.lock();
        world.call(Call::Write)?;
        let start = usize::try_from(offset).unwrap();
        world.grow(self.at, start + bytes.len())?;
        world.files[self.at].now[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if let Some(hook) = &self.on_sync {
            hook();
        }
        let mut world = self.world.lock();
        world.call(Call::Sync)?;
        world.syncs += 1;
        let file = &mut world.files[self.at];
        file.durable.clone_from(&file.now);
        Ok(())
    }

    fn size(&self) -> Result<u64> {
        Ok(self.world.lock().files[self.at].now.len() as u64)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.world.lock().files[self.at].now.resize(usize::try_from(size).unwrap(), 0);
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut world = self.world.lock();
        world.call(Call::Allocate)?;
        world.grow(self.at, usize::try_from(offset + bytes).unwrap())
    }

    fn punch_hole(&self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.size()
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        self.world.lock().call(Call::Map)?;
        let start = usize::try_from(offset).unwrap();
        Ok(Box::new(SimRegion { file: self.clone(), start, bytes }))
    }
}

#[derive(Debug)]
struct SimRegion {
    file: SimFile,
    start: usize,
    bytes: usize,
}

impl Region for SimRegion {
    #[cfg(any(test, feature = "internals"))]
    fn size(&self) -> usize {
        self.bytes
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.bytes, "a write reaches past the end of its region");
        let mut world = self.file.world.lock();
        world.call(Call::Store)?;
        let start = self.start + offset;
        world.files[self.file.at].now[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
