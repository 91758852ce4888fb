//! `memory`: resident memory over the time of a run, compared with the allowed memory.
//!
//! A panel for each store, with the time of its own run: stores take different times for the same
//! work. Bands are the phases, each with its warm-up before it and its settle behind it. Resident
//! memory is that of the process: the driver's own is within, and pages that the kernel caches for
//! a store are not.

use crate::figures::Drawing;
use crate::figures::data::{
    Points, cell, engines, megabytes, notes, setting, settings, size, work,
};
use crate::figures::drawing::axes::{Panel, Scale, number};
use crate::figures::drawing::lettering;
use crate::figures::drawing::page::{Page, Room};
use crate::figures::drawing::scene::{Anchor, Frame, Point, Scene};
use crate::figures::drawing::style::{BAND, GRAY, INK, SMALL, TEXT, store};
use crate::record::{Record, SETTLED};

const HEADER: [&str; 4] = ["engine", "phase", "seconds", "rss_bytes"];

/// The memory of a store in one phase and its settle.
#[derive(Clone, PartialEq, Debug)]
struct Stretch {
    phase: String,
    /// Seconds since the store was opened, and resident bytes.
    samples: Vec<(f64, u64)>,
}

fn stretches(records: &[Record], engine: &str) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for record in records.iter().filter(|record| record.engine == engine) {
        let phase = record.phase.trim_end_matches(SETTLED);
        let samples =
            record.detail.as_ref().and_then(|detail| detail["rss_bytes_over_time"].as_array());
        let samples = samples.into_iter().flatten();
        let samples = samples.filter_map(|one| Some((one[0].as_f64()?, one[1].as_u64()?)));
        match stretches.last_mut() {
            Some(last) if last.phase == phase => last.samples.extend(samples),
            _ => {
                let samples = samples.collect();
                stretches.push(Stretch { phase: phase.to_owned(), samples });
            }
        }
    }
    stretches.retain(|stretch| !stretch.samples.is_empty());
    stretches
}

fn table(all: &[(String, Vec<Stretch>)]) -> Points {
    let mut rows = Vec::new();
    for (engine, stretches) in all {
        for stretch in stretches {
            rows.extend(stretch.samples.iter().map(|(seconds, bytes)| {
                vec![engine.clone(), stretch.phase.clone(), cell(*seconds), bytes.to_string()]
            }));
        }
    }
    Points { header: &HEADER, rows }
}

/// Draws it.
pub fn draw(records: &[Record]) -> Drawing {
    let all: Vec<(String, Vec<Stretch>)> = engines(records)
        .into_iter()
        .map(|engine| (engine.clone(), stretches(records, &engine)))
        .filter(|(_, stretches)| !stretches.is_empty())
        .collect();
    let budget = settings(records, "memory_bytes").into_iter().max().unwrap_or(0);
    let held = all.iter().flat_map(|(_, stretches)| stretches);
    let held = held.flat_map(|stretch| &stretch.samples).map(|(_, bytes)| *bytes).max();
    let scale = Scale::linear_to(megabytes(held.unwrap_or(0).max(budget)) * 1.1, 4.0);
    let mut page = Page::new("Resident memory over time, MB", &work(records));
    for (engine, stretches) in &all {
        let frame = page.row(1, 120.0, Room { left: 52.0, above: 44.0, below: 26.0 })[0];
        panel(&mut page.scene, frame, scale.clone(), engine, stretches, budget);
    }
    let driver = records.iter().filter_map(|record| setting(record, "driver_bytes")).max();
    let mut said = vec![format!(
        "Broken line: what the store was allowed, {}. To the right: seconds since it was opened; \
         bands are phases with their warm-up and settle. {} of the driver are within; pages that \
         the kernel caches are not.",
        size(budget),
        size(driver.unwrap_or(0)),
    )];
    said.extend(notes(records));
    Drawing { scene: page.finish(&said), points: table(&all) }
}

fn panel(
    scene: &mut Scene,
    frame: Frame,
    y: Scale,
    engine: &str,
    stretches: &[Stretch],
    budget: u64,
) {
    let samples = || stretches.iter().flat_map(|stretch| &stretch.samples);
    let end = samples().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
    let panel = Panel { frame, x: Scale::seconds(end), y };
    let look = store(engine);
    let peak = samples().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let title = format!("{engine}: at most {} MB", number(megabytes(peak).round()));
    scene.marker((frame.left + 5.0, frame.top - 33.0), look, 4.5);
    scene.text(&title, (frame.left + 15.0, frame.top - 28.5), TEXT, INK, Anchor::Start);
    let mut start = 0.0;
    for (index, stretch) in stretches.iter().enumerate() {
        let end = stretch.samples.last().map_or(start, |(seconds, _)| *seconds);
        let [left, right] = [start, end].map(|seconds| panel.at(seconds, 0.0).0);
        if index % 2 == 0 {
            let band = Frame { left, right, top: frame.top - 19.0, bottom: frame.bottom };
            scene.rectangle(band, BAND);
        }
        if lettering::width(&stretch.phase, SMALL) < right - left - 4.0 {
            let place = (f64::midpoint(left, right), frame.top - 6.0);
            scene.text(&stretch.phase, place, SMALL, GRAY, Anchor::Middle);
        }
        start = end;
    }
    panel.draw(scene);
    let line: Vec<Point> =
        samples().map(|(seconds, bytes)| panel.at(*seconds, megabytes(*bytes))).collect();
    if let (Some(first), Some(last)) = (line.first(), line.last()) {
        let mut below = line.clone();
        below.extend([(last.0, frame.bottom), (first.0, frame.bottom)]);
        scene.area(below, look.color.tint(0.25));
    }
    scene.line(&line, look.color, 2.0);
    let y = panel.at(0.0, megabytes(budget)).1;
    scene.broken_line(&[(frame.left, y), (frame.right, y)], INK, 1.5);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::memory_results;

    #[test]
    fn a_phase_and_its_settle_are_one_stretch() {
        let stretches = stretches(&memory_results(), "turtle");
        let seen: Vec<(&str, usize)> =
            stretches.iter().map(|one| (one.phase.as_str(), one.samples.len())).collect();
        assert_eq!(seen, [("load", 4), ("a", 2)]);
        assert_eq!(stretches[0].samples[0], (0.25, 10_000_000));
    }
}
