//! The options of figures, those that each figure takes, and the runs that follow from them.
//!
//! Defaults follow from the number of records, as those of `run` follow from 20 million: a tenth of
//! them are operations, a hundredth scans, and memory holds a third of the data or just all of it.

use crate::failure::{Failure, Result};
use crate::figures::Name;
use crate::figures::data::Planned;
use crate::kinds::{parse_count, parse_size};
use crate::options::{Common, Options, parse_engine, parse_phase};
use crate::shape::Shape;
use crate::stores;
use crate::workload::phases::Phase;
use clap::Args;
use std::path::PathBuf;

/// Memory for a third of the data, and for all of it: what the 850 MB and 2600 MB of our other
/// measurements are for 2560 MB of data.
const THIRD: (u64, u64) = (850, 2560);
const WHOLE: (u64, u64) = (2600, 2560);

/// Memory by default where most reads are to meet the device: such a part of the data.
const SHAPE_PART: u64 = 8;

/// No store of ours takes less.
const MEMORY_MIN: u64 = 32 << 20;

/// Numbers of records of `growth`: those given, divided by the first number, times the second.
const GROWTH_SIZES: [(u64, u64); 5] = [(4, 1), (2, 1), (1, 1), (1, 2), (1, 4)];

const AFTER_HELP: &str = "\
Figures, their defaults, and how long one store takes on two cores, about (stores run one after
another; --cap bounds each phase):

  wm           write amplification and mean insert latency against the memory for writes
               4M records, memory for all data, checkpoint distances from 1/512 to 1/4 of the data,
               stores with such a dial; 2 minutes
  ycsb         throughput of each phase with memory for a third of the data and for all of it
               4M records, phases load,a,b,c,f,d,e, all stores of this build; 3 minutes
  sensitivity  throughput of each phase against the checkpoint distance, and the gain in writes for
               N, N/2 and N/4 records
               2M records, both settings of memory, distances from 1/64 to 1/4 of it, phases
               load,a,b,c,f,e, one store; 6 minutes
  dial         throughput of each phase, and the time of all, with the distance that the store finds
               against fixed ones
               2M records, both settings of memory, distances from 1/256 to 1/4 of it, phases
               load,a,b,c,d,e,f, one store; 8 minutes
  growth       write amplification, processor time and reads against the number of records
               20M records, and 1/4, 1/2, 2 and 4 times so many, memory for a third of each, the
               checkpoint distance left to the store and fixed, phases load,cu, turtle alone,
               a cap of 600 seconds; 15 minutes, 15 GB of disk
  latency      how latencies are distributed, for each kind of operation
               4M records, memory for a third, phases load,a,c,f,e, all stores; 1 minute
  memory       resident memory over the time of a run, beside what was allowed
               4M records, memory for a third, phases load,a,b,c,f,e, all stores; 2 minutes
  stall        throughput in every second of a long load
               10M records, memory for a third, all stores; 1 minute
  levels       how many levels a tree has against the number of records, and by the formula
               16M records, halved seven times, memory for a third of the most, T = 2, 3, 5, c = 1,
               0.8, 0.4, engines with levels; 10 minutes
  shape        what reads and writes cost for other shapes of levels, with filters and without
               4M records, memory for an eighth, T = 2, 3, 5, c = 1, 0.8, 0.4, phases
               load,cu,cm,s1,s10,s100,o, engines with levels; 15 minutes

The results go to OUT/NAME.jsonl, the points that are drawn to OUT/NAME.csv, and the figure to
OUT/NAME.svg. `--from DIR` draws again what is in DIR/NAME.jsonl and runs nothing.";

