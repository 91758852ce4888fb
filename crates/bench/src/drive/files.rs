//! The file system of the drive (FUSE): passes calls on to a folder, and counts what is written.
//!
//! The kernel caches pages as for other file systems (`FUSE_WRITEBACK_CACHE`), so that a block is
//! written when the kernel writes it: at a sync, when pages get old, or at once with direct I/O.
//! Syncs are not passed on: a simulated drive survives no power failure anyway.
//!
//! The file [`REPORT`] in the root has the counts so far; it is not in the folder.

use super::device::{BLOCK, BLOCK_BYTES, Content, Device};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// The name of the file with the counts.
pub const REPORT: &str = ".written";

/// Its number.
const REPORT_NODE: INodeNo = INodeNo(2);

/// The first number of a file in the folder.
const FIRST_NODE: u64 = 3;

/// For how long the kernel keeps names and attributes: nobody else changes the folder.
const TTL: Duration = Duration::from_secs(60);

const GENERATION: Generation = Generation(0);

/// Longest request of a write.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// The file system.
pub struct Files {
    folder: PathBuf,
    device: Arc<Device>,
    nodes: Mutex<Nodes>,
    handles: Mutex<HashMap<u64, Arc<Open>>>,
    next_handle: AtomicU64,
}

/// Files and folders that the kernel knows.
struct Nodes {
    by_path: HashMap<PathBuf, u64>,
    by_number: HashMap<u64, Node>,
    next: u64,
}

#[derive(Clone)]
struct Node {
    path: PathBuf,
    content: Arc<Content>,
}

enum Open {
    /// A file of the folder, and its number.
    File(File, u64, Arc<Content>),
    /// The counts at the open.
    Report(String),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nodes {
    fn node(&self, number: INodeNo) -> io::Result<Node> {
        self.by_number.get(&number.0).cloned().ok_or_else(no_such_file)
    }

    /// The number of `path`, and its content; a new one if it has none.
    fn number(&mut self, path: &Path) -> (u64, Arc<Content>) {
        if let Some(number) = self.by_path.get(path)
            && let Some(node) = self.by_number.get(number)
        {
            return (*number, Arc::clone(&node.content));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let content = Arc::new(Content::new(&name));
        let number = self.next;
        self.next += 1;
        let node = Node { path: path.to_path_buf(), content: Arc::clone(&content) };
        self.by_path.insert(path.to_path_buf(), number);
        self.by_number.insert(number, node);
        (number, content)
    }

    /// Forgets a removed or replaced file, and returns its content.
    fn remove(&mut self, path: &Path) -> Option<Arc<Content>> {
        let number = self.by_path.remove(path)?;
        self.by_number.remove(&number).map(|node| node.content)
    }

    /// Moves `from`, and all below it, to `to`.
    fn rename(&mut self, from: &Path, to: &Path) {
        let moved: Vec<PathBuf> =
            self.by_path.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in moved {
            let rest = path.strip_prefix(from).unwrap_or(Path::new(""));
            let next = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            if let Some(number) = self.by_path.remove(&path) {
                self.by_path.insert(next.clone(), number);
                self.by_number.entry(number).and_modify(|node| node.path = next);
            }
        }
    }
}

fn no_such_file() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn errno(error: io::Error) -> Errno {
    Errno::from(error)
}

fn attributes(number: u64, metadata: &Metadata) -> FileAttr {
    let time = |time: io::Result<SystemTime>| time.unwrap_or(SystemTime::UNIX_EPOCH);
    let kind = FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile);
    FileAttr {
        ino: INodeNo(number),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: time(metadata.accessed()),
        mtime: time(metadata.modified()),
        ctime: time(metadata.modified()),
        crtime: SystemTime::UNIX_EPOCH,
        kind,
        perm: u16::try_from(metadata.mode() & 0o7777).unwrap_or(0o600),
        nlink: u32::try_from(metadata.nlink()).unwrap_or(1),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Files {
    /// The content of `folder`, as a file system on `device`.
    pub fn new(folder: &Path, device: &Arc<Device>) -> Self {
        let root = Node { path: folder.to_path_buf(), content: Arc::new(Content::new("")) };
        let nodes = Nodes {
            by_path: HashMap::from([(folder.to_path_buf(), INodeNo::ROOT.0)]),
            by_number: HashMap::from([(INodeNo::ROOT.0, root)]),
            next: FIRST_NODE,
        };
        Self {
            folder: folder.to_path_buf(),
            device: Arc::clone(device),
            nodes: Mutex::new(nodes),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
        }
    }

    fn is_report(&self, parent: INodeNo, name: &OsStr) -> bool {
        parent == INodeNo::ROOT && name == REPORT
    }

    fn report_attributes(&self) -> io::Result<FileAttr> {
        let root = attributes(REPORT_NODE.0, &std::fs::metadata(&self.folder)?);
        Ok(FileAttr { size: 0, kind: FileType::RegularFile, perm: 0o444, nlink: 1, ..root })
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        Ok(locked(&self.nodes).node(parent)?.path.join(name))
    }

    fn entry(&self, path: &Path) -> io::Result<FileAttr> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(attributes(locked(&self.nodes).number(path).0, &metadata))
    }

    fn add_handle(&self, open: Open) -> FileHandle {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        locked(&self.handles).insert(number, Arc::new(open));
        FileHandle(number)
    }

    fn handle(&self, handle: FileHandle) -> io::Result<Arc<Open>> {
        locked(&self.handles).get(&handle.0).cloned().ok_or_else(no_such_file)
    }

    /// An open handle of a file, which may have been removed.
    fn handle_of(&self, number: INodeNo) -> Option<Arc<Open>> {
        let handles = locked(&self.handles);
        let of_file =
            |open: &&Arc<Open>| matches!(&***open, Open::File(_, of, _) if *of == number.0);
        handles.values().find(of_file).cloned()
    }

    fn metadata(&self, number: INodeNo, handle: Option<FileHandle>) -> io::Result<Metadata> {
        let open = handle.and_then(|handle| self.handle(handle).ok());
        let open = open.or_else(|| self.handle_of(number));
        match open.as_deref() {
            Some(Open::File(file, ..)) => file.metadata(),
            _ => std::fs::symlink_metadata(&locked(&self.nodes).node(number)?.path),
        }
    }

    /// Opens a file so that pages of it can be read and written, whatever the program asked for.
    fn open_file(&self, path: &Path, mode: Option<u32>) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match mode {
            Some(mode) => options.create(true).truncate(false).mode(mode).open(path),
            None => options.open(path).or_else(|_| File::open(path)),
        }
    }

    fn resize(&self, number: INodeNo, handle: Option<FileHandle>, size: u64) -> io::Result<()> {
        let set = |file: &File, content: &Content| {
            file.set_len(size)?;
            self.device.trim(content, size.div_ceil(BLOCK_BYTES), u64::MAX);
            Ok(())
        };
        let open = handle.and_then(|handle| self.handle(handle).ok());
        if let Some(Open::File(file, _, content)) = open.as_deref() {
            return set(file, content);
        }
        let node = locked(&self.nodes).node(number)?;
        set(&self.open_file(&node.path, None)?, &node.content)
    }

    fn write_at(&self, handle: FileHandle, offset: u64, data: &[u8]) -> io::Result<()> {
        let open = self.handle(handle)?;
        let Open::File(file, _, content) = &*open else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        file.write_all_at(data, offset)?;
        let end = offset + data.len() as u64;
        let mut block = [0; BLOCK];
        for number in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let start = number * BLOCK_BYTES;
            if start >= offset && start + BLOCK_BYTES <= end {
                let at = usize::try_from(start - offset).map_err(io::Error::other)?;
                block.copy_from_slice(&data[at..at + BLOCK]);
            } else {
                // The drive writes whole blocks.
                block.fill(0);
                read_full(file, start, &mut block)?;
            }
            self.device.write(content, number, &block);
        }
        Ok(())
    }

