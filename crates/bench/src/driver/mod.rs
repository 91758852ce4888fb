//! One run: one store, its phases one after another on one database, a record for each.
//!
//! ```text
//!   open -> load -> settle -> a: warm up, operations, settle -> ... -> close
//!              |        |
//!              record   record of both together
//! ```
//!
//! Phases that write are reported twice: alone, and as `a+settle` together with the time until all
//! work that they left behind is done. Bytes, processor time and memory are those of the process.

pub mod clock;
pub mod latency;
pub mod sampler;
pub mod team;
pub mod versions;
pub mod worker;

#[cfg(test)]
mod tests;

use crate::cgroup;
use crate::drive::{self, Totals};
use crate::failure::{Failure, Result};
use crate::options::Options;
use crate::process::{self, Memory, Usage};
use crate::record::{Record, SETTLED};
use crate::stores::{Counters, Facts, Kind, Settled, Store, StoreOptions};
use crate::workload::keys::Keys;
use crate::workload::phases::Phase;
use crate::workload::random::mix;
use crate::workload::stream::Workload;
use crate::workload::values::Values;
use indicatif::{ProgressBar, ProgressStyle};
use sampler::Sampler;
use serde_json::{Map, Value, json};
use std::fs::{File, TryLockError};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use team::{Job, Outcome};
use versions::Versions;
use worker::Shared;

/// The records of a run whose keys come from no file.
const RECORDS_DEFAULT: u64 = 20_000_000;

/// One in so many operations of `d` is an insert, at the least: half as many are expected.
const INSERTS_SHARE: u64 = 10;

/// More of them for each thread, so that small runs have room for chance.
const INSERTS_SLACK: u64 = 1000;

/// Details that a settle does not change.
const OF_PHASE_ALONE: [&str; 4] =
    ["kops_by_second", "rss_bytes_by_second", "latency_us_distribution", "latency_us_mean"];

/// A run.
struct Run<'a> {
    options: &'a Options,
    kind: Kind,
    path: PathBuf,
    shared: Shared,
    store: Box<dyn Store>,
    facts: Facts,
    memory_limit: String,
    is_quiet: bool,
    started: u64,
    /// Looks at memory over time, if that was asked for.
    sampler: Option<Sampler>,
    /// The report of the simulated drive that the database is on.
    drive: Option<PathBuf>,
}

/// Figures at one moment; differences of two are what a phase took.
#[derive(Clone)]
struct Moment {
    usage: Usage,
    counters: Counters,
    drive: Option<Totals>,
}

/// Runs all phases on a new database of `kind`; `report` gets each result as soon as there is one.
pub fn run(
    options: &Options,
    kind: Kind,
    is_quiet: bool,
    report: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<()> {
    options.check()?;
    kind.check_built()?;
    options.shape.check_for(kind.name)?;
    let shared = plan(options)?;
    let _lock = lock(&options.common.dir)?;
    let path = make_directory(&options.common.dir, kind.name)?;
    let limit = cgroup::enter(kind.uses_page_cache, options.memory, shared.memory_bytes());
    let result = open(options, kind, shared, &path, limit.describe(), is_quiet)
        .and_then(|run| run.all(report));
    drop(limit);
    if !options.keep {
        remove_directory(&path)?;
    }
    result
}

/// The records, and what is known of them.
fn plan(options: &Options) -> Result<Shared> {
    // The file of keys is read before the number of records is known.
    let keys = Keys::new(&options.common.keys, options.common.key_size, 1)?;
    let records = match (options.records, keys.file_records()) {
        (None, None) => RECORDS_DEFAULT,
        (None, Some(lines)) => lines,
        (Some(records), Some(lines)) if records > lines => {
            let message = format!("--records: the file of keys has {lines}");
            return Err(Failure::usage(message));
        }
        (Some(records), _) => records,
    };
    if records < options.common.threads {
        return Err(Failure::usage("--records: at least one for each thread"));
    }
    let inserting = options.phases.iter().filter(|phase| **phase == Phase::D).count();
    let inserting = u64::try_from(inserting).unwrap_or(0);
    let operations = options.ops + options.warmup_of(Phase::D, records);
    let slack = INSERTS_SLACK * options.common.threads;
    let capacity =
        records + inserting * (operations / INSERTS_SHARE + slack) + options.common.threads;
    let keys = keys.with_capacity(capacity);
    let small = |number: u64| {
        usize::try_from(number).map_err(|_| Failure::usage("--records: too many for this machine"))
    };
    let (states, threads) = (small(capacity)?, small(options.common.threads)?);
    let mut last_key = Vec::new();
    let mut key = Vec::new();
    for record in 0..records {
        keys.write(record, &mut key);
        if key > last_key {
            std::mem::swap(&mut key, &mut last_key);
        }
    }
    let values = Values::filled(options.common.value_size, &options.common.values)?;
    if capacity > values.records_end() {
        return Err(Failure::usage(format!(
            "--value-size: with values of less than 16 bytes at most {} records",
            values.records_end()
        )));
    }
    Ok(Shared {
        values,
        versions: Versions::new(states, threads),
        records,
        capacity,
        inserted: (0..options.common.threads).map(|_| AtomicU64::new(0)).collect(),
        last_key,
        keys,
    })
}

/// Locks `base` against other runs until this is dropped: they would disturb this one, and one of
/// the same store would remove its database.
fn lock(base: &Path) -> Result<File> {
    let failed = |error| Failure::failed(format!("use the directory {}", base.display()), error);
    std::fs::create_dir_all(base).map_err(failed)?;
    let lock = File::open(base).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::Error(error)) => Err(failed(error)),
        Err(TryLockError::WouldBlock) => Err(Failure::usage(format!(
            "another run works in {}: wait for its end, or give another --dir",
            base.display()
        ))),
    }
}

