//! `dial`: the distance that the store finds by itself against distances that stay as they were
//! set: the speed of each phase, and the time of all phases in a row.
//!
//! TurtleKV's figures 8 and 9 set the distance of each phase by hand; the line of the store has no
//! counterpart there.

use crate::compare::summary::{Spread, repeat_of};
use crate::figures::Drawing;
use crate::figures::data::{
    Planned, Points, cells, engines, megabytes, notes, phase_words, setting, settings, size,
    speeds, work,
};
use crate::figures::drawing::axes::{Panel, Scale, number};
use crate::figures::drawing::page::{Page, Room, Sample};
use crate::figures::drawing::scene::{Anchor, Frame, Scene};
use crate::figures::drawing::style::{INK, Look, TEXT, store};
use crate::figures::options::{Figure, rounded};
use crate::record::Record;
use std::collections::BTreeSet;

/// Fixed distances by default: the memory, halved so often.
const HALVINGS: std::ops::RangeInclusive<u32> = 2..=8;

const COLUMNS: usize = 3;

const HEADER: [&str; 8] = [
    "engine",
    "memory_bytes",
    "measure",
    "checkpoint_distance_bytes",
    "median",
    "min",
    "max",
    "share_of_best_fixed",
];

/// The measure of all phases of a run together.
const ALL: &str = "seconds of all phases";

/// One measure with one setting of memory.
#[derive(Clone, PartialEq, Debug)]
struct Measured {
    memory: u64,
    /// A phase, or [`ALL`].
    measure: String,
    /// By the fixed distance that was set.
    fixed: Vec<(u64, Spread)>,
    /// Of the distance that the store finds.
    found: Option<Spread>,
}

impl Measured {
    /// The best median of the fixed distances: for times the least.
    fn best(&self) -> Option<f64> {
        let medians = self.fixed.iter().map(|(_, spread)| spread.median);
        if self.measure == ALL { medians.reduce(f64::min) } else { medians.reduce(f64::max) }
    }

    /// How `spread` compares with the best fixed distance: above 1 is better.
    fn share(&self, spread: Spread) -> Option<f64> {
        let best = self.best().filter(|best| *best > 0.0 && spread.median > 0.0)?;
        Some(if self.measure == ALL { best / spread.median } else { spread.median / best })
    }
}

/// Every fixed distance and that of the store, at every setting of memory.
pub fn plan(figure: &Figure) -> Vec<Planned> {
    let fixed = |memory: u64| match figure.checkpoint_distance.as_slice() {
        [] => HALVINGS.rev().map(|count| rounded(memory >> count)).collect(),
        given => given.to_vec(),
    };
    let mut plan = Vec::new();
    for repeat in 1..=figure.repeats {
        for engine in figure.engines() {
            for memory in figure.memories() {
                plan.push(figure.planned(&engine, memory, Vec::new(), repeat));
                for distance in fixed(memory) {
                    plan.push(figure.planned(&engine, memory, vec![distance], repeat));
                }
            }
        }
    }
    plan
}

/// The distance that was set; `None` if the store finds it.
fn set_distance(record: &Record) -> Option<u64> {
    record.settings["checkpoint_distance_bytes"].as_array()?.first()?.as_u64()
}

fn measured(results: &[Record]) -> Vec<Measured> {
    let mut all = Vec::new();
    for memory in settings(results, "memory_bytes") {
        let own: Vec<&Record> =
            results.iter().filter(|one| setting(one, "memory_bytes") == Some(memory)).collect();
        let distances: BTreeSet<u64> = own.iter().filter_map(|one| set_distance(one)).collect();
        let of = |measure: &str, distance: Option<u64>| {
            let same = || own.iter().filter(|one| set_distance(one) == distance);
            if measure != ALL {
                return Spread::of(same().filter(|one| one.phase == measure).map(|one| one.kops));
            }
            let repeats: BTreeSet<u64> = same().map(|one| repeat_of(one)).collect();
            let phases = speeds(results);
            let seconds = |repeat: &u64| {
                let run = same().filter(|one| repeat_of(one) == *repeat);
                let timed: Vec<f64> =
                    run.filter(|one| phases.contains(&one.phase)).map(|one| one.seconds).collect();
                // A run that did not come so far has no sum.
                (timed.len() == phases.len()).then(|| timed.iter().sum())
            };
            Spread::of(repeats.iter().filter_map(seconds))
        };
        for measure in speeds(results).into_iter().chain([ALL.to_owned()]) {
            let point = |distance: &u64| Some((*distance, of(&measure, Some(*distance))?));
            let fixed = distances.iter().filter_map(point).collect();
            let found = of(&measure, None);
            all.push(Measured { memory, measure, fixed, found });
        }
    }
    all
}

