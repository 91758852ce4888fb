//! Scales with their numbers, and the panel that they enclose.
//!
//! Numbers on axes are written out: never as powers of ten with an exponent.

use crate::compare::summary::Spread;
use crate::figures::drawing::lettering;
use crate::figures::drawing::scene::{Anchor, Frame, Point, Scene};
use crate::figures::drawing::style::{AXIS, GRAY, GRID, INK, Look, SMALL, TEXT};
use indicatif::HumanFloatCount;

/// The room that two numbers of an axis leave between them.
const GAP: f64 = 8.0;

/// From an axis to its numbers.
const OFFSET: f64 = 6.0;

/// The shares of [`Scale::nines`], and how they are written.
const NINES: [(f64, &str); 7] = [
    (0.0, "0"),
    (0.5, "50%"),
    (0.9, "90%"),
    (0.99, "99%"),
    (0.999, "99.9%"),
    (0.9999, "99.99%"),
    (0.99999, "99.999%"),
];

/// From values to places, 0 at the one end and 1 at the other.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    kind: Kind,
    /// The values that are written, with what is written; the axis has a line of the grid at each.
    pub ticks: Vec<(f64, String)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Linear {
        min: f64,
        max: f64,
    },
    Log {
        min: f64,
        max: f64,
    },
    /// Shares: each further nine is as far from the last as that from the one before.
    Nines {
        steps: f64,
    },
}

impl Scale {
    /// From 0 to a round number that is at least `max`, with about `count` numbers.
    pub fn linear(max: f64, count: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let step = round_step(max / count);
        let steps = (max / step - 1e-9).ceil().max(1.0);
        let ticks = std::iter::successors(Some(0.0), |index| Some(index + 1.0))
            .take_while(|index| *index <= steps)
            .map(|index| (index * step, number(index * step)))
            .collect();
        Self { kind: Kind::Linear { min: 0.0, max: steps * step }, ticks }
    }

    /// Seconds from 0 to just `max`.
    pub fn seconds(max: f64) -> Self {
        let mut scale = Self::linear_to(max, 8.0);
        for (_, text) in &mut scale.ticks {
            text.push_str(" s");
        }
        scale
    }

    /// From 0 to just `max`, with about `count` round numbers.
    pub fn linear_to(max: f64, count: f64) -> Self {
        let scale = Self::linear(max, count);
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let ticks = scale.ticks.into_iter().filter(|(value, _)| *value <= max).collect();
        Self { kind: Kind::Linear { min: 0.0, max }, ticks }
    }

    /// From `min` to `max` with a little room, with powers of ten, and 2 and 5 times them if these
    /// are few. `label` writes a number.
    pub fn log(min: f64, max: f64, label: impl Fn(f64) -> String) -> Self {
        let min = if min.is_finite() && min > 0.0 { min } else { 0.1 };
        let max = if max.is_finite() && max > min { max } else { min * 2.0 };
        let (min, max) = (min / 1.15, max * 1.15);
        let factors: &[f64] = if max / min < 100.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let mut values = Vec::new();
        let mut power = 10_f64.powf(min.log10().floor());
        while power <= max {
            values.extend(factors.iter().map(|factor| power * factor));
            power *= 10.0;
        }
        values.retain(|value| (min..=max).contains(value));
        let ticks = values.into_iter().map(|value| (value, label(value))).collect();
        Self { kind: Kind::Log { min, max }, ticks }
    }

    /// Logarithmic with the numbers `values` and a little room before and behind them.
    pub fn log_of(values: &[f64], label: impl Fn(f64) -> String) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = values.iter().copied().fold(0.0, f64::max);
        let (least, greatest) = if greatest > 0.0 { (least, greatest) } else { (1.0, 1.0) };
        let room = (greatest / least).powf(0.05).max(1.1);
        let mut ticks: Vec<f64> = values.to_vec();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let ticks = ticks.into_iter().map(|value| (value, label(value))).collect();
        Self { kind: Kind::Log { min: least / room, max: greatest * room }, ticks }
    }

    /// Shares from 0 to one with `nines` nines.
    pub fn nines(nines: usize) -> Self {
        let ticks: Vec<(f64, String)> = NINES
            .iter()
            .take(nines + 2)
            .map(|(share, text)| (*share, (*text).to_owned()))
            .collect();
        let steps = ticks.last().map_or(1.0, |(share, _)| nines_of(*share));
        Self { kind: Kind::Nines { steps }, ticks }
    }

    /// Where `value` is: from 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.kind {
            Kind::Linear { min, max } => (value - min) / (max - min),
            Kind::Log { min, max } => (value.max(min) / min).ln() / (max / min).ln(),
            Kind::Nines { steps } => nines_of(value) / steps,
        };
        place.clamp(0.0, 1.0)
    }
}

