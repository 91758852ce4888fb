//! `run`: one store, its results as a table and as JSON Lines.

use crate::compare::on_drive;
use crate::driver;
use crate::driver::latency::Kind;
use crate::failure::{Failure, Result};
use crate::options::{Options, parse_engine};
use crate::record::{self, Record};
use crate::stores;
use crate::table::{Table, megabytes, short};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

/// `run`
#[derive(Args, Debug)]
pub struct Run {
    /// The store
    #[arg(long, value_name = "NAME", value_parser = parse_engine)]
    pub engine: String,
    /// The work.
    #[command(flatten)]
    pub options: Options,
    /// Add the results to this file, one JSON object a line, each as soon as its phase has ended
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// No table and no progress bar
    #[arg(long)]
    pub quiet: bool,
}

/// Runs it.
pub fn run(arguments: &Run) -> Result<()> {
    let kind = stores::find(&arguments.engine)
        .ok_or_else(|| Failure::usage(format!("there is no store {}", arguments.engine)))?;
    let mut records: Vec<Record> = Vec::new();
    let ended = driver::run(&arguments.options, kind, arguments.quiet, &mut |record| {
        if let Some(path) = &arguments.json {
            record::append(path, std::slice::from_ref(&record))?;
        }
        records.push(record);
        Ok(())
    });
    if !arguments.quiet {
        print(&records)?;
    }
    ended
}

fn print(records: &[Record]) -> Result<()> {
    let Some(first) = records.first() else { return Ok(()) };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {}", first.engine, first.version)?;
    for (name, value) in first.settings["store"].as_object().into_iter().flatten() {
        writeln!(out, "  {name}: {}", value.as_str().unwrap_or_default())?;
    }
    writeln!(out, "  memory limited: {}", first.settings["memory_limit"].as_str().unwrap_or("?"))?;
    if let Some(count @ 2..) = first.settings["commit_every"].as_u64() {
        writeln!(out, "  no log: one commit for {count} writes of a thread")?;
    }
    out.write_all(table(records).text().as_bytes())?;
    if let Some(table) = on_drive::table(records) {
        write!(out, "\n{}\n{}", on_drive::TITLE, table.text())?;
    }
    Ok(())
}

/// All phases of one store.
fn table(records: &[Record]) -> Table {
    let mut table = Table::new([
        "phase",
        "ops",
        "seconds",
        "kops",
        "worst s",
        "cpu us/op",
        "read MB",
        "written MB",
        "log MB",
        "WA",
        "rss MB",
        "peak MB",
        "disk/live",
        "log apart",
        "latency us: p50 / p99 / p99.9 / max",
    ])
    .ending_with_words();
    for record in records {
        let amplification = record.write_amplification.filter(|_| record.write_bytes > 0);
        table.row([
            record.phase.clone(),
            record.ops.to_string(),
            short(record.seconds),
            short(record.kops),
            short(record.kops_worst_second),
            short(record.cpu_us_per_op()),
            megabytes(record.read_bytes),
            megabytes(record.write_bytes),
            record.log_bytes.map_or("?".to_owned(), megabytes),
            amplification.map_or("-".to_owned(), short),
            megabytes(record.rss_bytes),
            megabytes(record.rss_peak_bytes),
            short(record.space_amplification()),
            record.space_amplification_without_log().map_or("?".to_owned(), short),
            latencies(record),
        ]);
    }
    table
}

fn latencies(record: &Record) -> String {
    let of = |kind: Kind| {
        let times = record.latency_us.get(&kind)?;
        let figures = [times.p50, times.p99, times.p999, times.max].map(short).join(" / ");
        Some(format!("{} {figures}", kind.name()))
    };
    Kind::ALL.into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
}
