//! The journal of a run: a file from which the next run continues.
//!
//! One line of JSON for each unit that ended:
//!
//! ```text
//! {"test":"crash","unit":7,"seed":"0x1f","seconds":1.5,"counts":{"histories":1},
//!  "distinct":{"crash states":["5a01...", ...]}}
//! {"test":"crash","unit":8,"seed":"0x1f","seconds":0.3,"failure":"what it said"}
//! ```
//!
//! A run ends with the coverage marks that it and the runs before it reached:
//!
//! ```text
//! {"seed":"0x1f","marks":{"RecordRefreshed":12}}
//! ```
//!
//! The next run repeats failed units, because the bug may have been fixed. Counts of earlier units
//! are retained even if the code has changed since; to count one state of the code, start a new
//! journal.
//!
//! An incomplete last line, after a killed run, is ignored.

use crate::failure::{Failure, Result};
use crate::runner::status::{Failed, Status};
use chelonia_torture::marks;
use chelonia_torture::test::Tally;
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The open file.
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or creates the file, and adds its units with this `seed` to `statuses`, which belong
    /// to the tests called `names`.
    pub fn open(path: &Path, seed: u64, names: &[&str], statuses: &mut [Status]) -> Result<Self> {
        let failed = |error| Failure::failed(format!("open {}", path.display()), error);
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let text = std::io::read_to_string(&mut file).map_err(failed)?;
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        let mut met = json!({});
        for (number, line) in text[..complete].lines().enumerate() {
            let mut add_line = || {
                let value: Value = serde_json::from_str(line).ok()?;
                if value["seed"].as_str()? != hex(seed) {
                    return Some(());
                }
                if let Some(marks) = value.get("marks") {
                    met = marks.clone();
                    return Some(());
                }
                let name = value["test"].as_str()?;
                if let Some(test) = names.iter().position(|known| *known == name) {
                    add(&mut statuses[test], &value)?;
                }
                Some(())
            };
            if add_line().is_none() {
                return Err(not_in_journal(path, number + 1));
            }
        }
        marks::add(&met).ok_or_else(|| not_in_journal(path, text[..complete].lines().count()))?;
        file.set_len(complete as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds a unit that succeeded.
    pub fn add(
        &mut self,
        test: &str,
        unit: u64,
        seed: u64,
        took: Duration,
        tally: &Tally,
    ) -> Result<()> {
        let counts: Map<String, Value> =
            tally.counts().map(|(what, count)| (what.to_owned(), json!(count))).collect();
        let states =
            |all: &[u64]| all.iter().map(|one| json!(format!("{one:x}"))).collect::<Vec<_>>();
        let distinct: Map<String, Value> =
            tally.distinct().map(|(what, all)| (what.to_owned(), json!(states(all)))).collect();
        self.write(&json!({
            "test": test, "unit": unit, "seed": hex(seed), "seconds": took.as_secs_f64(),
            "counts": counts, "distinct": distinct,
        }))
    }

    /// Adds a unit that failed.
    pub fn add_failed(&mut self, test: &str, failed: &Failed, took: Duration) -> Result<()> {
        self.write(&json!({
            "test": test, "unit": failed.unit, "seed": hex(failed.seed),
            "seconds": took.as_secs_f64(), "failure": failed.text,
        }))
    }

    /// Adds the coverage marks at the end of a run, including those of earlier runs.
    pub fn end(&mut self, seed: u64) -> Result<()> {
        self.write(&json!({ "seed": hex(seed), "marks": marks::reached() }))
    }

    fn write(&mut self, value: &Value) -> Result<()> {
        let line = format!("{value}\n");
        self.file
            .write_all(line.as_bytes())
            .map_err(|error| Failure::failed(format!("write {}", self.path.display()), error))
    }
}

fn not_in_journal(path: &Path, line: usize) -> Failure {
    Failure::usage(format!("{}, line {line}: not a line of a journal", path.display()))
}

/// Adds a unit to its test; `None` if the line has another form.
fn add(status: &mut Status, value: &Value) -> Option<()> {
    let unit = value["unit"].as_u64()?;
    let took = Duration::try_from_secs_f64(value["seconds"].as_f64()?).ok()?;
    if value["failure"].is_string() {
        // It is run again.
        return Some(());
    }
    let mut counts = Vec::new();
    for (what, count) in value["counts"].as_object()? {
        counts.push((what.clone(), count.as_u64()?));
    }
    let mut distinct = Vec::new();
    for (what, all) in value["distinct"].as_object()? {
        let one = |state: &Value| u64::from_str_radix(state.as_str()?, 16).ok();
        distinct.push((what.clone(), all.as_array()?.iter().map(one).collect::<Option<_>>()?));
    }
    status.add_recorded(unit, took, counts, distinct);
    Some(())
}

/// A seed in the form that the command line accepts.
pub fn hex(seed: u64) -> String {
    format!("{seed:#x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_continues_from_its_journal() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.jsonl");
        let names = ["crash", "model"];
        let fresh = || vec![Status::default(), Status::default()];
        let mut statuses = fresh();
        let mut journal = Journal::open(&path, 7, &names, &mut statuses).unwrap();
        let mut tally = Tally::default();
        tally.add("histories", 2);
        tally.add_distinct("states", u64::MAX);
        journal.add("crash", 0, 7, Duration::from_millis(1500), &tally).unwrap();
        journal.add("crash", 0, 8, Duration::from_millis(1500), &tally).unwrap();
        let failed = Failed { unit: 1, seed: 7, text: "it \"broke\"\nin two".to_owned() };
        journal.add_failed("crash", &failed, Duration::ZERO).unwrap();
        journal.end(7).unwrap();
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "{\"test\":\"mo").unwrap();
        for _ in 0..2 {
            statuses = fresh();
            drop(Journal::open(&path, 7, &names, &mut statuses).unwrap());
            assert_eq!((statuses[0].count("histories"), statuses[0].count("states")), (2, 1));
            assert_eq!(statuses[0].units(), 1);
            assert!(statuses[0].units_ended().iter().eq(&[0]), "a failed unit is run again");
            assert!(statuses[0].failures().is_empty());
            assert_eq!(statuses[1].units(), 0);
        }
        std::fs::write(&path, "something else\n").unwrap();
        assert!(Journal::open(&path, 7, &names, &mut statuses).is_err());
    }
}
