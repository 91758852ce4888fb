//! Storage layer: files, blocks, extents, the data file and the block cache.
//!
//! [`Storage`] is the handle that the layers above hold: one data file with its free space, its
//! cache and its superblock.
//!
//! | module | contents |
//! | --- | --- |
//! | `io` | access to the file system |
//! | `block` | self-verifying 4 KiB blocks |
//! | `blocks` | reads and writes of blocks that bypass the cache |
//! | `data_file` | sealed reads and writes, superblock, catalog |
//! | `extents`, `space` | free space; allocation of extents, growing and shrinking the file |
//! | `cache` | verified blocks in memory |
//! | `dictionaries` | the dictionaries of compressed values in memory |
//! | `large` | values in extents of their own |
//! | `slots` | slots of page groups that older versions still need |
//! | `quota` | how much of the free space a piece of engine work may allocate |
//! | `checkpoint` | making a new state durable |
//! | `copy` | copies of the data file, for backups |
//!
//! Life of an extent: [`Storage::allocate`] -> [`Storage::write_blocks`] -> a checkpoint whose
//! roots refer to it -> ... -> a checkpoint whose roots do not -> [`Storage::free`]. Free space is
//! not stored: after [`Storage::open`] the owner of the roots calls [`Storage::mark_used`] for
//! every extent that they reach, before anything is allocated.
//!
//! Invariants:
//! 1. Nothing that a durable root refers to is overwritten: extents are freed only after a
//!    checkpoint without them is durable (the flush ensures this; the catalog's extent is handled
//!    here).
//! 2. A generation is used once: the open that it counts is durable before the first allocation.
//!
//! Lock order: `root` (the superblock; held over its writes), `spare`, the data file's sync,
//! `space`, the data file's close, the cache's, the budget's. Thread-safety: every method may be
//! called from any thread.

pub mod block;
mod blocks;
pub mod cache;
mod checkpoint;
mod copy;
pub mod data_file;
mod dictionaries;
pub mod extents;
pub mod io;
mod large;
pub mod quota;
mod slots;
pub mod space;

use crate::base::checksum::KeyHash;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::memory::budget::{Budget, Use};
use crate::memory::buffers::Buffers;
use crate::memory::epoch::Epochs;
use crate::memory::node_clock::NodeClock;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Arc, AtomicU64, Mutex};
use block::DATA_FILE;
use cache::{Cache, CacheStats, CachedBlock, CachedExtent, Priority};
use data_file::catalog::{self, Catalog};
use data_file::superblock::{Found, OPENS_MAX, Superblock, Superblocks};
use data_file::{DataFile, DataFileStats};
use dictionaries::Dictionaries;
use io::{Access, Directory, File, IoFacts, LockGuard, OpenMode};
use quota::Quotas;
use slots::HeldSlots;
use space::Space;
pub use space::{Allocation, GIVE_BACK_BLOCKS, SpaceStats};

/// The data file of a database with its free space, block cache and superblock.
pub struct Storage {
    // Constant after construction.
    file: Arc<DataFile>,
    budget: Arc<Budget>,
    epochs: Arc<Epochs>,
    cache: Arc<Cache>,
    node_clock: Arc<NodeClock>,
    facts: IoFacts,
    /// The length of the data file, for readers: they need not wait while space is returned.
    file_blocks: AtomicU64,
    // Guarded by their mutexes.
    space: Mutex<Space>,
    /// The durable superblock; held over its writes.
    root: Mutex<Superblocks>,
    /// The extent of the previous catalog, kept for the next one.
    spare: Mutex<Option<Extent>>,
    quotas: Quotas,
    held_slots: HeldSlots,
    dictionaries: Dictionaries,
    buffers: Arc<Buffers>,
}

/// The result of [`Storage::open`].
pub struct Opened {
    /// The storage.
    pub storage: Arc<Storage>,
    /// The superblock, with this open counted.
    pub superblock: Superblock,
    /// The catalog of the last checkpoint; empty if there was none.
    pub catalog: Catalog,
}

