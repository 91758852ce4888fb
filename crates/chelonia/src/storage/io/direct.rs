//! The real directory: files of a Linux file system. Open files are in `file`, the holders of its
//! lock in `holders`.
//!
//! Invariants:
//! 1. Files are opened relative to the directory's descriptor, never through a symbolic link, with
//!    mode 0600; the directory is created with mode 0700. Renaming the directory meanwhile is
//!    harmless. Non-regular files are refused without blocking on them.
//! 2. The two descriptors of a file (around and through the page cache) are the same file.
//! 3. Interrupted calls are repeated; nothing else is.
//!
//! Thread-safety: everything may be called from any thread.

mod file;
mod holders;

use super::buffer::AlignedBuffer;
use super::buffered_file::BufferedFile;
use super::ring::Rings;
use super::{
    Access, Directory, File, IoFacts, LOCK_FILE, LockGuard, OpenMode, SCRATCH_FILE, ScratchPlace,
    check_name,
};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES;
use crate::memory::fork::ForkMark;
use crate::runtime::sync::{Arc, AtomicBool, Ordering};
use file::DirectFile;
use rustix::fs::{
    Advice, AtFlags, Dir, FileType, Mode, OFlags, fadvise, fcntl_getfl, fcntl_setfl, fstat,
    fstatfs, fsync, openat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use rustix::process::{Resource, getrlimit};
use std::fmt::{self, Debug, Formatter};
use std::fs::TryLockError;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Mode 0600: only the user who runs the store may access its files.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// As [`FILE_MODE`], for the directory.
const DIRECTORY_MODE: u32 = 0o700;

/// File systems by the magic number of `statfs`, and whether log segments may be mapped there
/// (see [`super::mapped`]).
const FILE_SYSTEMS: [(u64, &str, bool); 9] = [
    (0xef53, "ext4", true),
    (0x5846_5342, "xfs", true),
    (0x0102_1994, "tmpfs", true),
    (0x9123_683e, "btrfs", false),
    (0x2fc1_2fc1, "zfs", false),
    (0xf2f5_2010, "f2fs", false),
    (0x6969, "nfs", false),
    (0x6573_5546, "fuse", false),
    (0x794c_7630, "overlay", false),
];

/// A directory of a file system.
#[derive(Debug)]
pub struct DirectDirectory {
    descriptor: OwnedFd,
    /// The path at the time the directory was opened.
    path: PathBuf,
    file_system: &'static str,
    mapped_log: bool,
    /// False once the file system has refused `O_DIRECT`.
    direct: AtomicBool,
    rings: Arc<Rings>,
}

impl DirectDirectory {
    /// Opens the directory at `path`; with `create`, creates it if it is missing (its parent must
    /// exist) and makes its name durable.
    pub fn open(path: &Path, create: bool) -> Result<Self> {
        let shown = path.display().to_string();
        if create {
            make_directory(path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    let parent = parent_of(path).unwrap_or(path).display();
                    let why = format!("{parent} does not exist: create it first");
                    Error::new(ErrorKind::NotFound, format!("cannot create {shown}: {why}"))
                }
                io::ErrorKind::NotADirectory => not_a_directory(path),
                _ => Error::io("create or sync the directory", &shown, error),
            })?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = match retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOTDIR) => {
                return Err(not_a_directory(path));
            }
            Err(Errno::NOENT) => {
                let text = "there is no database at this path";
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            Err(error) => return Err(Error::io("open the directory", &shown, error.into())),
        };
        let magic = retry_on_intr(|| fstatfs(&descriptor))
            .map(|facts| u64::try_from(facts.f_type).unwrap_or(0))
            .map_err(|error| Error::io("determine the file system of", &shown, error.into()))?;
        let known = FILE_SYSTEMS.iter().find(|(number, ..)| *number == magic);
        let (file_system, mapped_log) =
            known.map_or(("other", false), |(_, name, mapped_log)| (name, *mapped_log));
        let direct = AtomicBool::new(takes_direct(&descriptor));
        // A reader of the path may have another working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Ok(Self { descriptor, path, file_system, mapped_log, direct, rings: Arc::default() })
    }

    /// The directory as on a system that refuses rings: requests of a batch go one by one.
    #[cfg(test)]
    pub fn without_rings(self) -> Self {
        Self { rings: Arc::new(Rings::refused()), ..self }
    }

    /// Opens a regular file and nothing else, without blocking on a pipe.
    fn open_descriptor(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = retry_on_intr(|| openat(&self.descriptor, name, flags, FILE_MODE))?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        // A ring would refuse reads that have to wait for the device.
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// The direct descriptor of the file behind `buffered`, if the file system supports one.
    fn open_direct(
        &self,
        name: &str,
        flags: OFlags,
        buffered: &OwnedFd,
    ) -> io::Result<Option<OwnedFd>> {
        if !self.direct.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let direct = match self.open_descriptor(name, flags | OFlags::DIRECT) {
            Ok(direct) => direct,
            Err(error) => {
                return match Errno::from_io_error(&error) {
                    Some(Errno::INVAL | Errno::OPNOTSUPP) => {
                        self.direct.store(false, Ordering::Relaxed);
                        Ok(None)
                    }
                    _ => Err(error),
                };
            }
        };
        let (one, other) = (fstat(buffered)?, fstat(&direct)?);
        if (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino) {
            return Err(io::Error::other("the file was replaced while it was opened"));
        }
        Ok(Some(direct))
    }
}

