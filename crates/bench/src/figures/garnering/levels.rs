//! `levels`: the number of levels of a tree as data grows, compared with equation 5 of the paper.
//!
//! ```text
//!   C(L) = T^L / c^(L (L-1) / 2) * B          the last of L levels [5, with i = L]
//! ```
//!
//! A level is added when the last one is full, so a tree of `N` bytes has the fewest levels whose
//! last one holds `N`. `B` is what one merge of level 0 brings: four checkpoint distances. With
//! `c` = 1 that grows with the logarithm of `N`, with less with its square root.
//!
//! Each size is a load of its own, counted when it has settled. Memory and the checkpoint distance
//! are the same at every size.

use super::{Way, different, look};
use crate::figures::Drawing;
use crate::figures::data::{
    Planned, Points, distance, engines, is_capped, notes, setting, settled_load, size,
    stated_distance, to_f64, work,
};
use crate::figures::drawing::axes::{Panel, Scale, number};
use crate::figures::drawing::page::{Page, Room, Sample};
use crate::figures::drawing::scene::{Frame, Point, Scene};
use crate::figures::drawing::style::INK;
use crate::figures::options::{Figure, rounded};
use crate::record::Record;

/// The ratio between neighbouring sizes.
const STEP: u64 = 2;

/// The number of sizes; the greatest is the requested number of records.
const SIZES: u32 = 8;

/// The default checkpoint distance is the greatest size divided by this.
const DISTANCE_PART: u64 = 1000;

/// Sequences of level 0 that are merged into level 1 at one time: `B` by the checkpoint distance.
const BASE_DISTANCES: u64 = 4;

/// More levels than any tree has.
const LEVELS_MAX: u32 = 64;

const HEADER: [&str; 8] = [
    "engine",
    "size_ratio",
    "scaling_percent",
    "records",
    "data_bytes",
    "base_bytes",
    "levels",
    "levels_by_formula",
];

/// One tree.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Counted {
    way: Way,
    records: u64,
    data: u64,
    base: u64,
    levels: u64,
}

impl Counted {
    fn of(record: &Record) -> Option<Self> {
        if record.phase != settled_load() || is_capped(record) {
            return None;
        }
        let distance = distance(record).or_else(|| stated_distance(record))?;
        Some(Self {
            way: Way::of(record)?,
            records: setting(record, "records")?,
            data: record.live_bytes,
            base: distance * BASE_DISTANCES,
            levels: record.levels?,
        })
    }

    fn by_formula(self) -> u32 {
        levels_for(self.way, to_f64(self.data) / to_f64(self.base.max(1)))
    }
}

/// The fewest levels whose last one holds `bases` times what comes in at one time.
fn levels_for(way: Way, bases: f64) -> u32 {
    let last = |levels: &u32| {
        let levels = f64::from(*levels);
        let scaled = way.scaling().powf(levels * (levels - 1.0) / 2.0);
        f64::from(way.ratio).powf(levels) / scaled >= bases
    };
    (1..LEVELS_MAX).find(last).unwrap_or(LEVELS_MAX)
}

/// The sizes, the least first.
pub fn sizes(figure: &Figure) -> Vec<u64> {
    let of = |power: u32| figure.records() / STEP.saturating_pow(power);
    let mut sizes: Vec<u64> = (0..SIZES).rev().map(of).collect();
    sizes.retain(|records| *records >= figure.common.threads);
    sizes.dedup();
    sizes
}

/// Every size with every shape, the small ones first.
pub fn plan(figure: &Figure) -> Vec<Planned> {
    let distance = figure.checkpoint_distance.first().copied();
    let distance = distance.unwrap_or_else(|| rounded(figure.data_bytes() / DISTANCE_PART));
    let memory = figure.memories().first().copied().unwrap_or(0);
    let mut plan = Vec::new();
    for records in sizes(figure) {
        for engine in figure.engines() {
            for way in Way::all(figure) {
                let mut run = figure.planned_of(records, &engine, memory, vec![distance], 1);
                run.options.shape = way.shape(None);
                plan.push(run);
            }
        }
    }
    plan
}

fn counted(results: &[Record]) -> Vec<Counted> {
    let mut all: Vec<Counted> = results.iter().filter_map(Counted::of).collect();
    all.sort_by_key(|one| (one.way.ratio, std::cmp::Reverse(one.way.percent), one.records));
    all
}

