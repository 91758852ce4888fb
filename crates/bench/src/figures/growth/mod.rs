//! `growth`: what writes and reads cost when there is more and more data, and memory grows with it.
//!
//! Sizes are the records that are asked for, a quarter and half of them, twice and four times so
//! many. Memory is a third of the data at each size, so that the share of reads that meets the
//! device is about the same and what is left of growth is the depth of the structure. A store with
//! a dial has two series: its distance left to itself, which grows with the memory, and the same
//! distance at every size.
//!
//! By TurtleKV's paper (3.3.3) an update is written in proportion to `log2(N / distance)`.
//! Bytes that do not depend on the size, the log above all, are a constant. Of each series with one
//! distance the line `a + b * log2(N / distance)` nearest to the measured write amplification is
//! drawn and printed, N in bytes.
//!
//! A load that the cap ended is left out: it is not of its size.

#[cfg(test)]
mod tests;

use crate::compare::summary::Spread;
use crate::figures::Drawing;
use crate::figures::data::{
    Planned, Points, cell, cells, distance, engines, is_capped, notes, setting, settings,
    settled_load, size, stated_distance, to_f64, work,
};
use crate::figures::drawing::axes::{Panel, Scale, number};
use crate::figures::drawing::page::{Page, Room, Sample};
use crate::figures::drawing::scene::{Frame, Point, Scene};
use crate::figures::drawing::style::{INK, Look, store};
use crate::figures::fit::Fit;
use crate::figures::options::{Figure, has_dial, rounded};
use crate::record::{Record, phase_of};
use crate::workload::phases::Phase;
use std::collections::BTreeSet;

/// The distance of all sizes by default: the memory of the least size by this. Stores of ours take
/// any up to a quarter of their memory, so it is the same at every size.
const FIXED_SHARE: u64 = 8;

/// The bytes that are called one read of the device.
const READ_BYTES: f64 = 4096.0;

const COLUMNS: usize = 2;

const HEADER: [&str; 14] = [
    "engine",
    "measure",
    "distance",
    "checkpoint_distance_bytes",
    "records",
    "data_bytes",
    "memory_bytes",
    "median",
    "min",
    "max",
    "fit",
    "fit_a",
    "fit_b",
    "fit_error_max",
];

/// The origin of the distance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Dial {
    /// The store, if it has one.
    Own,
    /// We did: as many bytes at every size.
    Fixed(u64),
}

/// The quantity that is drawn against the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measure {
    /// Bytes written for each byte of the load and its settle.
    Amplification,
    /// Processor time for each insert of the same.
    InsertTime,
    /// Reads of the device for each uniform get.
    Reads,
    /// Processor time for each of them.
    GetTime,
}

const MEASURES: [Measure; 4] =
    [Measure::Amplification, Measure::InsertTime, Measure::Reads, Measure::GetTime];

impl Measure {
    /// The name among the points.
    fn name(self) -> &'static str {
        match self {
            Measure::Amplification => "write_amplification",
            Measure::InsertTime => "insert_cpu_us",
            Measure::Reads => "get_reads",
            Measure::GetTime => "get_cpu_us",
        }
    }

    /// Above its panel.
    fn title(self) -> &'static str {
        match self {
            Measure::Amplification => "Write amplification, log included (load and settle)",
            Measure::InsertTime => "Processor time of an insert, \u{b5}s (load and settle)",
            Measure::Reads => "Blocks of 4 KiB read for a get (cu)",
            Measure::GetTime => "Processor time of a get, \u{b5}s (cu)",
        }
    }

    /// Its value in a result, if that is of the right phase.
    fn of(self, record: &Record) -> Option<f64> {
        let phase = match self {
            Measure::Amplification | Measure::InsertTime => settled_load(),
            Measure::Reads | Measure::GetTime => Phase::Cu.name().to_owned(),
        };
        if record.phase != phase {
            return None;
        }
        match self {
            Measure::Amplification => record.write_amplification,
            Measure::InsertTime | Measure::GetTime => Some(record.cpu_us_per_op()),
            Measure::Reads => {
                Some(to_f64(record.read_bytes) / READ_BYTES / to_f64(record.ops.max(1)))
            }
        }
    }
}

/// One store at one size.
#[derive(Clone, PartialEq, Debug)]
struct Measured {
    records: u64,
    /// Bytes of keys and values.
    data: u64,
    memory: u64,
    /// The distance that was acted on at the end of the load, if the store reports it.
    distance: Option<u64>,
    /// For each of [`MEASURES`].
    values: [Option<Spread>; 4],
}

/// One store with its distance set in one way.
#[derive(Clone, PartialEq, Debug)]
struct Series {
    engine: String,
    dial: Dial,
    /// By size, the least first.
    sizes: Vec<Measured>,
    /// Of a fixed distance the law of its write amplification.
    fit: Option<Fit>,
}

