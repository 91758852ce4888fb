//! `import` and `export`: entries from and to files and pipes.
//!
//! Import commits in batches. It ends at a bad record (or skips it with `--skip-bad`) and at a
//! signal (`interrupt.rs`); everything before that is stored. An error names the number of stored
//! entries, and `losses.rs` counts the input that is not stored, or changed.

use super::losses::Losses;
use super::{Purpose, entries, open_keyspace};
use crate::arguments::{Export, Import};
use crate::columns::{Choice, Column};
use crate::descriptors;
use crate::destination::Destination;
use crate::failure::{Failure, Result};
use crate::formats::{Flaw, Format, Layout, Reader};
use crate::interrupt::Interrupt;
use crate::output::{bytes, complain, counted, grouped, output};
use chelonia::limits::BATCH_BYTES_MAX;
use chelonia::{Batch, Database, Iter, Keyspace};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;

/// Entries of a batch.
const BATCH_ENTRIES: usize = 1_000;

/// Bytes of a batch: far enough below the limit that one more entry fits.
const BATCH_BYTES: usize = BATCH_BYTES_MAX / 2;

/// The number of bad records that are reported one by one.
const REPORTED_MAX: u64 = 10;
/// At this one the import reports that there are more.
const REPORTS_END: u64 = REPORTED_MAX + 1;

/// Entries between two updates of the progress bar.
const PROGRESS_STEP: u64 = 1_024;

/// The progress of an import.
#[derive(Default)]
struct Progress {
    stored: u64,
    stored_bytes: u64,
    losses: Losses,
}

fn entry_count(count: u64) -> String {
    counted(count, "entry", "entries")
}

/// `import`
pub fn import(arguments: &Import) -> Result<()> {
    let layout = layout(arguments)?;
    let is_json = layout.format == Format::Jsonl;
    let interrupt = catch()?;
    let (input, bar) = open_input(&arguments.file, &interrupt)?;
    let (database, keyspace) = open_keyspace(&arguments.target, Purpose::Create)?;
    let mut reader = Reader::new(input, layout);
    let mut importer = Importer::new(&database, &keyspace, bar, interrupt);
    let result = importer.take_all(&mut reader, arguments);
    importer.bar.finish_and_clear();
    let Progress { stored, stored_bytes, losses } = importer.done;
    let closed = database.close();
    losses.complain(reader.counts(), is_json);
    let mut out = output();
    if arguments.json {
        let mut report = Map::new();
        report.insert("stored".to_owned(), json!(stored));
        report.insert("bytes".to_owned(), json!(stored_bytes));
        report.extend(losses.json(reader.counts()));
        writeln!(out, "{}", Value::from(report))?;
        out.flush()?;
    }
    // The first error is the cause.
    result?;
    closed?;
    let skipped = losses.skipped();
    if stored == 0 && skipped > 0 {
        let name = input_name(&arguments.file);
        let bad = counted(skipped, "record is bad", "records are bad");
        return Err(Failure::usage(format!("{name}: nothing is stored: {bad}")));
    }
    if !arguments.json {
        write!(out, "{} ({}) stored", entry_count(stored), bytes(stored_bytes))?;
        let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} bad skipped") };
        writeln!(out, "{skipped}")?;
    }
    Ok(out.flush()?)
}

fn catch() -> Result<Interrupt> {
    Interrupt::catch().map_err(|error| Failure::io("the handlers of signals", error))
}

/// The requested format, or that of the extension.
fn format_of(asked: Option<Format>, file: &Path) -> Result<Format> {
    asked.map_or_else(|| Format::of(file).map_err(Failure::Usage), Ok)
}

/// The layout of the records.
fn layout(arguments: &Import) -> Result<Layout> {
    let format = format_of(arguments.format, &arguments.file)?;
    let choice = arguments.key_column.clone().zip(arguments.value_column.clone());
    let choice = choice.map(|(key, value)| Choice { key, value });
    if let Some(choice) = &choice {
        if format == Format::Jsonl {
            let text = "--key-column and --value-column choose columns of tsv and csv: jsonl has \
                        `key` and `value`";
            return Err(Failure::usage(text));
        }
        let is_named = |column: &Column| matches!(column, Column::Name(_));
        if !arguments.header && (is_named(&choice.key) || is_named(&choice.value)) {
            let text = "column names are looked up in the header: add --header";
            return Err(Failure::usage(text));
        }
    }
    let (form, raw) = (arguments.spelling.form(), arguments.raw);
    Ok(Layout { format, form, raw, header: arguments.header, choice })
}

