//! The steps of the tour: measured, compared, and printed as rows of a table.

use crate::failure::{Context, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, bytes, grouped, output};
use chelonia::{Database, Key, Value};
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// The work of a step: entries, bytes of their keys and values, and a note.
#[derive(Default)]
pub struct Done {
    pub count: u64,
    pub bytes: u64,
    pub note: String,
}

impl Done {
    /// Adds an entry.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

/// Prints steps as they end.
pub struct Report {
    out: Output,
    start: Instant,
    /// A signal ends the tour.
    pub interrupt: Interrupt,
}

impl Report {
    /// Starts the clock, and takes signals from now on.
    pub fn new() -> Result<Self> {
        let interrupt = Interrupt::catch().map_err(|error| Failure::io("signals", error))?;
        Ok(Self { out: output(), start: now(), interrupt })
    }

    /// Prints a line.
    pub fn say(&mut self, line: &str) -> Result<()> {
        go_on(&self.interrupt)?;
        writeln!(self.out, "{line}")?;
        Ok(self.out.flush()?)
    }

    /// Measures `work` and prints a row for it; `work` gets the name of the step.
    pub fn step(&mut self, what: &str, work: impl FnOnce(&str) -> Result<Done>) -> Result<u64> {
        let start = now();
        let done = work(what);
        go_on(&self.interrupt)?;
        let (Done { count, bytes: size, note }, time) = (done?, start.elapsed());
        let size = if size == 0 { String::new() } else { bytes(size) };
        let rate = u128::from(count) * 1_000_000_000 / time.as_nanos().max(1);
        let rate = grouped(u64::try_from(rate).unwrap_or(u64::MAX));
        let (count_text, seconds) = (grouped(count), time.as_secs_f64());
        let row =
            format!("  {what:<38}{count_text:>11}{size:>11}{seconds:>8.2} s{rate:>12}/s  {note}");
        self.say(row.trim_end())?;
        Ok(count)
    }

    /// Reads and checks every block of the database, and closes it.
    pub fn verify_and_close(&mut self, database: Database) -> Result<()> {
        self.step("blocks verified", |_| {
            let verified = database.verify()?;
            match verified.findings.first() {
                None => Ok(Done { count: verified.blocks, ..Done::default() }),
                Some(first) => Err(Failure::no(format!("verify found damage: {first}"))),
            }
        })?;
        Ok(database.close()?)
    }

    /// Prints the last line.
    pub fn finish(mut self) -> Result<()> {
        let seconds = self.start.elapsed().as_secs_f64();
        self.say(&format!("Everything compared equal. {seconds:.1} seconds in all."))
    }
}

/// Ends the tour if a signal came.
pub fn go_on(interrupt: &Interrupt) -> Result<()> {
    let interrupted = |code| Err(Failure::Interrupted("interrupted".to_owned(), code));
    interrupt.code().map_or(Ok(()), interrupted)
}

#[expect(clippy::disallowed_methods, reason = "the tour measures, and nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

/// Opens or creates a database of the tour.
pub fn open(path: &Path, memory: u64) -> Result<Database> {
    Database::builder(path).memory(memory).open().context(path.display().to_string())
}

/// The hash that stands for a value, so that a gigabyte of files need not stay in memory.
pub fn digest(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    hasher.finish()
}

/// Fails unless `found` has exactly the keys and digests of `expected`, in that order.
pub fn compare<K: AsRef<[u8]>>(
    what: &str,
    expected: impl IntoIterator<Item = (K, u64)>,
    found: impl IntoIterator<Item = chelonia::Result<(Key, Value)>>,
) -> Result<Done> {
    let (mut expected, mut done) = (expected.into_iter(), Done::default());
    for entry in found {
        let (key, value) = entry?;
        match expected.next() {
            Some((wanted, hash)) if key == *wanted.as_ref() && digest(&value) == hash => {}
            Some((wanted, _)) => return Err(mismatch(what, wanted.as_ref())),
            None => return Err(mismatch(what, &key)),
        }
        done.add(&key, &value);
    }
    expected.next().map_or(Ok(done), |(wanted, _)| Err(mismatch(what, wanted.as_ref())))
}

/// A difference at `key`; keys of the tour are not secret.
pub fn mismatch(what: &str, key: &[u8]) -> Failure {
    let key = crate::text::Form::Text.write(key);
    Failure::no(format!("MISMATCH, {what}: `{key}` is missing, changed or unexpected"))
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
            compare("a test", expected, found).map(|done| done.bytes)
        };
        assert_eq!(check(&[("a", "1"), ("b", "2"), ("c", "3")]).unwrap(), 6);
        for wrong in [
            &[("a", "1"), ("b", "2")][..],
            &[("a", "1"), ("c", "3")],
            &[("a", "1"), ("b", "x"), ("c", "3")],
            &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")],
            &[("c", "3"), ("b", "2"), ("a", "1")],
        ] {
            assert_eq!(check(wrong).err().map(|failure| failure.code()), Some(1), "{wrong:?}");
        }
    }
}
