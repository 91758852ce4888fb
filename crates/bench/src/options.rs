//! Every option of a run, typed, and its allowed values.
//!
//! Sizes are decimal as the papers and the vendors of memory write them: `850MB` is 850 million
//! bytes, `850MiB` is more. A refusal names the allowed values.

use crate::failure::{Failure, Result};
use crate::kinds::{Durability, KeyKind, SizeRange, parse_count, parse_size};
use crate::shape::Shape;
use crate::stores;
use crate::workload::keys::ORDERING_BYTES;
use crate::workload::phases::{OVERWRITES, Phase};
use crate::workload::stream::SCAN_RECORDS_MAX;
use crate::workload::values::{Filling, VALUE_BYTES_MIN};
use clap::Args;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The most threads; far more than any machine that this measures.
const THREADS_MAX: u64 = 256;

/// The longest key; every store takes keys of this length.
const KEY_BYTES_MAX: usize = 480;

/// The longest value.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// Options of every run.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Common {
    /// Operations before the timed ones of phases a, b, c, f and d [default: a fifth of the
    /// records]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub warmup: Option<u64>,
    /// Threads that do the operations
    #[arg(long, value_name = "N", default_value = "2", value_parser = parse_count)]
    pub threads: u64,
    /// Bytes of a key: one number, or a range such as 8..24
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = SizeRange::parse)]
    pub key_size: SizeRange,
    /// Bytes of a value: one number, or a range such as 100..200
    #[arg(long, value_name = "BYTES", default_value = "120", value_parser = SizeRange::parse)]
    pub value_size: SizeRange,
    /// Bytes of values: half (random and zeros), random, or file:PATH (pieces of a file)
    #[arg(long, value_name = "KIND", default_value = "half", value_parser = Filling::parse)]
    pub values: Filling,
    /// random, sequential, mixed:P (P% random among sequential), timestamps, moving (near places
    /// that move on), or file:PATH (one key per line)
    #[arg(long, value_name = "KIND", default_value = "random", value_parser = KeyKind::parse)]
    pub keys: KeyKind,
    /// Durability of a write when its call returns: none, survives the end of the process, survives
    /// a power cut
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "process")]
    pub durability: Durability,
    /// The most seconds for background work to end after a phase that writes
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = parse_count)]
    pub settle_cap: u64,
    /// Another seed gives other operations
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Where databases are made; each is removed at the end
    #[arg(long, value_name = "DIR", default_value = "chelonia-bench-data")]
    pub dir: PathBuf,
}

/// The work, and what it may use. The same for every store.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,
    /// Records that are loaded; with `--keys file:PATH` the lines of the file are the default
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub records: Option<u64>,
    /// Operations of each phase but `load`, `o` and scans
    #[arg(long, value_name = "N", default_value = "2M", value_parser = parse_count)]
    pub ops: u64,
    /// Operations of phases of scans, `e` and `s1` to `s100`; fewer of longer scans, so that they
    /// read as many records
    #[arg(long, value_name = "N", default_value = "200k", value_parser = parse_count)]
    pub scan_ops: u64,
    /// Phases to run, in this order; `load` comes first, others may come again; `o`, two uniform
    /// updates for each record, and scans of 1, 10 and 100 records run only if they are named
    #[arg(
        long,
        value_name = "a,b,...",
        default_value = Phase::BY_DEFAULT,
        value_delimiter = ',',
        value_parser = parse_phase
    )]
    pub phases: Vec<Phase>,
    /// All the memory a store may use: 850MB is 850 million bytes
    #[arg(long, value_name = "SIZE", default_value = "850MB", value_parser = parse_size)]
    pub memory: u64,
    /// Bytes of updates between checkpoints, for stores that have such a dial: one size, or one for
    /// each phase, such as 256MB,64MB,16MB
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    pub checkpoint_distance: Vec<u64>,
    /// The most seconds for the timed part of a phase; a load that needs more ends the run
    #[arg(long, value_name = "SECONDS", value_parser = parse_count)]
    pub cap: Option<u64>,
    /// Operations a second after the load, all threads together; latencies then count from the
    /// intended start
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub shape: Shape,
    /// Leave the database there
    #[arg(long)]
    pub keep: bool,
    /// Add a field `detail` to the results: every second's rate and memory, and how latencies are
    /// distributed
    #[arg(long)]
    pub detail: bool,
}

