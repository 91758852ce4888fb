//! `tour`: the main job on real files, from the first write to the recovery from a kill.
//!
//! | step | file |
//! | --- | --- |
//! | load the files of a folder and read them back | `steps.rs` |
//! | kill a process while it writes, reopen, look for what it acknowledged | `kill.rs` |
//! | change files under a snapshot, reopen | `steps.rs` |
//! | updates and gets at three checkpoint distances | `steps.rs` |
//!
//! Everything that is read is compared with what was written. The first difference ends the tour
//! with exit code 1. The databases are in a temporary directory unless `--db` names one.

pub mod kill;
mod steps;

use crate::arguments::Tour;
use crate::failure::{Context, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Align, Output, Table, bytes, grouped, output};
use chelonia::{Database, Key, Value};
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// `tour`
pub fn tour(arguments: &Tour) -> Result<()> {
    let mut report = Report::new()?;
    let (directory, memory) = (Directory::new(arguments.db.as_deref())?, arguments.memory);
    let (path, start) = (directory.path().join("files"), now());
    let mut files = steps::load(&path, arguments, &mut report)?;
    kill::kill(&path, memory, arguments.acknowledgements, &mut report)?;
    steps::change_under_snapshot(&path, memory, &mut files, &mut report)?;
    steps::reopen(&path, memory, &files, &mut report)?;
    let path = directory.path().join("dial");
    steps::change_distance(&path, memory, arguments.updates, &mut report)?;
    report.finish(start.elapsed())
}

/// Where the databases are.
enum Directory {
    /// Removed at the end of the tour, also by a signal that can be caught.
    Temporary(TempDir),
    Named(PathBuf),
}

impl Directory {
    /// The directory `named`, which must be new or empty, or a temporary one.
    fn new(named: Option<&Path>) -> Result<Self> {
        let Some(path) = named else {
            let made = tempfile::Builder::new().prefix("chelonia-tour-").tempdir();
            let failed = |error| Failure::io("a temporary directory", error);
            return made.map(Directory::Temporary).map_err(failed);
        };
        let failed = |error| Failure::io(path.display().to_string(), error);
        std::fs::create_dir_all(path).map_err(failed)?;
        if std::fs::read_dir(path).map_err(failed)?.next().is_some() {
            let message = format!("{} is not empty: name a new directory", path.display());
            return Err(Failure::usage(message));
        }
        Ok(Directory::Named(path.to_path_buf()))
    }

    fn path(&self) -> &Path {
        match self {
            Directory::Temporary(made) => made.path(),
            Directory::Named(path) => path,
        }
    }
}

/// Opens a database of the tour, or makes it.
fn open(path: &Path, memory: u64) -> Result<Database> {
    Database::builder(path).memory(memory).open().context(path.display().to_string())
}

/// Reads and checks every block of the database, and closes it.
fn verify_and_close(database: Database, report: &mut Report) -> Result<()> {
    report.step("blocks verified", |_| {
        let verified = database.verify()?;
        let amount = Amount { count: verified.blocks, bytes: 0 };
        let damage = verified.findings.first().map(|first| format!("verify found damage: {first}"));
        damage.map_or(Ok(amount), |damage| Err(Failure::no(damage)))
    })?;
    Ok(database.close()?)
}

#[expect(clippy::disallowed_methods, reason = "the tour measures, and nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

/// The hash that stands for a value: a gigabyte of files does not have to stay in memory.
fn digest(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    hasher.finish()
}

/// Fails unless `found` is exactly the keys and digests of `expected`, in that order.
fn compare<K: AsRef<[u8]>>(
    what: &str,
    expected: impl IntoIterator<Item = (K, u64)>,
    found: impl IntoIterator<Item = chelonia::Result<(Key, Value)>>,
) -> Result<Amount> {
    let (mut expected, mut amount) = (expected.into_iter(), Amount::default());
    for entry in found {
        let (key, value) = entry?;
        match expected.next() {
            Some((wanted, hash)) if key == *wanted.as_ref() && digest(&value) == hash => {}
            Some((wanted, _)) => return Err(mismatch(what, wanted.as_ref())),
            None => return Err(mismatch(what, &key)),
        }
        amount.add(&key, &value);
    }
    expected.next().map_or(Ok(amount), |(wanted, _)| Err(mismatch(what, wanted.as_ref())))
}