fn table(engine: &str, measured: &[Measured]) -> Points {
    let mut rows = Vec::new();
    for one in measured {
        let fixed = one.fixed.iter().map(|(at, spread)| (at.to_string(), *spread));
        let found = one.found.map(|spread| ("by the store".to_owned(), spread));
        for (distance, spread) in fixed.chain(found) {
            let mut row = vec![engine.to_owned(), one.memory.to_string(), one.measure.clone()];
            row.push(distance);
            row.extend(cells(spread));
            row.push(one.share(spread).map(|share| format!("{share:.3}")).unwrap_or_default());
            rows.push(row);
        }
    }
    Points { header: &HEADER, rows }
}

/// Draws it.
pub fn draw(results: &[Record]) -> Drawing {
    let engine = engines(results).into_iter().next().unwrap_or_default();
    let measured = measured(results);
    let look = store(&engine);
    let found = Look { dashed: true, ..look };
    let title = format!("{engine}: distances that were set, and the one that the store finds");
    let mut page = Page::new(&title, &work(results));
    let entries = [(look, "a fixed distance".to_owned()), (found, "found by the store".to_owned())];
    page.legend(Sample::Curve, &entries);
    for memory in settings(results, "memory_bytes") {
        let frame = page.row(1, 8.0, Room { left: 0.0, above: 26.0, below: 5.0 })[0];
        let text = format!("Memory {}", size(memory));
        page.scene.text(&text, (frame.left, frame.bottom), TEXT, INK, Anchor::Start);
        let own: Vec<&Measured> = measured.iter().filter(|one| one.memory == memory).collect();
        for row in own.chunks(COLUMNS) {
            let frames = page.row(COLUMNS, 130.0, Room { below: 46.0, ..Room::FULL });
            for (one, frame) in row.iter().zip(frames) {
                panel(&mut page.scene, frame, one, [look, found]);
            }
        }
    }
    Drawing { scene: page.finish(&notes(results)), points: table(&engine, &measured) }
}

fn panel(scene: &mut Scene, frame: Frame, one: &Measured, [look, found]: [Look; 2]) {
    let distances: Vec<f64> = one.fixed.iter().map(|(at, _)| megabytes(*at)).collect();
    let spreads = one.fixed.iter().map(|(_, spread)| *spread).chain(one.found);
    let max = spreads.map(|spread| spread.max).fold(0.0, f64::max);
    let panel =
        Panel { frame, x: Scale::log_of(&distances, number), y: Scale::linear_to(max * 1.1, 5.0) };
    panel.draw(scene);
    let share = one.found.and_then(|spread| one.share(spread));
    let share = share.map(|share| format!(", {}% of best", number((share * 100.0).round())));
    let share = share.unwrap_or_default();
    let title = match one.measure.as_str() {
        ALL => format!("{ALL}{share}"),
        phase => format!("{phase}, kops/s{share}"),
    };
    panel.name(scene, &title);
    let words = phase_words(&one.measure);
    let words = if words.is_empty() { String::new() } else { format!("{words}: ") };
    panel.name_x(scene, &format!("{words}distance, MB"));
    if let Some(spread) = one.found {
        let y = panel.at(1.0, spread.median).1;
        scene.curve(&[(frame.left, y), (frame.right, y)], found, 2.0);
    }
    let place = |(at, spread): &(u64, Spread)| panel.at(megabytes(*at), spread.median);
    scene.curve(&one.fixed.iter().map(place).collect::<Vec<_>>(), look, 2.0);
    for (at, spread) in &one.fixed {
        panel.point(scene, panel.at(megabytes(*at), 0.0).0, *spread, look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::options::tests::figure;
    use crate::figures::tests::dial_results;

    #[test]
    fn the_plan_has_the_store_and_seven_fixed_distances() {
        let plan = plan(&figure(&["dial", "--records", "2M", "--repeats", "2"]));
        assert_eq!(plan.len(), 2 * 2 * 8);
        assert!(plan[0].options.checkpoint_distance.is_empty());
        assert_eq!(plan[1].options.checkpoint_distance, [330_000]);
        assert_eq!(plan[7].options.checkpoint_distance, [21_000_000]);
        for run in &plan {
            run.options.check().unwrap();
        }
    }

    #[test]
    fn the_store_is_compared_with_the_best_of_the_fixed_distances() {
        let measured = measured(&dial_results());
        let of = |measure: &str| measured.iter().find(|one| one.measure == measure).unwrap();
        let share = |measure: &str| of(measure).share(of(measure).found.unwrap()).unwrap();
        assert_eq!(of("a").fixed.len(), 3);
        assert_eq!(of("a").best(), Some(300.0));
        assert!((share("a") - 0.9).abs() < 1e-9);
        // Of times less is better; a run that lacks a phase has no sum.
        assert_eq!(of(ALL).best(), Some(3.0));
        assert_eq!(of(ALL).fixed.len(), 2);
        assert!((share(ALL) - 1.2).abs() < 1e-9);
    }
}
