//! `wm`: write amplification and mean insert latency of a load, against the checkpoint distance, or
//! for other stores the size of their write buffer.
//!
//! Bytes are those of the load with its settle, so that nothing is left out that a larger memory
//! only puts off. The latency is the mean of the calls of the load. A store without such a dial is
//! one level, drawn broken.

use crate::compare::summary::Spread;
use crate::driver::latency::Kind;
use crate::figures::data::{
    Planned, Points, cells, distance, engines, is_capped, megabytes, notes, settled_load, work,
};
use crate::figures::drawing::axes::{Panel, Scale, number};
use crate::figures::drawing::page::{Page, Room, Sample};
use crate::figures::drawing::scene::{Point, Scene};
use crate::figures::drawing::style::{Look, store};
use crate::figures::options::{Figure, has_dial, rounded};
use crate::figures::{Drawing, drawing::scene::Frame};
use crate::record::Record;
use crate::workload::phases::Phase;
use std::collections::BTreeSet;

/// The least and the greatest distance by default, as halvings of the data.
const HALVINGS: std::ops::RangeInclusive<u32> = 2..=9;

const HEADER: [&str; 9] = [
    "engine",
    "checkpoint_distance_bytes",
    "write_amplification",
    "write_amplification_min",
    "write_amplification_max",
    "insert_latency_us_mean",
    "insert_latency_us_mean_min",
    "insert_latency_us_mean_max",
    "capped",
];

/// One store at one distance.
#[derive(Clone, PartialEq, Debug)]
struct Measured {
    engine: String,
    /// None if the store has no dial.
    distance: Option<u64>,
    amplification: Spread,
    latency: Spread,
    capped: bool,
}

/// Every store with a dial at every distance, the others once.
pub fn plan(figure: &Figure) -> Vec<Planned> {
    let mut distances = figure.checkpoint_distance.clone();
    if distances.is_empty() {
        distances = HALVINGS.rev().map(|count| rounded(figure.data_bytes() >> count)).collect();
        distances.dedup();
    }
    let memory = figure.memories()[0];
    let mut plan = Vec::new();
    for repeat in 1..=figure.repeats {
        for (index, distance) in distances.iter().enumerate() {
            for engine in figure.engines() {
                if has_dial(&engine) {
                    plan.push(figure.planned(&engine, memory, vec![*distance], repeat));
                } else if index == 0 {
                    plan.push(figure.planned(&engine, memory, Vec::new(), repeat));
                }
            }
        }
    }
    plan
}

/// Medians over the repeats, by store and distance.
fn points(records: &[Record]) -> Vec<Measured> {
    let mut points = Vec::new();
    for engine in engines(records) {
        let own: Vec<&Record> = records.iter().filter(|record| record.engine == engine).collect();
        let distances: BTreeSet<Option<u64>> = own.iter().map(|record| distance(record)).collect();
        for at in distances {
            let of = |phase: &str, value: fn(&Record) -> Option<f64>| {
                let own = own.iter().filter(|one| one.phase == phase && distance(one) == at);
                Spread::of(own.filter_map(|record| value(record)))
            };
            let amplification = of(&settled_load(), |record| record.write_amplification);
            let latency = of(Phase::Load.name(), mean_insert_latency);
            let (Some(amplification), Some(latency)) = (amplification, latency) else { continue };
            let capped = own.iter().any(|one| distance(one) == at && is_capped(one));
            let engine = engine.clone();
            points.push(Measured { engine, distance: at, amplification, latency, capped });
        }
    }
    points
}

fn mean_insert_latency(record: &Record) -> Option<f64> {
    record.detail.as_ref()?["latency_us_mean"][Kind::Insert.name()].as_f64()
}

fn table(points: &[Measured]) -> Points {
    let row = |point: &Measured| {
        let distance = point.distance.map_or(String::new(), |bytes| bytes.to_string());
        let mut row = vec![point.engine.clone(), distance];
        row.extend(cells(point.amplification));
        row.extend(cells(point.latency));
        row.push(point.capped.to_string());
        row
    };
    Points { header: &HEADER, rows: points.iter().map(row).collect() }
}