    fn remove(
        &self,
        parent: INodeNo,
        name: &OsStr,
        remove: fn(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.child(parent, name)?;
        remove(&path)?;
        self.trim(&path);
        Ok(())
    }

    /// Trims the content of a file that was removed or replaced.
    fn trim(&self, path: &Path) {
        if let Some(content) = locked(&self.nodes).remove(path) {
            self.device.trim(&content, 0, u64::MAX);
        }
    }
}

/// Reads until `out` is full or the file ends.
fn read_full(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < out.len() {
        match file.read_at(&mut out[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// Answers a request with the outcome of a block.
macro_rules! answer {
    ($reply:ident, $outcome:expr, |$value:pat_param| $then:expr) => {
        match $outcome {
            Ok($value) => $then,
            Err(error) => $reply.error(errno(error)),
        }
    };
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let needed = InitFlags::FUSE_WRITEBACK_CACHE;
        let missing = |_| io::Error::other("the kernel has no FUSE_WRITEBACK_CACHE");
        config.add_capabilities(needed).map_err(missing)
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if self.is_report(parent, name) {
            return answer!(reply, self.report_attributes(), |attributes| {
                reply.entry(&Duration::ZERO, &attributes, GENERATION);
            });
        }
        let found = self.child(parent, name).and_then(|path| self.entry(&path));
        answer!(reply, found, |attributes| reply.entry(&TTL, &attributes, GENERATION));
    }

    fn getattr(&self, _: &Request, number: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let found = match number {
            REPORT_NODE => self.report_attributes(),
            _ => self.metadata(number, fh).map(|found| attributes(number.0, &found)),
        };
        answer!(reply, found, |attributes| reply.attr(&TTL, &attributes));
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = size.map_or(Ok(()), |size| self.resize(number, fh, size));
        let found = set.and_then(|()| self.metadata(number, fh));
        answer!(reply, found, |found| reply.attr(&TTL, &attributes(number.0, &found)));
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.child(parent, name).and_then(|path| {
            std::fs::create_dir(&path)?;
            self.entry(&path)
        });
        answer!(reply, made, |attributes| reply.entry(&TTL, &attributes, GENERATION));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.remove(parent, name, |path| std::fs::remove_file(path));
        answer!(reply, removed, |()| reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.remove(parent, name, |path| std::fs::remove_dir(path));
        answer!(reply, removed, |()| reply.ok());
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        next_parent: INodeNo,
        next_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.child(parent, name).and_then(|from| {
            let to = self.child(next_parent, next_name)?;
            std::fs::rename(&from, &to)?;
            self.trim(&to);
            locked(&self.nodes).rename(&from, &to);
            Ok(())
        });
        answer!(reply, renamed, |()| reply.ok());
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if number == REPORT_NODE {
            let report = format!("{}\n", self.device.totals().to_json());
            let handle = self.add_handle(Open::Report(report));
            return reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO);
        }
        let opened = locked(&self.nodes).node(number).and_then(|node| {
            let file = match flags.acc_mode() {
                OpenAccMode::O_RDONLY => File::open(&node.path)?,
                _ => self.open_file(&node.path, None)?,
            };
            Ok(self.add_handle(Open::File(file, number.0, node.content)))
        });
        answer!(reply, opened, |handle| reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.child(parent, name).and_then(|path| {
            let file = self.open_file(&path, Some(mode & !umask))?;
            let (number, content) = locked(&self.nodes).number(&path);
            let attributes = attributes(number, &file.metadata()?);
            Ok((self.add_handle(Open::File(file, number, content)), attributes))
        });
        answer!(reply, created, |(handle, attributes)| {
            reply.created(&TTL, &attributes, GENERATION, handle, FopenFlags::FOPEN_KEEP_CACHE);
        });
    }

    fn read(
        &self,
        _: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.handle(fh).and_then(|open| match &*open {
            Open::File(file, ..) => {
                let mut data = vec![0; size as usize];
                let filled = read_full(file, offset, &mut data)?;
                data.truncate(filled);
                Ok(data)
            }
            Open::Report(text) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
                let end = text.len().min(from + size as usize);
                Ok(text.as_bytes()[from..end].to_vec())
            }
        });
        answer!(reply, read, |data| reply.data(&data));
    }

    fn write(
        &self,
        _: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        answer!(reply, self.write_at(fh, offset, data), |()| reply.written(size));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _number: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        locked(&self.handles).remove(&fh.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _data: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _data: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = (|| {
            let path = locked(&self.nodes).node(number)?.path;
            let mut names = vec![(".".into(), path.clone()), ("..".into(), path.clone())];
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                names.push((entry.file_name(), entry.path()));
            }
            // The order stays while nothing is added or removed.
            names[2..].sort();
            Ok(names)
        })();
        answer!(reply, listed, |names| {
            let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
            for (at, (name, path)) in (1..).zip(names).skip(skipped) {
                let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
                let kind = FileType::from_std(metadata.file_type());
                let kind = kind.unwrap_or(FileType::RegularFile);
                if reply.add(INodeNo(at), at, kind, name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        answer!(reply, rustix::fs::statvfs(&self.folder).map_err(io::Error::from), |of| {
            reply.statfs(
                of.f_blocks,
                of.f_bfree,
                of.f_bavail,
                of.f_files,
                of.f_ffree,
                u32::try_from(of.f_bsize).unwrap_or(4096),
                255,
                u32::try_from(of.f_frsize).unwrap_or(4096),
            );
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let done = self.handle(fh).and_then(|open| {
            let Open::File(file, _, content) = &*open else {
                return Err(io::ErrorKind::PermissionDenied.into());
            };
            rustix::fs::fallocate(file, mode, offset, length)?;
            if mode.contains(FallocateFlags::PUNCH_HOLE) {
                let end = (offset + length) / BLOCK_BYTES;
                self.device.trim(content, offset.div_ceil(BLOCK_BYTES), end);
            }
            Ok(())
        });
        answer!(reply, done, |()| reply.ok());
    }

    fn lseek(
        &self,
        _: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.handle(fh).and_then(|open| {
            let Open::File(file, ..) = &*open else {
                return Err(io::ErrorKind::PermissionDenied.into());
            };
            let offset = u64::try_from(offset).map_err(io::Error::other)?;
            // The kernel asks for these two only: `SEEK_DATA` and `SEEK_HOLE`.
            let to = if whence == 3 { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
            Ok(rustix::fs::seek(file, to)?)
        });
        answer!(reply, found, |at| reply.offset(i64::try_from(at).unwrap_or(i64::MAX)));
    }
}
