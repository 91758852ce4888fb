//! `shape`: the cost of reads and writes of a tree for different shapes of its levels [Autumn 4.2,
//! 4.4]: random writes, gets with and without filters, scans of one, ten and a hundred records,
//! random updates and the space they need, against `c`, for each `T`.
//!
//! Each shape is loaded twice, with filters and without. Memory is an eighth of the data and the
//! checkpoint distance a small part of it, so that there are several levels and most reads meet the
//! device, as in the paper, which measures without a cache.

use super::{Way, different, look};
use crate::compare::summary::Spread;
use crate::figures::Drawing;
use crate::figures::data::{
    Planned, Points, cells, engines, is_capped, notes, settled, to_f64, work,
};
use crate::figures::drawing::axes::{Panel, Scale};
use crate::figures::drawing::page::{Page, Room, Sample};
use crate::figures::drawing::scene::{Frame, Point, Scene};
use crate::figures::options::{Figure, rounded};
use crate::record::{Record, phase_of};
use crate::workload::phases::Phase;

/// The default checkpoint distance is the size of the data divided by this.
const DISTANCE_PART: u64 = 320;

/// The bytes that are called one read of the device.
const READ_BYTES: f64 = 4096.0;

const COLUMNS: usize = 3;

const HEADER: [&str; 8] =
    ["engine", "measure", "filter_bits", "size_ratio", "scaling_percent", "median", "min", "max"];

/// The measurements of every shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measure {
    /// Thousands of operations a second, of phases that write with their settle.
    Kops(Phase),
    /// Blocks read for an operation.
    Reads(Phase),
    /// Bytes written for each byte of a phase and its settle.
    Amplification(Phase),
    /// Bytes on disk for each live byte after it, the log apart.
    Space(Phase),
    /// Levels after the load.
    Levels,
    /// Seconds that a phase was held back.
    Delayed(Phase),
}

/// A measure, and whether it is of the tree with filters.
type Shown = (Measure, bool);

/// All panels, in rows of [`COLUMNS`].
const PANELS: [(Shown, &str); 18] = [
    ((Measure::Kops(Phase::Load), true), "Random writes, load and settle, k/s"),
    ((Measure::Amplification(Phase::Load), true), "Bytes written per byte of it, log included"),
    ((Measure::Delayed(Phase::Load), true), "Held back in it, s"),
    ((Measure::Levels, true), "Levels after it"),
    ((Measure::Space(Phase::Load), true), "Bytes on disk per live byte after it"),
    ((Measure::Reads(Phase::Scans(0)), true), "Blocks read for a scan of 1"),
    ((Measure::Kops(Phase::Scans(0)), true), "Scans of 1, k/s"),
    ((Measure::Kops(Phase::Scans(1)), true), "Scans of 10, k/s"),
    ((Measure::Kops(Phase::Scans(2)), true), "Scans of 100, k/s"),
    ((Measure::Kops(Phase::Cu), true), "Gets, k/s"),
    ((Measure::Kops(Phase::Cu), false), "Gets without filters, k/s"),
    ((Measure::Reads(Phase::Cu), false), "Blocks read for a get without filters"),
    ((Measure::Kops(Phase::Cm), true), "Gets of absent keys, k/s"),
    ((Measure::Kops(Phase::Cm), false), "The same without filters, k/s"),
    ((Measure::Reads(Phase::Cm), false), "Blocks read for one without filters"),
    ((Measure::Kops(Phase::O), true), "Updates, two a record, and settle, k/s"),
    ((Measure::Amplification(Phase::O), true), "Bytes written per byte of them"),
    ((Measure::Space(Phase::O), true), "Bytes on disk per live byte after them"),
];

impl Measure {
    /// The name among the points.
    fn name(self) -> String {
        match self {
            Measure::Kops(phase) => format!("kops {}", phase.name()),
            Measure::Reads(phase) => format!("reads {}", phase.name()),
            Measure::Amplification(phase) => format!("write_amplification {}", phase.name()),
            Measure::Space(phase) => format!("space_amplification {}", phase.name()),
            Measure::Levels => "levels".to_owned(),
            Measure::Delayed(phase) => format!("delayed_seconds {}", phase.name()),
        }
    }

