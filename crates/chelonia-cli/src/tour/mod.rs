//! `tour`: a load, a crash with its recovery, and a changed checkpoint distance, on real files.
//!
//! | step | file |
//! | --- | --- |
//! | store the files of a folder, read them back, delete some under a snapshot | `files.rs` |
//! | kill a process while it writes, reopen, find everything that it acknowledged | `kill.rs` |
//! | updates and gets at three checkpoint distances, and what they cost | `distance.rs` |
//!
//! Everything that is read is compared with what was written; the first difference ends the tour
//! with exit code 1. `report.rs` compares, and prints a row for each step.

mod distance;
mod files;
pub mod kill;
mod report;

use crate::arguments::Tour;
use crate::failure::{Failure, Result};
use report::Report;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// `tour`
pub fn tour(arguments: &Tour) -> Result<()> {
    let mut report = Report::new()?;
    let (directory, _removed_at_the_end) = directory(arguments.db.as_deref())?;
    let (path, memory) = (directory.join("files"), arguments.memory);
    let files = files::load(&path, arguments, &mut report)?;
    kill::kill(&path, memory, arguments.acknowledgements, &mut report)?;
    files::recovered(&path, memory, &files, &mut report)?;
    distance::change(&directory.join("distance"), memory, arguments.updates, &mut report)?;
    report.finish()
}

/// The directory `named`, which must be new or empty, or a temporary one, which is removed at the
/// end of the tour, also by a signal that can be caught.
fn directory(named: Option<&Path>) -> Result<(PathBuf, Option<TempDir>)> {
    let Some(path) = named else {
        let made = tempfile::Builder::new().prefix("chelonia-tour-").tempdir();
        let made = made.map_err(|error| Failure::io("a temporary directory", error))?;
        return Ok((made.path().to_owned(), Some(made)));
    };
    let failed = |error| Failure::io(path.display().to_string(), error);
    std::fs::create_dir_all(path).map_err(failed)?;
    if std::fs::read_dir(path).map_err(failed)?.next().is_some() {
        let message = format!("{} is not empty: name a new directory", path.display());
        return Err(Failure::usage(message));
    }
    Ok((path.to_owned(), None))
}
