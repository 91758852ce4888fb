//! File windows that are written by copying memory, and a fallback that is written by system calls.
//!
//! A store into a shared mapping survives the death of the process at once, for the page belongs to
//! the kernel. But a mapping cannot return an error: a store that the kernel cannot serve raises
//! SIGBUS. There are three possible reasons:
//!
//! 1. The page lies past the end of the file. [`map`] refuses such windows, and a file is never
//!    truncated while a window of it is open: only the holder of the database's lock could, and the
//!    log does not.
//! 2. The page has no block on the device yet, or needs another one, and there is none. This is
//!    impossible where an allocated block stays in place: the caller has allocated the range, so
//!    the blocks exist, and ext2, ext3, ext4, XFS and tmpfs write in place. (XFS does not where a
//!    copy shares the blocks, as after a `cp --reflink` of a database: allocating the range gives
//!    the file blocks of its own, before each use of it. ext4 and XFS reserve space to record that
//!    an allocated block was written; on a file system that can only allocate by writing, the
//!    blocks are written already.) Copy-on-write file systems (btrfs, ZFS), network and user-space
//!    ones need new space at every write-back or may be refused by a server: there no window is
//!    mapped.
//! 3. The page was evicted, and the device fails to read it back; or the file system was shut down
//!    (XFS and ext4 do that after errors of their own metadata, or on request). This case remains.
//!    The process dies as if killed, which loses nothing that was copied in before, unless the file
//!    system lost it.
//!
//! The window is read in when it is created, so that a kernel that cannot serve it returns an error
//! then, and later copies find their pages. After such an error, and where the system refuses to
//! map anything, the fallback is used. Pages are not made writable ahead of their use: a sync
//! writes every writable page although it has no data yet, and writes it again when it has.
//!
//! A sync makes each page that it writes read-only again, and each time all processors that run the
//! process are interrupted to flush their TLB entry. So a sync first removes the written pages from
//! the mapping, with one interruption for all of them ([`Mappings::let_go_written`]): content and
//! dirty state stay with the kernel's page, which is mapped again if it is touched.
//!
//! Thread-safety: a mapping has one region, whose copies are sequential; hints may be given
//! meanwhile. The memory is never read here.

#![expect(unsafe_code, reason = "an island: memory mapped from files")]

use super::Region;
use super::buffered_file::BufferedFile;
use crate::base::error::{Error, Result};
use crate::runtime::sync::{Arc, AtomicUsize, Mutex, Ordering, Weak};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Maps `bytes` bytes at `offset` of a writable file; `mapped` says whether that is safe on its
/// file system. Otherwise the window is written by system calls.
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
        // Also if the system refuses address space: the fallback needs none.
        if let Ok(Some(region)) = MappedRegion::new(file, offset, bytes) {
            return Ok(Box::new(region));
        }
    }
    Ok(Box::new(WrittenRegion { file: Arc::clone(file), offset, size: bytes }))
}

/// The mappings of a file.
#[derive(Default, Debug)]
pub struct Mappings(Mutex<Vec<Weak<Mapping>>>);

impl Mappings {
    fn add(&self, mapping: &Arc<Mapping>) {
        let mut mappings = self.0.lock();
        mappings.retain(|mapping| mapping.strong_count() > 0);
        mappings.push(Arc::downgrade(mapping));
    }

    /// Removes the pages written since the last call from the mappings. This only affects the cost
    /// of the next sync, and of the next copy to one of these pages.
    pub fn let_go_written(&self) {
        let mappings: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        mappings.iter().for_each(|mapping| mapping.let_go_written());
    }
}

/// Advice to the system about pages of a mapping.
#[derive(Clone, Copy)]
enum Hint {
    /// Read the pages in.
    ReadIn,
    /// Unmap the pages; their content stays with the file.
    LetGo,
}

/// Memory mapped from a file; unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    /// The start, aligned to a system page.
    start: NonNull<c_void>,
    bytes: usize,
    /// The start of the furthest copy: bytes before it are complete, except for copies in progress.
    reached_bytes: AtomicUsize,
    /// Pages before this offset were unmapped.
    gone_bytes: AtomicUsize,
}