/// Drops clean pages of the file from the page cache. After a failed sync such pages may differ
/// from the device, and some file systems serve direct reads from them (ext4 with `data=journal`):
/// an open must read the device's content.
fn forget_cached(file: &OwnedFd) {
    // A system that refuses the advice has no such cache, or keeps it.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

fn parent_of(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

/// Makes the directory unless it exists, and makes its name durable.
fn make_directory(path: &Path) -> io::Result<()> {
    let made = match std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error),
    };
    // Also if it existed: its creator may have died before this.
    let Some(parent) = parent_of(path) else { return Ok(()) };
    match std::fs::File::open(parent).and_then(|parent| parent.sync_all()) {
        Err(error) if made || error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// The error for a path of which a part, usually all of it, is a file.
fn not_a_directory(path: &Path) -> Error {
    let parts = path.ancestors().filter(|part| !part.as_os_str().is_empty());
    let file = parts.filter(|part| part.exists()).find(|part| !part.is_dir()).unwrap_or(path);
    let (shown, file_shown) = (path.display(), file.display());
    if file == path {
        return Error::invalid(format!("{shown} is a file; a database is a directory"));
    }
    Error::invalid(format!("cannot open {shown}: {file_shown} is a file, not a directory"))
}

/// Whether files of the directory support `O_DIRECT` with block alignment: tried on a file without
/// a name. Where that cannot be created (a read-only directory) the answer is yes, and the first
/// file opened decides.
fn takes_direct(directory: &OwnedFd) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let open = |flags| retry_on_intr(|| openat(directory, ".", flags, FILE_MODE));
    let file = match open(flags | OFlags::DIRECT) {
        Ok(file) => file,
        Err(Errno::INVAL) => return false,
        Err(_) => return true,
    };
    let mut block = AlignedBuffer::new(BLOCK_BYTES);
    match retry_on_intr(|| pwrite(&file, &block, 0)) {
        Ok(BLOCK_BYTES) => {}
        // A full device says nothing about direct I/O.
        Err(Errno::NOSPC | Errno::DQUOT) => return true,
        _ => return false,
    }
    retry_on_intr(|| pread(&file, &mut block[..], 0)) == Ok(BLOCK_BYTES)
}

/// The directory for large temporary files.
const SCRATCH_DIRECTORY: &str = "/var/tmp";

/// Opens a file without a name.
fn open_scratch(directory: &OwnedFd, place: ScratchPlace) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let refused = match retry_on_intr(|| openat(directory, ".", flags, FILE_MODE)) {
        Err(refused) if place == ScratchPlace::Anywhere => refused,
        opened => return opened,
    };
    retry_on_intr(|| rustix::fs::open(SCRATCH_DIRECTORY, flags, FILE_MODE)).map_err(|_| refused)
}

