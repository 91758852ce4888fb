//! File system access: a directory of files, and file regions mapped into memory.
//!
//! All device access of the store goes through [`Directory`], [`File`] and [`Region`]. There are
//! four implementations:
//!
//! | module | contents |
//! | --- | --- |
//! | `direct` | the real file system: `O_DIRECT` where supported, mapped log regions |
//! | `memory` | files in memory, for tests that need no device |
//! | `crash` | records unsynced changes, and makes the images a power cut could leave |
//! | `fault` | fails chosen calls with chosen errors |
//!
//! An open database reaches its files through `fence`, which a close shuts.
//!
//! Durability: nothing is durable before [`File::sync`] (content and size of that file) or
//! [`Directory::sync`] (which names exist) returned. Before that a power cut keeps any subset of
//! the sectors written, of size changes, and of names.
//!
//! Errors name the file relative to the directory. `Interrupted` calls are repeated here, short
//! reads and writes completed here. A request of a batch that the system failed is repeated once by
//! itself, which yields its error; nothing else is retried.

use crate::base::error::{Error, Result};
use crate::base::limits::SLAB_BYTES;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

pub mod buffer;
mod buffered_file;
pub mod continued;
#[cfg(any(test, feature = "internals"))]
pub mod crash;
pub mod direct;
mod exclusion;
#[cfg(any(test, feature = "internals"))]
pub mod fault;
pub mod fence;
mod mapped;
mod mapping;
pub mod memory;
mod ring;
#[cfg(test)]
mod tests;

pub use buffer::AlignedBuffer;

/// The name of the lock file. It is not listed, and not opened as a file.
pub const LOCK_FILE: &str = "lock";

/// The message if the lock is held elsewhere.
const OPEN_ELSEWHERE: &str = "the database is open elsewhere, in this process or another";

/// Fails unless `name` is valid for [`Directory::open`]: plain, and not the lock's.
fn check_name(name: &str) -> Result<()> {
    let plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
    if plain && name != LOCK_FILE {
        return Ok(());
    }
    Err(Error::internal("invalid file name"))
}

/// The mode of [`Directory::open`], for existing and missing files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// The file must exist; it is only read.
    Read,
    /// The file must exist; it is read and written.
    Write,
    /// The file must not exist; it is created empty, with mode 0600.
    CreateNew,
}

/// The intended use of a file; an implementation may use it to choose its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Block-aligned reads and writes around the page cache, where the file system supports it.
    Direct,
    /// Through the page cache: for mapped files.
    Buffered,
}

/// The device that provides the space of a scratch file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScratchPlace {
    /// The directory's device.
    Here,
    /// The directory's device, or if that fails, the one for temporary files.
    Anywhere,
}

/// Properties of the file system found by an implementation, for `stats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoFacts {
    /// Data goes around the page cache.
    pub direct: bool,
    /// Log regions are mapped; else every log write is a system call.
    pub mapped_log: bool,
    /// The name of the implementation or file system.
    pub name: &'static str,
}

/// One read of [`File::read_many`].
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The offset in bytes, block-aligned.
    pub offset: u64,
    /// The destination, block-aligned in address and length for a direct file.
    pub buffer: &'a mut [u8],
}

/// One write of [`File::write_many`].
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// The offset in bytes, block-aligned.
    pub offset: u64,
    /// The source, block-aligned in address and length for a direct file.
    pub bytes: &'a [u8],
}

/// A directory that holds one database.
pub trait Directory: Send + Sync + Debug {
    /// Opens or creates a file. Names are plain, without separators.
    fn open(&self, name: &str, mode: OpenMode, access: Access) -> Result<Arc<dyn File>>;

    /// Removes a file; fails if there is none.
    fn remove(&self, name: &str) -> Result<()>;

    /// The names of all files except the lock file, sorted.
    fn list(&self) -> Result<Vec<String>>;

    /// Makes the creation and removal of names durable.
    fn sync(&self) -> Result<()>;

    /// Takes the database's lock without waiting: `exclusive` for a writer, else shared. Fails with
    /// `AlreadyOpen` if it is held. Released when the returned guard is dropped, or by the death of
    /// the process. `create` makes the lock file if there is none.
    fn lock(&self, exclusive: bool, create: bool) -> Result<Box<dyn LockGuard>>;

    /// Creates an empty file without a name, to be written and read. It disappears when it is
    /// closed, or with the process. The directory does not change.
    fn scratch(&self, place: ScratchPlace) -> Result<Arc<dyn File>>;

    /// The properties of the file system.
    fn facts(&self) -> IoFacts;

    /// The bytes that the device has left for files of this directory, if known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// The maximum length that the process may give to a file, if limited (`ulimit -f`).
    fn file_bytes_max(&self) -> Option<u64> {
        None
    }

