//! `latency`: the distribution of latencies, one panel per kind of operation.
//!
//! The upper end of a distribution is what users feel, so shares are drawn by their nines: from 99%
//! to 99.9% is as far as from 90% to 99%.

use crate::driver::latency::Kind;
use crate::figures::Drawing;
use crate::figures::data::{Points, cell, engines, notes, work};
use crate::figures::drawing::axes::{Panel, Scale, duration};
use crate::figures::drawing::page::{Page, Room, Sample};
use crate::figures::drawing::scene::{Frame, Point, Scene};
use crate::figures::drawing::style::store;
use crate::record::Record;
use crate::workload::phases::Phase;

/// The panels: the kind of operation, and the phase.
const PANELS: [(Kind, Phase); 8] = [
    (Kind::Insert, Phase::Load),
    (Kind::Update, Phase::A),
    (Kind::Get, Phase::A),
    (Kind::Get, Phase::C),
    (Kind::Rmw, Phase::F),
    (Kind::Scan, Phase::E),
    (Kind::Get, Phase::Cu),
    (Kind::MultiGet, Phase::M),
];

/// Shares are drawn up to so many nines.
const NINES: usize = 4;

/// The greatest share that is drawn.
const SHARE_MAX: f64 = 0.9999;

const COLUMNS: usize = 3;

const HEADER: [&str; 5] = ["phase", "operation", "engine", "latency_us", "share_at_most"];

/// One store in one panel.
#[derive(Clone, PartialEq, Debug)]
struct Curve {
    phase: Phase,
    kind: Kind,
    engine: String,
    /// Microseconds, and the share that took at most so long.
    points: Vec<(f64, f64)>,
}

fn curves(records: &[Record]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (kind, phase) in PANELS {
        for engine in engines(records) {
            let own = records
                .iter()
                .find(|record| record.engine == engine && record.phase == phase.name());
            let points = own.and_then(|record| distribution(record, kind)).unwrap_or_default();
            if !points.is_empty() {
                curves.push(Curve { phase, kind, engine, points });
            }
        }
    }
    curves
}

/// The distribution up to [`SHARE_MAX`], which it may pass with one point.
fn distribution(record: &Record, kind: Kind) -> Option<Vec<(f64, f64)>> {
    let steps = record.detail.as_ref()?["latency_us_distribution"][kind.name()].as_array()?;
    let pairs = steps.iter().filter_map(|step| Some((step[0].as_f64()?, step[1].as_f64()?)));
    let mut points: Vec<(f64, f64)> = Vec::new();
    for point in pairs {
        let is_over = points.last().is_some_and(|last| last.1 >= SHARE_MAX);
        if !is_over && points.last() != Some(&point) {
            points.push(point);
        }
    }
    Some(points)
}

fn table(curves: &[Curve]) -> Points {
    let rows = |curve: &Curve| {
        let (phase, kind) = (curve.phase.name().to_owned(), curve.kind.name().to_owned());
        let engine = curve.engine.clone();
        let row = move |(latency, share): &(f64, f64)| {
            let (phase, kind, engine) = (phase.clone(), kind.clone(), engine.clone());
            vec![phase, kind, engine, cell(*latency), format!("{share:.6}")]
        };
        curve.points.iter().map(row).collect::<Vec<_>>()
    };
    Points { header: &HEADER, rows: curves.iter().flat_map(rows).collect() }
}

/// Draws it.
pub fn draw(records: &[Record]) -> Drawing {
    let curves = curves(records);
    let mut page =
        Page::new("Latency: which share of operations took at most how long", &work(records));
    let looks: Vec<_> = engines(records).into_iter().map(|name| (store(&name), name)).collect();
    page.legend(Sample::Line, &looks);
    let mut panels: Vec<(Kind, Phase)> = Vec::new();
    for (kind, phase) in PANELS {
        if curves.iter().any(|curve| (curve.kind, curve.phase) == (kind, phase)) {
            panels.push((kind, phase));
        }
    }
    for row in panels.chunks(COLUMNS) {
        let frames = page.row(COLUMNS, 190.0, Room { below: 30.0, ..Room::FULL });
        for ((kind, phase), frame) in row.iter().zip(frames) {
            let own: Vec<&Curve> = curves
                .iter()
                .filter(|curve| (curve.kind, curve.phase) == (*kind, *phase))
                .collect();
            panel(
                &mut page.scene,
                frame,
                &own,
                &format!("{} (phase {})", words(*kind), phase.name()),
            );
        }
    }
    Drawing { scene: page.finish(&notes(records)), points: table(&curves) }
}

/// A kind in words for readers.
fn words(kind: Kind) -> &'static str {
    match kind {
        Kind::Insert => "insert",
        Kind::Update => "update",
        Kind::Get => "get",
        Kind::Rmw => "read, modify, write",
        Kind::Scan => "scan of 1 to 100",
        Kind::MultiGet => "64 gets in one call",
    }
}

fn panel(scene: &mut Scene, frame: Frame, curves: &[&Curve], title: &str) {
    let times = || curves.iter().flat_map(|curve| &curve.points).map(|(micros, _)| *micros);
    let min = times().fold(f64::INFINITY, f64::min);
    let max = times().fold(0.0, f64::max);
    let panel = Panel { frame, x: Scale::log(min, max, duration), y: Scale::nines(NINES) };
    panel.draw(scene);
    panel.name(scene, title);
    for curve in curves.iter().rev() {
        let mut points: Vec<Point> =
            curve.points.iter().map(|(micros, share)| panel.at(*micros, *share)).collect();
        // A kind that always took the same time is one point: it rises there.
        if let [only] = points[..] {
            points.insert(0, (only.0, frame.bottom));
        }
        scene.line(&points, store(&curve.engine).color, 2.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::latency_results;

    #[test]
    fn curves_are_the_distributions_up_to_the_last_nine() {
        let curves = curves(&latency_results());
        let panels: Vec<(&str, &str, &str)> = curves
            .iter()
            .map(|one| (one.phase.name(), one.kind.name(), one.engine.as_str()))
            .collect();
        let expected = [
            ("load", "insert", "turtle"),
            ("load", "insert", "lmdb"),
            ("c", "get", "turtle"),
            ("c", "get", "lmdb"),
        ];
        assert_eq!(panels, expected);
        let points = &curves[0].points;
        assert_eq!(points.first(), Some(&(1.0, 0.0)));
        assert_eq!(points.last(), Some(&(40.0, 0.99995)));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
    }
}
