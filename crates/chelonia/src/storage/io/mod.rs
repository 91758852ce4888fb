//! The door to the file system: a directory of files, and regions of files mapped into memory.
//!
//! Everything the store does to a device goes through [`Directory`], [`File`] and [`Region`]. There
//! are four implementations:
//!
//! | module | what it is |
//! | --- | --- |
//! | `direct` | the real one: `O_DIRECT` where the file system has it, mapped log regions |
//! | `memory` | files in memory, for tests that need no device |
//! | `crash` | records what was not yet synced, and makes the images a power cut could leave |
//! | `fault` | fails chosen calls with chosen errors |
//!
//! An open database reaches its files through `fence`, which a close shuts.
//!
//! What is durable when: nothing before [`File::sync`] (content and size of that file) or
//! [`Directory::sync`] (which names exist) returned. Before that a power cut keeps any subset of
//! the sectors written, of size changes, and of names.
//!
//! Errors name the file relative to the directory. `Interrupted` calls are repeated here, short
//! reads and writes completed here; nothing else is retried.

use crate::base::error::{Error, Result};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

pub mod buffer;
mod buffered_file;
pub mod continued;
#[cfg(any(test, feature = "internals"))]
pub mod crash;
pub mod direct;
mod direct_file;
#[cfg(any(test, feature = "internals"))]
mod exclusion;
#[cfg(any(test, feature = "internals"))]
pub mod fault;
pub mod fence;
mod holders;
mod mapped;
#[cfg(any(test, feature = "internals"))]
pub mod memory;
mod ring;
#[cfg(test)]
mod tests;

pub use buffer::AlignedBuffer;

/// The name of the lock file. It is not listed, and not opened as a file.
pub const LOCK_FILE: &str = "lock";

/// What is told when the lock is held.
const OPEN_ELSEWHERE: &str = "the database is open elsewhere, in this process or another";

/// Fails unless `name` is one that [`Directory::open`] takes: plain, and not the lock's.
fn check_name(name: &str) -> Result<()> {
    let plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
    if plain && name != LOCK_FILE {
        return Ok(());
    }
    Err(Error::internal("a file of the store has an impossible name"))
}

/// What [`Directory::open`] does about a file that does or does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// It must exist; it is only read.
    Read,
    /// It must exist; it is read and written.
    Write,
    /// It must not exist; it is made empty, with mode 0600.
    CreateNew,
}

/// How a file is going to be used; an implementation may use it to choose its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Block-aligned reads and writes around the page cache, where the file system can.
    Direct,
    /// Through the page cache: for what is mapped.
    Buffered,
}

/// The device that a scratch file takes its space of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScratchPlace {
    /// The directory's.
    Here,
    /// The directory's, or where that cannot be, the one for temporary files.
    Anywhere,
}

/// What an implementation found out about the file system, for `stats`.
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
    /// Where to read, in bytes, block-aligned.
    pub offset: u64,
    /// What to fill, block-aligned in address and length for a direct file.
    pub buffer: &'a mut [u8],
}

/// A directory that holds one database.
pub trait Directory: Send + Sync + Debug {
    /// Opens or makes a file. Names are plain, without separators.
    fn open(&self, name: &str, mode: OpenMode, access: Access) -> Result<Arc<dyn File>>;

    /// Removes a file; it is an error if there is none.
    fn remove(&self, name: &str) -> Result<()>;

    /// The names of all files but the lock's, sorted.
    fn list(&self) -> Result<Vec<String>>;

    /// Makes the creation and removal of names durable.
    fn sync(&self) -> Result<()>;

    /// Takes the database's lock without waiting: `exclusive` for a writer, else shared. Fails with
    /// `AlreadyOpen` if it is held. Released when the returned guard is dropped, or by the death of
    /// the process. `create` makes the lock file if there is none.
    fn lock(&self, exclusive: bool, create: bool) -> Result<Box<dyn LockGuard>>;

    /// An empty file without a name, to be written and read: gone when it is closed, or with the
    /// process. Nothing of the directory changes.
    fn scratch(&self, place: ScratchPlace) -> Result<Arc<dyn File>>;

    /// What the file system offers.
    fn facts(&self) -> IoFacts;

    /// The bytes that the device has left for files of this directory, if that can be told.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// The length that the process may give to a file, if that is limited (`ulimit -f`).
    fn file_bytes_max(&self) -> Option<u64> {
        None
    }

    /// The path of the directory, if it has one: for the texts of errors.
    fn path(&self) -> Option<&Path> {
        None
    }
}

/// What errors call a file of [`Directory::scratch`].
const SCRATCH_FILE: &str = "(scratch file)";

/// Holds the lock of a directory or of a file while it lives.
pub trait LockGuard: Send + Sync + Debug {}

/// The guard of a lock that nothing needs.
#[derive(Debug)]
struct Unneeded;

impl LockGuard for Unneeded {}

/// An open file. Offsets, lengths and buffer addresses of a file opened [`Access::Direct`] should
/// be block-aligned; what is not is copied on the way.
pub trait File: Send + Sync + Debug {
    /// The name within the directory.
    fn name(&self) -> &str;

    /// Fills `buffer` from `offset`; bytes past the end of the file are an error of kind `Corrupt`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Does all the reads, several at a time where the system can. Fails if any of them does.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        requests.iter_mut().try_for_each(|request| self.read_at(request.buffer, request.offset))
    }

    /// The same; `meanwhile` is called once, while the reads are under way where the system can.
    fn read_many_while(
        &self,
        requests: &mut [ReadRequest<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        meanwhile();
        self.read_many(requests)
    }

    /// The first place at or behind `offset` that may hold anything but zeros; `None` if none does
    /// before the end of the file. So whoever looks through a file passes over its holes.
    fn data_from(&self, offset: u64) -> Result<Option<u64>> {
        Ok((offset < self.size()?).then_some(offset))
    }

    /// Writes all of `bytes` at `offset`, growing the file if need be.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Makes content and size durable (`fdatasync`).
    fn sync(&self) -> Result<()>;

    /// The size in bytes.
    fn size(&self) -> Result<u64>;

    /// Cuts the file to `size`, or grows it with zeros that take no space.
    fn set_size(&self, size: u64) -> Result<()>;

    /// Makes sure that writes to the range cannot fail for lack of space, growing the file if need
    /// be; the range reads as zeros where it was not written. `NoSpace` if there is none.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Gives the space of a range back; it reads as zeros. Does nothing where the file system
    /// can't.
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()>;

    /// The bytes of the device that the file occupies.
    fn allocated_bytes(&self) -> Result<u64>;

    /// Locks the file without waiting: exclusively, or shared with others who read. Fails with
    /// `AlreadyOpen` if it is locked otherwise. Released as the lock of a directory. Where all who
    /// share a directory share its [`Directory::lock`] too, that is enough, and this does nothing.
    fn lock(&self, _exclusive: bool) -> Result<Box<dyn LockGuard>> {
        Ok(Box::new(Unneeded))
    }

    /// A window of the file that is written by copying memory. The range must lie within the file
    /// and have been allocated before.
    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>>;
}

/// A window of a file. Whatever was written survives the death of the process at once, and a power
/// cut after the next [`File::sync`] of the file.
pub trait Region: Send + Sync + Debug {
    /// The window's size in bytes.
    #[cfg(any(test, feature = "internals"))]
    fn size(&self) -> usize;

    /// Copies `bytes` to `offset` of the window.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()>;
}
