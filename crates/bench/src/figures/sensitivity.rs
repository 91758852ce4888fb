//! `sensitivity`: the dependence of each phase on the checkpoint distance, and that the savings of
//! a longer distance do not depend on the number of records.
//!
//! The distance stays the same through all phases of a run. Sizes are compared with the same memory
//! and the same distances: the greater memory, the load alone.

use crate::compare::summary::Spread;
use crate::figures::data::{
    Planned, Points, cells, distance, engines, megabytes, notes, phase_words, setting, settings,
    settled_load, size, speeds, to_f64, work,
};
use crate::figures::drawing::axes::{Panel, Scale, number};
use crate::figures::drawing::page::{Page, Room, Sample};
use crate::figures::drawing::scene::{Frame, Point, Scene};
use crate::figures::drawing::style::{Color, Look, store};
use crate::figures::options::{Figure, rounded};
use crate::figures::{Drawing, drawing::scene::Anchor, drawing::style::INK, drawing::style::TEXT};
use crate::record::Record;
use crate::workload::phases::Phase;
use std::collections::BTreeSet;

/// Distances by default: the memory, halved so often.
const HALVINGS: std::ops::RangeInclusive<u32> = 2..=6;

/// Parts of the records that are loaded too.
const PARTS: [u64; 2] = [2, 4];

const COLUMNS: usize = 3;

const HEADER: [&str; 8] = [
    "engine",
    "measure",
    "records",
    "memory_bytes",
    "checkpoint_distance_bytes",
    "median",
    "min",
    "max",
];

/// The measurements against the distance.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Measure {
    /// Thousands of operations a second of a phase.
    Kops(String),
    /// Write amplification of the load and its settle.
    Amplification,
    /// By how much less was written than at the shortest distance.
    Gain,
}

/// One measure with one number of records and one memory, over the distances.
#[derive(Clone, PartialEq, Debug)]
struct Curve {
    measure: Measure,
    records: u64,
    memory: u64,
    /// The distance, and what was measured.
    points: Vec<(u64, Spread)>,
}

/// All phases at every distance and memory, then loads of fewer records.
pub fn plan(figure: &Figure) -> Vec<Planned> {
    let memories = figure.memories();
    let greatest = memories.iter().copied().max().unwrap_or(0);
    let distances = |memory: u64| match figure.checkpoint_distance.as_slice() {
        [] => HALVINGS.rev().map(|count| rounded(memory >> count)).collect(),
        given => given.to_vec(),
    };
    let mut plan = Vec::new();
    for repeat in 1..=figure.repeats {
        for engine in figure.engines() {
            for memory in &memories {
                for distance in distances(*memory) {
                    plan.push(figure.planned(&engine, *memory, vec![distance], repeat));
                }
            }
            for part in PARTS {
                let records = figure.records() / part;
                if records < figure.common.threads {
                    continue;
                }
                for distance in distances(greatest) {
                    let mut run = figure.planned(&engine, greatest, vec![distance], repeat);
                    run.options.records = Some(records);
                    run.options.phases = vec![Phase::Load];
                    plan.push(run);
                }
            }
        }
    }
    plan
}

/// The curve of `value` in `phase`.
fn curve(
    results: &[Record],
    measure: Measure,
    (phase, records, memory): (&str, u64, u64),
    value: impl Fn(&Record) -> Option<f64>,
) -> Curve {
    let own = || {
        results.iter().filter(|one| {
            one.phase == phase
                && setting(one, "records") == Some(records)
                && setting(one, "memory_bytes") == Some(memory)
        })
    };
    let distances: BTreeSet<u64> = own().filter_map(distance).collect();
    let point = |at: u64| {
        let values = own().filter(|one| distance(one) == Some(at)).filter_map(&value);
        Some((at, Spread::of(values)?))
    };
    Curve { measure, records, memory, points: distances.into_iter().filter_map(point).collect() }
}

