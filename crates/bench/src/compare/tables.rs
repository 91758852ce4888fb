//! The tables of a comparison, for a terminal and for a page.
//!
//! A cell is the median over the repeats, with the least and the greatest if there are several. A
//! dash means no result: a phase after a load that reached the cap, or after the end of a store.

use crate::compare::on_drive;
use crate::compare::summary::{self, Spread};
use crate::driver::latency::Kind;
use crate::record::{NONE, Record, SETTLED, phase_of};
use crate::table::{Table, megabytes, short};
use crate::workload::phases::Phase;
use serde_json::Value;
use std::fmt::Write;

/// The cell for no result.
const NOTHING: &str = "\u{2013}";

const SECONDS_PER_DAY: u64 = 86_400;

/// Facts in words, then tables with titles.
pub struct Report {
    facts: Vec<String>,
    tables: Vec<(String, Table)>,
}

impl Report {
    /// Of the stores `engines`, each divided by `baseline`.
    pub fn new(records: &[Record], engines: &[String], baseline: &str) -> Self {
        let view = View { records, engines, phases: phases(records) };
        let mut tables = vec![
            ("Throughput, thousands of operations a second".to_owned(), view.throughput()),
            (format!("Times as fast as {baseline}"), view.ratios(baseline)),
            ("Worst second, thousands of operations a second".to_owned(), view.worst_seconds()),
        ];
        tables.extend(view.settles());
        tables.extend([
            ("Microseconds of processors for an operation".to_owned(), view.processors()),
            ("Bytes read for an operation".to_owned(), view.reads()),
            ("Resident memory at most, MB".to_owned(), view.memory()),
            ("Latency in microseconds, p50 / p99 / p99.9 / max".to_owned(), view.latencies()),
        ]);
        tables.extend(on_drive::table(records).map(|table| (on_drive::TITLE.to_owned(), table)));
        Self { facts: facts(records, engines), tables }
    }

    /// The workload, the machine and the stores.
    pub fn facts(&self) -> &[String] {
        &self.facts
    }

    /// The tables, each with its title.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.tables.iter().map(|(title, table)| (title.as_str(), table))
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = self.facts.join("\n");
        for (title, table) in &self.tables {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n\n{title}\n{}", table.text().trim_end());
        }
        text + "\n"
    }

    /// For a page.
    pub fn markdown(&self) -> String {
        let mut text: String = self.facts.iter().map(|fact| format!("- {fact}\n")).collect();
        for (title, table) in &self.tables {
            let _ = write!(text, "\n### {title}\n\n{}", table.markdown());
        }
        text
    }
}

/// The workload, the machine and the settings.
fn facts(records: &[Record], engines: &[String]) -> Vec<String> {
    // One that did nothing may know less of what was asked.
    let first = records.iter().find(|record| record.phase != NONE).or(records.first());
    let Some(first) = first else { return vec!["No results.".to_owned()] };
    let setting = |name: &str| match &first.settings[name] {
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    };
    let started = first.settings["started_unix_seconds"].as_u64().unwrap_or(0);
    let repeats = records.iter().map(summary::repeat_of).max().unwrap_or(1);
    let mut facts = vec![
        format!("{}; {}; {repeats} repeats", date(started), setting("machine")),
        format!(
            "{} records, keys {} of {} bytes, values of {} bytes, {} operations a phase ({} with \
             scans), {} before zipfian phases, {} threads, memory {} bytes, durability {}",
            setting("records"),
            setting("keys"),
            setting("key_size"),
            setting("value_size"),
            setting("ops"),
            setting("scan_ops"),
            setting("warmup"),
            setting("threads"),
            setting("memory_bytes"),
            setting("durability"),
        ),
    ];
    facts.extend(engines.iter().map(|engine| about(records, engine)));
    facts
}

/// A store, its settings, and how its runs ended if not well.
pub fn about(records: &[Record], engine: &str) -> String {
    let own = || records.iter().filter(|record| record.engine == engine);
    let Some(record) = own().next() else { return format!("{engine}: no results") };
    let settings = record.settings["store"].as_object().into_iter().flatten();
    let settings: Vec<String> = settings
        .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or_default()))
        .collect();
    let mut text = format!("{engine} {}: {}", record.version, settings.join(", "));
    if record.phase == NONE {
        text = format!("{engine}: not a phase was done");
    }
    let limit = record.settings["memory_limit"].as_str().unwrap_or("by the store");
    if limit != "by the store" {
        let _ = write!(text, "; {limit}");
    }
    if let Some(count @ 2..) = record.settings["commit_every"].as_u64() {
        let _ = write!(text, "; no log, one commit for {count} writes of a thread");
    }
    if let Some(load) = own().find(|record| is_capped(record, Phase::Load)) {
        let _ = write!(text, "; the cap ended its load after {} records", load.ops);
    }
    if let Some(writes) = own().find(|record| is_capped(record, Phase::O)) {
        let _ = write!(text, "; the cap ended its overwrites after {} of them", writes.ops);
    }
    if let Some(ended) = bad_end(records, engine) {
        let _ = write!(text, "; {ended}");
    }
    let unsettled = own().find(|record| record.settings["settled"] == Value::Bool(false));
    if let Some(record) = unsettled {
        let _ = write!(text, "; not settled after its time: {}", record.phase);
    }
    text
}

