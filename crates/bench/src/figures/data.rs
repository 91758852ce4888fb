//! The runs of a figure, their results in a file, and what every figure says of them.
//!
//! ```text
//!   for each run of the plan:
//!       this program again, as `compare` does it; results go to the end of OUT/NAME.jsonl
//!   then the points, from the file alone
//! ```

use crate::compare::child::Ended;
use crate::compare::summary::{Spread, repeat_of};
use crate::compare::tables::date;
use crate::compare::{self, say};
use crate::failure::{Failure, Result};
use crate::figures::drawing::axes::number;
use crate::options::Options;
use crate::record::{Record, SETTLED, phase_of};
use crate::workload::phases::Phase;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// One run of one store.
#[derive(Clone, PartialEq, Debug)]
pub struct Planned {
    /// The store.
    pub engine: String,
    /// The work.
    pub options: Options,
    /// Which of the repeats, from 1.
    pub repeat: u64,
}

impl Planned {
    /// For whoever waits for it.
    fn describe(&self) -> String {
        let mut text = format!(
            "{}, {} records, memory {}",
            self.engine,
            number(to_f64(self.options.records.unwrap_or(0))),
            size(self.options.memory)
        );
        if let [distance] = self.options.checkpoint_distance[..] {
            text += &format!(", checkpoint distance {}", size(distance));
        }
        let shape = self.options.shape;
        if let (Some(ratio), Some(percent)) = (shape.size_ratio, shape.scaling) {
            text += &format!(", T = {ratio}, c = {}", number(f64::from(percent) / 100.0));
        }
        if let Some(bits) = shape.filter_bits {
            text += &format!(", {bits} bits of filters per key");
        }
        if shape.filter.is_some() {
            text += &format!(", {} filters", shape.filters().1);
        }
        text
    }
}

/// How the runs ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ends {
    /// The number of runs that read a wrong value.
    pub wrong: u64,
    /// The number of runs that failed.
    pub failed: u64,
}

/// Fails with what is allowed before anything runs.
pub fn check(plan: &[Planned], path: &Path) -> Result<()> {
    for run in plan {
        run.options.check()?;
    }
    if path.exists() {
        return Err(Failure::usage(format!(
            "{} is there already: draw it again with --from, or give another --out",
            path.display()
        )));
    }
    Ok(())
}

/// Runs `plan`; the results are also in the file `path`.
pub fn gather(plan: &[Planned], path: &Path) -> Result<(Vec<Record>, Ends)> {
    let mut records = Vec::new();
    let mut ends = Ends::default();
    for (index, run) in plan.iter().enumerate() {
        say(&format!("{} of {}: {}", index + 1, plan.len(), run.describe()));
        let (ended, new) = compare::one(&run.engine, &run.options, run.repeat, path)?;
        records.extend(new);
        match ended {
            Ended::Done => {}
            Ended::Wrong => ends.wrong += 1,
            Ended::Failed(_) => ends.failed += 1,
        }
        if ended != Ended::Done {
            say(&format!("{}: {}", run.engine, ended.describe()));
        }
    }
    Ok((records, ends))
}

/// The points of a figure as a table: exactly the drawn data.
#[derive(Clone, PartialEq, Debug)]
pub struct Points {
    /// The names of the columns.
    pub header: &'static [&'static str],
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
}

impl Points {
    /// As comma-separated values.
    pub fn csv(&self) -> String {
        let cell = |cell: &str| match cell.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.to_owned(),
        };
        let mut text = self.header.join(",") + "\n";
        for row in &self.rows {
            text += &row.iter().map(|text| cell(text)).collect::<Vec<_>>().join(",");
            text.push('\n');
        }
        text
    }
}

/// The median, the least and the greatest, each a cell.
pub fn cells(spread: Spread) -> [String; 3] {
    [spread.median, spread.min, spread.max].map(cell)
}

/// A figure with as many digits as its reader may use.
pub fn cell(figure: f64) -> String {
    match figure.abs() {
        size if size >= 1000.0 => format!("{figure:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{figure:.3}"),
        _ => format!("{figure:.6}"),
    }
}

/// The stores, in the order of the results.
pub fn engines(records: &[Record]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for record in records {
        if !names.contains(&record.engine) {
            names.push(record.engine.clone());
        }
    }
    names
}

/// A number among the settings of a result.
pub fn setting(record: &Record, name: &str) -> Option<u64> {
    record.settings[name].as_u64()
}

/// The different values of a number among the settings, ascending.
pub fn settings(records: &[Record], name: &str) -> Vec<u64> {
    let values: BTreeSet<u64> = records.iter().filter_map(|one| setting(one, name)).collect();
    values.into_iter().collect()
}

/// The checkpoint distance of a run: as reported by the store, else as given, if it was the same in
/// all phases.
pub fn distance(record: &Record) -> Option<u64> {
    let asked = record.settings["checkpoint_distance_bytes"].as_array()?;
    let [asked] = asked.as_slice() else { return None };
    stated_distance(record).or_else(|| asked.as_u64())
}