/// Removes the database of a run that failed before it, unless `--keep` is given.
pub fn clean_up(options: &Options, engine: &str) -> Result<()> {
    match options.keep {
        true => Ok(()),
        false => remove_directory(&directory_of(&options.common.dir, engine)),
    }
}

fn directory_of(base: &Path, engine: &str) -> PathBuf {
    base.join(format!("chelonia-bench-{engine}"))
}

/// An empty directory for the database; files of an earlier run are removed.
fn make_directory(base: &Path, engine: &str) -> Result<PathBuf> {
    let path = directory_of(base, engine);
    remove_directory(&path)?;
    let what = || format!("make the directory {}", path.display());
    std::fs::create_dir_all(&path).map_err(|error| Failure::failed(what(), error))?;
    Ok(path)
}

fn remove_directory(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::failed(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

fn open<'a>(
    options: &'a Options,
    kind: Kind,
    shared: Shared,
    path: &Path,
    memory_limit: String,
    is_quiet: bool,
) -> Result<Run<'a>> {
    let store_options = StoreOptions {
        path: path.to_path_buf(),
        engine: kind.name.to_owned(),
        memory: options.memory,
        checkpoint_distance: options.checkpoint_distance_of(0),
        shape: options.shape,
        durability: options.common.durability,
        threads: options.common.threads,
        live_bytes: live_bytes(&shared, shared.records),
        key_bytes_max: shared.keys.bytes_max(),
        value_bytes_max: options.common.value_size.max,
    };
    let store = kind.open(&store_options).map_err(|failure| name_store(kind, failure))?;
    let facts = store.facts();
    let started = clock::unix_seconds();
    let path = path.to_path_buf();
    let sampler = options.detail.then(Sampler::start).transpose()?;
    let drive = drive::report_for(&path);
    Ok(Run {
        options,
        kind,
        path,
        shared,
        store,
        facts,
        memory_limit,
        is_quiet,
        started,
        sampler,
        drive,
    })
}

/// Says which store failed.
fn name_store(kind: Kind, failure: Failure) -> Failure {
    match failure {
        Failure::Wrong(message) => Failure::Wrong(format!("{}: {message}", kind.name)),
        Failure::Failed(message) => Failure::Failed(format!("{}: {message}", kind.name)),
        other => other,
    }
}

/// The bytes of `records` keys and values.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a mean times a count is a count"
)]
fn live_bytes(shared: &Shared, records: u64) -> u64 {
    ((shared.keys.mean_bytes() + shared.values.mean_bytes()) * records as f64) as u64
}