impl Measured {
    fn value(&self, measure: Measure) -> Option<Spread> {
        let index = MEASURES.iter().position(|other| *other == measure)?;
        self.values[index]
    }

    /// How often the distance doubles up to the data; none if it is not less: such data is written
    /// once, and the law says nothing of it.
    fn doublings(&self) -> Option<f64> {
        let distance = self.distance.filter(|bytes| (1..self.data).contains(bytes))?;
        Some((to_f64(self.data) / to_f64(distance)).log2())
    }
}

impl Series {
    fn label(&self) -> String {
        let engine = &self.engine;
        match self.dial {
            Dial::Fixed(bytes) => format!("{engine}, distance {}", size(bytes)),
            Dial::Own if has_dial(engine) => format!("{engine}, distance by the store"),
            Dial::Own => format!("{engine} (no dial)"),
        }
    }

    /// A fixed distance is paler, and its markers are hollow.
    fn look(&self) -> Look {
        let look = store(&self.engine);
        match self.dial {
            Dial::Own => look,
            Dial::Fixed(_) => Look { color: look.color.tint(0.6), hollow: true, ..look },
        }
    }
}

/// Every size, with the distance left to the store, and for stores with a dial with the fixed one.
/// Operations go with the size if they are not given, as memory does: of the gets the same share
/// meets a cache that is not full yet.
pub fn plan(figure: &Figure) -> Vec<Planned> {
    let sizes = figure.growth_sizes();
    let least = sizes.first().map_or(0, |records| figure.third_of(*records));
    let fixed = figure.checkpoint_distance.first().copied();
    let fixed = fixed.unwrap_or_else(|| rounded(least / FIXED_SHARE));
    let mut plan = Vec::new();
    for repeat in 1..=figure.repeats {
        for records in &sizes {
            for engine in figure.engines() {
                let mut dials = vec![Vec::new()];
                if has_dial(&engine) {
                    dials.push(vec![fixed]);
                }
                for distances in dials {
                    let memory = figure.third_of(*records);
                    plan.push(figure.planned_of(*records, &engine, memory, distances, repeat));
                }
            }
        }
    }
    plan
}

/// The origin of the distance of a run; none if it was another in each phase.
fn dial(record: &Record) -> Option<Dial> {
    match record.settings["checkpoint_distance_bytes"].as_array()?.as_slice() {
        [] => Some(Dial::Own),
        [one] => Some(Dial::Fixed(one.as_u64()?)),
        _ => None,
    }
}

/// Medians over the repeats, by store, way to set the distance, and size.
fn series(results: &[Record]) -> Vec<Series> {
    let mut all = Vec::new();
    for engine in engines(results) {
        let own = results.iter().filter(|one| one.engine == engine);
        let own: Vec<&Record> = own.filter(|one| !is_short(one)).collect();
        let dials: BTreeSet<Dial> = own.iter().filter_map(|one| dial(one)).collect();
        for way in dials {
            let own: Vec<&Record> =
                own.iter().copied().filter(|one| dial(one) == Some(way)).collect();
            let of_size = |records: u64| measured(&own, records);
            let sizes: Vec<Measured> =
                settings(results, "records").into_iter().filter_map(of_size).collect();
            if sizes.is_empty() {
                continue;
            }
            let fit = (way != Dial::Own).then(|| law(&sizes)).flatten();
            all.push(Series { engine: engine.clone(), dial: way, sizes, fit });
        }
    }
    all
}

/// True for a load that did not come to all of its records.
fn is_short(record: &Record) -> bool {
    phase_of(&record.phase) == Some(Phase::Load) && is_capped(record)
}

/// The point of one series at one size; none if it was not loaded.
fn measured(own: &[&Record], records: u64) -> Option<Measured> {
    let own = || own.iter().copied().filter(|one| setting(one, "records") == Some(records));
    let load = settled_load();
    let loads: Vec<&Record> = own().filter(|one| one.phase == load).collect();
    let first = loads.first()?;
    let mut distances: Vec<u64> =
        loads.iter().filter_map(|one| distance(one).or_else(|| stated_distance(one))).collect();
    distances.sort_unstable();
    Some(Measured {
        records,
        data: first.live_bytes,
        memory: setting(first, "memory_bytes")?,
        distance: distances.get(distances.len() / 2).copied(),
        values: MEASURES.map(|measure| Spread::of(own().filter_map(|one| measure.of(one)))),
    })
}

/// The line through the write amplification of one distance.
fn law(sizes: &[Measured]) -> Option<Fit> {
    let point = |one: &Measured| {
        let amplification = one.value(Measure::Amplification)?;
        Some((one.doublings()?, amplification.median))
    };
    Fit::of(&sizes.iter().filter_map(point).collect::<Vec<_>>())
}

