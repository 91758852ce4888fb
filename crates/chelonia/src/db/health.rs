//! Whether writes are accepted.
//!
//! ```text
//!            failed write or sync, broken assertion
//!   healthy ----------------------------------------> stopped      (rule R8: nothing is retried)
//!      |     close
//!      +--------------> closed
//! ```
//!
//! Reads go on when stopped; after close nothing does. Only a reopen, which looks at the device
//! anew, leads back.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::{AtomicU8, Mutex, Ordering};
use std::path::{Path, PathBuf};

const HEALTHY: u8 = 0;
const STOPPED: u8 = 1;
const CLOSED: u8 = 2;

/// The state above.
#[derive(Default)]
pub struct Health {
    state: AtomicU8,
    cause: Mutex<Option<Error>>,
    /// Where the files are that a cause may name.
    directory: Option<PathBuf>,
}

impl Health {
    /// Healthy, in this directory.
    pub fn new(directory: Option<&Path>) -> Self {
        Self { directory: directory.map(Path::to_path_buf), ..Self::default() }
    }

    /// Fails unless writes are accepted.
    #[inline]
    pub fn check_write(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) == HEALTHY { Ok(()) } else { Err(self.refusal()) }
    }

    /// Fails once the database is closed.
    #[inline]
    pub fn check_read(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) == CLOSED { Err(self.refusal()) } else { Ok(()) }
    }

    /// True once closed.
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    /// Stops all writes because of `error`, and hands it back for the caller to return.
    pub fn stop(&self, error: Error) -> Error {
        let mut cause = self.cause.lock();
        if cause.is_none() {
            *cause = Some(error.clone());
        }
        let _ = self.state.compare_exchange(HEALTHY, STOPPED, Ordering::AcqRel, Ordering::Relaxed);
        error
    }

    /// Stops writes unless the error leaves everything as it was: that there is no room is told
    /// before anything is written, and a wrong call changes nothing.
    pub fn stop_unless_harmless(&self, error: Error) -> Error {
        if error.is_passing() || error.kind() == ErrorKind::InvalidArgument {
            return error;
        }
        self.stop(error)
    }

    /// The database is closed.
    pub fn close(&self) {
        self.state.store(CLOSED, Ordering::Release);
    }

    /// What stopped writes, if something did.
    pub fn cause(&self) -> Option<Error> {
        self.cause.lock().clone()
    }

    /// The error of a database that was closed.
    pub fn closed() -> Error {
        Error::new(ErrorKind::Stopped, "the database was closed; reopen it")
    }

    fn refusal(&self) -> Error {
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