// SAFETY: the mapping is plain memory and not tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` content changes only by `copy`, whose caller makes one at a time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps and touches a window; `None` if the kernel could not serve it.
    fn new(file: &BufferedFile, offset: u64, bytes: usize) -> rustix::io::Result<Option<Self>> {
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.descriptor(),
                offset,
            )
        }?;
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        let (reached_bytes, gone_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mapping = Self { start, bytes, reached_bytes, gone_bytes };
        match mapping.advise(0, bytes, Hint::ReadIn) {
            // An old kernel (before 5.14) does not know the advice: pages are touched when used.
            Ok(()) | Err(Errno::INVAL) => Ok(Some(mapping)),
            Err(_) => Ok(None),
        }
    }

    fn advise(&self, from: usize, bytes: usize, hint: Hint) -> rustix::io::Result<()> {
        let within = from.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(within, "a hint reaches past the end of its mapping");
        let advice = match hint {
            Hint::ReadIn => Advice::LinuxPopulateRead,
            Hint::LetGo => Advice::LinuxDontNeed,
        };
        // SAFETY: the range lies within the mapping, which exists while `self` does, and neither
        // hint changes what is in memory that is shared with a file.
        retry_on_intr(|| unsafe { madvise(self.start.as_ptr().byte_add(from), bytes, advice) })
    }

    /// Copies `bytes` to `place`.
    ///
    /// # Safety
    ///
    /// The range lies within the mapping, and no other copy to the mapping is under way.
    unsafe fn copy(&self, place: usize, bytes: &[u8]) {
        // SAFETY: the caller's promise. Nobody makes references into the mapping, so `bytes` does
        // not overlap it.
        unsafe {
            let place = self.start.as_ptr().cast::<u8>().add(place);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
        // Copies are sequential: nothing is lost between load and store.
        if place > self.reached_bytes.load(Ordering::Relaxed) {
            self.reached_bytes.store(place, Ordering::Relaxed);
        }
    }

    fn let_go_written(&self) {
        let reached = self.reached_bytes.load(Ordering::Relaxed);
        let end = reached - reached % rustix::param::page_size();
        let from = self.gone_bytes.swap(end, Ordering::Relaxed);
        if end > from {
            // A refusal only costs the optimization.
            let _ = self.advise(from, end - from, Hint::LetGo);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, is unmapped once, here, and no
        // reference into it exists.
        let outcome = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(outcome.is_ok(), "a mapping that exists can be unmapped");
    }
}

/// A mapped window.
#[derive(Debug)]
struct MappedRegion {
    mapping: Arc<Mapping>,
    /// Where the window starts within the mapping.
    skip: usize,
    size: usize,
}

impl MappedRegion {
    /// Maps the window, starting at the system page that contains its first byte.
    fn new(file: &BufferedFile, offset: u64, bytes: usize) -> rustix::io::Result<Option<Self>> {
        let page = rustix::param::page_size();
        let skip = usize::try_from(offset % page as u64).map_err(|_| Errno::OVERFLOW)?;
        let mapping_bytes = bytes.checked_add(skip).ok_or(Errno::OVERFLOW)?;
        let Some(mapping) = Mapping::new(file, offset - skip as u64, mapping_bytes)? else {
            return Ok(None);
        };
        let mapping = Arc::new(mapping);
        file.mappings().add(&mapping);
        Ok(Some(Self { mapping, skip, size: bytes }))
    }
}

impl Region for MappedRegion {
    #[cfg(any(test, feature = "internals"))]
    fn size(&self) -> usize {
        self.size
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        check_range(self.size, offset, bytes)?;
        // SAFETY: skip + size bytes are mapped, and the range lies within the window by the check
        // above; `&mut self` makes this the only copy, for the mapping has this region alone.
        unsafe { self.mapping.copy(self.skip + offset, bytes) };
        Ok(())
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
    #[cfg(any(test, feature = "internals"))]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limits::BLOCK_BYTES;
    use std::fs::{File, read_to_string};

    /// The bytes in memory of mappings of the file of this name.
    fn resident(name: &str) -> u64 {
        let maps = read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines();
        let mut bytes = 0;
        while let Some(line) = lines.next() {
            if line.ends_with(name) {
                let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
                let kib = resident.trim().strip_suffix(" kB").unwrap();
                bytes += kib.trim().parse::<u64>().unwrap() << 10;
            }
        }
        bytes
    }

    #[test]
    fn a_sync_lets_go_what_was_written_and_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a-window-of-its-own");
        let descriptor = File::options().read(true).write(true).create_new(true).open(&path);
        let descriptor = descriptor.unwrap();
        descriptor.set_len(1 << 20).unwrap();
        let file = Arc::new(BufferedFile::new("window", descriptor.into(), true));
        let mut region = map(&file, 0, 1 << 20, true).unwrap();
        let page = rustix::param::page_size();
        let before = resident("a-window-of-its-own");
        assert!(before <= 1 << 20);
        let written = 10 * page.max(BLOCK_BYTES);
        region.write(0, &vec![3; written]).unwrap();
        region.write(written, &[3; 5]).unwrap();
        file.sync().unwrap();
        let after = resident("a-window-of-its-own");
        assert!(after <= (1 << 20) - written as u64, "{before} {after}");
        // The page of the last copy stays, as do the pages not written yet.
        assert!(after >= page as u64, "{after}");
        region.write(page, &[4]).unwrap();
        assert!(resident("a-window-of-its-own") >= after + page as u64);
    }
}