    /// The value in a result, if it is of the right phase.
    fn of(self, record: &Record) -> Option<f64> {
        let phase = match self {
            Measure::Kops(phase)
            | Measure::Reads(phase)
            | Measure::Amplification(phase)
            | Measure::Space(phase)
            | Measure::Delayed(phase) => phase,
            Measure::Levels => Phase::Load,
        };
        let phase = if [Phase::Load, Phase::O].contains(&phase) {
            settled(phase)
        } else {
            phase.name().to_owned()
        };
        if record.phase != phase {
            return None;
        }
        match self {
            Measure::Kops(_) => Some(record.kops),
            Measure::Reads(_) => {
                Some(to_f64(record.read_bytes) / READ_BYTES / to_f64(record.ops.max(1)))
            }
            Measure::Amplification(_) => record.write_amplification,
            Measure::Space(_) => record.space_amplification_without_log(),
            Measure::Levels => record.levels.map(to_f64),
            Measure::Delayed(_) => record.delayed_seconds,
        }
    }
}

/// One measure for one `T`, over `c`.
#[derive(Clone, PartialEq, Debug)]
struct Curve {
    shown: Shown,
    ratio: u32,
    /// `c` in percent, and what was measured.
    points: Vec<(u32, Spread)>,
}

/// Every shape, with filters and without.
pub fn plan(figure: &Figure) -> Vec<Planned> {
    let distance = figure.checkpoint_distance.first().copied();
    let distance = distance.unwrap_or_else(|| rounded(figure.data_bytes() / DISTANCE_PART));
    let memory = figure.memories().first().copied().unwrap_or(0);
    let mut plan = Vec::new();
    for repeat in 1..=figure.repeats {
        for engine in figure.engines() {
            for way in Way::all(figure) {
                for bits in [None, Some(0)] {
                    let mut run = figure.planned(&engine, memory, vec![distance], repeat);
                    run.options.shape = way.shape(bits);
                    if bits == Some(0) {
                        let is_of =
                            |phase: &Phase| [Phase::Load, Phase::Cu, Phase::Cm].contains(phase);
                        run.options.phases.retain(is_of);
                    }
                    plan.push(run);
                }
            }
        }
    }
    plan
}

/// True for phases that do a work of one size: of a part of it nothing is drawn.
fn has_fixed_work(phase: Option<Phase>) -> bool {
    matches!(phase, Some(Phase::Load | Phase::O))
}

fn has_filters(record: &Record) -> bool {
    record.settings["shape"]["filter_bits"] != 0
}

fn curves(results: &[Record]) -> Vec<Curve> {
    let complete: Vec<(Way, &Record)> = results
        .iter()
        .filter(|one| !(has_fixed_work(phase_of(&one.phase)) && is_capped(one)))
        .filter_map(|one| Some((Way::of(one)?, one)))
        .collect();
    let mut ratios = different(complete.iter().map(|(way, _)| way.ratio));
    let mut percents = different(complete.iter().map(|(way, _)| way.percent));
    ratios.sort_unstable();
    percents.sort_unstable();
    let mut curves = Vec::new();
    for ((measure, filtered), _) in PANELS {
        for ratio in &ratios {
            let point = |percent: &u32| {
                let way = Way { ratio: *ratio, percent: *percent };
                let own =
                    complete.iter().filter(|(of, one)| *of == way && has_filters(one) == filtered);
                let values = own.filter_map(|(_, one)| measure.of(one));
                Some((*percent, Spread::of(values)?))
            };
            let points: Vec<(u32, Spread)> = percents.iter().filter_map(point).collect();
            if !points.is_empty() {
                curves.push(Curve { shown: (measure, filtered), ratio: *ratio, points });
            }
        }
    }
    curves
}

