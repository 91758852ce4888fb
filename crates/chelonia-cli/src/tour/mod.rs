//! `tour`: the main job on real input, from the first write to the recovery from a kill.
//!
//! | step | file |
//! | --- | --- |
//! | store files, read them back, scan both ways | `files.rs` |
//! | change them under a snapshot, checkpoint, reopen, verify | `snapshot.rs` |
//! | updates and reads at three checkpoint distances | `dial.rs` |
//! | a writer process is killed in mid-write; recovery | `kill.rs` |
//! | the table at the end, and what to try next | `report.rs`, `next.rs` |
//!
//! Whatever is read is compared with what was written; the first difference ends the tour with exit
//! code 1. The databases are in a temporary directory (`home.rs`) unless `--db` names one.

mod dial;
mod files;
pub mod home;
pub mod kill;
mod model;
mod next;
mod report;
mod snapshot;

use crate::arguments::Tour;
use crate::failure::{Context, Failure, Result};
use chelonia::Database;
use home::Home;
use report::{Report, Row, Stopwatch};
use std::path::Path;

/// How much of the input is stored.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Files.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
}

/// Opens a database of the tour, or makes it.
fn open(path: &Path, memory: u64) -> Result<Database> {
    Database::builder(path).memory(memory).open().context(path.display().to_string())
}

/// Reads and checks the whole database.
fn verify(database: &Database, report: &mut Report) -> Result<()> {
    let watch = Stopwatch::start();
    let verified = database.verify()?;
    if let Some(finding) = verified.findings.first() {
        let count = verified.findings_total;
        return Err(Failure::no(format!("verify found damage ({count}), first: {finding}")));
    }
    report.add(Row::new("blocks verified", verified.blocks, 0, watch))
}

/// `tour`
pub fn tour(arguments: &Tour) -> Result<()> {
    let home = Home::new(arguments)?;
    let (root, memory) = (home.path(), arguments.memory);
    let source = arguments.source.clone().unwrap_or_else(files::default_source);
    let limits = Limits { files: arguments.files_max, bytes: arguments.bytes_max };
    let mut report = Report::new(arguments.json);

    let main = root.join("files");
    let mut stored = files::store(&main, memory, &source, limits, &mut report)?;
    files::read_back(&stored, &mut report)?;
    files::scan(&stored, &mut report)?;
    snapshot::change_under_snapshot(&mut stored, &mut report)?;
    snapshot::reopen(stored, &main, memory, &mut report)?;
    dial::turn(root, memory, arguments.updates, &mut report)?;
    kill::kill_and_recover(&home, memory, arguments.acknowledgements, &mut report)?;
    report.finish(&next::steps(&home, arguments))
}