fn curves(results: &[Record]) -> Vec<Curve> {
    let mut curves = Vec::new();
    let sizes = settings(results, "records");
    let memories = settings(results, "memory_bytes");
    let (Some(all), Some(greatest)) = (sizes.last().copied(), memories.last().copied()) else {
        return curves;
    };
    for phase in speeds(results) {
        for memory in &memories {
            let measure = Measure::Kops(phase.clone());
            let place = (phase.as_str(), all, *memory);
            curves.push(curve(results, measure, place, |record| Some(record.kops)));
        }
    }
    for records in sizes.into_iter().rev() {
        let load = settled_load();
        let place = (load.as_str(), records, greatest);
        let amplification =
            curve(results, Measure::Amplification, place, |one| one.write_amplification);
        curves.push(gain(&amplification));
        curves.push(amplification);
    }
    curves.retain(|curve| !curve.points.is_empty());
    curves
}

/// Of medians: a spread of ratios would need pairs of runs that belong together.
fn gain(amplification: &Curve) -> Curve {
    let first = amplification.points.first().map_or(0.0, |(_, spread)| spread.median);
    let point = |(at, spread): &(u64, Spread)| {
        let gain = if spread.median > 0.0 { first / spread.median } else { 0.0 };
        (*at, Spread { median: gain, min: gain, max: gain })
    };
    let points = amplification.points.iter().map(point).collect();
    Curve { measure: Measure::Gain, points, ..amplification.clone() }
}

fn table(engine: &str, curves: &[Curve]) -> Points {
    let rows = |curve: &Curve| {
        let measure = match &curve.measure {
            Measure::Kops(phase) => format!("kops {phase}"),
            Measure::Amplification => "write_amplification".to_owned(),
            Measure::Gain => "write_amplification_gain".to_owned(),
        };
        let (records, memory) = (curve.records.to_string(), curve.memory.to_string());
        let row = |(at, spread): &(u64, Spread)| {
            let mut row = vec![engine.to_owned(), measure.clone(), records.clone(), memory.clone()];
            row.push(at.to_string());
            row.extend(cells(*spread));
            row
        };
        curve.points.iter().map(row).collect::<Vec<_>>()
    };
    Points { header: &HEADER, rows: curves.iter().flat_map(rows).collect() }
}

/// Draws it.
pub fn draw(results: &[Record]) -> Drawing {
    let engine = engines(results).into_iter().next().unwrap_or_default();
    let curves = curves(results);
    let title = format!("{engine}: what depends on the checkpoint distance");
    let mut page = Page::new(&title, &work(results));
    let memories = settings(results, "memory_bytes");
    let of_memory = |memory: u64| {
        let is_greatest = memories.last() == Some(&memory);
        Look { hollow: !is_greatest, dashed: !is_greatest, ..store(&engine) }
    };
    let entries: Vec<_> =
        memories.iter().map(|one| (of_memory(*one), format!("memory {}", size(*one)))).collect();
    page.legend(Sample::Curve, &entries);
    let phases: Vec<Measure> = speeds(results).into_iter().map(Measure::Kops).collect();
    for row in phases.chunks(COLUMNS) {
        let frames = page.row(COLUMNS, 130.0, Room { below: 46.0, ..Room::FULL });
        for (measure, frame) in row.iter().zip(frames) {
            let own = drawn(&curves, measure, &|curve| of_memory(curve.memory));
            let Measure::Kops(phase) = measure else { continue };
            let title = format!("{phase} ({}), kops/s", phase_words(phase));
            panel(&mut page.scene, frame, &own, &title);
        }
    }
    let sizes = settings(results, "records");
    let of_size = |records: u64| by_size(&sizes, records, store(&engine));
    let entries: Vec<_> = sizes
        .iter()
        .rev()
        .map(|count| (of_size(*count), format!("N = {}", number(to_f64(*count)))))
        .collect();
    let greatest = memories.last().copied().unwrap_or(0);
    let frame = page.row(1, 8.0, Room { left: 0.0, above: 26.0, below: 5.0 })[0];
    let text = format!("Loads of different sizes, memory {}", size(greatest));
    page.scene.text(&text, (frame.left, frame.bottom), TEXT, INK, Anchor::Start);
    page.legend(Sample::Curve, &entries);
    let frames = page.row(2, 150.0, Room::FULL);
    for (measure, frame, title) in [
        (Measure::Amplification, frames[0], "Write amplification, log included"),
        (Measure::Gain, frames[1], "Times less written than at the shortest distance"),
    ] {
        let own = drawn(&curves, &measure, &|curve| of_size(curve.records));
        panel(&mut page.scene, frame, &own, title);
    }
    Drawing { scene: page.finish(&notes(results)), points: table(&engine, &curves) }
}

