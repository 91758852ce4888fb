//! The space of an open data file, shared by the threads that allocate and free extents of it.
//!
//! Each method takes the lock of the [`Space`] for the time of the call, except while an extent is
//! zeroed: that may write the complete extent, and concerns only its new owner. The right to change
//! the file is taken under the lock, and kept after it: a close waits for the zeroing too.
//!
//! Thread-safety: every method may be called from any thread.

use super::{Allocation, Space};
use crate::base::error::{Error, Result};
use crate::base::ids::{Extent, Generation};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::runtime::sync::Ordering;
use crate::storage::Storage;
use crate::storage::data_file::Writing;
use crate::storage::quota::Quota;

impl Storage {
    /// Allocates an extent of `blocks` blocks (at least one) for an engine that works with `quota`.
    /// `NoSpace` changes nothing.
    pub fn allocate(&self, blocks: u32, quota: &Quota<'_>) -> Result<Allocation> {
        self.quotas.take(blocks, quota)?;
        self.allocate_uncounted(blocks)
    }

    /// Like [`Storage::allocate`]; every byte of the extent reads as zero when this returns, and
    /// also after a power cut once the data file was synced. For engines that write pages in place,
    /// which distinguish a page that was never written from a damaged one. Statistics do not count
    /// the zeros as written blocks.
    pub fn allocate_zeros(&self, blocks: u32, quota: &Quota<'_>) -> Result<Allocation> {
        self.quotas.take(blocks, quota)?;
        let (allocation, file) = self.allocate_writing(blocks)?;
        let extent = allocation.extent;
        let bytes = u64::from(extent.blocks) * BLOCK_BYTES_U64;
        let zeroed = file.write_zeros(extent.offset(), bytes);
        // Not held while waiting for the lock of the space; see the lock order of storage.
        drop(file);
        if let Err(error) = zeroed {
            self.note_failure(&error);
            self.space.lock().free_as_hole(extent)?;
            return Err(error);
        }
        Ok(allocation)
    }

    /// Like [`Storage::allocate`], without counting against a quota.
    pub(in crate::storage) fn allocate_uncounted(&self, blocks: u32) -> Result<Allocation> {
        self.allocate_writing(blocks).map(|(allocation, _)| allocation)
    }

    /// Allocates an extent, uncounted; returns with it the right to change the file.
    fn allocate_writing(&self, blocks: u32) -> Result<(Allocation, Writing<'_>)> {
        let mut space = self.space.lock();
        let file = self.file.writing()?;
        let allocated = space.allocate(&*file, blocks);
        self.note_length(&space);
        let allocation = allocated.inspect_err(|error| self.note_failure(error))?;
        Ok((allocation, file))
    }

    /// Records that an allocation failed, unless it changed nothing.
    fn note_failure(&self, error: &Error) {
        if !error.is_transient() {
            self.file.note_failed_write();
        }
    }

    /// Frees an extent that no durable root and no version can reach. It may be overwritten at
    /// once.
    pub fn free(&self, extent: Extent) -> Result<()> {
        self.file.check_writable()?;
        self.space.lock().free(extent)
    }

    /// [`Storage::free`] for callers that drop the last reference and cannot return an error.
    /// Freeing a free extent would be a bug in this library, unless metadata with a valid checksum
    /// lists it twice, or not at all although an entry refers to it; it is counted
    /// ([`super::SpaceStats::refused_frees`]), and the next open derives free space anew. Does
    /// nothing when read-only.
    pub fn free_unreachable(&self, extent: Extent) {
        if self.file.check_writable().is_ok() {
            let _ = self.space.lock().free(extent);
        }
    }

    /// The newest generation allocated so far; every later allocation has a newer one.
    pub fn newest_generation(&self) -> Generation {
        self.space.lock().newest_generation()
    }

    /// A generation for blocks that are written again within an extent of the caller: no block was
    /// ever sealed with it.
    pub fn new_generation(&self) -> Result<Generation> {
        self.space.lock().new_generation()
    }

    /// Marks an extent that a root of the catalog refers to as used: after open, before the first
    /// allocation. Extents that overlap or lie outside the file are corruption.
    pub fn mark_used(&self, extent: Extent) -> Result<()> {
        self.space.lock().mark_used(extent)
    }

    /// True if `extent` lies within the data file. Check a reference with this before memory is
    /// reserved for its blocks.
    #[must_use]
    pub fn holds(&self, extent: Extent) -> bool {
        let end = extent.start.0.checked_add(u64::from(extent.blocks));
        end.is_some_and(|end| end <= self.file_blocks.load(Ordering::Acquire))
    }

    /// Notes how long the file is now, before anybody is given an extent of it.
    fn note_length(&self, space: &Space) {
        self.file_blocks.store(space.file_blocks(), Ordering::Release);
    }

    /// Returns a piece of the free space ([`super::GIVE_BACK_BLOCKS`]) to the file system, except
    /// `keep_bytes` of it for allocations expected soon; true if a further call will return more.
    /// The file system lets nobody read the file meanwhile: let time pass between calls.
    pub fn give_back(&self, keep_bytes: u64) -> Result<bool> {
        let mut space = self.space.lock();
        let file = self.file.writing()?;
        let given = space.give_back(&*file, keep_bytes / BLOCK_BYTES_U64);
        self.note_length(&space);
        given
    }