impl Run<'_> {
    fn all(self, report: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        for (index, phase) in self.options.phases.iter().enumerate() {
            let capped = self
                .phase(index, *phase, report)
                .map_err(|failure| name_phase(*phase, name_store(self.kind, failure)))?;
            if capped && *phase == Phase::Load {
                // The other phases need all records.
                break;
            }
        }
        self.store.close().map_err(|failure| name_store(self.kind, failure))
    }

    /// Runs one phase; true if the cap ended it.
    fn phase(
        &self,
        index: usize,
        phase: Phase,
        report: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<bool> {
        if let Some(bytes) = self.options.checkpoint_distance_of(index) {
            self.store.set_checkpoint_distance(bytes)?;
        }
        let seed = mix(self.options.common.seed ^ u64::try_from(index).unwrap_or(0) << 32);
        let workload = Workload::new(phase, self.shared.records, self.options.common.threads, seed);
        let operations = self.options.operations(phase, self.shared.records);
        let mut job = Job {
            phase,
            workload,
            operations,
            warm_up: false,
            cap: self.options.cap(),
            rate: self.options.rate,
            commit_every: self.facts.commit_every,
        };
        let warmup = self.options.warmup_of(phase, self.shared.records);
        if warmup > 0 {
            let warming = Job { operations: warmup, warm_up: true, rate: None, ..job.clone() };
            self.team(&warming)?;
        }
        job.rate = job.rate.filter(|_| phase != Phase::Load);
        let peak_is_of_phase = process::reset_peak();
        let start = self.moment()?;
        let outcome = self.team(&job)?;
        let name = self.name_of(index);
        let mut record = self.record(&name, &start, &outcome)?;
        record.settings["peak_is_of_phase"] = json!(peak_is_of_phase);
        report(record.clone())?;
        if phase.writes() {
            report(self.settle(&name, &start, &outcome, &record)?)?;
        }
        Ok(outcome.capped)
    }

    /// Waits for the background work of `phase`, and reports both together.
    fn settle(
        &self,
        phase: &str,
        start: &Moment,
        outcome: &Outcome,
        alone: &Record,
    ) -> Result<Record> {
        let name = format!("{phase}{SETTLED}");
        let bar = self.bar(0, &name);
        let began = clock::now();
        let settled = self.store.settle(Duration::from_secs(self.options.common.settle_cap))?;
        let time = clock::since(began);
        bar.finish_and_clear();
        let mut record = self.record(&name, start, outcome)?;
        let seconds = outcome.time + time;
        record.seconds = seconds.as_secs_f64();
        record.kops = team::kops(outcome.tally.operations, seconds);
        record.kops_worst_second = alone.kops_worst_second;
        if let Some(detail) = record.detail.as_mut().and_then(Value::as_object_mut) {
            // These are in the record of the phase alone.
            detail.retain(|name, _| !OF_PHASE_ALONE.contains(&name.as_str()));
        }
        record.settings["settled"] = json!(settled == Settled::Done);
        record.settings["settle_seconds"] = json!(time.as_secs_f64());
        Ok(record)
    }

    /// The name in results of the phase with this place in the list: one that runs again is `a#2`.
    fn name_of(&self, index: usize) -> String {
        let phases = &self.options.phases;
        let phase = phases[index];
        match phases[..index].iter().filter(|earlier| **earlier == phase).count() {
            0 => phase.name().to_owned(),
            before => format!("{}#{}", phase.name(), before + 1),
        }
    }

    fn moment(&self) -> Result<Moment> {
        let drive = self.drive.as_deref().map(|report| drive::totals(report, &self.path));
        let drive = drive.transpose()?;
        Ok(Moment { usage: Usage::now()?, counters: self.store.counters()?, drive })
    }

    fn team(&self, job: &Job) -> Result<Outcome> {
        let warming = if job.warm_up { " (warm-up)" } else { "" };
        let bar = self.bar(job.operations, &format!("{}{warming}", job.phase.name()));
        let outcome = team::run(self.store.as_ref(), &self.shared, job, &bar);
        bar.finish_and_clear();
        outcome
    }

    fn bar(&self, length: u64, text: &str) -> ProgressBar {
        if self.is_quiet {
            return ProgressBar::hidden();
        }
        let template = "{prefix} {msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}";
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(length)
            .with_style(style)
            .with_prefix(self.kind.name)
            .with_message(text.to_owned())
    }

    fn record(&self, phase: &str, start: &Moment, outcome: &Outcome) -> Result<Record> {
        let now = self.moment()?;
        let used = now.usage.since(start.usage);
        let memory = Memory::now()?;
        let tally = &outcome.tally;
        let kops = team::kops(tally.operations, outcome.time);
        let worst = outcome.seconds.iter().map(|second| second.kops).reduce(f64::min);
        let inserted = self.shared.inserted.iter().map(|count| count.load(Ordering::Acquire));
        Ok(Record {
            engine: self.kind.name.to_owned(),
            version: self.facts.version.clone(),
            phase: phase.to_owned(),
            ops: tally.operations,
            seconds: outcome.time.as_secs_f64(),
            kops,
            kops_worst_second: worst.unwrap_or(kops),
            cpu_user: used.cpu_user,
            cpu_sys: used.cpu_sys,
            read_bytes: used.read_bytes,
            write_bytes: used.write_bytes,
            log_bytes: difference(now.counters.log_bytes, start.counters.log_bytes),
            write_amplification: ratio(used.write_bytes, tally.user_bytes),
            rss_bytes: memory.rss_bytes,
            rss_peak_bytes: memory.rss_peak_bytes,
            disk_bytes: process::disk_bytes(&self.path)?,
            log_disk_bytes: now.counters.log_disk_bytes,
            levels: now.counters.levels,
            delayed_seconds: now
                .counters
                .delayed
                .zip(start.counters.delayed)
                .map(|(now, start)| now.saturating_sub(start).as_secs_f64()),
            live_bytes: live_bytes(&self.shared, inserted.sum()),
            latency_us: tally.latencies.percentiles(),
            drive: now.drive.zip(start.drive).map(|(now, start)| now.since(start)),
            settings: self.settings(outcome),
            detail: self.sampler.as_ref().map(|sampler| {
                let mut detail = detail(outcome, used, &start.counters, &now.counters);
                detail["rss_bytes_over_time"] = json!(sampler.take());
                detail
            }),
        })
    }

    /// The options of the run, and the settings of the store.
    fn settings(&self, outcome: &Outcome) -> Value {
        let mut settings = self.options.describe(self.shared.records);
        let facts = self.store.facts();
        let store: Map<String, Value> = facts
            .settings
            .into_iter()
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect();
        settings["store"] = Value::Object(store);
        settings["commit_every"] = json!(facts.commit_every);
        settings["memory_limit"] = json!(self.memory_limit);
        settings["capped"] = json!(outcome.capped);
        settings["user_bytes"] = json!(outcome.tally.user_bytes);
        settings["driver_bytes"] = json!(self.shared.memory_bytes());
        settings["machine"] = json!(process::machine());
        settings["started_unix_seconds"] = json!(self.started);
        settings
    }
}

