//! Every option of a run, typed, and what of it is allowed.
//!
//! Sizes are decimal as the papers and the vendors of memory write them: `850MB` is 850 million
//! bytes, `850MiB` is more. Whatever is refused is refused with what is allowed instead.

use crate::failure::{Failure, Result};
use crate::stores;
use crate::workload::keys::ORDERING_BYTES;
use crate::workload::phases::Phase;
use crate::workload::values::VALUE_BYTES_MIN;
use clap::{Args, ValueEnum};
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

/// The work, and what it may use. The same for every store.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Options {
    /// Records that are loaded; with `--keys file:PATH` the lines of the file are the default
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub records: Option<u64>,
    /// Operations of each phase but `load` and `e`
    #[arg(long, value_name = "N", default_value = "2M", value_parser = parse_count)]
    pub ops: u64,
    /// Operations of phase `e`: scans and a few updates
    #[arg(long, value_name = "N", default_value = "200k", value_parser = parse_count)]
    pub scan_ops: u64,
    /// Operations before the timed ones of phases a, b, c, f and d [default: a fifth of the
    /// records]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub warmup: Option<u64>,
    /// What to run, in this order; `load` comes first, others may come again
    #[arg(
        long,
        value_name = "a,b,...",
        default_value = "load,a,b,c,f,d,cu,cm,e,q,m",
        value_delimiter = ',',
        value_parser = parse_phase
    )]
    pub phases: Vec<Phase>,
    /// Threads that do the operations
    #[arg(long, value_name = "N", default_value = "2", value_parser = parse_count)]
    pub threads: u64,
    /// All the memory a store may use: 850MB is 850 million bytes
    #[arg(long, value_name = "SIZE", default_value = "850MB", value_parser = parse_size)]
    pub memory: u64,
    /// Bytes of updates between checkpoints, for stores that have such a dial: one size, or one for
    /// each phase, such as 256MB,64MB,16MB
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    pub checkpoint_distance: Vec<u64>,
    /// Bytes of a key: one number, or a range such as 8..24
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = SizeRange::parse)]
    pub key_size: SizeRange,
    /// Bytes of a value: one number, or a range such as 100..200
    #[arg(long, value_name = "BYTES", default_value = "120", value_parser = SizeRange::parse)]
    pub value_size: SizeRange,
    /// random, sequential, mixed:P (P% random among sequential), timestamps, or file:PATH (one key
    /// per line)
    #[arg(long, value_name = "KIND", default_value = "random", value_parser = KeyKind::parse)]
    pub keys: KeyKind,
    /// What a write has survived when its call returns: nothing, the end of the process, a power
    /// cut
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "process")]
    pub durability: Durability,
    /// The most seconds for the timed part of a phase; a load that needs more ends the run
    #[arg(long, value_name = "SECONDS", value_parser = parse_count)]
    pub cap: Option<u64>,
    /// The most seconds for background work to end after a phase that writes
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = parse_count)]
    pub settle_cap: u64,
    /// Operations a second after the load, all threads together; latencies then count from the
    /// intended start
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub rate: Option<u64>,
    /// Another seed gives other operations
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Where databases are made; each is removed at the end
    #[arg(long, value_name = "DIR", default_value = "chelonia-bench-data")]
    pub dir: PathBuf,
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
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return refuse(format!("--threads: from 1 to {THREADS_MAX}"));
        }
        if self.records.is_some_and(|records| records < self.threads) {
            return refuse("--records: at least one for each thread".to_owned());
        }
        if self.ops < self.threads || self.scan_ops < self.threads {
            return refuse("--ops, --scan-ops: at least one for each thread".to_owned());
        }
        if self.key_size.min < ORDERING_BYTES || self.key_size.max > KEY_BYTES_MAX {
            return refuse(format!("--key-size: from {ORDERING_BYTES} to {KEY_BYTES_MAX} bytes"));
        }
        if self.value_size.min < VALUE_BYTES_MIN || self.value_size.max > VALUE_BYTES_MAX {
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
        add("--threads", self.threads.to_string().into());
        add("--memory", self.memory.to_string().into());
        add("--key-size", self.key_size.to_string().into());
        add("--value-size", self.value_size.to_string().into());
        add("--keys", self.keys.argument());
        add("--durability", self.durability.name().into());
        add("--settle-cap", self.settle_cap.to_string().into());
        add("--seed", self.seed.to_string().into());
        add("--dir", self.dir.clone().into());
        if !self.checkpoint_distance.is_empty() {
            let distances = self.checkpoint_distance.iter().map(u64::to_string).collect();
            add("--checkpoint-distance", list(distances));
        }
        for (name, value) in [
            ("--records", self.records),
            ("--warmup", self.warmup),
            ("--cap", self.cap),
            ("--rate", self.rate),
        ] {
            if let Some(value) = value {
                add(name, value.to_string().into());
            }
        }
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

    /// The operations of `phase`, `load` excepted.
    pub fn operations(&self, phase: Phase) -> u64 {
        match phase {
            Phase::E => self.scan_ops,
            _ => self.ops,
        }
    }

    /// The operations before the timed ones of `phase`.
    pub fn warmup_of(&self, phase: Phase, records: u64) -> u64 {
        if phase.warms_up() { self.warmup.unwrap_or(records / 5) } else { 0 }
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
            "warmup": self.warmup.unwrap_or(records / 5),
            "phases": phases.join(","),
            "threads": self.threads,
            "memory_bytes": self.memory,
            "checkpoint_distance_bytes": self.checkpoint_distance,
            "key_size": self.key_size.to_string(),
            "value_size": self.value_size.to_string(),
            "keys": self.keys.to_string(),
            "durability": self.durability.name(),
            "cap_seconds": self.cap,
            "settle_cap_seconds": self.settle_cap,
            "rate": self.rate,
            "seed": self.seed,
        })
    }
}

