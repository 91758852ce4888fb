//! The result of one phase: a JSON object on a line of its own.
//!
//! ```text
//!   engine, version, phase                 strings; a phase and its settle are called `a+settle`
//!   ops, seconds, kops, kops_worst_second  in `m` an operation is a record that was read
//!   cpu_user, cpu_sys                      seconds of the process, the driver's included
//!   read_bytes, write_bytes                the kernel's accounting of the process, log included
//!   log_bytes                              what the store itself counts of its log, or null
//!   write_amplification                    write_bytes / bytes of keys and values, or null
//!   rss_bytes, rss_peak_bytes              at the end of the phase, and the most within it
//!   disk_bytes, live_bytes                 files of the database; records x (key + value)
//!   log_disk_bytes                         of disk_bytes those of the log, as the store counts, or
//!                                          null
//!   levels                                 that the store has now, or null
//!   delayed_seconds                        for which it held writes back, all threads together
//!                                          and as it counts, or null
//!   latency_us                             kind of operation -> p50, p99, p999, max
//!   settings                               the options; under `store` the settings of the store
//!   drive                                  what a simulated drive wrote in the phase and stores,
//!                                          if the database is on one (`drive/device.rs`)
//!   detail                                 on request: seconds, distributions, means, cancelled
//!                                          writes, memory since the last result,
//!                                          events of the store
//! ```
//!
//! A phase shorter than a second has its own rate as its worst second. If a run of a comparison
//! ends before its first phase does, it has one result: the phase `none`, with zeros, and in the
//! settings how it `ended`.

use crate::drive::Totals;
use crate::driver::latency::{Kind, Percentiles};
use crate::failure::{Failure, Result};
use crate::workload::phases::Phase;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The suffix of a phase with its settle.
pub const SETTLED: &str = "+settle";

/// The phase of a run that finished none.
pub const NONE: &str = "none";

/// The phase of a name in results: `a`, `a#2` and `a+settle` are all `a`. `None` for a run that
/// finished no phase.
pub fn phase_of(name: &str) -> Option<Phase> {
    Phase::from_name(name.trim_end_matches(SETTLED).split('#').next()?)
}

/// The result of one phase.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Record {
    /// The store.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// The phase.
    pub phase: String,
    /// Operations done.
    pub ops: u64,
    /// How long they took.
    pub seconds: f64,
    /// Thousands of operations a second.
    pub kops: f64,
    /// The same in the worst of its seconds.
    pub kops_worst_second: f64,
    /// Seconds of processors in the program.
    pub cpu_user: f64,
    /// Seconds of processors in the kernel.
    pub cpu_sys: f64,
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Bytes written to the device.
    pub write_bytes: u64,
    /// Bytes written to the log, as reported by the store.
    pub log_bytes: Option<u64>,
    /// Bytes written for each byte of keys and values.
    pub write_amplification: Option<f64>,
    /// Resident at the end.
    pub rss_bytes: u64,
    /// Resident at most.
    pub rss_peak_bytes: u64,
    /// Bytes allocated to the files of the database.
    pub disk_bytes: u64,
    /// The part of the log, if the store reports it.
    pub log_disk_bytes: Option<u64>,
    /// Bytes of the keys and values in the store.
    pub live_bytes: u64,
    /// The number of levels, if the store reports it.
    pub levels: Option<u64>,
    /// The time for which the store delayed writes, if it reports it.
    pub delayed_seconds: Option<f64>,
    /// How long operations took.
    pub latency_us: BTreeMap<Kind, Percentiles>,
    /// Bytes that the simulated drive wrote and stores, if the database is on one.
    pub drive: Option<Totals>,
    /// The options and settings.
    pub settings: Value,
    /// Details, on request.
    pub detail: Option<Value>,
}

