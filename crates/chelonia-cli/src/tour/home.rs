//! Where the databases of the tour are, and how a temporary place goes away whatever happens.
//!
//! ```text
//!   tour                        tour-keeper (this program again, in a process group of its own)
//!     spawn                ---> make the directory
//!     read its path        <--- print it
//!     ...                       wait for the end of standard input
//!     end, Ctrl-C, SIGKILL  -|  remove the directory
//! ```
//!
//! The pipe ends when nobody holds it any more: the tour, and the writer that it kills, which could
//! be writing into the directory still. Ctrl-C does not reach the keeper.

use crate::arguments::Tour;
use crate::failure::{Failure, Result};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// What no path holds.
const PATH_END: u8 = 0;

/// Where the databases of the tour are.
pub enum Home {
    /// In a directory that the keeper removes.
    Temporary(Kept),
    /// Where the user said.
    Named(PathBuf),
}

/// A directory and its keeper.
pub struct Kept {
    path: PathBuf,
    keeper: Child,
    /// While this is open, the directory is there.
    pipe: Option<ChildStdin>,
}

impl Home {
    /// The place that the arguments name, which must be new or empty, or a temporary one.
    pub fn new(arguments: &Tour) -> Result<Self> {
        let Some(path) = &arguments.db else { return Kept::new().map(Home::Temporary) };
        let failed = |error| Failure::io(path.display().to_string(), error);
        std::fs::create_dir_all(path).map_err(failed)?;
        if std::fs::read_dir(path).map_err(failed)?.next().is_some() {
            let message = format!("{} is not empty: name a new directory", path.display());
            return Err(Failure::usage(message));
        }
        Ok(Home::Named(path.clone()))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        match self {
            Home::Temporary(kept) => &kept.path,
            Home::Named(path) => path,
        }
    }

    /// Standard input for a process that uses the directory: until it is dead, the directory stays.
    pub fn claim(&self) -> Result<Stdio> {
        let Home::Temporary(Kept { pipe: Some(pipe), .. }) = self else {
            return Ok(Stdio::null());
        };
        let claim = pipe.as_fd().try_clone_to_owned();
        claim.map(|claim: OwnedFd| Stdio::from(claim)).map_err(failed)
    }
}

impl Kept {
    fn new() -> Result<Self> {
        let mut keeper = Command::new(std::env::current_exe().map_err(failed)?)
            .arg("tour-keeper")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let pipe = keeper.stdin.take();
        let mut path = Vec::new();
        if let Some(told) = keeper.stdout.take() {
            BufReader::new(told).read_until(PATH_END, &mut path).map_err(failed)?;
        }
        if path.pop() != Some(PATH_END) {
            // It has said on standard error what was wrong.
            return Err(failed(io::Error::other("it could not be made")));
        }
        Ok(Self { path: PathBuf::from(OsString::from_vec(path)), keeper, pipe })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // It tells its own errors.
        let _ = self.keeper.wait();
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::io("a temporary directory", error)
}

/// `tour-keeper`: makes a directory, tells its path, and removes it when standard input ends.
pub fn keep() -> Result<()> {
    let directory = tempfile::Builder::new().prefix("chelonia-tour-").tempdir().map_err(failed)?;
    let mut out = io::stdout().lock();
    out.write_all(directory.path().as_os_str().as_bytes())?;
    out.write_all(&[PATH_END])?;
    out.flush()?;
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map_err(failed)?;
    directory.close().map_err(failed)
}