    /// The path of the directory, if it has one: for error messages.
    fn path(&self) -> Option<&Path> {
        None
    }
}

/// The name of a file of [`Directory::scratch`] in errors.
const SCRATCH_FILE: &str = "(scratch file)";

/// Holds the lock of a directory or of a file while it lives.
pub trait LockGuard: Send + Sync + Debug {}

/// A guard that locks nothing.
#[derive(Debug)]
struct Unneeded;

impl LockGuard for Unneeded {}

/// An open file. Offsets, lengths and buffer addresses of a file opened [`Access::Direct`] should
/// be block-aligned; unaligned accesses are copied.
pub trait File: Send + Sync + Debug {
    /// The name within the directory.
    fn name(&self) -> &str;

    /// Fills `buffer` from `offset`; bytes past the end of the file are an error of kind `Corrupt`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Does all the reads, in parallel where the system supports it. Fails if any of them fails.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        requests.iter_mut().try_for_each(|request| self.read_at(request.buffer, request.offset))
    }

    /// Like [`File::read_many`]; `meanwhile` is called once, during the reads if possible.
    fn read_many_while(
        &self,
        requests: &mut [ReadRequest<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        meanwhile();
        self.read_many(requests)
    }

    /// The first offset at or after `offset` that may hold anything but zeros; `None` if there is
    /// none before the end of the file. Scans of a file use it to skip holes.
    fn data_from(&self, offset: u64) -> Result<Option<u64>> {
        Ok((offset < self.size()?).then_some(offset))
    }

    /// Writes all of `bytes` at `offset`, growing the file if need be.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Does all the writes, whose ranges must not overlap, in parallel where the system supports
    /// it, in no particular order. Fails if any of them fails; then any subset may have been done,
    /// wholly or partly.
    fn write_many(&self, requests: &[WriteRequest<'_>]) -> Result<()> {
        requests.iter().try_for_each(|request| self.write_at(request.bytes, request.offset))
    }

    /// Writes zeros to a range, like [`File::write_at`]. An implementation may zero the range
    /// without writing it; its space stays allocated.
    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<()> {
        write_zeros_in_pieces(self, offset, bytes)
    }

    /// Makes content and size durable (`fdatasync`).
    fn sync(&self) -> Result<()>;

    /// The size in bytes.
    fn size(&self) -> Result<u64>;

    /// Truncates the file to `size`, or grows it with zeros that take no space.
    fn set_size(&self, size: u64) -> Result<()>;

    /// Ensures that writes to the range cannot fail for lack of space, growing the file if need be;
    /// the range reads as zeros where it was not written. `NoSpace` if there is not enough.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Returns the space of a range to the file system; it reads as zeros. Does nothing where the
    /// file system does not support it.
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()>;

    /// The bytes of the device that the file occupies.
    fn allocated_bytes(&self) -> Result<u64>;

    /// Locks the file exclusively, or shared with other readers. Fails with `AlreadyOpen` if there
    /// is a conflicting lock, of which it waits only for one of a process that has died with writes
    /// in flight. Released like the lock of a directory. Where all users of a directory share its
    /// [`Directory::lock`] too, that suffices, and this does nothing.
    fn lock(&self, _exclusive: bool) -> Result<Box<dyn LockGuard>> {
        Ok(Box::new(Unneeded))
    }

    /// Maps a window of the file that is written by copying memory. The range must lie within the
    /// file and have been allocated before.
    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>>;
}

/// The most zeros written at a time: a slab.
const ZEROS_BYTES_MAX: usize = SLAB_BYTES;

/// Writes zeros to a range by [`File::write_at`].
fn write_zeros_in_pieces<F: File + ?Sized>(file: &F, offset: u64, bytes: u64) -> Result<()> {
    let Some(end) = offset.checked_add(bytes) else {
        return Err(Error::internal("an offset is beyond what files have"));
    };
    let piece = |at| usize::try_from(end - at).unwrap_or(usize::MAX).min(ZEROS_BYTES_MAX);
    let zeros = AlignedBuffer::new(piece(offset));
    let mut at = offset;
    while at < end {
        let zeros = &zeros[..piece(at)];
        file.write_at(zeros, at)?;
        at += zeros.len() as u64;
    }
    Ok(())
}

/// A window of a file. Written bytes survive the death of the process at once, and a power cut
/// after the next [`File::sync`] of the file.
pub trait Region: Send + Sync + Debug {
    /// The window's size in bytes.
    #[cfg(any(test, feature = "internals"))]
    fn size(&self) -> usize;

    /// Copies `bytes` to `offset` of the window.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()>;
}