impl Options {
    /// Fails with what is allowed if something does not fit.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Failure::usage(message));
        if self.phases.first() != Some(&Phase::Load) || self.phases[1..].contains(&Phase::Load) {
            return refuse("--phases: `load` comes first and once".to_owned());
        }
        if !(1..=THREADS_MAX).contains(&self.common.threads) {
            return refuse(format!("--threads: from 1 to {THREADS_MAX}"));
        }
        if self.records.is_some_and(|records| records < self.common.threads) {
            return refuse("--records: at least one for each thread".to_owned());
        }
        if self.ops < self.common.threads || self.scan_ops < self.common.threads {
            return refuse("--ops, --scan-ops: at least one for each thread".to_owned());
        }
        if self.common.key_size.min < ORDERING_BYTES || self.common.key_size.max > KEY_BYTES_MAX {
            return refuse(format!("--key-size: from {ORDERING_BYTES} to {KEY_BYTES_MAX} bytes"));
        }
        if self.common.value_size.min < VALUE_BYTES_MIN
            || self.common.value_size.max > VALUE_BYTES_MAX
        {
            let allowed = format!("from {VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} bytes");
            return refuse(format!("--value-size: {allowed}"));
        }
        if self.checkpoint_distance.contains(&0) {
            return refuse("--checkpoint-distance: at least one byte".to_owned());
        }
        let distances = self.checkpoint_distance.len();
        if distances > 1 && distances != self.phases.len() {
            return refuse(format!(
                "--checkpoint-distance: one size, or one for each of the {} phases",
                self.phases.len()
            ));
        }
        if self.cap == Some(0) || self.rate == Some(0) {
            return refuse("--cap, --rate: at least 1".to_owned());
        }
        Ok(())
    }

    /// The same options as they are written on a command line.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        let list = |values: Vec<String>| OsString::from(values.join(","));
        let phases = self.phases.iter().map(|phase| phase.name().to_owned()).collect();
        add("--ops", self.ops.to_string().into());
        add("--scan-ops", self.scan_ops.to_string().into());
        add("--phases", list(phases));
        add("--threads", self.common.threads.to_string().into());
        add("--memory", self.memory.to_string().into());
        add("--key-size", self.common.key_size.to_string().into());
        add("--value-size", self.common.value_size.to_string().into());
        add("--values", self.common.values.to_string().into());
        add("--keys", self.common.keys.argument());
        add("--durability", self.common.durability.name().into());
        add("--settle-cap", self.common.settle_cap.to_string().into());
        add("--seed", self.common.seed.to_string().into());
        add("--dir", self.common.dir.clone().into());
        if !self.checkpoint_distance.is_empty() {
            let distances = self.checkpoint_distance.iter().map(u64::to_string).collect();
            add("--checkpoint-distance", list(distances));
        }
        for (name, value) in [
            ("--records", self.records),
            ("--warmup", self.common.warmup),
            ("--cap", self.cap),
            ("--rate", self.rate),
        ] {
            if let Some(value) = value {
                add(name, value.to_string().into());
            }
        }
        arguments.extend(self.shape.arguments());
        let switches = [("--keep", self.keep), ("--detail", self.detail)];
        arguments.extend(switches.iter().filter(|(_, on)| *on).map(|(name, _)| name.into()));
        arguments
    }

    /// The checkpoint distance of the phase with this place in the list, if one is set.
    pub fn checkpoint_distance_of(&self, index: usize) -> Option<u64> {
        match self.checkpoint_distance.as_slice() {
            [] => None,
            [one] => Some(*one),
            each => each.get(index).copied(),
        }
    }

    /// The operations of `phase` where so many records are loaded.
    pub fn operations(&self, phase: Phase, records: u64) -> u64 {
        match phase {
            Phase::Load => records,
            Phase::O => records.saturating_mul(OVERWRITES),
            Phase::E => self.scan_ops,
            Phase::Scans(_) => {
                let records = phase.scans().unwrap_or(1);
                self.scan_ops.min(
                    (self.scan_ops.saturating_mul(SCAN_RECORDS_MAX) / records)
                        .max(self.common.threads),
                )
            }
            _ => self.ops,
        }
    }

    /// The operations before the timed ones of `phase`.
    pub fn warmup_of(&self, phase: Phase, records: u64) -> u64 {
        if phase.warms_up() { self.common.warmup.unwrap_or(records / 5) } else { 0 }
    }

    /// The time that the timed part of a phase may take.
    pub fn cap(&self) -> Option<Duration> {
        self.cap.map(Duration::from_secs)
    }

    /// Everything that decides what is measured; results that differ in it are not comparable.
    pub fn describe(&self, records: u64) -> Value {
        let phases: Vec<&str> = self.phases.iter().map(|phase| phase.name()).collect();
        json!({
            "records": records,
            "ops": self.ops,
            "scan_ops": self.scan_ops,
            "warmup": self.common.warmup.unwrap_or(records / 5),
            "phases": phases.join(","),
            "threads": self.common.threads,
            "memory_bytes": self.memory,
            "checkpoint_distance_bytes": self.checkpoint_distance,
            "key_size": self.common.key_size.to_string(),
            "value_size": self.common.value_size.to_string(),
            "values": self.common.values.to_string(),
            "keys": self.common.keys.to_string(),
            "durability": self.common.durability.name(),
            "cap_seconds": self.cap,
            "settle_cap_seconds": self.common.settle_cap,
            "rate": self.rate,
            "seed": self.common.seed,
            "shape": self.shape.describe(),
        })
    }
}

