//! A writer dies in mid-write, and nothing that it was told is stored is missing.
//!
//! ```text
//!   tour                                 tour-writer (this program again)
//!     spawn, read the pipe  <- numbers --  commit record n, print n, commit record n + 1, ...
//!     SIGKILL after enough numbers ----->  dies wherever it is
//!     read what is left in the pipe
//!     open the same database, compare: every number that was printed is there
//! ```
//!
//! Each record is one batch over two keyspaces, so that half a batch would show. Which record the
//! kill meets depends on the machine; what must hold does not.

use super::home::Home;
use super::open;
use super::report::{Report, Row, Stopwatch};
use crate::arguments::TourWriter;
use crate::failure::{Context, Failure, Result};
use crate::output::counted;
use chelonia::{Database, KeyspaceOptions, limits};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The writer ends by itself after this many records, should nobody kill it.
const RECORDS_MAX: u64 = 100_000_000;

/// The two keyspaces of a record.
const KEYSPACES: [&str; 2] = ["records", "mirror"];

/// The value of record `number`: its length and bytes follow from the number.
fn value_of(number: u64) -> Vec<u8> {
    let length = usize::try_from(number % 200).unwrap_or(0) + 8;
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(length / 8)
}

/// `tour-writer`: stores numbered records and prints each number once it is acknowledged.
pub fn write_until_killed(arguments: &TourWriter) -> Result<()> {
    let memory = arguments.memory.unwrap_or(limits::MEMORY_BYTES_DEFAULT);
    let database = open(&arguments.path, memory)?;
    let records = database.keyspace(KEYSPACES[0], KeyspaceOptions::default())?;
    let mirror = database.keyspace(KEYSPACES[1], KeyspaceOptions::default())?;
    let mut out = std::io::stdout().lock();
    for number in 1..=RECORDS_MAX {
        let (key, value) = (number.to_be_bytes(), value_of(number));
        let mut batch = database.batch();
        batch.insert(&records, key, &value).insert(&mirror, key, &value);
        batch.commit()?;
        writeln!(out, "{number}")?;
        out.flush()?;
    }
    Ok(())
}

/// The writer; dead when this is dropped.
struct Writer {
    child: Child,
}

impl Writer {
    fn start(home: &Home, path: &Path, memory: u64) -> Result<(Self, BufReader<ChildStdout>)> {
        let failed = |error| Failure::io("starting the writer", error);
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .arg("tour-writer")
            .arg(path)
            .args(["--memory", &memory.to_string()])
            .stdin(home.claim()?)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let Some(pipe) = child.stdout.take() else {
            return Err(Failure::no("the writer has no pipe"));
        };
        Ok((Self { child }, BufReader::new(pipe)))
    }

    /// Sends SIGKILL and waits for the end.
    fn kill(&mut self) -> Result<()> {
        let failed = |error| Failure::io("killing the writer", error);
        self.child.kill().map_err(failed)?;
        self.child.wait().map_err(failed)?;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // On the way out of an error there is nothing left to do about another one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads numbers until `enough` or the end: the last one. A line that was cut does not count.
fn read_numbers(pipe: &mut impl BufRead, mut last: u64, enough: u64) -> Result<u64> {
    let mut line = String::new();
    while last < enough {
        line.clear();
        let read = pipe.read_line(&mut line);
        if read.map_err(|error| Failure::io("the writer's pipe", error))? == 0 {
            break;
        }
        let Some(number) = line.strip_suffix('\n').and_then(|number| number.parse().ok()) else {
            break;
        };
        if number != last + 1 {
            return Err(Failure::no(format!("the writer told {number} after {last}")));
        }
        last = number;
    }
    Ok(last)
}

/// Kills a writer after `enough` acknowledgements and looks for every one of them.
pub fn kill_and_recover(home: &Home, memory: u64, enough: u64, report: &mut Report) -> Result<()> {
    let path = &home.path().join("killed");
    report.say("Killing a writer in mid-write")?;
    let watch = Stopwatch::start();
    let (mut writer, mut pipe) = Writer::start(home, path, memory)?;
    let told = read_numbers(&mut pipe, 0, enough)?;
    if told < enough {
        return Err(Failure::no(format!("the writer ended by itself after write {told}")));
    }
    writer.kill()?;
    let told = read_numbers(&mut pipe, told, u64::MAX)?;
    report.add(Row::new("acknowledged before SIGKILL", told, 0, watch))?;

    let replayed = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&replayed);
    let watch = Stopwatch::start();
    let database = Database::builder(path)
        .memory(memory)
        .create(false)
        .on_recovery(move |progress| counter.store(progress.records, Ordering::Relaxed))
        .open()
        .context("opening the database of the killed writer")?;
    report.add(Row::new(
        "log records replayed by the open",
        replayed.load(Ordering::Relaxed),
        0,
        watch,
    ))?;

    let watch = Stopwatch::start();
    let counts = [count_records(&database, 0)?, count_records(&database, 1)?];
    if counts[0] != counts[1] {
        let message =
            format!("MISMATCH: half a batch: records {}, mirrored {}", counts[0], counts[1]);
        return Err(Failure::no(message));
    }
    if counts[0] < told {
        let message = format!("MISMATCH: writes acknowledged: {told}, found: {}", counts[0]);
        return Err(Failure::no(message));
    }
    let unacknowledged = counts[0] - told;
    report.add(Row::new("acknowledged writes found", told, 0, watch))?;
    let more = match unacknowledged {
        0 => "no other".to_owned(),
        count => format!("{} not acknowledged yet", counted(count, "other", "others")),
    };
    report.say(format!("  every acknowledged write is there, and {more}"))?;
    super::verify(&database, report)?;
    Ok(database.close()?)
}

/// How many records keyspace `index` has; fails unless they are 1, 2, 3, ... as written.
fn count_records(database: &Database, index: usize) -> Result<u64> {
    let keyspace = database.keyspace(KEYSPACES[index], KeyspaceOptions::default())?;
    let mut count = 0_u64;
    for entry in keyspace.iter() {
        let (key, value) = entry?;
        count += 1;
        if key != count.to_be_bytes() || value != value_of(count) {
            let name = KEYSPACES[index];
            return Err(Failure::no(format!("MISMATCH: {name} {count} is missing or changed")));
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_to_the_last_whole_line() {
        let read = |text: &str, enough| read_numbers(&mut text.as_bytes(), 0, enough);
        assert_eq!(read("1\n2\n3\n", 2).unwrap(), 2);
        assert_eq!(read("1\n2\n3", 9).unwrap(), 2);
        assert_eq!(read("", 9).unwrap(), 0);
        assert!(read("1\n3\n", 9).is_err());
    }
}