/// The effective checkpoint distance, as reported by the store.
pub fn stated_distance(record: &Record) -> Option<u64> {
    let distance = record.settings["store"]["checkpoint_distance"].as_str()?;
    distance.strip_suffix(" bytes")?.parse().ok()
}

/// True if the cap ended the load.
pub fn is_capped(record: &Record) -> bool {
    record.settings["capped"] == Value::Bool(true)
}

/// The name of the load with its settle, which documents quote.
pub fn settled_load() -> String {
    settled(Phase::Load)
}

/// The name of a phase with its settle.
pub fn settled(phase: Phase) -> String {
    format!("{}{SETTLED}", phase.name())
}

/// The names of the phases whose speed is drawn, in the order of [`Phase::ALL`]: the load with its
/// settle, the others alone.
pub fn speeds(records: &[Record]) -> Vec<String> {
    let mut names: Vec<(Phase, String)> = Vec::new();
    for record in records {
        let Some(phase) = phase_of(&record.phase) else { continue };
        let is_settled = record.phase.ends_with(SETTLED);
        let entry = (phase, record.phase.clone());
        if is_settled == (phase == Phase::Load) && !names.contains(&entry) {
            names.push(entry);
        }
    }
    names.sort_by_key(|(phase, _)| *phase);
    names.into_iter().map(|(_, name)| name).collect()
}

/// The operations of a phase, in two or three words.
pub fn phase_words(name: &str) -> &'static str {
    match phase_of(name) {
        Some(Phase::Load) => "inserts",
        Some(Phase::A) => "50% updates",
        Some(Phase::B) => "5% updates",
        Some(Phase::C) => "gets",
        Some(Phase::F) => "50% rmw",
        Some(Phase::D) => "gets of latest",
        Some(Phase::Cu) => "uniform gets",
        Some(Phase::Cm) => "absent keys",
        Some(Phase::E) => "scans",
        Some(Phase::Q) => "queues",
        Some(Phase::M) => "64 at once",
        Some(Phase::O) => "overwrites",
        Some(Phase::Scans(0)) => "scans of 1",
        Some(Phase::Scans(1)) => "scans of 10",
        Some(Phase::Scans(2)) => "scans of 100",
        Some(Phase::Scans(_)) => "long scans",
        None => "",
    }
}

/// The first result of a run that came to any.
fn first(records: &[Record]) -> Option<&Record> {
    records.iter().find(|record| phase_of(&record.phase).is_some()).or(records.first())
}

/// The work in words, without what several runs do differently.
pub fn work(records: &[Record]) -> String {
    let Some(first) = first(records) else { return "No results.".to_owned() };
    let word = |name: &str| first.settings[name].as_str().unwrap_or("?").to_owned();
    let list = |name: &str, write: &dyn Fn(u64) -> String| {
        let values: Vec<String> = settings(records, name).into_iter().map(write).collect();
        match values.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => "?".to_owned(),
        }
    };
    let count = |value: u64| number(to_f64(value));
    let repeats = records.iter().map(repeat_of).max().unwrap_or(1);
    let repeats = match repeats {
        1 => "one run".to_owned(),
        count => format!("median of {count} runs, with least and greatest"),
    };
    format!(
        "{} records of {} + {} bytes, {} keys, memory {}, {} threads, durability {}; {repeats}.",
        list("records", &count),
        word("key_size"),
        word("value_size"),
        word("keys"),
        list("memory_bytes", &size),
        list("threads", &count),
        word("durability"),
    )
}

/// Notes for readers of the results: place, time, and stores whose settings differ.
pub fn notes(records: &[Record]) -> Vec<String> {
    let Some(first) = first(records) else { return Vec::new() };
    let started = setting(first, "started_unix_seconds").unwrap_or(0);
    let machine = first.settings["machine"].as_str().unwrap_or("unknown machine");
    let version = |engine: &String| {
        let mut own = records.iter().filter(|record| record.engine == *engine);
        let known = own.find(|record| !record.version.is_empty())?;
        Some(format!("{engine} {}", known.version))
    };
    let versions: Vec<String> = engines(records).iter().filter_map(version).collect();
    let mut notes = vec![format!("{}; {machine}; {}.", date(started), versions.join(", "))];
    // For each store the first reason that one of its results gives.
    let mut add = |what: &str, reason: &dyn Fn(&Record) -> Option<String>| {
        let note = |engine: &String| {
            let mut own = records.iter().filter(|record| record.engine == *engine);
            let reason = own.find_map(reason)?;
            Some(if reason.is_empty() { engine.clone() } else { format!("{engine} ({reason})") })
        };
        let named: Vec<String> = engines(records).iter().filter_map(note).collect();
        if !named.is_empty() {
            notes.push(format!("{what}: {}.", named.join(", ")));
        }
    };
    add("No log, so one commit for many writes", &|one| {
        let count = setting(one, "commit_every").filter(|count| *count > 1)?;
        Some(number(to_f64(count)))
    });
    add("Memory not limited", &|one| {
        let limit = one.settings["memory_limit"].as_str()?;
        limit.contains("not limited").then(String::new)
    });
    add("The cap ended a load", &|one| {
        (one.phase == Phase::Load.name() && is_capped(one)).then(String::new)
    });
    add("Work was left when the time to settle was over", &|one| {
        (one.settings["settled"] == Value::Bool(false)).then(|| one.phase.clone())
    });
    add("Ended early", &|one| {
        let ended = one.settings["ended"].as_str()?;
        (ended != Ended::Done.describe()).then(|| ended.to_owned())
    });
    notes
}

