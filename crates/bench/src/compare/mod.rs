//! `compare`: several stores, the same work, side by side.
//!
//! ```text
//!   for each repeat:  for each store:
//!       this program again, `run --engine STORE ... --json FILE.part`, nothing else meanwhile
//!       its results go to the end of FILE in one write, with the repeat and how it ended
//!   then the tables, from FILE alone
//! ```
//!
//! So a stopped comparison loses at most one run, and `--resume` continues with the next. If a
//! store is killed or fails, its finished phases are stored, and the other stores continue.

pub mod child;
pub mod on_drive;
pub mod summary;
pub mod tables;

use crate::driver::clock;
use crate::failure::{Failure, Result};
use crate::kinds::parse_count;
use crate::options::{Options, parse_engine};
use crate::process;
use crate::record::{self, Record};
use crate::stores;
use child::Ended;
use clap::Args;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// `compare`
#[derive(Args, Debug)]
pub struct Compare {
    /// The stores, in this order
    #[arg(long, value_name = "a,b,...", value_delimiter = ',', required = true,
        value_parser = parse_engine)]
    pub engines: Vec<String>,
    /// The store that the others are divided by [default: the first]
    #[arg(long, value_name = "NAME", value_parser = parse_engine)]
    pub baseline: Option<String>,
    /// How often everything is done
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_count)]
    pub repeats: u64,
    /// The work.
    #[command(flatten)]
    pub options: Options,
    /// The file of all results, one JSON object a line
    #[arg(long, value_name = "FILE", default_value = "chelonia-bench-compare.json")]
    pub json: PathBuf,
    /// Go on with what is in that file, which was made with the same options
    #[arg(long)]
    pub resume: bool,
    /// Write the tables to this file too, as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Runs it.
pub fn compare(arguments: &Compare) -> Result<()> {
    let baseline = check(arguments)?;
    let mut records = earlier(arguments)?;
    let mut wrong = 0_u64;
    let mut failed = 0_u64;
    for repeat in 1..=arguments.repeats {
        for engine in &arguments.engines {
            if has_run(&records, engine, repeat) {
                continue;
            }
            say(&format!("{engine}, {repeat} of {}", arguments.repeats));
            let (ended, new) = one(engine, &arguments.options, repeat, &arguments.json)?;
            records.extend(new);
            match ended {
                Ended::Done => {}
                Ended::Wrong => wrong += 1,
                Ended::Failed(_) => failed += 1,
            }
            if !matches!(ended, Ended::Done) {
                say(&format!("{engine}: {}", ended.describe()));
            }
        }
    }
    let report = tables::Report::new(&records, &arguments.engines, baseline);
    let mut out = std::io::stdout().lock();
    out.write_all(report.text().as_bytes())?;
    out.flush()?;
    if let Some(path) = &arguments.markdown {
        std::fs::write(path, report.markdown())
            .map_err(|error| Failure::failed(format!("write {}", path.display()), error))?;
    }
    match (wrong, failed) {
        (0, 0) => Ok(()),
        (0, count) => Err(Failure::failed("compare", format!("{count} runs failed"))),
        (count, _) => Err(Failure::wrong(format!("{count} runs read a wrong value"))),
    }
}

/// Checks the options; returns the baseline.
fn check(arguments: &Compare) -> Result<&str> {
    arguments.options.check()?;
    for engine in &arguments.engines {
        if let Some(kind) = stores::find(engine) {
            kind.check_built()?;
        }
        if arguments.engines.iter().filter(|other| *other == engine).count() > 1 {
            return Err(Failure::usage(format!("--engines: {engine} is there twice")));
        }
    }
    if arguments.repeats == 0 {
        return Err(Failure::usage("--repeats: at least 1"));
    }
    let Some(baseline) = &arguments.baseline else { return Ok(&arguments.engines[0]) };
    if !arguments.engines.contains(baseline) {
        let allowed = arguments.engines.join(", ");
        return Err(Failure::usage(format!("--baseline: one of the stores: {allowed}")));
    }
    Ok(baseline)
}

/// The results of an earlier comparison in the file, if it is to be resumed.
fn earlier(arguments: &Compare) -> Result<Vec<Record>> {
    let path = &arguments.json;
    if !path.exists() {
        return Ok(Vec::new());
    }
    if !arguments.resume {
        return Err(Failure::usage(format!(
            "{} is there already: go on with --resume, or name another file with --json",
            path.display()
        )));
    }
    let records = record::read(path)?;
    // An incomplete last line must not precede new ones.
    record::replace(path, &records, &part_of(path))?;
    for record in &records {
        let asked = arguments.options.describe(record.settings["records"].as_u64().unwrap_or(0));
        let asked_records = arguments.options.records;
        let other = asked
            .as_object()
            .into_iter()
            .flatten()
            .find(|(name, value)| record.settings[name.as_str()] != **value);
        let other = other.map(|(name, _)| name.as_str());
        let other = match asked_records {
            Some(count) if record.settings["records"] != json!(count) => Some("records"),
            _ => other,
        };
        if let Some(name) = other {
            return Err(Failure::usage(format!(
                "{} was made with other options ({name}): give the same, or another file",
                path.display()
            )));
        }
    }
    Ok(records)
}

fn has_run(records: &[Record], engine: &str, repeat: u64) -> bool {
    records.iter().any(|record| record.engine == engine && summary::repeat_of(record) == repeat)
}

/// One run of one store; its results are in the file `path` when this returns.
pub fn one(
    engine: &str,
    options: &Options,
    repeat: u64,
    path: &Path,
) -> Result<(Ended, Vec<Record>)> {
    let part = part_of(path);
    let ended = child::run(engine, options, &part)?;
    let mut records = if part.exists() { record::read(&part)? } else { Vec::new() };
    if records.is_empty() {
        // The tables report it, and the run is not repeated.
        records.push(Record::none(engine, settings_of_none(options)));
    }
    for record in &mut records {
        record.settings["repeat"] = json!(repeat);
        record.settings["ended"] = json!(ended.describe());
    }
    record::append(path, &records)?;
    child::remove(&part)?;
    Ok((ended, records))
}

/// The record of a run without a result: options, place and time.
fn settings_of_none(options: &Options) -> Value {
    let mut settings = options.describe(options.records.unwrap_or(0));
    settings["machine"] = json!(process::machine());
    settings["started_unix_seconds"] = json!(clock::unix_seconds());
    settings
}

/// Where a child writes.
pub fn part_of(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    PathBuf::from(part)
}

/// Prints a line to standard error.
pub fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "chelonia-bench: {message}");
}