fn table(engine: &str, all: &[Counted]) -> Points {
    let row = |one: &Counted| {
        let counts = [
            u64::from(one.way.ratio),
            u64::from(one.way.percent),
            one.records,
            one.data,
            one.base,
            one.levels,
            u64::from(one.by_formula()),
        ];
        [engine.to_owned()].into_iter().chain(counts.map(|count| count.to_string())).collect()
    };
    Points { header: &HEADER, rows: all.iter().map(row).collect() }
}

/// Draws it.
pub fn draw(results: &[Record]) -> Drawing {
    let engine = engines(results).into_iter().next().unwrap_or_default();
    let all = counted(results);
    let title = format!("{engine}: levels of a tree as data grows, and by the formula");
    let mut page = Page::new(&title, &work(results));
    let percents = different(all.iter().map(|one| one.way.percent));
    let name = |percent: u32| format!("c = {}", number(f64::from(percent) / 100.0));
    let entries: Vec<_> =
        (0..).zip(&percents).map(|(place, percent)| (look(place), name(*percent))).collect();
    page.legend(Sample::Curve, &entries);
    let ratios = different(all.iter().map(|one| one.way.ratio));
    for row in ratios.chunks(3) {
        let frames = page.row(row.len(), 190.0, Room { below: 56.0, ..Room::FULL });
        for (ratio, frame) in row.iter().zip(frames) {
            panel(&mut page.scene, frame, &all, *ratio, &percents);
        }
    }
    let bases = different(all.iter().map(|one| one.base));
    let bases: Vec<String> = bases.into_iter().map(size).collect();
    let mut said = vec![format!(
        "Markers: what was counted. Thin broken lines: the fewest levels whose last one holds the \
         data by equation 5, with B = {}.",
        bases.join(" or ")
    )];
    said.extend(notes(results));
    Drawing { scene: page.finish(&said), points: table(&engine, &all) }
}

fn panel(scene: &mut Scene, frame: Frame, all: &[Counted], ratio: u32, percents: &[u32]) {
    let counts: Vec<f64> = all.iter().map(|one| to_f64(one.records)).collect();
    let by_formula = all.iter().map(|one| f64::from(one.by_formula()));
    let most = all.iter().map(|one| to_f64(one.levels)).chain(by_formula).fold(1.0, f64::max);
    let y = Scale::linear_to(most + 0.5, most);
    let panel = Panel { frame, x: Scale::log_of(&counts, number), y };
    panel.draw(scene);
    panel.name(scene, &format!("T = {ratio}: levels"));
    panel.name_x(scene, "records");
    for (place, percent) in percents.iter().enumerate().rev() {
        let own = |one: &&Counted| one.way == Way { ratio, percent: *percent };
        let look = look(place);
        let of = |one: &Counted, levels: f64| panel.at(to_f64(one.records), levels);
        let own: Vec<&Counted> = all.iter().filter(own).collect();
        let line: Vec<Point> = own.iter().map(|one| of(one, f64::from(one.by_formula()))).collect();
        scene.broken_line(&line, INK, 1.2);
        let line: Vec<Point> = own.iter().map(|one| of(one, to_f64(one.levels))).collect();
        scene.line(&line, look.color, 2.0);
        for point in line {
            scene.marker(point, look, 4.5);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::options::tests::figure;

    #[test]
    fn levels_follow_the_formula() {
        // T = 2, c = 1: each level twice the one above.
        let plain = Way { ratio: 2, percent: 100 };
        assert_eq!([1.0, 2.0, 2.1, 4.0, 100.0].map(|n| levels_for(plain, n)), [1, 1, 2, 2, 7]);
        // T = 2, c = 0.5: the last of L levels holds 2, 8, 64, 1024.
        let scaled = Way { ratio: 2, percent: 50 };
        assert_eq!([2.0, 8.0, 9.0, 64.0, 65.0].map(|n| levels_for(scaled, n)), [1, 2, 3, 3, 4]);
    }

    #[test]
    fn every_shape_is_loaded_at_every_size_with_the_same_distance() {
        let figure = figure(&["levels", "--records", "2M", "--size-ratio", "2,4"]);
        figure.check().unwrap();
        let plan = plan(&figure);
        assert_eq!(plan.len(), 8 * 2 * 3);
        assert_eq!(plan[0].options.records, Some(15_625));
        assert_eq!(plan[47].options.records, Some(2_000_000));
        for run in &plan {
            run.options.check().unwrap();
            assert_eq!(run.options.checkpoint_distance, [260_000]);
            assert!([Some(2), Some(4)].contains(&run.options.shape.size_ratio));
        }
    }
}
