//! Where an export goes: standard output, or a file that has its name only when it is whole.
//!
//! ```text
//!   open      make `.chelonia-export-*` beside the file that was named
//!   write     into it
//!   finish    sync it, rename it over the name, sync the folder
//!   dropped   before that: remove it
//! ```
//!
//! 1. Until `finish` returns, whatever was under the name is as it was. A process that is killed
//!    leaves its unfinished file beside it.
//! 2. A file that is replaced keeps its permissions, and must be one that may be written to. Links
//!    to it are followed.
//! 3. What is no file, such as a named pipe or a device, is written to as it is; so is what stands
//!    for an open file, as `/dev/stdout` does. A file in `/dev/shm` is a file.

use crate::output::{Output, output};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Bytes that are gathered before they go to a file.
const BUFFER_BYTES: usize = 1 << 20;

/// How the names of unfinished files begin.
const UNFINISHED: &str = ".chelonia-export-";

/// Names of open files; below the folders among them, too.
const OPEN_FILES: [&str; 4] = ["/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"];

/// The permissions of a new file, before the mask of the process.
const MODE_NEW: u32 = 0o666;

/// Where an export goes.
pub enum Destination {
    /// Standard output.
    Pipe(Output),
    /// A file that is not finished, and the name that it will have.
    Beside(BufWriter<NamedTempFile>, PathBuf),
    /// What is no file, or one that is open already.
    Device(BufWriter<File>),
}

impl Destination {
    /// The place that `path` names, `-` for standard output.
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
        // This changes nothing, and fails if it may not be written to.
        let existing = OpenOptions::new().write(true).open(path)?;
        if !metadata.is_file() || is_open_file(path) {
            return Ok(Destination::Device(BufWriter::with_capacity(BUFFER_BYTES, existing)));
        }
        let path = path.canonicalize()?;
        let file = unfinished(&path, metadata.permissions())?;
        // The mask of the process was taken off.
        file.get_ref().as_file().set_permissions(metadata.permissions())?;
        Ok(Destination::Beside(file, path))
    }

    /// True for standard output, where nothing but the export may go.
    pub fn is_pipe(&self) -> bool {
        matches!(self, Destination::Pipe(_))
    }

    /// True for a file that gets its name at the end, and is removed if there is none.
    pub fn is_unfinished_file(&self) -> bool {
        matches!(self, Destination::Beside(..))
    }

    /// Brings everything to its place.
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

/// True for what standard output goes to: others may write there too, so it must stay.
fn is_standard_output(metadata: &Metadata) -> bool {
    let out = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let out = out.and_then(|out| out.metadata());
    out.is_ok_and(|out| (out.dev(), out.ino()) == (metadata.dev(), metadata.ino()))
}

/// True for a name that stands for a file which is open already.
fn is_open_file(path: &Path) -> bool {
    let of_a_process = path.starts_with("/proc") && path.iter().any(|part| part == "fd");
    of_a_process || OPEN_FILES.iter().any(|name| path.starts_with(name))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Makes a name in the folder durable, where the file system can and the folder may be read.
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
    fn the_name_is_given_at_the_end_and_only_then() {
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
    fn what_is_replaced_keeps_its_permissions_and_links() {
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
    fn a_file_below_dev_is_a_file_and_a_name_of_an_open_one_is_none() {
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
    fn what_is_no_file_is_written_to() {
        // Not /dev/null, which may be standard output.
        let mut destination = Destination::open(Path::new("/dev/zero")).unwrap();
        assert!(matches!(destination, Destination::Device(_)));
        destination.write_all(b"gone").unwrap();
        destination.finish().unwrap();
    }
}
