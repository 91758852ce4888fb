//! `figure`: draws measurements.
//!
//! ```text
//!   plan: runs of stores  ->  OUT/NAME.jsonl: their results  ->  points  ->  OUT/NAME.csv
//!   (options.rs, each figure)  (data.rs)                           |
//!                                                                  v
//!                                            OUT/NAME.svg  <-  scene
//!                                                         (drawing/)
//! ```
//!
//! Each figure is a file with `plan`, `points` and `draw`. Drawing needs the results alone, so
//! `--from` and `report` draw without running anything. A store that failed is missing in the
//! figure; the others are drawn.

pub mod data;
mod dial;
pub mod drawing;
mod fit;
mod garnering;
mod growth;
mod latency;
mod memory;
mod options;
mod sensitivity;
mod stall;
mod wm;
mod ycsb;

#[cfg(test)]
pub mod tests;

use crate::compare::say;
use crate::failure::{Failure, Result};
use crate::record::{self, Record};
use crate::workload::phases::Phase;
use clap::ValueEnum;
use data::{Ends, Planned, Points};
use drawing::scene::Scene;
pub use options::Figure;
use std::path::{Path, PathBuf};

/// A figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Name {
    /// Write amplification and insert latency against the memory for writes
    Wm,
    /// Throughput of each phase
    Ycsb,
    /// Throughput of each phase against the checkpoint distance
    Sensitivity,
    /// The checkpoint distance that the store finds against fixed ones
    Dial,
    /// The cost of writes and reads against the number of records
    Growth,
    /// How latencies are distributed
    Latency,
    /// Resident memory over time
    Memory,
    /// Throughput in every second of a long load
    Stall,
    /// Levels of a tree against the number of records
    Levels,
    /// The cost of writes and reads against the shape of levels
    Shape,
}

/// A figure and what is drawn in it.
#[derive(Clone, PartialEq, Debug)]
pub struct Drawing {
    /// The shapes.
    pub scene: Scene,
    /// The points.
    pub points: Points,
}

impl Name {
    /// All figures, in the order of a report.
    pub const ALL: [Name; 10] = [
        Name::Ycsb,
        Name::Wm,
        Name::Sensitivity,
        Name::Dial,
        Name::Growth,
        Name::Latency,
        Name::Memory,
        Name::Stall,
        Name::Levels,
        Name::Shape,
    ];

    /// The name in options and of files.
    pub fn name(self) -> &'static str {
        match self {
            Name::Wm => "wm",
            Name::Ycsb => "ycsb",
            Name::Sensitivity => "sensitivity",
            Name::Dial => "dial",
            Name::Growth => "growth",
            Name::Latency => "latency",
            Name::Memory => "memory",
            Name::Stall => "stall",
            Name::Levels => "levels",
            Name::Shape => "shape",
        }
    }

    /// Above it in a report.
    pub fn heading(self) -> &'static str {
        match self {
            Name::Wm => "Memory for writes",
            Name::Ycsb => "Throughput of phases",
            Name::Sensitivity => "Checkpoint distance",
            Name::Dial => "Distance found by the store",
            Name::Growth => "Cost against size",
            Name::Latency => "Latency",
            Name::Memory => "Memory over time",
            Name::Stall => "Every second of a load",
            Name::Levels => "Levels against size",
            Name::Shape => "Shape of levels",
        }
    }

    /// The records by default: each figure takes minutes. Of `growth` the size in the middle.
    fn records(self) -> u64 {
        match self {
            Name::Wm | Name::Ycsb | Name::Latency | Name::Memory | Name::Shape => 4_000_000,
            Name::Sensitivity | Name::Dial => 2_000_000,
            Name::Stall => 10_000_000,
            Name::Levels => 16_000_000,
            Name::Growth => 20_000_000,
        }
    }

    /// The cap of a phase by default, in seconds.
    fn cap(self) -> u64 {
        match self {
            // Four times the records of other measurements are loaded.
            Name::Growth => 600,
            _ => 120,
        }
    }

    /// The phases by default.
    fn phases(self) -> &'static [Phase] {
        use Phase::{A, B, C, Cm, Cu, D, E, F, Load, O, Scans};
        match self {
            Name::Wm | Name::Stall | Name::Levels => &[Load],
            Name::Ycsb => &[Load, A, B, C, F, D, E],
            Name::Dial => &[Load, A, B, C, D, E, F],
            Name::Sensitivity | Name::Memory => &[Load, A, B, C, F, E],
            Name::Latency => &[Load, A, C, F, E],
            Name::Growth => &[Load, Cu],
            Name::Shape => &[Load, Cu, Cm, Scans(0), Scans(1), Scans(2), O],
        }
    }

    fn takes_repeats(self) -> bool {
        !matches!(self, Name::Latency | Name::Memory | Name::Stall | Name::Levels)
    }

    fn takes_memories(self) -> bool {
        matches!(self, Name::Ycsb | Name::Sensitivity | Name::Dial)
    }

    /// True if it is about the shape of levels.
    fn is_of_levels(self) -> bool {
        matches!(self, Name::Levels | Name::Shape)
    }

    /// True if distances are what goes to the right.
    fn takes_distances(self) -> bool {
        matches!(self, Name::Wm | Name::Sensitivity | Name::Dial)
    }

    /// The runs that are asked for.
    fn plan(self, figure: &Figure) -> Vec<Planned> {
        match self {
            Name::Wm => wm::plan(figure),
            Name::Sensitivity => sensitivity::plan(figure),
            Name::Dial => dial::plan(figure),
            Name::Growth => growth::plan(figure),
            Name::Levels => garnering::levels::plan(figure),
            Name::Shape => garnering::shape::plan(figure),
            Name::Ycsb | Name::Latency | Name::Memory | Name::Stall => each_store(figure),
        }
    }

    /// The figure of `records`.
    pub fn draw(self, records: &[Record]) -> Result<Drawing> {
        let drawing = match self {
            Name::Wm => wm::draw(records),
            Name::Ycsb => ycsb::draw(records),
            Name::Sensitivity => sensitivity::draw(records),
            Name::Dial => dial::draw(records),
            Name::Growth => growth::draw(records),
            Name::Latency => latency::draw(records),
            Name::Memory => memory::draw(records),
            Name::Stall => stall::draw(records),
            Name::Levels => garnering::levels::draw(records),
            Name::Shape => garnering::shape::draw(records),
        };
        if drawing.points.rows.is_empty() {
            let why = "the results have none of its points: make them with `figure`";
            return Err(Failure::failed(format!("draw {}", self.name()), why));
        }
        Ok(drawing)
    }
}