/// The name of the input in messages.
fn input_name(file: &Path) -> String {
    let is_pipe = file == Path::new("-");
    if is_pipe { "standard input".to_owned() } else { file.display().to_string() }
}

/// Opens the input, with a progress bar if its length is known.
fn open_input(file: &Path, interrupt: &Interrupt) -> Result<(Box<dyn BufRead>, ProgressBar)> {
    let failed = |error| Failure::io(input_name(file), error);
    if file == Path::new("-") {
        if descriptors::is_closed(descriptors::INPUT) {
            return Err(failed(descriptors::closed()));
        }
        let pipe = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        let input = BufReader::with_capacity(1 << 20, interrupt.over(File::from(pipe)));
        return Ok((Box::new(input), ProgressBar::new_spinner()));
    }
    let opened = File::open(file).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let bar = if metadata.is_file() {
        let template = "{bar:40} {percent:>3}% {bytes}/{total_bytes} {eta} {msg}";
        let style = ProgressStyle::with_template(template);
        ProgressBar::new(metadata.len())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    } else {
        ProgressBar::new_spinner()
    };
    Ok((Box::new(BufReader::with_capacity(1 << 20, bar.wrap_read(interrupt.over(opened)))), bar))
}

struct Importer<'a> {
    keyspace: &'a Keyspace,
    batch: Batch,
    batch_bytes: usize,
    done: Progress,
    bar: ProgressBar,
    interrupt: Interrupt,
}

impl<'a> Importer<'a> {
    fn new(
        database: &Database,
        keyspace: &'a Keyspace,
        bar: ProgressBar,
        interrupt: Interrupt,
    ) -> Self {
        let batch = database.batch();
        let done = Progress::default();
        Self { keyspace, batch, batch_bytes: 0, done, bar, interrupt }
    }

    fn take_all(&mut self, reader: &mut Reader<impl BufRead>, arguments: &Import) -> Result<()> {
        let name = input_name(&arguments.file);
        let taken = self.take(reader, &name, arguments.skip_bad);
        // Everything before a bad record or a signal is stored.
        let is_good = matches!(taken, Ok(()) | Err(Failure::Usage(_) | Failure::Interrupted(..)));
        let stored = if is_good { self.commit() } else { Ok(()) };
        taken.and(stored).map_err(|failure| failure.with(&self.stored()))
    }

    fn take(
        &mut self,
        reader: &mut Reader<impl BufRead>,
        name: &str,
        skip_bad: bool,
    ) -> Result<()> {
        loop {
            let next = reader.next();
            if let Some(code) = self.interrupt.code() {
                // An incomplete line is the last one read, or the next.
                let line = grouped(reader.line());
                let text = format!("{name}: interrupted at line {line}");
                return Err(Failure::Interrupted(text, code));
            }
            let next = next.map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => Failure::usage(format!("{name}: {error}")),
                _ => Failure::io(name, error),
            })?;
            let Some(record) = next else { return Ok(()) };
            match record.entry.as_ref().map_err(Flaw::clone).and_then(within_limits) {
                Ok((key, value)) => {
                    self.add(key, value)?;
                    self.done.losses.take(&record, key);
                }
                Err(flaw) if skip_bad => self.skip(record.line, &flaw),
                Err(flaw) => {
                    return Err(Failure::usage(format!("{name}: {}", flaw.at(record.line))));
                }
            }
        }
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let size = key.len() + value.len();
        if self.batch_bytes + size > BATCH_BYTES {
            self.commit()?;
        }
        self.batch.insert(self.keyspace, key, value);
        self.batch_bytes += size;
        if self.batch.len() >= BATCH_ENTRIES {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let count = self.batch.len() as u64;
        if count == 0 {
            return Ok(());
        }
        self.batch.commit()?;
        self.done.stored += count;
        self.done.stored_bytes += std::mem::take(&mut self.batch_bytes) as u64;
        self.bar.set_message(format!("{} stored", entry_count(self.done.stored)));
        self.bar.tick();
        Ok(())
    }

    fn skip(&mut self, line: u64, flaw: &Flaw) {
        self.done.losses.skip(flaw);
        let text = match self.done.losses.skipped() {
            ..=REPORTED_MAX => flaw.at(line),
            REPORTS_END => "further bad lines are only counted".to_owned(),
            _ => return,
        };
        self.bar.suspend(|| complain(&text));
    }

    fn stored(&self) -> String {
        match self.done.stored {
            0 => "nothing is stored".to_owned(),
            stored => format!("stored before it: {}", entry_count(stored)),
        }
    }
}

