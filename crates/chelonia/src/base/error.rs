//! The error type of the store.
//!
//! [`Error`] is opaque. Its [`ErrorKind`] determines what the caller should do about it; its text
//! describes the failure, with file and offset. No text contains a key or a value of the user.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an [`Error`], which determines what the caller should do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is invalid (a limit is exceeded, a range is inverted, options contradict the stored
    /// ones): correct the call. Nothing was changed.
    InvalidArgument,
    /// There is no such database, keyspace or engine: check the name, or create it.
    NotFound,
    /// The database is open elsewhere, in this process or another: close it there, or wait. The
    /// text names the process if the system lists it.
    AlreadyOpen,
    /// The device is full, or a file has reached the size limit of the file system or the process:
    /// free space. Reads continue, and writes resume without a reopen.
    NoSpace,
    /// The process or the system has too many open files: close some, or raise the limit. Reads
    /// continue, and writes resume without a reopen.
    TooManyFiles,
    /// The commit would have to wait longer than its options allow: commit again later, or allow a
    /// longer wait. Nothing was changed.
    WouldBlock,
    /// Another commit changed what a transaction had read: run the transaction again. Nothing was
    /// changed.
    Conflict,
    /// The system refuses memory to the process, although the budget is not used up: lower the
    /// budget, or raise the limit on address space (`ulimit -v`) or mappings. Reads that need no
    /// more memory continue, and writes resume without a reopen. If a snapshot or an iterator
    /// returns this kind, snapshots and iterators may also use half of the budget, and if a
    /// transaction does, open transactions a quarter of it: drop some of them, or raise the budget.
    OutOfMemory,
    /// Stored bytes differ from the written ones: restore from a backup, or salvage. The error
    /// names file and offset; undamaged data stays readable.
    Corrupt,
    /// The device or the system failed a read or a write. After a failed write no more writes are
    /// accepted: reopen the database, which rereads the device.
    Io,
    /// An earlier failure stopped all writes, or the database was closed: reopen it.
    Stopped,
    /// The files have a newer format, or a feature that this build does not support: upgrade.
    Unsupported,
    /// The database was opened read-only: reopen it for writing.
    ReadOnly,
    /// The system denied access: correct the permissions of the path.
    PermissionDenied,
    /// An internal inconsistency of the store, which is a bug: report it with the text.
    Internal,
}

/// An error of the store. Cheap to clone; see [`Error::kind`] for what to do about it.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

struct Inner {
    kind: ErrorKind,
    message: String,
    place: Option<Place>,
    source: Option<io::Error>,
}

/// The file and, where known, the byte offset of an error.
#[derive(Clone)]
struct Place {
    /// The directory that the file's name is relative to, once it is known.
    directory: Option<PathBuf>,
    file: String,
    offset: Option<u64>,
}

impl Place {
    fn path(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.join(&self.file))
    }
}

impl Error {
    /// Creates an error of this kind with a message.
    ///
    /// ```
    /// # use chelonia::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::InvalidArgument, "the number is not a prime");
    /// assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    /// assert_eq!(error.to_string(), "the number is not a prime");
    /// ```
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { inner: Arc::new(Inner { kind, message, place: None, source: None }) }
    }

    /// Creates an [`ErrorKind::InvalidArgument`] error.
    #[must_use]
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Creates an [`ErrorKind::Corrupt`] error. Add the location with [`Error::at`].
    #[must_use]
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Creates an [`ErrorKind::OutOfMemory`] error: the system refused to map memory.
    #[cold]
    #[must_use]
    pub(crate) fn out_of_memory() -> Self {
        let text = "the system refused to allocate memory: lower the memory budget, or raise the \
                    limit on address space";
        Self::new(ErrorKind::OutOfMemory, text)
    }

    /// Creates an [`ErrorKind::Internal`] error.
    #[must_use]
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Creates an error from a system error while doing `what` ("write", "open") to `file`, which
    /// may be empty; the kind follows from the system's.
    #[must_use]
    pub(crate) fn io(what: &str, file: &str, source: io::Error) -> Self {
        let kind = match source.kind() {
            _ if is_out_of_files(&source) => ErrorKind::TooManyFiles,
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => ErrorKind::NoSpace,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ErrorKind::PermissionDenied
            }
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        let named = || Place { directory: None, file: file.to_owned(), offset: None };
        let place = (!file.is_empty()).then(named);
        let message = format!("cannot {what}");
        Self { inner: Arc::new(Inner { kind, message, place, source: Some(source) }) }
    }

    /// Adds the file and offset, unless the error has a location already.
    #[must_use]
    pub(crate) fn at(self, file: &str, offset: u64) -> Self {
        if self.inner.place.as_ref().is_some_and(|place| place.offset.is_some()) {
            return self;
        }
        let place = Place { directory: None, file: file.to_owned(), offset: Some(offset) };
        self.copy(self.inner.kind, Some(place))
    }

    /// Adds the directory of the file, if the error names a file; for users of several databases.
    #[cold]
    #[must_use]
    pub(crate) fn within(self, directory: Option<&Path>) -> Self {
        let (Some(directory), Some(place)) = (directory, &self.inner.place) else { return self };
        // A file without a name is in no directory.
        if place.directory.is_some() || place.file.starts_with('(') {
            return self;
        }
        let place = Place { directory: Some(directory.to_path_buf()), ..place.clone() };
        self.copy(self.inner.kind, Some(place))
    }

    fn copy(&self, kind: ErrorKind, place: Option<Place>) -> Self {
        let Inner { message, source, .. } = &*self.inner;
        let (message, source) = (message.clone(), source.as_ref().map(copy_of));
        Self { inner: Arc::new(Inner { kind, message, place, source }) }
    }

    /// True if nothing was changed, and the same call may succeed once space or resources are free.
    #[must_use]
    pub(crate) fn is_transient(&self) -> bool {
        use ErrorKind::{NoSpace, OutOfMemory, TooManyFiles};
        matches!(self.inner.kind, NoSpace | OutOfMemory | TooManyFiles)
    }

    /// Converts a transient error into a lasting one of kind `Io`, because something may have
    /// changed before the failure.
    #[must_use]
    pub(crate) fn not_transient(self) -> Self {
        if !self.is_transient() {
            return self;
        }
        self.copy(ErrorKind::Io, self.inner.place.clone())
    }

    /// The kind of the error, which says what to do about it.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// match Database::builder(&path).create(false).open() {
    ///     Err(error) if error.kind() == ErrorKind::NotFound => println!("no database yet"),
    ///     result => drop(result?),
    /// }
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The name of the affected file, relative to the database's directory, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.inner.place.as_ref().map(|place| place.file.as_str())
    }

    /// The affected file with the path of the database's directory, where that is known; as in the
    /// text of the error.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.inner.place.as_ref().and_then(Place::path)
    }

    /// The affected byte offset in [`Error::file`], if there is one.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// # Database::open(&path)?.close()?;
    /// // Both copies of the superblock are lost.
    /// std::fs::write(path.join("data"), [7; 8192]).unwrap();
    /// let error = Database::open(&path).unwrap_err();
    /// assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some("data")));
    /// assert_eq!(error.path(), Some(path.join("data")));
    /// assert_eq!(error.offset(), Some(0));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.inner.place.as_ref().and_then(|place| place.offset)
    }
}