/// How many nines a share has: 0.9 has one.
fn nines_of(share: f64) -> f64 {
    -(1.0 - share).max(1e-12).log10()
}

/// The least of 1, 2, 5, 10, ... that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| power * factor >= step * (1.0 - 1e-9));
    power * factor.unwrap_or(10.0)
}

/// A number written out, with commas between thousands.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || (size - size.round()).abs() < 1e-9 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 3,
    };
    // It counts a sign among the digits that it groups.
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{:.digits$}", HumanFloatCount(value.abs()))
}

/// A time of so many microseconds: `5 us`, `10 ms`, `1 s`.
pub fn duration(micros: f64) -> String {
    match micros {
        micros if micros < 1.0 => format!("{} ns", number(micros * 1e3)),
        micros if micros < 1e3 => format!("{} \u{b5}s", number(micros)),
        micros if micros < 1e6 => format!("{} ms", number(micros / 1e3)),
        micros => format!("{} s", number(micros / 1e6)),
    }
}

/// Two scales around a frame.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// Where values are drawn; numbers and names lie outside.
    pub frame: Frame,
    /// To the right.
    pub x: Scale,
    /// Upwards.
    pub y: Scale,
}

impl Panel {
    /// Where a value is.
    pub fn at(&self, x: f64, y: f64) -> Point {
        (
            self.frame.left + self.x.place(x) * self.frame.width(),
            self.frame.bottom - self.y.place(y) * self.frame.height(),
        )
    }

    /// Draws the grid, the axes and their numbers.
    pub fn draw(&self, scene: &mut Scene) {
        let Frame { left, top, right, bottom } = self.frame;
        for (value, _) in &self.y.ticks {
            let y = self.at(0.0, *value).1;
            scene.line(&[(left, y), (right, y)], GRID, 1.0);
        }
        let each = self.each_x();
        for (index, (value, text)) in self.x.ticks.iter().enumerate() {
            let x = self.at(*value, 0.0).0;
            scene.line(&[(x, top), (x, bottom)], GRID, 1.0);
            if index.is_multiple_of(each) {
                // The last may be as wide as the room beside the panel.
                let half = lettering::width(text, SMALL) / 2.0;
                let place = (x.min(scene.width - 3.0 - half), bottom + OFFSET + SMALL * 0.8);
                scene.text(text, place, SMALL, GRAY, Anchor::Middle);
            }
        }
        let mut free = f64::INFINITY;
        for (value, text) in &self.y.ticks {
            let y = self.at(0.0, *value).1;
            if y + SMALL * 0.5 <= free {
                let place = (left - OFFSET, y + SMALL * 0.35);
                scene.text(text, place, SMALL, GRAY, Anchor::End);
                free = y - SMALL * 0.6;
            }
        }
        scene.line(&[(left, bottom), (right, bottom)], AXIS, 1.0);
    }

    /// Draws a measured point at `x` of the page: the median, and how far the others are from it.
    pub fn point(&self, scene: &mut Scene, x: f64, spread: Spread, look: Look) {
        if spread.max > spread.min {
            let ends = [spread.min, spread.max].map(|end| (x, self.at(0.0, end).1));
            scene.line(&ends, look.color, 1.2);
        }
        scene.marker((x, self.at(0.0, spread.median).1), look, 4.5);
    }