/// What a write has survived when its call returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Durability {
    /// Nothing: it may still be buffered in the process
    Memory,
    /// The end of the process: logged, not synced
    Process,
    /// A power cut: logged and synced
    Sync,
}

impl Durability {
    /// The name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Process => "process",
            Durability::Sync => "sync",
        }
    }
}

/// Which keys records have; see `workload/keys.rs`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// All over the key space.
    Random,
    /// Ascending.
    Sequential,
    /// Ascending, but so many percent anywhere.
    Mixed(u64),
    /// Nearly ascending.
    Timestamps,
    /// One per line.
    File(PathBuf),
}

impl KeyKind {
    /// Reads an option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let allowed = "allowed are random, sequential, timestamps, mixed:P with P from 0 to 100, \
                       and file:PATH";
        match text.split_once(':') {
            None if text == "random" => Ok(KeyKind::Random),
            None if text == "sequential" => Ok(KeyKind::Sequential),
            None if text == "timestamps" => Ok(KeyKind::Timestamps),
            Some(("mixed", percent)) => match percent.parse() {
                Ok(percent) if percent <= 100 => Ok(KeyKind::Mixed(percent)),
                _ => Err(allowed.to_owned()),
            },
            Some(("file", path)) if !path.is_empty() => Ok(KeyKind::File(PathBuf::from(path))),
            _ => Err(allowed.to_owned()),
        }
    }
}

impl KeyKind {
    /// As it is written on a command line: a path may be any bytes.
    fn argument(&self) -> OsString {
        match self {
            KeyKind::File(path) => {
                let mut argument = OsString::from("file:");
                argument.push(path);
                argument
            }
            other => other.to_string().into(),
        }
    }
}

impl std::fmt::Display for KeyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeyKind::Random => f.write_str("random"),
            KeyKind::Sequential => f.write_str("sequential"),
            KeyKind::Mixed(percent) => write!(f, "mixed:{percent}"),
            KeyKind::Timestamps => f.write_str("timestamps"),
            KeyKind::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Lengths in bytes, all equally likely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeRange {
    /// The least.
    pub min: usize,
    /// The greatest.
    pub max: usize,
}

impl SizeRange {
    /// From `min` to `max`.
    pub fn new(min: usize, max: usize) -> Self {
        Self { min, max }
    }

