//! Whether writes are accepted.
//!
//! ```text
//!            failed write or sync, broken assertion
//!   healthy ----------------------------------------> stopped      (nothing is retried)
//!      |     close
//!      +--------------> closed
//! ```
//!
//! When stopped, reads go on; when closed, nothing does. Only a reopen leads back, since it reads
//! the device again. In a forked child the database counts as closed (`crate::memory::fork`).

use crate::base::error::{Error, ErrorKind, Result};
use crate::memory::fork::ForkMark;
use crate::runtime::sync::{Arc, AtomicU8, Mutex, Ordering};
use std::path::{Path, PathBuf};

const HEALTHY: u8 = 0;
const STOPPED: u8 = 1;
const CLOSED: u8 = 2;

/// The state above.
pub struct Health {
    state: AtomicU8,
    process: Arc<ForkMark>,
    cause: Mutex<Option<Error>>,
    /// The directory of the files that a cause may name.
    directory: Option<PathBuf>,
}

impl Health {
    /// Healthy, in this directory.
    pub fn new(directory: Option<&Path>) -> Result<Self> {
        Ok(Self {
            state: AtomicU8::new(HEALTHY),
            process: Arc::new(ForkMark::new()?),
            cause: Mutex::default(),
            directory: directory.map(Path::to_path_buf),
        })
    }

    /// Fails unless writes are accepted.
    #[inline]
    pub fn check_write(&self) -> Result<()> {
        let is_healthy = self.state.load(Ordering::Acquire) == HEALTHY;
        if is_healthy && self.is_owner_process() { Ok(()) } else { Err(self.refusal()) }
    }

    /// Fails once the database is closed.
    #[inline]
    pub fn check_read(&self) -> Result<()> {
        let is_open = self.state.load(Ordering::Acquire) != CLOSED;
        if is_open && self.is_owner_process() { Ok(()) } else { Err(self.refusal()) }
    }

    /// True in the process that opened the database, false in a forked child.
    #[inline]
    pub fn is_owner_process(&self) -> bool {
        self.process.is_this_process()
    }

    /// Distinguishes the process from its forked children.
    pub fn process(&self) -> &Arc<ForkMark> {
        &self.process
    }

    /// True once closed.
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    /// Stops all writes because of `error`, and returns it.
    pub fn stop(&self, error: Error) -> Error {
        let mut cause = self.cause.lock();
        if cause.is_none() {
            *cause = Some(error.clone());
        }
        let _ = self.state.compare_exchange(HEALTHY, STOPPED, Ordering::AcqRel, Ordering::Relaxed);
        error
    }

    /// Stops writes unless the error changed nothing: lack of space is detected before anything is
    /// written, and an invalid call changes nothing.
    pub fn stop_unless_harmless(&self, error: Error) -> Error {
        if error.is_transient() || error.kind() == ErrorKind::InvalidArgument {
            return error;
        }
        self.stop(error)
    }

    /// The database is closed.
    pub fn close(&self) {
        self.state.store(CLOSED, Ordering::Release);
    }

    /// The error that stopped writes, if any.
    pub fn cause(&self) -> Option<Error> {
        self.cause.lock().clone()
    }

    /// The error of a database that was closed.
    pub fn closed() -> Error {
        Error::new(ErrorKind::Stopped, "the database was closed; reopen it")
    }

    /// The error of calls in a forked child.
    pub fn inherited() -> Error {
        let text = "the database was opened before a fork: open it in this process";
        Error::new(ErrorKind::Stopped, text)
    }

    #[cold]
    fn refusal(&self) -> Error {
        if !self.is_owner_process() {
            // No lock is taken: a thread of the parent may hold it.
            return Self::inherited();
        }
        if self.is_closed() {
            return Self::closed();
        }
        let cause = self.cause().map(|cause| cause.within(self.directory.as_deref()));
        let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
        Error::new(
            ErrorKind::Stopped,
            format!("an earlier failure stopped all writes; reopen the database{cause}"),
        )
    }
}
