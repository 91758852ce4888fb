//! `stall`: throughput in every second of a load.
//!
//! One panel per store, with its own scales: it shows seconds in which a store does much less than
//! on average.

use crate::figures::Drawing;
use crate::figures::data::{Points, cell, engines, notes, to_f64, work};
use crate::figures::drawing::axes::{Panel, Scale, number};
use crate::figures::drawing::page::{Page, Room};
use crate::figures::drawing::scene::{Anchor, Frame, Point, Scene};
use crate::figures::drawing::style::{INK, TEXT, store};
use crate::record::Record;
use crate::workload::phases::Phase;

const HEADER: [&str; 3] = ["engine", "second", "kops"];

/// The load of one store.
#[derive(Clone, PartialEq, Debug)]
struct Load {
    engine: String,
    ops: u64,
    seconds: f64,
    kops: f64,
    /// Rates of complete seconds; of the complete load if it took less than one.
    by_second: Vec<f64>,
}

fn loads(records: &[Record]) -> Vec<Load> {
    let of = |engine: String| {
        let same = |one: &&Record| one.engine == engine && one.phase == Phase::Load.name();
        let record = records.iter().find(same)?;
        let seconds = record.detail.as_ref()?["kops_by_second"].as_array()?;
        let mut by_second: Vec<f64> = seconds.iter().filter_map(|kops| kops.as_f64()).collect();
        if by_second.is_empty() {
            by_second.push(record.kops);
        }
        let (ops, seconds, kops) = (record.ops, record.seconds, record.kops);
        Some(Load { engine, ops, seconds, kops, by_second })
    };
    engines(records).into_iter().filter_map(of).collect()
}

fn table(loads: &[Load]) -> Points {
    let rows = loads.iter().flat_map(|load| {
        load.by_second
            .iter()
            .enumerate()
            .map(|(index, kops)| vec![load.engine.clone(), (index + 1).to_string(), cell(*kops)])
    });
    Points { header: &HEADER, rows: rows.collect() }
}

/// Draws it.
pub fn draw(records: &[Record]) -> Drawing {
    let loads = loads(records);
    let title = "Throughput in every second of a load, thousands of inserts a second";
    let mut page = Page::new(title, &work(records));
    for load in &loads {
        let frame = page.row(1, 100.0, Room { left: 52.0, above: 32.0, below: 24.0 })[0];
        panel(&mut page.scene, frame, load);
    }
    let mut said = vec!["Each store has scales of its own. Thin line: its mean.".to_owned()];
    said.extend(notes(records));
    Drawing { scene: page.finish(&said), points: table(&loads) }
}

fn panel(scene: &mut Scene, frame: Frame, load: &Load) {
    let best = load.by_second.iter().copied().fold(load.kops, f64::max);
    let worst = load.by_second.iter().copied().fold(load.kops, f64::min);
    let count = u64::try_from(load.by_second.len()).map_or(1.0, to_f64);
    let end = count.max(load.seconds);
    let panel = Panel { frame, x: Scale::seconds(end), y: Scale::linear_to(best * 1.1, 3.0) };
    let look = store(&load.engine);
    let title = format!(
        "{}: {} inserts in {} s, mean {}, worst second {}",
        load.engine,
        number(to_f64(load.ops)),
        number((load.seconds * 10.0).round() / 10.0),
        number((load.kops * 10.0).round() / 10.0),
        number((worst * 10.0).round() / 10.0),
    );
    scene.marker((frame.left + 5.0, frame.top - 16.0), look, 4.5);
    scene.text(&title, (frame.left + 15.0, frame.top - 11.5), TEXT, INK, Anchor::Start);
    panel.draw(scene);
    // Each second is as wide as it is long.
    let mut steps: Vec<Point> = Vec::new();
    for (index, kops) in load.by_second.iter().enumerate() {
        let start = u64::try_from(index).map_or(0.0, to_f64);
        steps.push(panel.at(start, *kops));
        steps.push(panel.at((start + 1.0).min(end), *kops));
    }
    if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
        let mut below = steps.clone();
        below.extend([(last.0, frame.bottom), (first.0, frame.bottom)]);
        scene.area(below, look.color.tint(0.25));
    }
    scene.line(&steps, look.color, 1.8);
    let mean = panel.at(0.0, load.kops).1;
    scene.line(&[(frame.left, mean), (frame.right, mean)], INK, 0.8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::stall_results;

    #[test]
    fn every_second_is_a_point_and_a_short_load_is_one() {
        let loads = loads(&stall_results());
        assert_eq!(loads.len(), 2);
        assert_eq!(loads[0].by_second, [500.0, 40.0, 450.0]);
        assert_eq!(loads[1].by_second, [90.0]);
        assert_eq!(table(&loads).rows.len(), 4);
    }
}