/// How a run of `engine` ended, if one did not end well.
fn bad_end<'a>(records: &'a [Record], engine: &str) -> Option<&'a str> {
    let own = records.iter().filter(|record| record.engine == engine);
    let mut ends = own.filter_map(|record| record.settings["ended"].as_str());
    ends.find(|ended| *ended != "done")
}

/// True if the result is of `phase` without its settle, and the cap ended it.
fn is_capped(record: &Record, phase: Phase) -> bool {
    let is_alone = !record.phase.ends_with(SETTLED);
    is_alone && phase_of(&record.phase) == Some(phase) && record.settings["capped"] == true
}

/// The names of all phases that any store has, in the order in which they ran. One that has none
/// failed in its load.
fn phases(records: &[Record]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let longest = |engine: &str| summary_length(records, engine);
    let widest = records.iter().max_by_key(|record| longest(&record.engine));
    let order = widest.map(|record| record.engine.clone()).unwrap_or_default();
    let (first, rest): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| record.engine == order);
    for record in first.into_iter().chain(rest) {
        let name = if record.phase == NONE { Phase::Load.name() } else { &record.phase };
        if !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn summary_length(records: &[Record], engine: &str) -> usize {
    records.iter().filter(|record| record.engine == engine).count()
}

/// The results and what the rows and columns are.
struct View<'a> {
    records: &'a [Record],
    engines: &'a [String],
    phases: Vec<String>,
}