/// `figure`
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Figure {
    #[command(flatten)]
    pub common: Common,
    /// Figure to draw
    #[arg(value_name = "NAME", value_enum)]
    pub name: Name,
    /// The stores [default: those of this build that the figure is about]
    #[arg(long, value_name = "a,b,...", value_delimiter = ',', value_parser = parse_engine)]
    pub engines: Vec<String>,
    /// Records that are loaded [default: see below]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub records: Option<u64>,
    /// Operations of each phase but `load`, `o` and scans [default: a tenth of the records, for
    /// `growth` of each size]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub ops: Option<u64>,
    /// Operations of phases of scans [default: a hundredth of the records]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub scan_ops: Option<u64>,
    /// Phases to run, `load` first [default: see below]
    #[arg(long, value_name = "a,b,...", value_delimiter = ',', value_parser = parse_phase)]
    pub phases: Vec<Phase>,
    /// All the memory a store may use, one size; for `ycsb`, `sensitivity` and `dial` several; for
    /// `growth` none [default: for a third of the data, for all of it, or both; at least 32MiB]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    pub memory: Vec<u64>,
    /// The distances of `wm`, `sensitivity` and `dial`, the fixed one of `growth` [default: an
    /// eighth of the memory of its least size], of `levels` and of `shape` [default: a small part
    /// of the data]; for the others as of `run`: one, or one for each phase
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    pub checkpoint_distance: Vec<u64>,
    /// For `levels` and `shape`: ratios of the last two levels (T) [default: 2,3,5]
    #[arg(long, value_name = "T,...", value_delimiter = ',')]
    pub size_ratio: Vec<u32>,
    /// For `levels` and `shape`: 100 c [default: 100,80,40]
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',')]
    pub scaling: Vec<u32>,
    /// How often everything is done; `wm`, `ycsb`, `sensitivity`, `dial`, `growth` and `shape`
    /// draw the median
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_count)]
    pub repeats: u64,
    /// The most seconds for the timed part of a phase; a load that needs more ends its run
    /// [default: 120, for `growth` 600]
    #[arg(long, value_name = "SECONDS", value_parser = parse_count)]
    pub cap: Option<u64>,
    /// Where figures and their data go [default: chelonia-bench-figures, or that of --from]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run nothing: draw the results that are in this directory
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
}

impl Figure {
    /// Where figures and their data go.
    pub fn out(&self) -> PathBuf {
        let given = self.out.as_ref().or(self.from.as_ref());
        given.cloned().unwrap_or_else(|| PathBuf::from("chelonia-bench-figures"))
    }

    /// The records, as given or by default.
    pub fn records(&self) -> u64 {
        self.records.unwrap_or(self.name.records())
    }