/// Every store with every setting of memory, repeats outermost, so that a slow hour of the machine
/// meets all of them.
fn each_store(figure: &Figure) -> Vec<Planned> {
    let mut plan = Vec::new();
    for repeat in 1..=figure.repeats {
        for memory in figure.memories() {
            for engine in figure.engines() {
                let distances = figure.checkpoint_distance.clone();
                plan.push(figure.planned(&engine, memory, distances, repeat));
            }
        }
    }
    plan
}

/// Runs it.
pub fn figure(arguments: &Figure) -> Result<()> {
    let (name, out) = (arguments.name, arguments.out());
    let path = data_of(&out, name);
    let (records, ends) = match &arguments.from {
        Some(directory) => {
            let records = record::read(&data_of(directory, name))?;
            make(&out)?;
            keep_data(&records, &path)?;
            (records, Ends::default())
        }
        None => {
            arguments.check()?;
            let plan = name.plan(arguments);
            data::check(&plan, &path)?;
            make(&out)?;
            data::gather(&plan, &path)?
        }
    };
    save(&name.draw(&records)?, name, &out)?;
    match ends {
        Ends { wrong: 0, failed: 0 } => Ok(()),
        Ends { wrong: 0, failed } => {
            Err(Failure::failed("figure", format!("{failed} runs failed; the others are drawn")))
        }
        Ends { wrong, .. } => Err(Failure::wrong(format!("{wrong} runs read a wrong value"))),
    }
}

/// Where the results of a figure are.
pub fn data_of(directory: &Path, name: Name) -> PathBuf {
    directory.join(format!("{}.jsonl", name.name()))
}

/// If a figure is drawn from results in another directory, they are copied beside it; never over
/// others.
fn keep_data(records: &[Record], path: &Path) -> Result<()> {
    if !path.exists() {
        return record::append(path, records);
    }
    if record::read(path)? == records {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::usage(format!("{path} holds other results: give another --out")))
}

fn make(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::failed(format!("make {}", directory.display()), error))
}

/// Writes the points and the figure.
fn save(drawing: &Drawing, name: Name, directory: &Path) -> Result<()> {
    for (ending, text) in
        [("csv", drawing.points.csv()), ("svg", drawing::svg::svg(&drawing.scene))]
    {
        let path = directory.join(format!("{}.{ending}", name.name()));
        std::fs::write(&path, text)
            .map_err(|error| Failure::failed(format!("write {}", path.display()), error))?;
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}