    /// Every how manyth number to the right is written, so that each has room.
    fn each_x(&self) -> usize {
        let ends: Vec<(f64, f64)> = self
            .x
            .ticks
            .iter()
            .map(|(value, text)| {
                let half = lettering::width(text, SMALL) / 2.0;
                let x = self.at(*value, 0.0).0;
                (x - half, x + half)
            })
            .collect();
        let has_room = |each: &usize| {
            let written: Vec<&(f64, f64)> = ends.iter().step_by(*each).collect();
            written.windows(2).all(|pair| pair[0].1 + GAP <= pair[1].0)
        };
        (1..=ends.len()).find(has_room).unwrap_or(1)
    }

    /// Writes what goes to the right, below the numbers.
    pub fn name_x(&self, scene: &mut Scene, name: &str) {
        let middle = f64::midpoint(self.frame.left, self.frame.right);
        let place = (middle, self.frame.bottom + OFFSET + SMALL * 0.8 + TEXT * 1.45);
        scene.text(name, place, TEXT, INK, Anchor::Middle);
    }

    /// Writes what the panel shows, above it at the left: with the unit of what goes upwards.
    pub fn name(&self, scene: &mut Scene, name: &str) {
        let place = (self.frame.left, self.frame.top - 9.0);
        scene.text(name, place, TEXT, INK, Anchor::Start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn numbers_are_round_and_written_out() {
        assert_eq!(texts(&Scale::linear(830.0, 5.0)), ["0", "200", "400", "600", "800", "1,000"]);
        assert_eq!(texts(&Scale::linear(0.0, 4.0)), ["0", "0.5", "1"]);
        assert_eq!(texts(&Scale::linear_to(13.0, 4.0)), ["0", "5", "10"]);
        assert_eq!(texts(&Scale::seconds(2.5)), ["0 s", "0.5 s", "1 s", "1.5 s", "2 s", "2.5 s"]);
        assert_eq!(texts(&Scale::log(3.0, 4000.0, number)), ["10", "100", "1,000"]);
        assert_eq!(texts(&Scale::log(3.0, 9.0, number)), ["5", "10"]);
        assert_eq!(texts(&Scale::log(1.0, 1.0, number)), ["1", "2"]);
        assert_eq!(texts(&Scale::nines(2)), ["0", "50%", "90%", "99%"]);
        let numbers = [0.0, 0.25, 1234.5, 1_000_000.0, -1000.0, 12.5, 0.001];
        let written = ["0", "0.25", "1,234", "1,000,000", "-1,000", "12.5", "0.001"];
        assert_eq!(numbers.map(number), written);
        assert_eq!([0.5, 20.0, 5e3, 2e6].map(duration), ["500 ns", "20 \u{b5}s", "5 ms", "2 s"]);
    }

    #[test]
    fn values_have_their_places() {
        let near = |seen: f64, expected: f64| assert!((seen - expected).abs() < 1e-6, "{seen}");
        near(Scale::linear(10.0, 5.0).place(5.0), 0.5);
        near(Scale::log(1.0, 10_000.0, number).place(100.0), 0.5);
        near(Scale::log(1.0, 100.0, number).place(0.0), 0.0);
        near(Scale::nines(2).place(0.9), 0.5);
        near(Scale::nines(2).place(1.0), 1.0);
        let frame = Frame { left: 10.0, top: 20.0, right: 110.0, bottom: 120.0 };
        let panel = Panel { frame, x: Scale::linear(10.0, 5.0), y: Scale::linear(10.0, 5.0) };
        assert_eq!(panel.at(10.0, 10.0), (110.0, 20.0));
        let scale = Scale::log_of(&[4.0, 1.0, 4.0], number);
        assert_eq!(texts(&scale), ["1", "4"]);
        assert!(scale.place(1.0) > 0.0 && scale.place(4.0) < 1.0);
    }

    #[test]
    fn crowded_numbers_are_left_out() {
        let frame = Frame { left: 50.0, top: 20.0, right: 110.0, bottom: 60.0 };
        let values: Vec<f64> = (0..12).map(|power| f64::from(1 << power)).collect();
        let panel =
            Panel { frame, x: Scale::log_of(&values, number), y: Scale::linear(1000.0, 20.0) };
        let title = String::new();
        let mut scene = Scene { width: 200.0, height: 100.0, title, shapes: Vec::new() };
        panel.draw(&mut scene);
        assert_eq!(scene.faults(), [""; 0]);
    }
}