/// The details that are reported on request.
fn detail(outcome: &Outcome, used: Usage, before: &Counters, now: &Counters) -> Value {
    let kops: Vec<f64> = outcome.seconds.iter().map(|second| second.kops).collect();
    let rss: Vec<u64> = outcome.seconds.iter().map(|second| second.rss_bytes).collect();
    let mut distributions = Map::new();
    for (kind, steps) in outcome.tally.latencies.distributions() {
        distributions.insert(kind.name().to_owned(), json!(steps));
    }
    let means = outcome.tally.latencies.means().into_iter();
    let means: Map<String, Value> =
        means.map(|(kind, mean)| (kind.name().to_owned(), json!(mean))).collect();
    // An event has one place in both lists.
    let before_each = before.events.iter().map(|(_, count)| *count).chain(iter::repeat(0));
    let events = now.events.iter().zip(before_each);
    let events: Map<String, Value> = events
        .map(|((name, now), before)| ((*name).to_owned(), json!(now.saturating_sub(before))))
        .collect();
    json!({
        "kops_by_second": kops,
        "rss_bytes_by_second": rss,
        "latency_us_distribution": distributions,
        "latency_us_mean": means,
        "cancelled_write_bytes": used.cancelled_bytes,
        "data_bytes_written_by_store": difference(now.data_bytes, before.data_bytes),
        "engine_events": events,
    })
}

/// The difference of a counter.
fn difference(now: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(before?))
}

/// Adds the phase to an error.
fn name_phase(phase: Phase, failure: Failure) -> Failure {
    match failure {
        Failure::Wrong(message) => Failure::Wrong(format!("phase {}: {message}", phase.name())),
        Failure::Failed(message) => Failure::Failed(format!("phase {}: {message}", phase.name())),
        other => other,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn ratio(bytes: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| bytes as f64 / of as f64)
}