    /// About the bytes of all keys and values.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes_of(self.records())
    }

    /// About the bytes of so many keys and values.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a mean times a count is a count"
    )]
    fn data_bytes_of(&self, records: u64) -> u64 {
        ((self.common.key_size.mean() + self.common.value_size.mean()) * records as f64) as u64
    }

    /// A third of the bytes of so many keys and values, or as little as a store takes.
    pub fn third_of(&self, records: u64) -> u64 {
        (self.data_bytes_of(records) / 3).max(MEMORY_MIN)
    }

    /// The numbers of records of `growth`, the least first.
    pub fn growth_sizes(&self) -> Vec<u64> {
        let size = |(by, times): (u64, u64)| (self.records() / by).saturating_mul(times);
        let mut sizes: Vec<u64> = GROWTH_SIZES.into_iter().map(size).collect();
        // Less cannot be loaded.
        sizes.retain(|records| *records >= self.common.threads);
        sizes.dedup();
        sizes
    }

    /// The settings of memory, as given or by default.
    pub fn memories(&self) -> Vec<u64> {
        if !self.memory.is_empty() {
            return self.memory.clone();
        }
        let of = |(part, whole): (u64, u64)| {
            let bytes = u128::from(self.data_bytes()) * u128::from(part) / u128::from(whole);
            u64::try_from(bytes).unwrap_or(u64::MAX).max(MEMORY_MIN)
        };
        let mut memories = match self.name {
            Name::Wm => vec![of(WHOLE)],
            Name::Ycsb | Name::Sensitivity | Name::Dial => vec![of(THIRD), of(WHOLE)],
            Name::Growth => self.growth_sizes().into_iter().map(|one| self.third_of(one)).collect(),
            Name::Levels => vec![self.third_of(self.records())],
            Name::Shape => vec![(self.data_bytes() / SHAPE_PART).max(MEMORY_MIN)],
            Name::Latency | Name::Memory | Name::Stall => vec![of(THIRD)],
        };
        memories.dedup();
        memories
    }

    /// The stores, as given or by default.
    pub fn engines(&self) -> Vec<String> {
        if !self.engines.is_empty() {
            return self.engines.clone();
        }
        let built = stores::all().into_iter().filter(|kind| kind.open.is_some());
        let names = built.map(|kind| kind.name.to_owned());
        match self.name {
            Name::Wm => names.filter(|name| has_dial(name)).collect(),
            Name::Sensitivity | Name::Dial | Name::Growth => names.take(1).collect(),
            Name::Levels | Name::Shape => names.filter(|name| has_levels(name)).take(1).collect(),
            _ => names.collect(),
        }
    }

    /// The phases, as given or by default.
    pub fn phases(&self) -> Vec<Phase> {
        match self.phases.is_empty() {
            true => self.name.phases().to_vec(),
            false => self.phases.clone(),
        }
    }

    /// One run of `engine`.
    pub fn planned(&self, engine: &str, memory: u64, distances: Vec<u64>, repeat: u64) -> Planned {
        self.planned_of(self.records(), engine, memory, distances, repeat)
    }

    /// The same with as many records.
    pub fn planned_of(
        &self,
        records: u64,
        engine: &str,
        memory: u64,
        distances: Vec<u64>,
        repeat: u64,
    ) -> Planned {
        let options = Options {
            common: self.common.clone(),
            records: Some(records),
            ops: self.ops.unwrap_or((records / 10).max(self.common.threads)),
            scan_ops: self.scan_ops.unwrap_or((records / 100).max(self.common.threads)),
            phases: self.phases(),
            memory,
            checkpoint_distance: distances,
            cap: Some(self.cap.unwrap_or(self.name.cap())),
            rate: None,
            shape: Shape::default(),
            keep: false,
            detail: true,
        };
        Planned { engine: engine.to_owned(), options, repeat }
    }

    /// Fails with what is allowed if something does not fit.
    pub fn check(&self) -> Result<()> {
        let name = self.name.name();
        let refuse = |message: String| Err(Failure::usage(message));
        if self.repeats == 0 {
            return refuse("--repeats: at least 1".to_owned());
        }
        if self.repeats > 1 && !self.name.takes_repeats() {
            return refuse(format!("--repeats: {name} draws one run, so 1 is allowed"));
        }
        if self.memory.len() > 1 && !self.name.takes_memories() {
            return refuse(format!("--memory: one size for {name}"));
        }
        if !self.memory.is_empty() && self.name == Name::Growth {
            let message = "--memory: growth gives each size a third of its data: leave it out";
            return refuse(message.to_owned());
        }
        let is_of_levels = self.name.is_of_levels();
        if self.checkpoint_distance.len() > 1 && (self.name == Name::Growth || is_of_levels) {
            return refuse(format!("--checkpoint-distance: one size for {name}"));
        }
        let has_shape = !self.size_ratio.is_empty() || !self.scaling.is_empty();
        if has_shape && !is_of_levels {
            return refuse("--size-ratio, --scaling: for levels and shape alone".to_owned());
        }
        if is_of_levels {
            let refused = |name: &String| !has_levels(name);
            if self.engines.len() > 1 || self.engines.iter().any(refused) {
                let allowed = with_levels().join(", ");
                return refuse(format!("--engines: one with levels for {name}: {allowed}"));
            }
        }
        if self.engines.len() > 1 && self.name == Name::Sensitivity {
            return refuse("--engines: one store for sensitivity".to_owned());
        }
        let of_load = matches!(self.name, Name::Wm | Name::Stall | Name::Levels);
        if !self.phases.is_empty() && of_load {
            return refuse(format!("--phases: {name} is about the load alone: leave it out"));
        }
        for list in [&self.memory, &self.checkpoint_distance] {
            // Distances of phases may be the same.
            let is_axis = list == &self.memory || self.name.takes_distances();
            let twice = |size| list.iter().filter(|other| *other == size).count() > 1;
            if is_axis && list.iter().any(twice) {
                return refuse("--memory, --checkpoint-distance: a size is there twice".to_owned());
            }
        }
        for engine in self.engines() {
            if let Some(kind) = stores::find(&engine) {
                kind.check_built()?;
            }
            if self.engines.iter().filter(|other| **other == engine).count() > 1 {
                return refuse(format!("--engines: {engine} is there twice"));
            }
        }
        if self.name == Name::Sensitivity && self.engines().iter().any(|name| !has_dial(name)) {
            return refuse(format!("--engines: one with a dial: {}", with_dial().join(", ")));
        }
        Ok(())
    }
}

/// True if the checkpoint distance changes what the store does.
pub fn has_dial(engine: &str) -> bool {
    with_dial().contains(&engine)
}

/// True if it is an engine of ours that has levels.
fn has_levels(engine: &str) -> bool {
    with_levels().contains(&engine)
}

fn with_levels() -> Vec<&'static str> {
    let with = chelonia::EngineKind::ALL.iter().filter(|kind| kind.has_levels());
    with.map(|kind| kind.name()).collect()
}

/// Ours, and those whose buffer of writes is set by it.
fn with_dial() -> Vec<&'static str> {
    chelonia::EngineKind::ALL.iter().map(|kind| kind.name()).chain(["rocksdb"]).collect()
}

