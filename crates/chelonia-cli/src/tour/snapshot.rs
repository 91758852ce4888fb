//! A snapshot stays as it is: overwrites and deletes under it, a checkpoint under it, a reopen.

use super::files::{Files, open_files};
use super::report::{Report, Row, Stopwatch};
use crate::failure::Result;
use std::path::Path;

/// How many files are changed at most.
const CHANGES_MAX: usize = 10_000;

/// Changes files while a snapshot is held; both views must be right, before and after a checkpoint.
pub fn change_under_snapshot(stored: &mut Files, report: &mut Report) -> Result<()> {
    report.say("Changing files under a snapshot")?;
    let snapshot = stored.database.snapshot();
    let before = stored.model.clone();
    let watch = Stopwatch::start();
    let mut changes = 0;
    for (index, key) in before.keys().enumerate().take(CHANGES_MAX * 3 / 2) {
        match index % 3 {
            0 => {
                let value = format!("overwritten by the tour, file {index}\n");
                stored.files.insert(key, &value)?;
                stored.model.insert(key, value.as_bytes());
            }
            1 => {
                stored.files.remove(key)?;
                stored.model.remove(key);
            }
            _ => continue,
        }
        changes += 1;
    }
    report.add(Row::new("overwritten or deleted", changes, 0, watch))?;
    for what in ["under a snapshot", "under a snapshot, after a checkpoint"] {
        let watch = Stopwatch::start();
        let old = snapshot.iter(&stored.files);
        let mut compared = before.check_forward(&format!("the snapshot, {what}"), .., old)?;
        let new = stored.files.iter();
        compared.extend(stored.model.check_forward(&format!("the new files, {what}"), .., new)?);
        for key in before.keys().step_by(7) {
            before.check(what, key, snapshot.get(&stored.files, key)?.as_deref())?;
            stored.model.check(what, key, stored.files.get(key)?.as_deref())?;
        }
        let row = Row::new(format!("compared {what}"), compared.count, compared.bytes, watch);
        report.add(row)?;
        stored.database.checkpoint()?;
    }
    Ok(())
}

/// Closes the database, opens it again and compares everything.
pub fn reopen(stored: Files, path: &Path, memory: u64, report: &mut Report) -> Result<()> {
    let Files { database, files, hashes, model, hash_model } = stored;
    drop((files, hashes));
    database.close()?;
    let watch = Stopwatch::start();
    let (database, files, hashes) = open_files(path, memory)?;
    report.add(Row::new("reopened", 1, 0, watch))?;
    let watch = Stopwatch::start();
    let mut compared = model.check_forward("after a reopen", .., files.iter())?;
    compared.extend(hash_model.check_forward("after a reopen", .., hashes.iter())?);
    report.add(Row::new("compared after a reopen", compared.count, compared.bytes, watch))?;
    super::verify(&database, report)?;
    drop((files, hashes));
    Ok(database.close()?)
}