fn table(engine: &str, curves: &[Curve]) -> Points {
    let rows = |curve: &Curve| {
        let (measure, filtered) = curve.shown;
        let bits = if filtered { "default" } else { "0" };
        let row = |(percent, spread): &(u32, Spread)| {
            let mut row = vec![engine.to_owned(), measure.name(), bits.to_owned()];
            row.extend([curve.ratio, *percent].map(|number| number.to_string()));
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
    let title = format!("{engine}: what depends on the shape of the levels");
    let mut page = Page::new(&title, &work(results));
    let mut ratios = different(curves.iter().map(|curve| curve.ratio));
    ratios.sort_unstable();
    let entries: Vec<_> =
        (0..).zip(&ratios).map(|(place, ratio)| (look(place), format!("T = {ratio}"))).collect();
    page.legend(Sample::Curve, &entries);
    for row in PANELS.chunks(COLUMNS) {
        let frames = page.row(COLUMNS, 130.0, Room { below: 46.0, ..Room::FULL });
        for ((shown, name), frame) in row.iter().zip(frames) {
            let own: Vec<&Curve> = curves.iter().filter(|curve| curve.shown == *shown).collect();
            panel(&mut page.scene, frame, &own, &ratios, name);
        }
    }
    Drawing { scene: page.finish(&notes(results)), points: table(&engine, &curves) }
}

fn panel(scene: &mut Scene, frame: Frame, curves: &[&Curve], ratios: &[u32], name: &str) {
    let max = curves.iter().flat_map(|curve| &curve.points).map(|(_, spread)| spread.max);
    let mut x = Scale::linear(1.0, 5.0);
    x.ticks.retain(|(value, _)| *value > 0.0);
    let panel = Panel { frame, x, y: Scale::linear_to(max.fold(0.0, f64::max) * 1.1, 5.0) };
    panel.draw(scene);
    panel.name(scene, name);
    panel.name_x(scene, "c");
    for curve in curves.iter().rev() {
        let place = ratios.iter().position(|ratio| *ratio == curve.ratio).unwrap_or(0);
        let look = look(place);
        let at = |percent: u32, value: f64| panel.at(f64::from(percent) / 100.0, value);
        let line: Vec<Point> =
            curve.points.iter().map(|(percent, spread)| at(*percent, spread.median)).collect();
        scene.curve(&line, look, 2.0);
        for (percent, spread) in &curve.points {
            panel.point(scene, at(*percent, 0.0).0, *spread, look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::options::tests::figure;
    use crate::figures::tests::shape_results;

    #[test]
    fn every_shape_runs_with_filters_and_without() {
        let figure = figure(&["shape", "--records", "2M"]);
        figure.check().unwrap();
        let plan = plan(&figure);
        assert_eq!(plan.len(), 3 * 3 * 2);
        assert_eq!(plan[0].options.phases.len(), 7);
        assert_eq!(plan[1].options.phases, [Phase::Load, Phase::Cu, Phase::Cm]);
        assert_eq!(plan[1].options.shape.filter_bits, Some(0));
        assert_eq!(plan[0].options.memory, 33_554_432);
        for run in &plan {
            run.options.check().unwrap();
        }
    }

    #[test]
    fn results_with_and_without_filters_are_not_mixed() {
        let curves = curves(&shape_results());
        let of = |measure: Measure, filtered: bool| {
            let same = |one: &&Curve| one.shown == (measure, filtered) && one.ratio == 2;
            let points = &curves.iter().find(same).unwrap().points;
            points.iter().map(|(percent, spread)| (*percent, spread.median)).collect::<Vec<_>>()
        };
        assert_eq!(of(Measure::Kops(Phase::Cu), true), [(40, 60.0), (100, 40.0)]);
        assert_eq!(of(Measure::Kops(Phase::Cu), false), [(40, 30.0), (100, 20.0)]);
        assert_eq!(of(Measure::Levels, true), [(40, 3.0), (100, 3.0)]);
    }
}
