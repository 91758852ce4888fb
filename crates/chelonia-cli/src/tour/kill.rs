//! A process is killed while it writes; every write that it acknowledged must be found.
//!
//! ```text
//!   tour                                 tour-writer (this program again)
//!     read the pipe         <- numbers --  commit record n, print n, commit record n + 1, ...
//!     SIGKILL after enough numbers ----->  dies at an arbitrary point
//!     open the same database: every number that was printed is there
//! ```
//!
//! A record is one batch over two keyspaces, so that half a batch would be noticed.

use super::report::{Done, Report, compare, digest, open};
use crate::arguments::TourWriter;
use crate::failure::{Failure, Result};
use chelonia::{Database, KeyspaceOptions, limits};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The signal of `Child::kill`, as the kernel numbers it.
const SIGKILL: i32 = 9;

/// The two keyspaces of a record.
const KEYSPACES: [&str; 2] = ["records", "mirror"];

/// The value of record `number`.
fn value_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + usize::try_from(number % 25).unwrap_or(0))
}

/// `tour-writer`: stores numbered records and prints each number once it is acknowledged.
pub fn write_until_killed(arguments: &TourWriter) -> Result<()> {
    let memory = arguments.memory.unwrap_or(limits::MEMORY_BYTES_DEFAULT);
    let database = open(&arguments.path, memory)?;
    let records = database.keyspace(KEYSPACES[0], KeyspaceOptions::default())?;
    let mirror = database.keyspace(KEYSPACES[1], KeyspaceOptions::default())?;
    let mut out = io::stdout().lock();
    for number in 1.. {
        let (key, value) = (u64::to_be_bytes(number), value_of(number));
        let mut batch = database.batch();
        batch.insert(&records, key, &value).insert(&mirror, key, &value);
        batch.commit()?;
        writeln!(out, "{number}")?;
        out.flush()?;
    }
    Ok(())
}

/// The writer; killed when this is dropped.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads numbers until `enough` or the end; returns the last. An incomplete line does not count.
fn read_numbers(pipe: &mut impl BufRead, mut last: u64, enough: u64) -> Result<u64> {
    let mut line = String::new();
    while last < enough {
        line.clear();
        pipe.read_line(&mut line).map_err(|error| Failure::io("the writer's pipe", error))?;
        match line.strip_suffix('\n').map(str::parse) {
            None => break,
            Some(Ok(number)) if number == last + 1 => last = number,
            Some(_) => {
                return Err(Failure::no(format!("the writer printed {line:?} after {last}")));
            }
        }
    }
    Ok(last)
}

/// Kills a writer of the database at `path` after `enough` acknowledgements, and finds each.
pub fn kill(path: &Path, memory: u64, enough: u64, report: &mut Report) -> Result<()> {
    report.say("Killing a process while it writes to the same database")?;
    let failed = |error| Failure::io("the process that writes", error);
    let interrupt = report.interrupt.clone();
    let acknowledged = report.step("acknowledged before SIGKILL", |_| {
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("tour-writer").arg(path).args(["--memory", &memory.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut writer = Writer(child.map_err(failed)?);
        let pipe = writer.0.stdout.take().ok_or_else(|| failed(io::Error::other("no pipe")))?;
        let mut pipe = BufReader::new(interrupt.over(pipe));
        let count = read_numbers(&mut pipe, 0, enough)?;
        writer.0.kill().map_err(failed)?;
        let status = writer.0.wait().map_err(failed)?;
        if status.signal() != Some(SIGKILL) {
            return Err(Failure::no(format!("the writer ended before it was killed: {status}")));
        }
        Ok(Done { count: read_numbers(&mut pipe, count, u64::MAX)?, ..Done::default() })
    })?;

    let database = open(path, memory)?;
    report.step("records found", |_| {
        let (records, mirrored) = (count_records(&database, 0)?, count_records(&database, 1)?);
        if records != mirrored || records < acknowledged {
            let found = format!("found: {records}, mirrored: {mirrored}");
            return Err(Failure::no(format!("MISMATCH: acknowledged: {acknowledged}, {found}")));
        }
        let note = "every acknowledged write is there".to_owned();
        Ok(Done { count: records, bytes: 0, note })
    })?;
    Ok(database.close()?)
}

/// The number of records of keyspace `index`; fails unless they are 1, 2, 3, ... as written.
fn count_records(database: &Database, index: usize) -> Result<u64> {
    let keyspace = database.keyspace(KEYSPACES[index], KeyspaceOptions::default())?;
    let expected = (1..=keyspace.len()?).map(|number| (number.to_be_bytes(), number));
    let expected = expected.map(|(key, number)| (key, digest(&value_of(number))));
    Ok(compare(KEYSPACES[index], expected, keyspace.iter())?.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_to_the_last_complete_line() {
        let read = |text: &str, enough| read_numbers(&mut text.as_bytes(), 0, enough);
        assert_eq!(read("1\n2\n3\n", 2).unwrap(), 2);
        assert_eq!(read("1\n2\n3", 9).unwrap(), 2);
        assert_eq!(read("", 9).unwrap(), 0);
        assert!(read("1\n3\n", 9).is_err());
    }
}
