//! Shared by the two figures of the Garnering policy: the compared shapes, and their look.
//!
//! `T` is the ratio between the last two levels, `c` says how much larger the ratios above are
//! [Autumn 3.1]. Both figures are about engines that have levels, nothing else.

pub mod levels;
pub mod shape;

use crate::figures::drawing::style::{Color, Look, Marker};
use crate::figures::options::Figure;
use crate::record::Record;
use crate::shape::Shape;

/// The shapes compared by default: `T`, and 100 `c`.
const RATIOS: [u32; 3] = [2, 3, 5];
const SCALINGS: [u32; 3] = [100, 80, 40];

/// The ratio and the scaling of one run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Way {
    /// `T`.
    ratio: u32,
    /// 100 times `c`.
    percent: u32,
}

impl Way {
    /// All that are asked for.
    fn all(figure: &Figure) -> Vec<Self> {
        let or = |given: &[u32], usual: [u32; 3]| match given {
            [] => usual.to_vec(),
            given => given.to_vec(),
        };
        let percents = or(&figure.scaling, SCALINGS);
        or(&figure.size_ratio, RATIOS)
            .into_iter()
            .flat_map(|ratio| percents.iter().map(move |percent| Self { ratio, percent: *percent }))
            .collect()
    }

    /// Of a result; none if its levels were left to the library.
    fn of(record: &Record) -> Option<Self> {
        let number = |name: &str| u32::try_from(record.settings["shape"][name].as_u64()?).ok();
        Some(Self { ratio: number("size_ratio")?, percent: number("scaling_percent")? })
    }

    /// The options of a run.
    fn shape(self, filter_bits: Option<u32>) -> Shape {
        Shape {
            size_ratio: Some(self.ratio),
            scaling: Some(self.percent),
            filter_bits,
            ..Shape::default()
        }
    }

    /// `c`.
    fn scaling(self) -> f64 {
        f64::from(self.percent) / 100.0
    }
}

/// Looks for what is compared within one engine, most different first.
const LOOKS: [(Color, Marker); 5] = [
    (Color(0x88, 0x22, 0x55), Marker::Hexagon),
    (Color(0x00, 0x72, 0xb2), Marker::Circle),
    (Color(0xe6, 0x9f, 0x00), Marker::Triangle),
    (Color(0x00, 0x9e, 0x73), Marker::Square),
    (Color(0x55, 0x55, 0x55), Marker::Diamond),
];

/// The look of the series with this place.
fn look(place: usize) -> Look {
    let (color, marker) = LOOKS[place % LOOKS.len()];
    Look { color, marker, hollow: place >= LOOKS.len(), dashed: false }
}

/// The different values, in the order in which they came.
fn different<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen: Vec<T> = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}