impl Directory for DirectDirectory {
    fn open(&self, name: &str, mode: OpenMode, access: Access) -> Result<Arc<dyn File>> {
        check_name(name)?;
        let (what, flags) = match mode {
            OpenMode::Read => ("open", OFlags::RDONLY),
            OpenMode::Write => ("open", OFlags::RDWR),
            OpenMode::CreateNew => ("create", OFlags::RDWR),
        };
        let creation = match mode {
            OpenMode::CreateNew => OFlags::CREATE | OFlags::EXCL,
            OpenMode::Read | OpenMode::Write => OFlags::empty(),
        };
        let failed = |error| Error::io(what, name, error);
        let buffered = self.open_descriptor(name, flags | creation).map_err(failed)?;
        let direct = match access {
            Access::Direct => {
                forget_cached(&buffered);
                self.open_direct(name, flags, &buffered).map_err(failed)?
            }
            Access::Buffered => None,
        };
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(DirectFile {
            buffered: Arc::new(BufferedFile::new(name, buffered, writable)),
            direct,
            mapped_log: self.mapped_log,
            rings: Arc::clone(&self.rings),
            zeroes_ranges: AtomicBool::new(true),
        }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        retry_on_intr(|| unlinkat(&self.descriptor, name, AtFlags::empty()))
            .map_err(|error| Error::io("remove", name, error.into()))
    }

    fn list(&self) -> Result<Vec<String>> {
        list_files(&self.descriptor).map_err(|error| Error::io("list", ".", error.into()))
    }

    fn sync(&self) -> Result<()> {
        retry_on_intr(|| fsync(&self.descriptor))
            .map_err(|error| Error::io("sync the directory", ".", error.into()))
    }

    fn lock(&self, exclusive: bool, create: bool) -> Result<Box<dyn LockGuard>> {
        // An exclusive lock needs a writable descriptor on network file systems; a reader must do
        // without.
        let mut flags = if exclusive { OFlags::RDWR } else { OFlags::RDONLY };
        if create {
            flags |= OFlags::CREATE;
        }
        let failed = |error| Error::io("lock", LOCK_FILE, error);
        let file = self.open_descriptor(LOCK_FILE, flags).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let text = "there is no database at this path: it has no file `lock`";
                Error::new(ErrorKind::NotFound, text)
            }
            _ => failed(error),
        })?;
        lock_file(file, LOCK_FILE, exclusive)
    }

    fn scratch(&self, place: ScratchPlace) -> Result<Arc<dyn File>> {
        let descriptor = open_scratch(&self.descriptor, place)
            .map_err(|error| Error::io("create", SCRATCH_FILE, error.into()))?;
        Ok(Arc::new(DirectFile {
            buffered: Arc::new(BufferedFile::new(SCRATCH_FILE, descriptor, true)),
            direct: None,
            mapped_log: false,
            rings: Arc::clone(&self.rings),
            zeroes_ranges: AtomicBool::new(true),
        }))
    }

    fn facts(&self) -> IoFacts {
        IoFacts {
            direct: self.direct.load(Ordering::Relaxed),
            mapped_log: self.mapped_log,
            name: self.file_system,
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        let facts = rustix::fs::fstatvfs(&self.descriptor).ok()?;
        // Some file systems do not report counts.
        if facts.f_blocks == 0 {
            return None;
        }
        facts.f_bavail.checked_mul(facts.f_frsize)
    }

    fn file_bytes_max(&self) -> Option<u64> {
        getrlimit(Resource::Fsize).current
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

fn list_files(directory: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        // Names that are not UTF-8 belong to no file of the store.
        let Ok(name) = entry.file_name().to_str() else { continue };
        let file_type = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            known => known,
        };
        if file_type == FileType::RegularFile && name != LOCK_FILE {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Takes the lock of an open file without waiting.
pub fn lock_file(file: OwnedFd, name: &str, exclusive: bool) -> Result<Box<dyn LockGuard>> {
    let (file, process) = (std::fs::File::from(file), ForkMark::new()?);
    let outcome = if exclusive { file.try_lock() } else { file.try_lock_shared() };
    match outcome {
        Ok(()) => Ok(Box::new(FileLock { file, process })),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(ErrorKind::AlreadyOpen, holders::refusal(&file)))
        }
        Err(TryLockError::Error(error)) => Err(Error::io("lock", name, error)),
    }
}

/// `flock` belongs to the open file, so it excludes within a process too, and ends with the
/// process.
///
/// A child that another thread is starting shares the file until its `exec`. So closing the file
/// does not suffice to unlock, and the drop unlocks explicitly; but a child must not release the
/// lock.
struct FileLock {
    file: std::fs::File,
    process: ForkMark,
}

impl LockGuard for FileLock {}

impl Debug for FileLock {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FileLock").finish_non_exhaustive()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.process.is_this_process() {
            // On failure closing the file is the only way left.
            let _ = self.file.unlock();
        }
    }
}