impl Record {
    /// Of a run that ended before its first phase did.
    pub fn none(engine: &str, settings: Value) -> Self {
        let (engine, phase) = (engine.to_owned(), NONE.to_owned());
        Self { engine, phase, settings, ..Self::default() }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let mut latencies = Map::new();
        for (kind, times) in &self.latency_us {
            let times = json!({
                "p50": times.p50, "p99": times.p99, "p999": times.p999, "max": times.max,
            });
            latencies.insert(kind.name().to_owned(), times);
        }
        let mut object = json!({
            "engine": self.engine,
            "version": self.version,
            "phase": self.phase,
            "ops": self.ops,
            "seconds": self.seconds,
            "kops": self.kops,
            "kops_worst_second": self.kops_worst_second,
            "cpu_user": self.cpu_user,
            "cpu_sys": self.cpu_sys,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
            "log_bytes": self.log_bytes,
            "write_amplification": self.write_amplification,
            "rss_bytes": self.rss_bytes,
            "rss_peak_bytes": self.rss_peak_bytes,
            "disk_bytes": self.disk_bytes,
            "log_disk_bytes": self.log_disk_bytes,
            "live_bytes": self.live_bytes,
            "levels": self.levels,
            "delayed_seconds": self.delayed_seconds,
            "latency_us": latencies,
            "settings": self.settings,
        });
        if let Some(drive) = self.drive {
            object["drive"] = drive.to_json();
        }
        if let Some(detail) = &self.detail {
            object["detail"] = detail.clone();
        }
        object
    }

    /// Reads what [`Record::to_json`] gave; the error names the field that is wrong.
    pub fn from_json(object: &Value) -> Result<Self, String> {
        let wrong = |name: &str| format!("the field `{name}` is missing or wrong");
        let text = |name: &str| object[name].as_str().map(str::to_owned).ok_or_else(|| wrong(name));
        let count = |name: &str| object[name].as_u64().ok_or_else(|| wrong(name));
        let number = |name: &str| object[name].as_f64().ok_or_else(|| wrong(name));
        let mut latency_us = BTreeMap::new();
        for kind in Kind::ALL {
            let times = &object["latency_us"][kind.name()];
            if times.is_null() {
                continue;
            }
            let time = |name: &str| times[name].as_f64().ok_or_else(|| wrong("latency_us"));
            let times = Percentiles {
                p50: time("p50")?,
                p99: time("p99")?,
                p999: time("p999")?,
                max: time("max")?,
            };
            latency_us.insert(kind, times);
        }
        Ok(Self {
            engine: text("engine")?,
            version: text("version")?,
            phase: text("phase")?,
            ops: count("ops")?,
            seconds: number("seconds")?,
            kops: number("kops")?,
            kops_worst_second: number("kops_worst_second")?,
            cpu_user: number("cpu_user")?,
            cpu_sys: number("cpu_sys")?,
            read_bytes: count("read_bytes")?,
            write_bytes: count("write_bytes")?,
            log_bytes: object["log_bytes"].as_u64(),
            write_amplification: object["write_amplification"].as_f64(),
            rss_bytes: count("rss_bytes")?,
            rss_peak_bytes: count("rss_peak_bytes")?,
            disk_bytes: count("disk_bytes")?,
            log_disk_bytes: object["log_disk_bytes"].as_u64(),
            live_bytes: count("live_bytes")?,
            levels: object["levels"].as_u64(),
            delayed_seconds: object["delayed_seconds"].as_f64(),
            latency_us,
            drive: match object.get("drive") {
                Some(drive) => Some(Totals::from_json(drive).ok_or_else(|| wrong("drive"))?),
                None => None,
            },
            settings: object["settings"].clone(),
            detail: object.get("detail").cloned(),
        })
    }

    /// Microseconds of processors for each operation.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn cpu_us_per_op(&self) -> f64 {
        (self.cpu_user + self.cpu_sys) * 1e6 / self.ops.max(1) as f64
    }

    /// Bytes on disk for each live byte.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn space_amplification(&self) -> f64 {
        self.disk_bytes as f64 / self.live_bytes.max(1) as f64
    }

    /// The same without the log, whose size is a setting of a store rather than a property of its
    /// structure. `None` if the store does not report it.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn space_amplification_without_log(&self) -> Option<f64> {
        let rest = self.disk_bytes.saturating_sub(self.log_disk_bytes?);
        Some(rest as f64 / self.live_bytes.max(1) as f64)
    }
}

/// Adds lines to a file of results.
pub fn append(path: &Path, records: &[Record]) -> Result<()> {
    let what = || format!("write results to {}", path.display());
    let mut text = String::new();
    for record in records {
        text.push_str(&record.to_json().to_string());
        text.push('\n');
    }
    let open = || -> std::io::Result<()> {
        let mut file: File = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(text.as_bytes())
    };
    open().map_err(|error| Failure::failed(what(), error))
}

