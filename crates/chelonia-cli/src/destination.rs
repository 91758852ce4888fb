//! The target of an export: standard output, or a file that gets its name at the end.
//!
//! ```text
//!   open      creates `.chelonia-export-*` beside the named file
//!   write     to it
//!   finish    syncs it, renames it to the name, syncs the folder
//!   dropped   before that: removes it
//! ```
//!
//! 1. Until `finish` returns, an existing file with the name is unchanged. A killed process leaves
//!    its unfinished file beside it.
//! 2. A replaced file keeps its permissions, and must be writable. Links to it are followed.
//! 3. If the name is not a file, such as a named pipe or a device, or stands for an open file, such
//!    as `/dev/stdout`, it is written to directly. A file in `/dev/shm` is a file.

use crate::output::{Output, output};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The size of the write buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// The prefix of unfinished files.
const UNFINISHED: &str = ".chelonia-export-";

/// Names of open files, and folders of such names.
const OPEN_FILES: [&str; 4] = ["/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"];

/// The permissions of a new file, before the mask of the process.
const MODE_NEW: u32 = 0o666;

/// The target of an export.
pub enum Destination {
    /// Standard output.
    Pipe(Output),
    /// An unfinished file, and its final name.
    Beside(BufWriter<NamedTempFile>, PathBuf),
    /// Not a file, or a file that is already open.
    Device(BufWriter<File>),
}

impl Destination {
    /// The target named `path`, `-` for standard output.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Destination::Pipe(output()));
        }
        let metadata = match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = unfinished(path, Permissions::from_mode(MODE_NEW))?;
                return Ok(Destination::Beside(file, path.to_path_buf()));
            }
            known => known?,
        };
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if is_standard_output(&metadata) {
            return Ok(Destination::Pipe(output()));
        }
        // Changes nothing, and fails if the file is not writable.
        let existing = OpenOptions::new().write(true).open(path)?;
        if !metadata.is_file() || is_open_file(path) {
            return Ok(Destination::Device(BufWriter::with_capacity(BUFFER_BYTES, existing)));
        }
        let path = path.canonicalize()?;
        let file = unfinished(&path, metadata.permissions())?;
        // The process's mask was applied.
        file.get_ref().as_file().set_permissions(metadata.permissions())?;
        Ok(Destination::Beside(file, path))
    }

    /// True for standard output, which may contain nothing but the export.
    pub fn is_pipe(&self) -> bool {
        matches!(self, Destination::Pipe(_))
    }

    /// True for a file that gets its name at the end, and is removed otherwise.
    pub fn is_unfinished_file(&self) -> bool {
        matches!(self, Destination::Beside(..))
    }

    /// Flushes everything, and gives the file its name.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Destination::Pipe(mut out) => out.flush(),
            Destination::Device(mut out) => out.flush(),
            Destination::Beside(out, path) => {
                let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.as_file().sync_all()?;
                file.persist(&path)?;
                sync_folder(&path)
            }
        }
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Destination::Pipe(out) => out.write(bytes),
            Destination::Beside(out, _) => out.write(bytes),
            Destination::Device(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Destination::Pipe(out) => out.flush(),
            Destination::Beside(out, _) => out.flush(),
            Destination::Device(out) => out.flush(),
        }
    }
}

/// True if standard output goes to this file: others may write to it too, so it must not be
/// replaced.
fn is_standard_output(metadata: &Metadata) -> bool {
    let out = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let out = out.and_then(|out| out.metadata());
    out.is_ok_and(|out| (out.dev(), out.ino()) == (metadata.dev(), metadata.ino()))
}

/// True for a name that stands for an open file.
fn is_open_file(path: &Path) -> bool {
    let of_a_process = path.starts_with("/proc") && path.iter().any(|part| part == "fd");
    of_a_process || OPEN_FILES.iter().any(|name| path.starts_with(name))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Makes a directory entry durable, if the file system can and the folder is readable.
fn sync_folder(path: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied};
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        Err(error) if matches!(error.kind(), InvalidInput | PermissionDenied) => Ok(()),
        synced => synced,
    }
}

/// A new file in the folder of `path`.
fn unfinished(path: &Path, permissions: Permissions) -> io::Result<BufWriter<NamedTempFile>> {
    let file = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .permissions(permissions)
        .tempfile_in(folder_of(path))?;
    Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_file_gets_its_name_at_the_end_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut destination = Destination::open(&path).unwrap();
        destination.write_all(b"dropped").unwrap();
        destination.flush().unwrap();
        assert!(!path.exists() && names(folder.path()).len() == 1);
        drop(destination);
        assert!(names(folder.path()).is_empty());

        for content in ["first", "second"] {
            let mut destination = Destination::open(&path).unwrap();
            destination.write_all(content.as_bytes()).unwrap();
            destination.finish().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        drop(Destination::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn a_replaced_file_keeps_its_permissions_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("out"), folder.path().join("link"));
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("out", &link).unwrap();
        let mut destination = Destination::open(&link).unwrap();
        destination.write_all(b"new").unwrap();
        destination.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(folder.path()), ["link", "out"]);
        let refused = Destination::open(folder.path()).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn files_below_dev_and_names_of_open_files_are_distinguished() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("out");
        for content in ["first, and longer", "second"] {
            let mut destination = Destination::open(&path).unwrap();
            assert!(matches!(destination, Destination::Beside(..)));
            destination.write_all(content.as_bytes()).unwrap();
            destination.finish().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        let open = File::options().write(true).open(&path).unwrap();
        for folder in ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"] {
            let name = Path::new(folder).join(open.as_raw_fd().to_string());
            assert!(matches!(Destination::open(&name).unwrap(), Destination::Device(_)));
        }
    }

    #[test]
    fn pipes_and_devices_are_written_directly() {
        // Not /dev/null, which may be standard output.
        let mut destination = Destination::open(Path::new("/dev/zero")).unwrap();
        assert!(matches!(destination, Destination::Device(_)));
        destination.write_all(b"gone").unwrap();
        destination.finish().unwrap();
    }
}