/// Reads the name of a phase.
pub fn parse_phase(text: &str) -> Result<Phase, String> {
    Phase::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = Phase::ALL.iter().map(|phase| phase.name()).collect();
        format!("allowed are {}", names.join(", "))
    })
}

/// Reads the name of a store; one that this build has not is refused when it is opened.
pub fn parse_engine(text: &str) -> Result<String, String> {
    match stores::find(text) {
        Some(_) => Ok(text.to_owned()),
        None => {
            let names = stores::names().into_iter();
            let names = names.chain(stores::compressed().map(|kind| kind.name));
            Err(format!("allowed are {}", names.collect::<Vec<_>>().join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn check(arguments: &[&str]) -> Result<(), String> {
        let line = Line::try_parse_from([&["x"], arguments].concat());
        let options = line.map_err(|error| error.to_string())?.options;
        options.check().map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_documents() {
        let options = Line::try_parse_from(["x"]).unwrap().options;
        options.check().unwrap();
        assert_eq!(
            (options.ops, options.scan_ops, options.common.threads),
            (2_000_000, 200_000, 2)
        );
        assert_eq!(options.phases, Phase::ALL[..11], "all but `o` and scans of one length");
        let operations = |phase: Phase| options.operations(phase, 1000);
        assert_eq!([Phase::Load, Phase::O].map(operations), [1000, 2000]);
        assert_eq!([Phase::A, Phase::E].map(operations), [2_000_000, 200_000]);
        assert_eq!(options.warmup_of(Phase::A, 1000), 200);
        assert_eq!(options.warmup_of(Phase::Cu, 1000), 0);
    }

    #[test]
    fn what_is_refused_is_refused_with_what_is_allowed() {
        for (arguments, expected) in [
            (&["--phases", "a,load"][..], "`load` comes first"),
            (&["--phases", "load,load"], "`load` comes first and once"),
            (&["--phases", "load,z"], "allowed are load, a, b"),
            (&["--threads", "0"], "from 1 to 256"),
            (&["--key-size", "7"], "from 8 to 480"),
            (&["--key-size", "9..8"], "16..64"),
            (&["--value-size", "7"], "from 8 to 1048576"),
            (&["--keys", "mixed:101"], "0 to 100"),
            (&["--keys", "zebra"], "file:PATH"),
            (&["--memory", "1XB"], "850MB"),
            (&["--records", "ten"], "20M"),
            (&["--records", "1"], "one for each thread"),
            (&["--durability", "none"], "memory, process, sync"),
            (&["--checkpoint-distance", "1MB,2MB", "--phases", "load,a,b"], "each of the 3"),
            (&["--cap", "0"], "at least 1"),
        ] {
            let message = check(arguments).unwrap_err();
            assert!(message.contains(expected), "{arguments:?}: {message}");
        }
    }

    #[test]
    fn options_come_back_from_their_arguments() {
        let lines: [&[&str]; 6] = [
            &["x"],
            &["x", "--records", "7M", "--phases", "load,a", "--checkpoint-distance", "1MB,2MiB"],
            &["x", "--keys", "mixed:7", "--key-size", "9..12", "--cap", "5", "--rate", "1k"],
            &[
                "x",
                "--size-ratio",
                "3",
                "--scaling",
                "40",
                "--filter-bits",
                "0",
                "--uniform-filters",
            ],
            &["x", "--space-percent", "130"],
            &["x", "--page-bytes", "16384", "--delta-bytes", "0", "--no-shadow"],
        ];
        for line in lines {
            let mut options = Line::try_parse_from(line).unwrap().options;
            options.keep = true;
            let arguments = [vec!["x".into()], options.arguments()].concat();
            assert_eq!(Line::try_parse_from(arguments).unwrap().options, options);
        }
    }

    #[test]
    fn distances_are_for_all_phases_or_for_each() {
        let line = ["x", "--phases", "load,a", "--checkpoint-distance", "1MB,2MB"];
        let options = Line::try_parse_from(line).unwrap().options;
        options.check().unwrap();
        assert_eq!(options.checkpoint_distance_of(1), Some(2_000_000));
        let options = Line::try_parse_from(["x", "--checkpoint-distance", "3MB"]).unwrap().options;
        assert_eq!(options.checkpoint_distance_of(7), Some(3_000_000));
    }
}
