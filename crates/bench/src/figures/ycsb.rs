//! `ycsb`: throughput of each phase and store, a panel for each setting of memory.
//!
//! Phases differ by orders of magnitude, so each has a scale of its own, from zero, the same in all
//! panels: bars are compared within a phase and between settings of memory, and every bar says its
//! number. Of the load it is the rate with its settle.

use crate::compare::summary::Spread;
use crate::figures::Drawing;
use crate::figures::data::{
    Points, cells, engines, megabytes, notes, phase_words, setting, settings, settled_load, size,
    speeds, to_f64, work,
};
use crate::figures::drawing::axes::number;
use crate::figures::drawing::lettering;
use crate::figures::drawing::page::{Page, Room, Sample};
use crate::figures::drawing::scene::{Anchor, Frame, Scene};
use crate::figures::drawing::style::{AXIS, BAND, GRAY, INK, SMALL, TEXT, store};
use crate::record::Record;

const HEADER: [&str; 6] = ["memory_bytes", "phase", "engine", "kops", "kops_min", "kops_max"];

/// The height of the bars of a panel.
const HEIGHT: f64 = 150.0;

/// One store in one phase with one setting of memory.
#[derive(Clone, PartialEq, Debug)]
struct Bar {
    memory: u64,
    phase: String,
    engine: String,
    /// `None` if the phase was not reached.
    kops: Option<Spread>,
}

fn bars(records: &[Record]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for memory in settings(records, "memory_bytes") {
        for phase in speeds(records) {
            for engine in engines(records) {
                let own = records.iter().filter(|record| {
                    record.engine == engine
                        && record.phase == phase
                        && setting(record, "memory_bytes") == Some(memory)
                });
                let kops = Spread::of(own.map(|record| record.kops));
                bars.push(Bar { memory, phase: phase.clone(), engine, kops });
            }
        }
    }
    bars
}

fn table(bars: &[Bar]) -> Points {
    let row = |bar: &Bar| {
        let mut row = vec![bar.memory.to_string(), bar.phase.clone(), bar.engine.clone()];
        row.extend(bar.kops.map_or([const { String::new() }; 3], cells));
        row
    };
    Points { header: &HEADER, rows: bars.iter().map(row).collect() }
}

/// Draws it.
pub fn draw(records: &[Record]) -> Drawing {
    let bars = bars(records);
    let mut page = Page::new("Throughput, thousands of operations a second", &work(records));
    let looks: Vec<_> = engines(records).into_iter().map(|name| (store(&name), name)).collect();
    page.legend(Sample::Bar, &looks);
    let phases = speeds(records);
    for memory in settings(records, "memory_bytes") {
        let room = Room { left: 0.0, above: 74.0, below: 50.0 };
        let frame = page.row(1, HEIGHT, room)[0];
        let share = share_of_data(records, memory);
        let title = format!("Memory {}{share}", size(memory));
        page.scene.text(&title, (frame.left, frame.top - 54.0), TEXT, INK, Anchor::Start);
        panel(&mut page.scene, frame, &bars, memory, &phases);
    }
    let mut said = vec![
        "Each phase has a scale of its own, the same in all panels. load+settle counts the time \
         until nothing is left to do after the load. \u{2013}: did not come so far."
            .to_owned(),
    ];
    said.extend(notes(records));
    Drawing { scene: page.finish(&said), points: table(&bars) }
}

/// How the memory compares with the data.
fn share_of_data(records: &[Record], memory: u64) -> String {
    let live = records.iter().find(|record| record.phase == settled_load());
    let Some(live) = live.map(|record| record.live_bytes).filter(|bytes| *bytes > 0) else {
        return String::new();
    };
    format!(
        ", {} times the data",
        number((megabytes(memory) / megabytes(live) * 100.0).round() / 100.0)
    )
}