/// Replaces a file of results by a complete new one: a stop loses nothing.
pub fn replace(path: &Path, records: &[Record], beside: &Path) -> Result<()> {
    let failed = |error| Failure::failed(format!("write results to {}", path.display()), error);
    std::fs::write(beside, "").map_err(failed)?;
    append(beside, records)?;
    std::fs::rename(beside, path).map_err(failed)
}

/// Reads a file of results. An incomplete last line is ignored.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let what = || format!("read results from {}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| Failure::failed(what(), error))?;
    let mut records = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let Some(line) = line.strip_suffix('\n') else { break };
        let failed =
            |message: String| Failure::failed(what(), format!("line {}: {message}", index + 1));
        let object = serde_json::from_str(line).map_err(|error| failed(error.to_string()))?;
        records.push(Record::from_json(&object).map_err(failed)?);
    }
    Ok(records)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A result with a bit of everything.
    pub fn sample(engine: &str, phase: &str, kops: f64) -> Record {
        let times = Percentiles { p50: 1.5, p99: 9.25, p999: 30.0, max: 1000.0 };
        Record {
            engine: engine.to_owned(),
            version: "1.2".to_owned(),
            phase: phase.to_owned(),
            ops: 1000,
            seconds: 0.5,
            kops,
            kops_worst_second: kops / 2.0,
            cpu_user: 0.75,
            cpu_sys: 0.25,
            read_bytes: 4096,
            write_bytes: 128_000,
            log_bytes: Some(144_000),
            write_amplification: Some(1.25),
            rss_bytes: 1 << 24,
            rss_peak_bytes: 1 << 25,
            disk_bytes: 256_000,
            log_disk_bytes: Some(64_000),
            live_bytes: 128_000,
            levels: Some(3),
            delayed_seconds: Some(0.125),
            latency_us: BTreeMap::from([(Kind::Get, times)]),
            drive: None,
            settings: json!({"records": 1000}),
            detail: None,
        }
    }

    #[test]
    fn records_come_back_and_have_the_fields_of_the_documents() {
        let mut record = sample("turtle", "load", 2.0);
        assert_eq!(Record::from_json(&record.to_json()).unwrap(), record);
        record.log_bytes = None;
        record.log_disk_bytes = None;
        record.levels = None;
        record.delayed_seconds = None;
        record.write_amplification = None;
        record.detail = Some(json!({"seconds": [1, 2]}));
        record.drive = Some(Totals::default());
        assert_eq!(Record::from_json(&record.to_json()).unwrap(), record);
        let none = Record::none("turtle", json!({"ended": "failed"}));
        assert_eq!(Record::from_json(&none.to_json()).unwrap(), none);
        let object = sample("turtle", "load", 2.0).to_json();
        let names: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected =
            "engine version phase ops seconds kops kops_worst_second cpu_user cpu_sys \
             read_bytes write_bytes log_bytes write_amplification rss_bytes rss_peak_bytes \
             disk_bytes log_disk_bytes live_bytes levels delayed_seconds latency_us settings"
                .split_whitespace()
                .collect::<Vec<_>>();
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert_eq!(object["latency_us"]["get"]["p999"], 30.0);
    }

    #[test]
    fn the_log_is_separate_if_the_store_reports_it() {
        let mut record = sample("turtle", "o+settle", 2.0);
        assert_eq!(record.space_amplification(), 2.0);
        assert_eq!(record.space_amplification_without_log(), Some(1.5));
        record.log_disk_bytes = None;
        assert_eq!(record.space_amplification_without_log(), None);
    }

    #[test]
    fn files_are_read_up_to_where_they_were_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results");
        let records = [sample("a", "load", 1.0), sample("b", "c", 2.0)];
        append(&path, &records[..1]).unwrap();
        append(&path, &records[1..]).unwrap();
        assert_eq!(read(&path).unwrap(), records);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert_eq!(read(&path).unwrap(), records[..1]);
        std::fs::write(&path, "{\"engine\": 1}\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 1"));
    }
}