fn table(all: &[Series]) -> Points {
    let mut rows = Vec::new();
    for one in all {
        for measure in MEASURES {
            for at in &one.sizes {
                let Some(spread) = at.value(measure) else { continue };
                let way = match one.dial {
                    Dial::Own if has_dial(&one.engine) => "by the store",
                    Dial::Own => "none",
                    Dial::Fixed(_) => "fixed",
                };
                let mut row = vec![one.engine.clone(), measure.name().into(), way.into()];
                row.push(at.distance.map_or(String::new(), |bytes| bytes.to_string()));
                row.extend([at.records, at.data, at.memory].map(|count| count.to_string()));
                row.extend(cells(spread));
                let fit = one.fit.filter(|_| measure == Measure::Amplification);
                let fit = fit
                    .zip(at.doublings())
                    .map(|(fit, x)| [fit.at(x), fit.a, fit.b, fit.error_max].map(cell));
                row.extend(fit.unwrap_or_default());
                rows.push(row);
            }
        }
    }
    Points { header: &HEADER, rows }
}

/// Draws it.
pub fn draw(results: &[Record]) -> Drawing {
    let all = series(results);
    let title = "What writes and reads cost as data grows, and memory with it";
    let mut page = Page::new(title, &work(results));
    let entries: Vec<_> = all.iter().map(|one| (one.look(), one.label())).collect();
    page.legend(Sample::Curve, &entries);
    for row in MEASURES.chunks(COLUMNS) {
        let frames = page.row(COLUMNS, 190.0, Room { below: 56.0, ..Room::FULL });
        for (measure, frame) in row.iter().zip(frames) {
            panel(&mut page.scene, frame, &all, *measure);
        }
    }
    let mut said = about(&all);
    said.extend(notes(results));
    Drawing { scene: page.finish(&said), points: table(&all) }
}

fn panel(scene: &mut Scene, frame: Frame, all: &[Series], measure: Measure) {
    let sizes = || all.iter().flat_map(|one| &one.sizes);
    let counts: Vec<f64> = sizes().map(|one| to_f64(one.records)).collect();
    let most = sizes().filter_map(|one| one.value(measure)).map(|spread| spread.max);
    let y = Scale::linear_to(most.fold(0.0, f64::max) * 1.1, 5.0);
    // Each size is twice the one before, so that the numbers are as far from each other.
    let panel = Panel { frame, x: Scale::log_of(&counts, number), y };
    panel.draw(scene);
    panel.name(scene, measure.title());
    panel.name_x(scene, "records");
    let right = |one: &Measured| panel.at(to_f64(one.records), 0.0).0;
    // The first is drawn last: ours lies above the others.
    for one in all.iter().rev() {
        let place = |at: &Measured| -> Option<Point> {
            Some((right(at), panel.at(0.0, at.value(measure)?.median).1))
        };
        let line: Vec<Point> = one.sizes.iter().filter_map(place).collect();
        scene.line(&line, one.look().color, 2.0);
        for at in &one.sizes {
            if let Some(spread) = at.value(measure) {
                panel.point(scene, right(at), spread, one.look());
            }
        }
    }
    if measure == Measure::Amplification {
        for (one, fit) in all.iter().filter_map(|one| Some((one, one.fit?))) {
            let place = |at: &Measured| Some((right(at), panel.at(0.0, fit.at(at.doublings()?)).1));
            let line: Vec<Point> = one.sizes.iter().filter_map(place).collect();
            scene.broken_line(&line, INK, 1.2);
        }
    }
}

/// Notes on the sizes, and the laws that were found.
fn about(all: &[Series]) -> Vec<String> {
    let shares = all.iter().flat_map(|one| &one.sizes);
    let shares = shares.map(|one| to_f64(one.memory) / to_f64(one.data.max(1)));
    let mut said = Vec::new();
    if let Some(share) = Spread::of(shares) {
        let [least, greatest] = [share.min, share.max].map(|share| format!("{share:.2}"));
        said.push(match least == greatest {
            true => format!("Memory is {least} times the data at every size."),
            false => format!("Memory is from {least} to {greatest} times the data."),
        });
    }
    for one in all {
        let Dial::Fixed(asked) = one.dial else { continue };
        if one.sizes.iter().any(|at| at.distance != Some(asked)) {
            said.push(format!("{}: it acted on another at some sizes.", one.label()));
        }
        if let Some(fit) = one.fit {
            said.push(format!(
                "Thin broken line, {}: write amplification = {:.3} {} {:.3} log2(data / distance), \
                 by least squares; off by {:.1}% at most.",
                one.label(),
                fit.a,
                if fit.b < 0.0 { '-' } else { '+' },
                fit.b.abs(),
                fit.error_max * 100.0,
            ));
        }
    }
    said
}