impl View<'_> {
    /// A row for each store, a column for each of `phases`.
    fn table(&self, phases: &[&str], cell: impl Fn(&str, &str) -> String) -> Table {
        let mut table = Table::new(["store"].iter().chain(phases).copied());
        for engine in self.engines {
            let cells = phases.iter().map(|phase| cell(engine, phase));
            table.row(std::iter::once(engine.clone()).chain(cells));
        }
        table
    }

    /// The phases alone; of the load also with its settle, which is what we quote.
    fn speeds(&self) -> Vec<&str> {
        let quoted = format!("{}{SETTLED}", Phase::Load.name());
        let names = self.phases.iter().map(String::as_str);
        names.filter(|name| *name == quoted || !name.ends_with(SETTLED)).collect()
    }

    fn figures(&self, phases: &[&str], of: impl Fn(&Record) -> Option<f64>) -> Table {
        self.table(phases, |engine, phase| cell(summary::figure(self.records, engine, phase, &of)))
    }

    /// Where a store ended badly, the first phase that it did not do says how.
    fn throughput(&self) -> Table {
        let phases = self.speeds();
        self.table(&phases, |engine, phase| {
            let speed = summary::figure(self.records, engine, phase, |record| Some(record.kops));
            let mut own = summary::of_phase(self.records, engine, phase);
            match (own.find(|record| is_capped(record, Phase::Load)), bad_end(self.records, engine))
            {
                (Some(record), _) => format!("{} (N' = {})", cell(speed), record.ops),
                (None, Some(ended)) if self.first_missing(&phases, engine) == Some(phase) => {
                    ended.to_owned()
                }
                _ => cell(speed),
            }
        })
    }

    /// The first of `phases` that `engine` has no result of.
    fn first_missing<'a>(&self, phases: &[&'a str], engine: &str) -> Option<&'a str> {
        let is_there = |phase| summary::of_phase(self.records, engine, phase).next().is_some();
        phases.iter().copied().find(|phase| !is_there(phase))
    }

    fn ratios(&self, baseline: &str) -> Table {
        self.table(&self.speeds(), |engine, phase| {
            cell(summary::ratio(self.records, engine, baseline, phase))
        })
    }

    fn worst_seconds(&self) -> Table {
        let phases: Vec<&str> =
            self.speeds().into_iter().filter(|name| !name.ends_with(SETTLED)).collect();
        self.figures(&phases, |record| Some(record.kops_worst_second))
    }

    fn processors(&self) -> Table {
        self.figures(&self.speeds(), |record| Some(record.cpu_us_per_op()))
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn reads(&self) -> Table {
        self.figures(&self.speeds(), |record| {
            Some(record.read_bytes as f64 / record.ops.max(1) as f64)
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn memory(&self) -> Table {
        self.figures(&self.speeds(), |record| Some(record.rss_peak_bytes as f64 / 1e6))
    }

    /// Bytes written and left by the load, and by overwrites if there are any, each with a title.
    fn settles(&self) -> Vec<(String, Table)> {
        let mut tables = vec![("Load and its settle".to_owned(), self.settle(Phase::Load.name()))];
        for name in self.phases.iter().filter_map(|name| name.strip_suffix(SETTLED)) {
            if phase_of(name) == Some(Phase::O) {
                tables.push((format!("Overwrites ({name}) and their settle"), self.settle(name)));
            }
        }
        tables
    }

    /// A row for each store: `phase` with its settle.
    fn settle(&self, phase: &str) -> Table {
        let mut table = Table::new([
            "store",
            "settle seconds",
            "held back s",
            "levels",
            "written MB",
            "write amplification",
            "of it log",
            "read MB",
            "disk / live",
            "log apart",
        ]);
        let phase = format!("{phase}{SETTLED}");
        for engine in self.engines {
            let figure = |of: &dyn Fn(&Record) -> Option<f64>| {
                cell(summary::figure(self.records, engine, &phase, of))
            };
            let own = || summary::of_phase(self.records, engine, &phase).next();
            let bytes = |of: fn(&Record) -> u64| {
                own().map_or(NOTHING.to_owned(), |record| megabytes(of(record)))
            };
            table.row([
                engine.clone(),
                figure(&|record| record.settings["settle_seconds"].as_f64()),
                figure(&|record| record.delayed_seconds),
                own().and_then(|one| one.levels).map_or(NOTHING.to_owned(), |it| it.to_string()),
                bytes(|record| record.write_bytes),
                figure(&|record| record.write_amplification),
                figure(&log_amplification),
                bytes(|record| record.read_bytes),
                figure(&|record| Some(record.space_amplification())),
                figure(&Record::space_amplification_without_log),
            ]);
        }
        table
    }

    /// A row for each store, phase and kind of operation: there are too many for columns.
    fn latencies(&self) -> Table {
        let mut table = Table::new(["store", "phase", "operation", "p50", "p99", "p99.9", "max"]);
        for phase in self.phases.iter().filter(|name| !name.ends_with(SETTLED)) {
            for kind in Kind::ALL {
                for engine in self.engines {
                    let figure = |of: fn(&crate::driver::latency::Percentiles) -> f64| {
                        summary::figure(self.records, engine, phase, |record| {
                            record.latency_us.get(&kind).map(of)
                        })
                    };
                    let Some(p50) = figure(|times| times.p50) else { continue };
                    table.row([
                        engine.clone(),
                        phase.clone(),
                        kind.name().to_owned(),
                        short(p50.median),
                        median(figure(|times| times.p99)),
                        median(figure(|times| times.p999)),
                        median(figure(|times| times.max)),
                    ]);
                }
            }
        }
        table
    }
}

/// Bytes of the log for each byte of keys and values.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn log_amplification(record: &Record) -> Option<f64> {
    let user = record.settings["user_bytes"].as_u64().filter(|bytes| *bytes > 0)?;
    Some(record.log_bytes? as f64 / user as f64)
}

fn median(spread: Option<Spread>) -> String {
    spread.map_or(NOTHING.to_owned(), |spread| short(spread.median))
}

fn cell(spread: Option<Spread>) -> String {
    match spread {
        None => NOTHING.to_owned(),
        Some(spread) if short(spread.min) != short(spread.max) => {
            format!("{} ({}-{})", short(spread.median), short(spread.min), short(spread.max))
        }
        Some(spread) => short(spread.median),
    }
}

/// The day of a time, in UTC: `2026-11-20`.
pub fn date(unix_seconds: u64) -> String {
    let mut days = unix_seconds / SECONDS_PER_DAY;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;
    use serde_json::json;

    fn records() -> Vec<Record> {
        let mut records = Vec::new();
        for (repeat, factor) in [(1, 1.0), (2, 1.5)] {
            for (engine, phase, kops) in [
                ("ours", "load", 800.0),
                ("ours", "load+settle", 700.0),
                ("ours", "c", 90.0),
                ("other", "load", 100.0),
                ("other", "load+settle", 70.0),
            ] {
                let mut record = sample(engine, phase, kops * factor);
                record.settings = json!({
                    "repeat": repeat,
                    "capped": engine == "other",
                    "user_bytes": 100_000,
                    "ended": "done",
                    "commit_every": if engine == "other" { 1000 } else { 1 },
                });
                records.push(record);
            }
        }
        records
    }

    #[test]
    fn tables_contain_medians_ratios_and_dashes() {
        let engines = ["ours".to_owned(), "other".to_owned()];
        let text = Report::new(&records(), &engines, "other").text();
        let line = |start: &str, number: usize| {
            let mut lines = text.lines().filter(|line| line.starts_with(start));
            lines.nth(number).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("store", 0), "store load load+settle c");
        assert_eq!(line("ours ", 1), "ours 1000 (800-1200) 875 (700-1050) 112 (90.0-135)");
        let capped = "other 125 (100-150) (N' = 1000) 87.5 (70.0-105) \u{2013}";
        assert_eq!(line("other ", 1), capped);
        assert_eq!(line("ours ", 2), "ours 8.00 10.0 \u{2013}");
        assert_eq!(line("other ", 2), "other 1.00 1.00 \u{2013}");
        assert!(text.contains("one commit for 1000 writes"), "{text}");
        assert!(text.contains("the cap ended its load after 1000 records"), "{text}");
        let markdown = Report::new(&records(), &engines, "other").markdown();
        assert!(markdown.contains("| store | load | load+settle | c |\n| --- | ---: |"));
    }

    #[test]
    fn overwrites_have_a_table_if_there_are_any() {
        let mut records = records();
        let engines = ["ours".to_owned(), "other".to_owned()];
        let text = Report::new(&records, &engines, "ours").text();
        assert!(text.contains("log apart") && !text.contains("Overwrites"), "{text}");
        for (phase, disk_bytes) in [("o", 256_000), ("o+settle", 192_000)] {
            let mut record = sample("ours", phase, 500.0);
            record.settings = json!({"capped": true, "user_bytes": 128_000, "ended": "done"});
            record.disk_bytes = disk_bytes;
            records.push(record);
        }
        let report = Report::new(&records, &engines, "ours");
        let of = |title: &str| {
            let (_, table) = report.tables().find(|(name, _)| *name == title).unwrap();
            let last = |row: &Vec<String>| row[row.len() - 2..].join(" ");
            table.rows().iter().map(last).collect::<Vec<_>>()
        };
        assert_eq!(of("Load and its settle"), ["2.00 1.50", "2.00 1.50"]);
        assert_eq!(of("Overwrites (o) and their settle"), ["1.50 1.00", "\u{2013} \u{2013}"]);
        let message = "the cap ended its overwrites after 1000 of them";
        assert_eq!(report.facts().iter().filter(|fact| fact.contains(message)).count(), 1);
    }

    #[test]
    fn a_killed_store_has_the_reason_in_its_next_phase() {
        let mut records = records();
        let killed = "killed for memory beyond 950 bytes";
        for record in records.iter_mut().filter(|record| record.engine == "other") {
            record.settings["ended"] = killed.into();
            record.settings["capped"] = false.into();
        }
        records.push(Record::none("third", json!({"ended": killed, "repeat": 1})));
        let engines = ["ours", "other", "third"].map(str::to_owned);
        let text = Report::new(&records, &engines, "ours").text();
        let lines = |start: &str| -> Vec<String> {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            text.lines().filter(|line| line.starts_with(start)).map(words).collect()
        };
        assert_eq!(lines("store")[0], "store load load+settle c");
        assert!(lines("other")[1].ends_with(&format!(" 87.5 (70.0-105) {killed}")), "{text}");
        assert_eq!(lines("third")[0], format!("third: not a phase was done; {killed}"));
        assert_eq!(lines("third")[1], format!("third {killed} \u{2013} \u{2013}"));
        assert_eq!(lines("third")[2], "third \u{2013} \u{2013} \u{2013}");
        let alone = Report::new(&records[records.len() - 1..], &engines[2..], "third").text();
        assert!(alone.contains(&format!("third  {killed}")), "{alone}");
    }

    #[test]
    fn no_results_give_no_tables() {
        let text = Report::new(&[], &["ours".to_owned()], "ours").text();
        assert!(text.starts_with("No results."), "{text}");
    }

    #[test]
    fn dates_are_of_the_calendar() {
        let dates = [0, 951_782_400, 951_868_800, 1_735_689_599, 1_795_132_800].map(date);
        assert_eq!(dates, ["1970-01-01", "2000-02-29", "2000-03-01", "2024-12-31", "2026-11-20"]);
    }
}