fn panel(scene: &mut Scene, frame: Frame, bars: &[Bar], memory: u64, phases: &[String]) {
    let count = |length: usize| to_f64(u64::try_from(length).unwrap_or(0)).max(1.0);
    let group = frame.width() / count(phases.len());
    for (index, phase) in phases.iter().enumerate() {
        let left = frame.left + group * count(index + 1) - group;
        if index % 2 == 0 {
            let band = Frame {
                left,
                right: left + group,
                top: frame.top - 46.0,
                bottom: frame.bottom + 40.0,
            };
            scene.rectangle(band, BAND);
        }
        let middle = left + group / 2.0;
        scene.text(phase, (middle, frame.bottom + 17.0), TEXT, INK, Anchor::Middle);
        let words = phase_words(phase);
        scene.text(words, (middle, frame.bottom + 32.0), SMALL, GRAY, Anchor::Middle);
        let same: Vec<&Bar> = bars.iter().filter(|bar| bar.phase == *phase).collect();
        let max = same.iter().filter_map(|bar| bar.kops).map(|kops| kops.max).fold(0.0, f64::max);
        let own: Vec<&Bar> = same.into_iter().filter(|bar| bar.memory == memory).collect();
        // No wider than what is read as a bar.
        let width = ((group - 12.0) / count(own.len())).min(44.0);
        let labels: Vec<String> = own.iter().map(|bar| label(bar)).collect();
        let upright = labels.iter().any(|text| lettering::width(text, SMALL) > width - 2.0);
        let start = middle - width * count(own.len()) / 2.0;
        for (index, (bar, text)) in own.iter().zip(&labels).enumerate() {
            let left = start + width * count(index + 1) - width;
            let height = bar.kops.map_or(0.0, |kops| kops.median / max.max(1e-9)) * frame.height();
            let top = frame.bottom - height;
            let gap = (width * 0.12).min(3.0);
            let body =
                Frame { left: left + gap, right: left + width - gap, top, bottom: frame.bottom };
            scene.rectangle(body, store(&bar.engine).color);
            let middle = left + width / 2.0;
            let mut above = top;
            if let Some(kops) = bar.kops.filter(|kops| kops.max > kops.min) {
                let [low, high] = [kops.min, kops.max]
                    .map(|end| (middle, frame.bottom - end / max.max(1e-9) * frame.height()));
                scene.line(&[low, high], INK, 1.2);
                above = high.1;
            }
            if upright && bar.kops.is_some() {
                let place = (middle + SMALL * 0.36, above - 4.0);
                scene.upward_text(text, place, SMALL, INK, Anchor::Start);
            } else {
                scene.text(text, (middle, above - 5.0), SMALL, INK, Anchor::Middle);
            }
        }
    }
    scene.line(&[(frame.left, frame.bottom), (frame.right, frame.bottom)], AXIS, 1.0);
}

/// The text above a bar.
fn label(bar: &Bar) -> String {
    bar.kops.map_or("\u{2013}".to_owned(), |kops| number(three_digits(kops.median)))
}

/// The same with three digits that count.
fn three_digits(figure: f64) -> f64 {
    if figure <= 0.0 {
        return 0.0;
    }
    let unit = 10_f64.powf(figure.log10().floor() - 2.0);
    (figure / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::ycsb_results;

    #[test]
    fn bars_are_medians_and_missing_ones_leave_a_gap() {
        let bars = bars(&ycsb_results());
        assert_eq!(speeds(&ycsb_results()), ["load+settle", "a", "c"]);
        assert_eq!(bars.len(), 2 * 3 * 2);
        let of = |memory: u64, phase: &str, engine: &str| {
            let same = |bar: &&Bar| {
                (bar.memory, bar.phase.as_str(), bar.engine.as_str()) == (memory, phase, engine)
            };
            bars.iter().find(same).unwrap().kops
        };
        let load = of(33_554_432, "load+settle", "turtle").unwrap();
        assert_eq!((load.median, load.min, load.max), (900.0, 800.0, 1000.0));
        assert!(of(33_554_432, "c", "lmdb").is_none());
        assert_eq!(label(bars.last().unwrap()), "\u{2013}");
        assert_eq!([1234.0, 95.26, 0.0].map(three_digits).map(number), ["1,230", "95.3", "0"]);
    }
}