/// The curves of `measure`, each with its look.
fn drawn<'a>(
    curves: &'a [Curve],
    measure: &Measure,
    look: &dyn Fn(&Curve) -> Look,
) -> Vec<(&'a Curve, Look)> {
    let own = curves.iter().filter(|curve| curve.measure == *measure);
    own.map(|curve| (curve, look(curve))).collect()
}

/// Fewer records are paler.
fn by_size(sizes: &[u64], records: u64, look: Look) -> Look {
    let place = sizes.iter().rev().position(|size| *size == records).unwrap_or(0);
    let share = [1.0, 0.62, 0.38].get(place).copied().unwrap_or(0.3);
    let color: Color = look.color.tint(share);
    Look { color, ..look }
}

fn panel(scene: &mut Scene, frame: Frame, curves: &[(&Curve, Look)], title: &str) {
    let points = || curves.iter().flat_map(|(curve, _)| &curve.points);
    let distances: Vec<f64> = points().map(|(at, _)| megabytes(*at)).collect();
    let max = points().map(|(_, spread)| spread.max).fold(0.0, f64::max);
    let panel =
        Panel { frame, x: Scale::log_of(&distances, number), y: Scale::linear_to(max * 1.1, 5.0) };
    panel.draw(scene);
    panel.name(scene, title);
    panel.name_x(scene, "checkpoint distance, MB");
    for (curve, look) in curves {
        let place = |(at, spread): &(u64, Spread)| panel.at(megabytes(*at), spread.median);
        let line: Vec<Point> = curve.points.iter().map(place).collect();
        scene.curve(&line, *look, 2.0);
        for (at, spread) in &curve.points {
            panel.point(scene, panel.at(megabytes(*at), 0.0).0, *spread, *look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::options::tests::figure;
    use crate::figures::tests::sensitivity_results;

    #[test]
    fn the_plan_has_all_phases_and_then_fewer_records() {
        let plan = plan(&figure(&["sensitivity", "--records", "2M"]));
        assert_eq!(plan.len(), 2 * 5 + 2 * 5);
        assert_eq!(plan[0].options.memory, 85_000_000);
        assert_eq!(plan[0].options.checkpoint_distance, [1_300_000]);
        let last = &plan.last().unwrap().options;
        assert_eq!((last.records, last.phases.as_slice()), (Some(500_000), &[Phase::Load][..]));
        assert_eq!((last.memory, last.checkpoint_distance[0]), (260_000_000, 65_000_000));
        for run in &plan {
            run.options.check().unwrap();
        }
    }

    #[test]
    fn gains_are_against_the_shortest_distance() {
        let curves = curves(&sensitivity_results());
        let of = |measure: &Measure, records: u64, memory: u64| {
            let same = |one: &&Curve| {
                one.measure == *measure && one.records == records && one.memory == memory
            };
            let points = &curves.iter().find(same).unwrap().points;
            points.iter().map(|(_, spread)| spread.median).collect::<Vec<_>>()
        };
        assert_eq!(of(&Measure::Amplification, 1000, 1 << 26), [8.0, 4.0, 2.0]);
        assert_eq!(of(&Measure::Gain, 1000, 1 << 26), [1.0, 2.0, 4.0]);
        assert_eq!(of(&Measure::Gain, 500, 1 << 26), [1.0, 2.0, 4.0]);
        assert_eq!(of(&Measure::Kops("c".to_owned()), 1000, 1 << 25).len(), 3);
        assert!(!curves.iter().any(|one| one.measure == Measure::Kops("load".to_owned())));
    }
}