/// ENFILE and EMFILE, the same numbers on every Unix: the standard library has no name for them.
const TOO_MANY_FILES: [i32; 2] = [23, 24];

/// True if the system refused to open one more file.
fn is_out_of_files(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|number| TOO_MANY_FILES.contains(&number))
}

/// `io::Error` cannot be cloned; kind, code and text can.
fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)?;
        if let Some(place) = &self.inner.place {
            match place.path() {
                Some(path) => write!(f, " (file {}", path.display())?,
                None => write!(f, " (file {}", place.file)?,
            }
            if let Some(offset) = place.offset {
                write!(f, ", offset {offset}")?;
            }
            f.write_str(")")?;
        }
        if let Some(source) = &self.inner.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| source as _)
    }
}

impl From<Error> for io::Error {
    /// An [`io::Error`] of the matching kind that has the error as its source.
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::InvalidArgument => io::ErrorKind::InvalidInput,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Corrupt => io::ErrorKind::InvalidData,
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
            ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::WouldBlock => io::ErrorKind::WouldBlock,
            ErrorKind::AlreadyOpen => io::ErrorKind::ResourceBusy,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_follows_from_the_system_and_the_text_names_the_place() {
        let full = Error::io("write", "data", io::Error::from_raw_os_error(28));
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert!(full.to_string().starts_with("cannot write (file data): "), "{full}");
        let too_large = Error::io("allocate", "data", io::Error::from_raw_os_error(27));
        assert_eq!(too_large.kind(), ErrorKind::NoSpace);
        for number in TOO_MANY_FILES {
            let refused = Error::io("create", "log-0001", io::Error::from_raw_os_error(number));
            assert_eq!(refused.kind(), ErrorKind::TooManyFiles);
            assert!(refused.is_transient());
            let (text, failed) = (refused.to_string(), refused.not_transient());
            assert_eq!((failed.kind(), failed.to_string()), (ErrorKind::Io, text));
        }
        let nameless = Error::io("start a thread", "", io::Error::from_raw_os_error(11));
        assert!(nameless.to_string().starts_with("cannot start a thread: "), "{nameless}");
        let full = full.at("data", 8192);
        assert_eq!((full.file(), full.offset()), (Some("data"), Some(8192)));
        assert!(full.to_string().contains("offset 8192"));
        let full = full.at("log-0001", 1);
        assert_eq!((full.offset(), full.path()), (Some(8192), None));
        let within = |error: Error, path: &str| error.within(Some(Path::new(path)));
        let full = within(within(full, "/a"), "/b");
        assert_eq!((full.file(), full.path()), (Some("data"), Some(PathBuf::from("/a/data"))));
        assert!(full.to_string().contains("(file /a/data, offset 8192)"), "{full}");
        assert_eq!(full.not_transient().path(), Some(PathBuf::from("/a/data")));
        let nowhere = within(Error::invalid("the call is wrong"), "/a");
        assert_eq!((nowhere.path(), nowhere.to_string()), (None, "the call is wrong".to_owned()));
    }

    #[test]
    fn an_io_error_has_the_kind_and_the_source() {
        let error = io::Error::from(Error::corrupt("block checksum mismatch").at("data", 8192));
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("8192"), "{error}");
        assert!(error.get_ref().is_some_and(|source| source.is::<Error>()));
    }
}