/// A number of bytes with a decimal unit: `1.3 MB`.
pub fn size(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{} {name}", number(to_f64(bytes) / to_f64(unit))),
        None => format!("{bytes} bytes"),
    }
}

/// Millions of bytes.
pub fn megabytes(bytes: u64) -> f64 {
    to_f64(bytes) / 1e6
}

/// For arithmetic with other figures.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::figures::options::tests::figure;
    use crate::record::tests::sample;
    use serde_json::json;
    use std::slice::from_ref;

    /// A result of a run of `engine` with the settings that every result has.
    pub fn result(engine: &str, phase: &str, kops: f64) -> Record {
        let mut record = sample(engine, phase, kops);
        let options = figure(&["ycsb", "--records", "1000"]).planned(engine, 1 << 25, vec![], 1);
        record.settings = options.options.describe(1000);
        for (name, value) in [
            ("repeat", json!(1)),
            ("ended", json!("done")),
            ("capped", json!(false)),
            ("commit_every", json!(1)),
            ("memory_limit", json!("by the store")),
            ("driver_bytes", json!(2_000_000)),
            ("machine", json!("2 x <processor> & more, 24 GiB, Linux 6")),
            ("started_unix_seconds", json!(1_795_132_800)),
            ("store", json!({"log": "mapped"})),
        ] {
            record.settings[name] = value;
        }
        record
    }

    #[test]
    fn results_are_not_mixed_with_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ycsb.jsonl");
        let run = figure(&["ycsb", "--records", "1000"]).planned("turtle", 1 << 25, vec![], 1);
        check(from_ref(&run), &path).unwrap();
        crate::record::append(&path, &[result("turtle", "load", 1.0)]).unwrap();
        assert!(check(from_ref(&run), &path).unwrap_err().to_string().contains("--from"));
    }

    #[test]
    fn distances_are_those_that_the_store_reports() {
        let mut record = result("turtle", "load", 1.0);
        assert_eq!(distance(&record), None);
        record.settings["checkpoint_distance_bytes"] = json!([64]);
        assert_eq!(distance(&record), Some(64));
        record.settings["store"]["checkpoint_distance"] = json!("32 bytes");
        assert_eq!(distance(&record), Some(32));
    }

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let points = Points { header: &["a", "b"], rows: vec![vec!["1".into(), "x,\"y\"".into()]] };
        assert_eq!(points.csv(), "a,b\n1,\"x,\"\"y\"\"\"\n");
        assert_eq!([0.0, 1.5, 0.25, 12345.67].map(cell), ["0.000", "1.500", "0.250000", "12345.7"]);
    }

    #[test]
    fn a_run_that_came_to_no_phase_is_noted_and_has_none() {
        let mut none = Record::none("lmdb", result("lmdb", "load", 0.0).settings);
        none.settings["ended"] = json!("killed");
        let loaded = result("turtle", "load+settle", 1.0);
        let records = [none, loaded, result("turtle", "c", 1.0), result("turtle", "a", 1.0)];
        assert_eq!(speeds(&records), ["load+settle", "a", "c"]);
        assert_eq!(engines(&records), ["lmdb", "turtle"]);
        let notes = notes(&records);
        assert!(notes[0].ends_with("; turtle 1.2."), "{notes:?}");
        assert_eq!(notes[1..], ["Ended early: lmdb (killed)."]);
        assert_eq!([phase_words("a#2+settle"), phase_words("none")], ["50% updates", ""]);
    }

    #[test]
    fn different_settings_are_noted() {
        let mut records = vec![result("turtle", "load", 1.0), result("lmdb", "load", 1.0)];
        assert_eq!(notes(&records).len(), 1);
        records[1].settings["commit_every"] = json!(1000);
        records[1].settings["memory_limit"] = json!("memory not limited (no root)");
        records[1].settings["capped"] = json!(true);
        records[1].settings["settled"] = json!(false);
        records[1].settings["ended"] = json!("killed");
        let notes = notes(&records);
        let expected = [
            "No log, so one commit for many writes: lmdb (1,000).",
            "Memory not limited: lmdb.",
            "The cap ended a load: lmdb.",
            "Work was left when the time to settle was over: lmdb (load).",
            "Ended early: lmdb (killed).",
        ];
        assert_eq!(notes[1..], expected);
        assert!(work(&records).starts_with("1,000 records of 8 + 120 bytes"));
        assert_eq!([999, 1500, 33_554_432].map(size), ["999 bytes", "1.5 kB", "33.6 MB"]);
    }
}