    /// One length.
    #[cfg(test)]
    pub fn fixed(size: usize) -> Self {
        Self::new(size, size)
    }

    /// Reads an option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<usize>().ok();
        let range = match text.split_once("..") {
            Some((min, max)) => number(min).zip(number(max.strip_prefix('=').unwrap_or(max))),
            None => number(text).map(|size| (size, size)),
        };
        match range {
            Some((min, max)) if min <= max => Ok(Self::new(min, max)),
            _ => Err("allowed are a number of bytes, or a range such as 16..64".to_owned()),
        }
    }

    /// The length that random bits choose.
    pub fn of(self, bits: u64) -> usize {
        let span = u64::try_from(self.max - self.min).unwrap_or(u64::MAX);
        self.min + usize::try_from(crate::workload::random::scale(bits, span + 1)).unwrap_or(0)
    }

    /// The mean.
    #[expect(clippy::cast_precision_loss, reason = "a mean for people and ratios")]
    pub fn mean(self) -> f64 {
        (self.min + self.max) as f64 / 2.0
    }
}

impl std::fmt::Display for SizeRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.min)
        } else {
            write!(f, "{}..{}", self.min, self.max)
        }
    }
}

/// Reads a size: a number and a unit, powers of 1000 (`MB`) or of 1024 (`MiB`).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let allowed = || "allowed are a number and a unit: 850MB, 1GiB, 64kB".to_owned();
    let (number, unit) = split_number(text).ok_or_else(allowed)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(allowed()),
    };
    number.checked_mul(factor).ok_or_else(|| "the size is too large".to_owned())
}

/// Reads a count: a number, `k`, `M` and `G` being powers of 1000, underscores allowed.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let allowed = || "allowed are a number, and k, M or G behind it: 20M".to_owned();
    let text = text.replace('_', "");
    let (number, unit) = split_number(&text).ok_or_else(allowed)?;
    let factor: u64 = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(allowed()),
    };
    number.checked_mul(factor).ok_or_else(|| "the number is too large".to_owned())
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim()))
}

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
        None => Err(format!("allowed are {}", stores::names().join(", "))),
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
        assert_eq!((options.ops, options.scan_ops, options.threads), (2_000_000, 200_000, 2));
        assert_eq!(options.phases, Phase::ALL);
        assert_eq!(options.warmup_of(Phase::A, 1000), 200);
        assert_eq!(options.warmup_of(Phase::Cu, 1000), 0);
    }

    #[test]
    fn what_is_refused_is_refused_with_what_is_allowed() {
        for (arguments, told) in [
            (&["--phases", "a,load"][..], "`load` comes first"),
            (&["--phases", "load,load"], "`load` comes first and once"),
            (&["--phases", "load,z"], "allowed are load, a, b"),
            (&["--threads", "0"], "from 1 to 256"),
            (&["--key-size", "7"], "from 8 to 480"),
            (&["--key-size", "9..8"], "16..64"),
            (&["--value-size", "8"], "from 16 to 1048576"),
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
            assert!(message.contains(told), "{arguments:?}: {message}");
        }
    }

    #[test]
    fn sizes_and_counts_have_units() {
        assert_eq!(parse_size("850MB"), Ok(850_000_000));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_count("20M"), Ok(20_000_000));
        assert_eq!(parse_count("200_000"), Ok(200_000));
        assert!(parse_size("99999999TB").is_err() && parse_count("1.5M").is_err());
        let range = SizeRange::parse("10..12").unwrap();
        let lengths: Vec<usize> = [0, u64::MAX / 2, u64::MAX].map(|bits| range.of(bits)).into();
        assert_eq!(lengths, [10, 11, 12]);
    }

    #[test]
    fn options_come_back_from_their_arguments() {
        let lines: [&[&str]; 3] = [
            &["x"],
            &["x", "--records", "7M", "--phases", "load,a", "--checkpoint-distance", "1MB,2MiB"],
            &["x", "--keys", "mixed:7", "--key-size", "9..12", "--cap", "5", "--rate", "1k"],
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