    /// Returns all free space to the file system, whether it has device blocks or not. Used when a
    /// full device needs the space elsewhere.
    pub fn give_all_back(&self) -> Result<()> {
        let mut space = self.space.lock();
        let file = self.file.writing()?;
        let given = space.give_all_back(&*file);
        self.note_length(&space);
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use crate::base::limits::BLOCK_BYTES;
    use crate::memory::budget::Budget;
    use crate::runtime::sync::Arc;
    use crate::storage::block::DATA_FILE;
    use crate::storage::io::direct::DirectDirectory;
    use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
    use crate::storage::io::memory::MemoryDirectory;
    use crate::storage::io::{Directory as _, ScratchPlace};
    use crate::storage::quota::UNLIMITED;
    use std::path::Path;

    const BLOCKS: u32 = 100;

    /// Allocates an extent, fills it with bytes that are not zeros, and frees it.
    fn leave_garbage(storage: &Storage) -> Extent {
        let Allocation { extent, generation } = storage.allocate(BLOCKS, &UNLIMITED).unwrap();
        let mut blocks = vec![0xaa; BLOCKS as usize * BLOCK_BYTES];
        storage.write_blocks(extent.start, generation, &mut blocks).unwrap();
        storage.free(extent).unwrap();
        extent
    }

    /// The bytes of `extent` in a data file with this content.
    fn bytes_of(data: &[u8], extent: Extent) -> &[u8] {
        let start = usize::try_from(extent.offset()).unwrap();
        &data[start..start + extent.blocks as usize * BLOCK_BYTES]
    }

    #[test]
    fn a_used_extent_is_zeroed() {
        let (storage, dir) = Storage::testing(32 << 20);
        let before = leave_garbage(&storage);
        let garbage = dir.to_files().remove(DATA_FILE).unwrap();
        assert!(bytes_of(&garbage, before).chunks(BLOCK_BYTES).all(|block| block[4095] == 0xaa));
        let zeroed = storage.allocate_zeros(BLOCKS, &UNLIMITED).unwrap();
        assert_eq!(zeroed.extent, before);
        let data = dir.to_files().remove(DATA_FILE).unwrap();
        assert!(bytes_of(&data, before).iter().all(|byte| *byte == 0));
        assert_eq!(zeroed.generation, storage.newest_generation());
    }

    #[test]
    fn a_used_extent_of_a_real_file_is_zeroed_by_the_file_system_or_by_writes() {
        let built = std::env::current_exe().unwrap();
        for parent in [built.parent().unwrap(), Path::new("/dev/shm")] {
            let Ok(place) = tempfile::tempdir_in(parent) else { continue };
            let path = place.path().join("database");
            let dir = DirectDirectory::open(&path, true).unwrap();
            let storage = Storage::create(&dir, &Budget::new(32 << 20), 1).unwrap().storage;
            leave_garbage(&storage);
            // The first half of the extent gets another owner.
            let kept = storage.allocate(BLOCKS / 2, &UNLIMITED).unwrap();
            let mut blocks = vec![0xbb; BLOCKS as usize / 2 * BLOCK_BYTES];
            storage.write_blocks(kept.extent.start, kept.generation, &mut blocks).unwrap();
            let zeroed = storage.allocate_zeros(BLOCKS / 2, &UNLIMITED).unwrap();
            assert_eq!(zeroed.extent.start, kept.extent.end());
            let data = std::fs::read(path.join(DATA_FILE)).unwrap();
            assert!(bytes_of(&data, zeroed.extent).iter().all(|byte| *byte == 0));
            assert!(bytes_of(&data, kept.extent) == blocks);
        }
    }

    #[test]
    fn an_extent_that_is_not_zeroed_is_free() {
        use Failure::{Io, IoHalfDone, NoSpace, NoSpaceHalfDone};
        for failure in [NoSpace, NoSpaceHalfDone, Io, IoHalfDone] {
            let (plan, memory) = (FaultPlan::new(), Arc::new(MemoryDirectory::new()));
            let dir = FaultDirectory::new(memory, plan.clone()).unwrap();
            let storage = Storage::create(&dir, &Budget::new(32 << 20), 1).unwrap().storage;
            let extent = leave_garbage(&storage);
            let used = storage.stats().space.used_blocks;
            let allocations = plan.calls(Call::Allocate);
            plan.fail(Fault::once(Call::Write, 0).on(DATA_FILE).with(failure));
            let kind = storage.allocate_zeros(BLOCKS, &UNLIMITED).unwrap_err().kind();
            let full = matches!(failure, NoSpace | NoSpaceHalfDone);
            assert_eq!(kind, if full { ErrorKind::NoSpace } else { ErrorKind::Io });
            assert_eq!((storage.has_failed_write(), plan.failures()), (!full, 1));
            assert_eq!(storage.stats().space.used_blocks, used);
            assert_eq!(plan.calls(Call::Allocate), allocations);
            // Its device blocks are made sure of again.
            assert_eq!(storage.allocate_zeros(BLOCKS, &UNLIMITED).unwrap().extent, extent);
            assert_eq!(plan.calls(Call::Allocate), allocations + 1);
        }
    }

    #[test]
    fn a_closed_or_sealed_file_is_not_zeroed() {
        let (storage, dir) = Storage::testing(32 << 20);
        leave_garbage(&storage);
        let (before, used) = (dir.to_files(), storage.stats().space.used_blocks);
        storage.close();
        let error = storage.allocate_zeros(1, &UNLIMITED).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stopped);
        assert_eq!((dir.to_files(), storage.stats().space.used_blocks), (before, used));
        drop(storage);
        let before = dir.to_files();
        let storage = Storage::open(&dir, &Budget::new(32 << 20), true).unwrap().storage;
        let error = storage.allocate_zeros(1, &UNLIMITED).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        storage.continue_in(dir.scratch(ScratchPlace::Here).unwrap()).unwrap();
        let zeroed = storage.allocate_zeros(BLOCKS, &UNLIMITED).unwrap();
        assert!(storage.holds(zeroed.extent));
        assert_eq!(dir.to_files(), before);
    }
}