/// About `bytes`, with two digits that count.
pub fn rounded(bytes: u64) -> u64 {
    let mut unit = 1;
    while bytes / unit >= 100 {
        unit *= 10;
    }
    ((bytes + unit / 2) / unit * unit).max(1)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::kinds::Durability;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        figure: Figure,
    }

    /// The options of a command line.
    pub fn figure(line: &[&str]) -> Figure {
        Line::try_parse_from([&["x"], line].concat()).unwrap().figure
    }

    #[test]
    fn defaults_follow_from_the_records() {
        let plain = figure(&["ycsb", "--records", "20M"]);
        plain.check().unwrap();
        assert_eq!(plain.memories(), [850_000_000, 2_600_000_000]);
        let run = plain.planned("turtle", 850_000_000, Vec::new(), 1);
        run.options.check().unwrap();
        assert_eq!((run.options.ops, run.options.scan_ops), (2_000_000, 200_000));
        assert_eq!(figure(&["ycsb", "--records", "2k"]).memories(), [MEMORY_MIN]);
        assert_eq!(figure(&["wm"]).data_bytes(), 512_000_000);
        assert_eq!(figure(&["sensitivity"]).engines(), ["turtle"]);
        assert_eq!(figure(&["growth"]).engines(), ["turtle"]);
        let small = figure(&["growth", "--records", "2M", "--cap", "9"]);
        assert_eq!(
            small.memories(),
            [MEMORY_MIN, 42_666_666, 85_333_333, 170_666_666, 341_333_333]
        );
        assert_eq!(small.planned("turtle", 1 << 25, vec![], 1).options.cap, Some(9));
        assert_eq!(plain.planned("turtle", 1 << 25, vec![], 1).options.cap, Some(120));
    }

    #[test]
    fn what_is_refused_is_refused_with_what_is_allowed() {
        for (line, expected) in [
            (&["latency", "--repeats", "2"][..], "1 is allowed"),
            (&["wm", "--repeats", "0"], "at least 1"),
            (&["wm", "--memory", "1GB,2GB"], "one size"),
            (&["ycsb", "--memory", "1GB,1GB"], "twice"),
            (&["wm", "--phases", "load,a"], "leave it out"),
            (&["sensitivity", "--engines", "turtle,rocksdb"], "one store"),
            (&["growth", "--memory", "1GB"], "leave it out"),
            (&["growth", "--checkpoint-distance", "1MB,2MB,3MB"], "one size for growth"),
            (&["ycsb", "--engines", "turtle,turtle"], "turtle is there twice"),
            (&["levels", "--engines", "turtle"], "autumn"),
            (&["shape", "--checkpoint-distance", "1MB,2MB"], "one size for shape"),
            (&["levels", "--phases", "load"], "leave it out"),
            (&["ycsb", "--scaling", "40"], "for levels and shape alone"),
        ] {
            let message = figure(line).check().unwrap_err().to_string();
            assert!(message.contains(expected), "{line:?}: {message}");
        }
        let parse = |line: &[&str]| Line::try_parse_from(line).map(|_| ()).unwrap_err();
        assert!(parse(&["x", "pie"]).to_string().contains("sensitivity"));
        figure(&["ycsb", "--phases", "load,a", "--checkpoint-distance", "1MB,1MB"])
            .check()
            .unwrap();
    }

    /// The distance that a built store says it acts on.
    fn acted_on(kind: stores::Kind, asked: u64) -> Option<u64> {
        let directory = tempfile::tempdir().unwrap();
        let options = stores::StoreOptions {
            path: directory.path().to_path_buf(),
            engine: kind.name.to_owned(),
            memory: 64_000_000,
            checkpoint_distance: Some(asked),
            shape: Shape::default(),
            durability: Durability::Memory,
            threads: 1,
            live_bytes: 1000,
            key_bytes_max: 8,
            value_bytes_max: 120,
        };
        let store = kind.open(&options).unwrap();
        let settings = store.facts().settings;
        store.close().unwrap();
        let distance = settings.into_iter().find(|(name, _)| *name == "checkpoint_distance")?.1;
        distance.strip_suffix(" bytes").unwrap().parse().ok()
    }

    #[test]
    fn stores_with_a_dial_say_where_it_is_and_others_have_none() {
        for kind in stores::all().into_iter().filter(|kind| kind.open.is_some()) {
            let expected = has_dial(kind.name).then_some(2_000_000);
            assert_eq!(acted_on(kind, 2_000_000), expected, "{}", kind.name);
            if has_dial(kind.name) {
                let most = acted_on(kind, 1 << 40).unwrap();
                assert!((4_000_000..32_000_000).contains(&most), "{}: {most}", kind.name);
            }
        }
    }

    #[test]
    fn distances_are_round() {
        assert_eq!(
            [1_328_125, 85, 999, 1, 5_312_500].map(rounded),
            [1_300_000, 85, 1_000, 1, 5_300_000]
        );
    }
}