/// Draws it.
pub fn draw(records: &[Record]) -> Drawing {
    let points = points(records);
    let mut page = Page::new("What memory for writes buys", &work(records));
    let names = engines(records);
    let entry = |engine: &String| {
        let level = points.iter().any(|one| one.engine == *engine && one.distance.is_none());
        let name = if level { format!("{engine} (no dial)") } else { engine.clone() };
        (Look { dashed: level, ..store(engine) }, name)
    };
    page.legend(Sample::Curve, &names.iter().map(entry).collect::<Vec<_>>());
    let frames = page.row(2, 280.0, Room { below: 56.0, ..Room::FULL });
    let title = "Write amplification, log included (load and settle)";
    panel(&mut page.scene, frames[0], &points, title, |point| point.amplification);
    let title = "Mean latency of an insert, \u{b5}s (load)";
    panel(&mut page.scene, frames[1], &points, title, |point| point.latency);
    let mut said = notes(records);
    if points.iter().any(|point| point.capped) {
        said.push("Hollow: the cap ended the load.".to_owned());
    }
    Drawing { scene: page.finish(&said), points: table(&points) }
}

fn panel(
    scene: &mut Scene,
    frame: Frame,
    points: &[Measured],
    title: &str,
    value: fn(&Measured) -> Spread,
) {
    let distances: Vec<f64> =
        points.iter().filter_map(|point| point.distance).map(megabytes).collect();
    let max = points.iter().map(|point| value(point).max).fold(0.0, f64::max);
    let panel =
        Panel { frame, x: Scale::log_of(&distances, number), y: Scale::linear_to(max * 1.08, 5.0) };
    panel.draw(scene);
    panel.name(scene, title);
    panel.name_x(scene, "checkpoint distance or write buffer, MB");
    let mut names: Vec<&str> = points.iter().map(|point| point.engine.as_str()).collect();
    names.dedup();
    // The first is drawn last: ours lies above the others.
    for engine in names.into_iter().rev() {
        let look = store(engine);
        let own = || points.iter().filter(|point| point.engine == engine);
        let place = |point: &Measured| -> Option<Point> {
            Some(panel.at(megabytes(point.distance?), value(point).median))
        };
        let curve: Vec<Point> = own().filter_map(place).collect();
        scene.line(&curve, look.color, 2.0);
        for point in own() {
            let spread = value(point);
            let own_look = Look { hollow: point.capped, ..look };
            let Some(at) = place(point) else {
                let y = panel.at(1.0, spread.median).1;
                scene.broken_line(&[(frame.left, y), (frame.right, y)], look.color, 2.0);
                panel.point(scene, frame.right - 8.0, spread, own_look);
                continue;
            };
            panel.point(scene, at.0, spread, own_look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::options::tests::figure;
    use crate::figures::tests::wm_results;

    #[test]
    fn stores_without_a_dial_run_once() {
        let plan = plan(&figure(&["wm", "--engines", "turtle,lmdb", "--records", "4M"]));
        let of = |engine: &str| plan.iter().filter(|run| run.engine == engine).count();
        assert_eq!((of("turtle"), of("lmdb")), (8, 1));
        let distances: Vec<u64> = plan
            .iter()
            .filter_map(|run| run.options.checkpoint_distance.first().copied())
            .collect();
        assert_eq!((distances[0], distances[7]), (1_000_000, 130_000_000));
    }

    #[test]
    fn points_are_medians_of_the_settled_load() {
        let points = points(&wm_results());
        let of = |engine: &str, distance: Option<u64>| {
            let same = |one: &&Measured| one.engine == engine && one.distance == distance;
            points.iter().find(same).unwrap()
        };
        let first = of("turtle", Some(1_000_000));
        let spread = (first.amplification.median, first.amplification.min, first.amplification.max);
        assert_eq!(spread, (8.0, 7.0, 9.0));
        assert!((first.latency.median - 2.0).abs() < 1e-9);
        assert!(of("lmdb", None).capped && !first.capped);
        assert_eq!(points.len(), 2 + 2 + 1);
    }
}