/// A difference at `key`; the keys of the tour are no secret.
fn mismatch(what: &str, key: &[u8]) -> Failure {
    let key = crate::text::Form::Text.write(key);
    Failure::no(format!("MISMATCH, {what}: `{key}` is missing, changed or unexpected"))
}

/// Entries, and the bytes of their keys and values.
#[derive(Clone, Copy, Default)]
struct Amount {
    count: u64,
    bytes: u64,
}

impl Amount {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

/// Prints each step as it ends, and a table of all of them at the end.
struct Report {
    out: Output,
    table: Table,
    interrupt: Interrupt,
}

impl Report {
    fn new() -> Result<Self> {
        let interrupt = Interrupt::catch().map_err(|error| Failure::io("signals", error))?;
        let numbers = ["count", "size", "seconds", "per second", "write amp.", "blocks read"];
        let numbers = numbers.map(|name| (name, Align::Right));
        let columns = [&[("what", Align::Left)], &numbers[..]].concat();
        Ok(Self { out: output(), table: Table::with_heading(&columns), interrupt })
    }

    /// Ends the tour if a signal came.
    fn go_on(&self) -> Result<()> {
        let interrupted = |code| Err(Failure::Interrupted("interrupted".to_owned(), code));
        self.interrupt.code().map_or(Ok(()), interrupted)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        self.go_on()?;
        writeln!(self.out, "{line}")?;
        Ok(self.out.flush()?)
    }

    /// Adds a row. `costs` are those that were measured of: bytes written to the data file and the
    /// log for each byte of keys and values; blocks read from the device for each operation.
    fn add(
        &mut self,
        what: &str,
        amount: Amount,
        time: Duration,
        costs: [Option<f64>; 2],
    ) -> Result<()> {
        let (count, seconds) = (grouped(amount.count), format!("{:.2}", time.as_secs_f64()));
        self.say(&format!("  {what}: {count} in {seconds} s"))?;
        let size = if amount.bytes == 0 { String::new() } else { bytes(amount.bytes) };
        let rate = u128::from(amount.count) * 1_000_000_000 / time.as_nanos().max(1);
        let rate = grouped(u64::try_from(rate).unwrap_or(u64::MAX));
        let [writes, reads] =
            costs.map(|cost| cost.map_or_else(String::new, |cost| format!("{cost:.2}")));
        self.table.row([what.to_owned(), count, size, seconds, rate, writes, reads]);
        Ok(())
    }

    /// Measures a step; `work` gets its name.
    fn step(&mut self, what: &str, work: impl FnOnce(&str) -> Result<Amount>) -> Result<Amount> {
        let start = now();
        let amount = work(what);
        self.go_on()?;
        let amount = amount?;
        self.add(what, amount, start.elapsed(), [None; 2])?;
        Ok(amount)
    }

    fn finish(mut self, time: Duration) -> Result<()> {
        self.say("")?;
        self.table.write(&mut self.out, "")?;
        let seconds = time.as_secs_f64();
        self.say(&format!("\nEverything compared equal. {seconds:.1} seconds in all."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_a_mismatch() {
        let check = |pairs: &[(&str, &str)]| {
            let expected = [("a", "1"), ("b", "2"), ("c", "3")];
            let expected = expected.map(|(key, value)| (key, digest(value.as_bytes())));
            let found = pairs.iter().map(|(key, value)| {
                Ok((Key::copy_from(key.as_bytes()), Value::copy_from(value.as_bytes())))
            });
            compare("a test", expected, found).map(|amount| amount.bytes)
        };
        assert_eq!(check(&[("a", "1"), ("b", "2"), ("c", "3")]).unwrap(), 6);
        for wrong in [
            &[("a", "1"), ("b", "2")][..],
            &[("a", "1"), ("c", "3")],
            &[("a", "1"), ("b", "x"), ("c", "3")],
            &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")],
            &[("c", "3"), ("b", "2"), ("a", "1")],
        ] {
            assert_eq!(check(wrong).unwrap_err().code(), 1, "{wrong:?}");
        }
    }
}
