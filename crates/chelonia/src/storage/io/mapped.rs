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
//! Thread-safety: a mapping has one region, whose copies are sequential; hints may be given
//! meanwhile. The memory is never read here.

#![expect(unsafe_code, reason = "an island: memory mapped from files")]

use super::Region;
use super::buffered_file::BufferedFile;
use super::mapping::Mapping;
use crate::base::error::{Error, Result};
use crate::runtime::sync::Arc;
use rustix::io::Errno;

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
        let Some(mapping) = Mapping::new(file.descriptor(), offset - skip as u64, mapping_bytes)?
        else {
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
