//! Windows of files that are written by copying memory, and their stand-in that is written by
//! system calls.
//!
//! A store into a shared mapping survives the death of the process at once, for the page belongs to
//! the kernel. What a mapping cannot do is to return an error: a store that the kernel cannot
//! serve raises SIGBUS. There are three reasons for which it could not:
//!
//! 1. The page lies past the end of the file. [`map`] refuses such windows, and a file is never cut
//!    while a window of it is open: nobody else holds the database's lock, and the log does not.
//! 2. The page has no block on the device yet, or needs another one, and there is none. This cannot
//!    be where a block stays where it is once it was allocated: the caller has allocated the range,
//!    so the blocks are there, and ext2, ext3, ext4, XFS and tmpfs write in place. (To note that an
//!    allocated block was written ext4 and XFS keep space of their own; a file system that can only
//!    allocate by writing has written.) Copy-on-write file systems (btrfs, ZFS), network and
//!    user-space ones need new space at every write-back or may be refused by a server: there no
//!    window is mapped.
//! 3. The page was evicted, and the device fails to read it back. This is left. The process dies
//!    as by a kill, which loses nothing that was copied in before.
//!
//! The window is read in at its making, so that a kernel that could not serve it says so by an
//! error then (and the written stand-in is used), and later copies find their pages. They are not
//! made writable ahead of their use: a page that a sync finds writable is written though nothing is
//! in it yet, and written again when there is.
//!
//! Thread-safety: copies to disjoint ranges may run at the same time; the memory is never read
//! here.

#![expect(unsafe_code, reason = "an island: memory mapped from files")]

use super::Region;
use super::buffered_file::BufferedFile;
use crate::base::error::{Error, Result};
use crate::base::sync::Arc;
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Maps `bytes` bytes at `offset` of a file that may be written; `mapped` says whether its file
/// system is one where that is safe. Otherwise the window is written by system calls.
pub fn map(
    file: &Arc<BufferedFile>,
    offset: u64,
    bytes: usize,
    mapped: bool,
) -> Result<Box<dyn Region>> {
    let size = file.size()?;
    if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
        return Err(Error::internal("a region reaches past the end of its file"));
    }
    if mapped && bytes > 0 {
        let region = MappedRegion::new(file, offset, bytes)
            .map_err(|error| Error::io("map", file.name(), error.into()))?;
        if let Some(region) = region {
            return Ok(Box::new(region));
        }
    }
    Ok(Box::new(WrittenRegion { file: Arc::clone(file), offset, size: bytes }))
}

/// A mapped window; unmapped when dropped.
#[derive(Debug)]
struct MappedRegion {
    /// Where the mapping starts: at a page of the system.
    mapping: NonNull<c_void>,
    mapping_bytes: usize,
    /// Where the window starts within the mapping.
    skip: usize,
    size: usize,
}

// SAFETY: the mapping is plain memory, owned by the region and not tied to a thread.
unsafe impl Send for MappedRegion {}
// SAFETY: nothing is done to the memory through `&MappedRegion`.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Maps and touches the window; `None` if the kernel could not serve it.
    fn new(file: &BufferedFile, offset: u64, bytes: usize) -> rustix::io::Result<Option<Self>> {
        let page = rustix::param::page_size();
        let skip = usize::try_from(offset % page as u64).map_err(|_| Errno::OVERFLOW)?;
        let mapping_bytes = bytes.checked_add(skip).ok_or(Errno::OVERFLOW)?;
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let mapping = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapping_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.descriptor(),
                offset - skip as u64,
            )
        }?;
        let mapping = NonNull::new(mapping).ok_or(Errno::NOMEM)?;
        let region = Self { mapping, mapping_bytes, skip, size: bytes };
        let address = region.mapping.as_ptr();
        // SAFETY: the range is the mapping just made, and touching changes no content.
        let touch = || unsafe { madvise(address, region.mapping_bytes, Advice::LinuxPopulateRead) };
        match retry_on_intr(touch) {
            // An old kernel (before 5.14) does not know the advice: pages are touched when used.
            Ok(()) | Err(Errno::INVAL) => Ok(Some(region)),
            Err(_) => Ok(None),
        }
    }
}

impl Region for MappedRegion {
    fn size(&self) -> usize {
        self.size
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        check_range(self.size, offset, bytes)?;
        let window = self.mapping.as_ptr().cast::<u8>();
        // SAFETY: skip + size bytes are mapped for writing while `self` lives, and the range lies
        // within the window by the check above. Nobody makes references into the mapping, so
        // `bytes` does not overlap it; `&mut self` makes this the only copy.
        unsafe {
            let place = window.add(self.skip + offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
        Ok(())
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, is unmapped once, here, and no
        // reference into it exists.
        let outcome = unsafe { munmap(self.mapping.as_ptr(), self.mapping_bytes) };
        debug_assert!(outcome.is_ok(), "a mapping that exists can be unmapped");
    }
}

/// A window that is written by system calls, where mapping is not safe.
#[derive(Debug)]
struct WrittenRegion {
    file: Arc<BufferedFile>,
    offset: u64,
    size: usize,
}

impl Region for WrittenRegion {
    fn size(&self) -> usize {
        self.size
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        check_range(self.size, offset, bytes)?;
        self.file.write_buffered(bytes, self.offset + offset as u64)
    }
}

fn check_range(size: usize, offset: usize, bytes: &[u8]) -> Result<()> {
    if offset.checked_add(bytes.len()).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(Error::internal("a write reaches past the end of its region"))
}