/// Checks the limits of the store, so that a violation is reported with its line.
fn within_limits(entry: &(Vec<u8>, Vec<u8>)) -> Result<&(Vec<u8>, Vec<u8>), Flaw> {
    use chelonia::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
    if entry.0.len() > KEY_BYTES_MAX {
        return Err(Flaw::Size(format!("the key has more than {KEY_BYTES_MAX} bytes")));
    }
    if entry.1.len() > VALUE_BYTES_MAX {
        return Err(Flaw::Size(format!("the value has more than {VALUE_BYTES_MAX} bytes")));
    }
    Ok(entry)
}

/// `export`
pub fn export(arguments: &Export) -> Result<()> {
    if arguments.json && arguments.file == Path::new("-") {
        let text = "--json reports about a written file: name a file, or use --format jsonl to \
                    print the entries as JSON";
        return Err(Failure::usage(text));
    }
    let form = arguments.spelling.form();
    let format = format_of(arguments.format, &arguments.file)?;
    let (_database, keyspace) = open_keyspace(&arguments.target, Purpose::Read)?;
    let found = entries(&keyspace, &arguments.bounds, form)?;
    let name = arguments.file.display().to_string();
    let mut out = Destination::open(&arguments.file).map_err(|error| Failure::io(&name, error))?;
    let is_pipe = out.is_pipe();
    // Otherwise a signal ends the process at once, even while nobody reads the output.
    let interrupt = if out.is_unfinished_file() { Some(catch()?) } else { None };
    let failed = |error: io::Error| {
        if is_pipe { Failure::from(error) } else { Failure::io(&name, error) }
    };
    if arguments.header {
        format.write_heading(&mut out).map_err(failed)?;
    }
    let bar = if is_pipe { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    let written = write_entries(found, interrupt.as_ref(), &bar, |key, value| {
        format.write(&mut out, form, key, value).map_err(failed)
    });
    bar.finish_and_clear();
    let count = written.map_err(|failure| match failure {
        Failure::Interrupted(text, code) => {
            Failure::Interrupted(format!("{name}: {text}; the file is unchanged"), code)
        }
        other => other,
    })?;
    out.finish().map_err(failed)?;
    if is_pipe {
        return Ok(());
    }
    let mut out = output();
    if arguments.json {
        writeln!(out, "{}", json!({ "written": count }))?;
    } else {
        writeln!(out, "{} written", entry_count(count))?;
    }
    Ok(out.flush()?)
}

/// Writes and counts all entries; ends early after a signal.
fn write_entries(
    entries: Iter,
    interrupt: Option<&Interrupt>,
    bar: &ProgressBar,
    mut write: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<u64> {
    let mut count = 0_u64;
    for entry in entries {
        if let Some(code) = interrupt.and_then(Interrupt::code) {
            return Err(Failure::Interrupted("interrupted".to_owned(), code));
        }
        let (key, value) = entry?;
        write(&key, &value)?;
        count += 1;
        if count.is_multiple_of(PROGRESS_STEP) {
            bar.set_message(format!("{} written", entry_count(count)));
            bar.tick();
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chelonia::KeyspaceOptions;

    #[test]
    fn an_export_ends_at_the_entry_after_a_signal() {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::open(directory.path().join("db")).unwrap();
        let keyspace = database.keyspace("k", KeyspaceOptions::default()).unwrap();
        for key in ["a", "b", "c"] {
            keyspace.insert(key, "value").unwrap();
        }
        let (interrupt, mut signal) = Interrupt::by_hand().unwrap();
        let bar = ProgressBar::hidden();
        let mut keys = Vec::new();
        let all = write_entries(keyspace.iter(), Some(&interrupt), &bar, |_, _| Ok(()));
        assert_eq!(all.unwrap(), 3);
        let ended = write_entries(keyspace.iter(), Some(&interrupt), &bar, |key, _| {
            keys.push(key.to_vec());
            if key == b"b" {
                signal();
            }
            Ok(())
        });
        assert!(matches!(ended, Err(Failure::Interrupted(_, 130))));
        assert_eq!(keys, [b"a", b"b"]);
    }
}