/// Statistics of the storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StorageStats {
    /// Blocks read and written.
    pub file: DataFileStats,
    /// Extents, including those of a scratch file that continues the data file.
    pub space: SpaceStats,
    /// Extents of the data file only.
    pub data_file_space: SpaceStats,
    /// The length of the scratch file.
    pub scratch_bytes: u64,
    /// The block cache.
    pub cache: CacheStats,
    /// Bytes of the device that the data file occupies.
    pub allocated_bytes: u64,
    /// Properties of the file system as it is used.
    pub io: IoFacts,
}

impl Storage {
    /// Creates the data file of a new database in a directory that has none (or one whose creation
    /// did not finish). `salt` should be random. Durable when this returns.
    pub fn create(dir: &dyn Directory, budget: &Arc<Budget>, salt: u64) -> Result<Opened> {
        if dir.list()?.iter().any(|name| name == DATA_FILE) {
            let (file, _lock) = open_locked(dir, OpenMode::Read, true)?;
            if !matches!(Superblocks::read(&*file)?, Found::Unfinished) {
                let text = "there is a database already";
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            dir.remove(DATA_FILE)?;
        }
        let (file, lock) = open_locked(dir, OpenMode::CreateNew, true)?;
        Superblocks::create(&*file, salt)?;
        dir.sync()?;
        let superblocks = superblocks_of(Superblocks::read(&*file)?)?;
        Self::open_file(dir, (&file, lock), superblocks, budget, false)
    }

    /// Checks whether a database exists, without changing anything: false if there is no data file,
    /// or one whose creation did not finish. Fails like [`Storage::open`] if the superblock is
    /// invalid.
    pub fn is_there(dir: &dyn Directory) -> Result<bool> {
        match dir.open(DATA_FILE, OpenMode::Read, Access::Direct) {
            Ok(file) => Ok(matches!(Superblocks::read(&*file)?, Found::Database(_))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens the data file and locks it until [`Storage::close`] (shared for read-only opens). An
    /// open for writing durably increments the open count in the superblock, which makes both
    /// copies equal again. Afterwards every extent that the roots reach must be marked by
    /// [`Storage::mark_used`] before the first allocation.
    ///
    /// Fails with `NotFound` if there is no database, with `InvalidArgument` if the file is not a
    /// data file.
    pub fn open(dir: &dyn Directory, budget: &Arc<Budget>, read_only: bool) -> Result<Opened> {
        let mode = if read_only { OpenMode::Read } else { OpenMode::Write };
        let (file, lock) = open_locked(dir, mode, !read_only)?;
        let superblocks = superblocks_of(Superblocks::read(&*file)?)?;
        Self::open_file(dir, (&file, lock), superblocks, budget, read_only)
    }

    /// Opens a damaged data file read-only; the file may be shorter than the superblock says.
    pub fn open_damaged(dir: &dyn Directory, budget: &Arc<Budget>) -> Result<Opened> {
        let (file, lock) = open_locked(dir, OpenMode::Read, false)?;
        let superblocks = superblocks_of(Superblocks::read_of_any_length(&*file)?)?;
        Self::open_file(dir, (&file, lock), superblocks, budget, true)
    }

    fn open_file(
        dir: &dyn Directory,
        (file, lock): (&Arc<dyn File>, Box<dyn LockGuard>),
        mut superblocks: Superblocks,
        budget: &Arc<Budget>,
        read_only: bool,
    ) -> Result<Opened> {
        let salt = superblocks.current().salt;
        let data = Arc::new(DataFile::new(Arc::clone(file), lock, salt, read_only));
        // Everything is checked before anything is written.
        let location = superblocks.current().catalog;
        let catalog = match &location {
            Some(location) => catalog::read(&data, location)?,
            None => Catalog::default(),
        };
        if !read_only {
            let mut counted = *superblocks.current();
            if counted.opens >= OPENS_MAX {
                let text = "the database was opened for writing too often: copy it to a new one";
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            counted.opens += 1;
            superblocks.write(&**file, counted)?;
        }
        let superblock = *superblocks.current();
        // If a damaged file was truncated, reads of the lost blocks fail with their location.
        let blocks = (file.size()? / BLOCK_BYTES_U64).max(superblock.file_blocks);
        // A read-only open is not counted, but its generations, which only its scratch file has,
        // are above all that were written too.
        let opens = superblock.opens + u32::from(read_only);
        let mut space = Space::new(blocks, superblock.file_blocks, opens);
        if let Some(location) = &location {
            space.mark_used(location.extent)?;
        }
        let epochs = Epochs::new()?;
        let storage = Arc::new(Self {
            cache: Cache::new(Arc::clone(&data), budget, &epochs),
            node_clock: NodeClock::new(budget, &epochs),
            epochs,
            file: data,
            budget: Arc::clone(budget),
            facts: dir.facts(),
            file_blocks: AtomicU64::new(space.file_blocks()),
            space: Mutex::new(space),
            root: Mutex::new(superblocks),
            spare: Mutex::new(None),
            quotas: Quotas::default(),
            held_slots: HeldSlots::new(budget),
            dictionaries: Dictionaries::new(budget),
            buffers: Buffers::new(budget),
        });
        Ok(Opened { storage, superblock, catalog })
    }

    /// The salt of the database.
    #[must_use]
    pub fn salt(&self) -> u64 {
        self.file.salt()
    }

    /// The memory budget.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The dictionaries in memory.
    #[must_use]
    pub fn dictionaries(&self) -> &Dictionaries {
        &self.dictionaries
    }

    /// The epochs of the database; all its guards belong to them.
    #[inline]
    #[must_use]
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// The buffers for batches of reads and writes.
    #[must_use]
    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// The clock of what engines keep in memory besides cached blocks.
    #[must_use]
    pub fn node_clock(&self) -> &Arc<NodeClock> {
        &self.node_clock
    }

    /// The hash of a key, for filters.
    #[inline]
    #[must_use]
    pub fn key_hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::new(key, self.file.salt())
    }

    /// True if nothing can be written, not even to a scratch file.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.file.check_writable().is_err()
    }

    /// Makes a read-only storage writable by continuing it in `scratch`, an empty file. New writes
    /// go to `scratch`; the data file does not change. Nothing written there can be made durable.
    /// Call it after the walk of the roots.
    pub fn continue_in(&self, scratch: Arc<dyn File>) -> Result<()> {
        let end = self.space.lock().seal();
        self.file.continue_in(scratch, end)
    }

    /// True once a write, or an allocation for one, has failed for a reason other than `NoSpace`.
    pub fn has_failed_write(&self) -> bool {
        self.file.has_failed_write()
    }

    /// Holds the slots of pages that the newest version has lost; [`Storage::release_slot`] ends
    /// that.
    pub fn hold_slots(&self, pages: impl Iterator<Item = (BlockNo, Generation)>) {
        self.held_slots.hold(pages);
    }

    /// Ends the hold of a lost page.
    pub fn release_slot(&self, slot: BlockNo, generation: Generation) {
        self.held_slots.release(slot, generation);
    }

    /// Returns those of `slots` (first blocks, of pages that the newest version does not have) that
    /// may be overwritten: none in a file that only a scratch file continues.
    pub fn writable_slots(&self, slots: impl Iterator<Item = BlockNo>) -> Vec<BlockNo> {
        let sealed_end = self.space.lock().sealed_end();
        self.held_slots.free_of(slots.filter(|slot| *slot >= sealed_end))
    }

    /// Measures from now on how long readers wait for blocks of entries.
    pub fn set_clock(&self, clock: Clock) {
        self.cache.set_clock(clock);
    }

    /// Waits for writes in progress, and refuses all later ones with `Stopped`.
    pub fn close(&self) {
        self.file.close();
    }

    /// Makes everything written so far durable. If that fails, no later call succeeds.
    pub fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    /// An extent whose blocks are read through the cache; the first `entry_blocks` hold entries.
    #[must_use]
    pub fn cached(
        &self,
        extent: Extent,
        generation: Generation,
        entry_blocks: u32,
    ) -> CachedExtent {
        self.cache.extent(extent, generation, entry_blocks)
    }

    /// An extent whose blocks are written again, each with a generation of its own.
    #[must_use]
    pub fn rewritable(&self, extent: Extent, generation: Generation) -> CachedExtent {
        self.cache.rewritable_extent(extent, generation)
    }

    /// Copies blocks of several extents, in the order requested; missing blocks are read together.
    /// The caller must not hold a guard during the call.
    pub fn load_many(
        &self,
        requests: &[(&CachedExtent, u32)],
        priority: Priority,
    ) -> Result<Vec<CachedBlock<'static>>> {
        self.load_many_while(requests, priority, &mut || {})
    }

    /// Like [`Storage::load_many`]; `meanwhile` is called once, during the read of missing blocks
    /// if possible.
    pub fn load_many_while(
        &self,
        requests: &[(&CachedExtent, u32)],
        priority: Priority,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Vec<CachedBlock<'static>>> {
        self.cache.load_many_while(requests, priority, meanwhile)
    }

    /// Frees memory after the budget was reduced: shrinks the node clock to its share, and drops
    /// slabs of the caches while the budget is over its limit. Returns true if it is within the
    /// limit now, else call again later.
    pub fn trim_memory(&self) -> bool {
        self.node_clock.trim();
        self.budget.trim()
    }

    /// Frees all cached memory of a closed database, so that remaining handles find nothing in it.
    /// The limit of its budget is 0 from then on.
    pub fn release_memory(&self) {
        const ROUNDS_MAX: u32 = 1_000;
        let cached = || self.budget.used_by(Use::Cache) + self.budget.used_by(Use::Records);
        self.budget.set_limit(0);
        self.buffers.clear();
        for _ in 0..ROUNDS_MAX {
            let before = cached();
            self.trim_memory();
            // Wait for readers that were in progress when it was closed.
            self.epochs.settle();
            if cached() == before {
                break;
            }
        }
    }

    /// Storage statistics. If the file system does not report allocated bytes, the file's length
    /// counts.
    pub fn stats(&self) -> StorageStats {
        let (space, data_file_space) = {
            let space = self.space.lock();
            (space.stats(), space.sealed_stats().unwrap_or_else(|| space.stats()))
        };
        let length = data_file_space.file_blocks * BLOCK_BYTES_U64;
        StorageStats {
            file: self.file.stats(),
            space,
            data_file_space,
            scratch_bytes: (space.file_blocks - data_file_space.file_blocks) * BLOCK_BYTES_U64,
            cache: self.cache.stats(),
            allocated_bytes: self.file.file().allocated_bytes().unwrap_or(length),
            io: self.facts,
        }
    }
}

/// Opens and locks the data file. The lock file of the directory may be removed while its lock is
/// held; this lock stays with the data.
fn open_locked(
    dir: &dyn Directory,
    mode: OpenMode,
    exclusive: bool,
) -> Result<(Arc<dyn File>, Box<dyn LockGuard>)> {
    let file = dir.open(DATA_FILE, mode, Access::Direct)?;
    let lock = file.lock(exclusive)?;
    Ok((file, lock))
}

fn superblocks_of(found: Found) -> Result<Superblocks> {
    match found {
        Found::Database(superblocks) => Ok(*superblocks),
        Found::Unfinished => {
            let text = "there is no database: its creation did not finish";
            Err(Error::new(ErrorKind::NotFound, text))
        }
    }
}

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
