//! The longest straight line near points.
//!
//! Points come in ascending order of x; a line fits if it passes each within `error` of its y.
//! After O'Rourke, *An On-Line Algorithm for Fitting Straight Lines Between Data Ranges* (1981),
//! which the TreeLine paper uses through the PGM index [4.5]. The lines that fit lie between two
//! extreme ones: the flattest touches an earlier upper end and a later lower end of the allowed
//! ranges, the steepest an earlier lower end and a later upper end. A new point replaces an extreme
//! line that misses its range; the next one touches the hull of the ends before.

/// A point: x, and an end of the range allowed at x.
type End = (u64, i64);

/// Whether the slope from `a` to `b` is less than that from `c` to `d`. Each pair ascends in x.
fn is_flatter((a, b): (End, End), (c, d): (End, End)) -> bool {
    let rise = |from: End, to: End| i128::from(to.1) - i128::from(from.1);
    let run = |from: End, to: End| i128::from(to.0 - from.0);
    rise(a, b) * run(c, d) < rise(c, d) * run(a, b)
}

/// A line that grows with its points.
#[derive(Default)]
pub struct Fit {
    error: i64,
    /// Number of points.
    count: usize,
    last: u64,
    /// The upper ends that a flattest line can touch, and the lower ends for a steepest line.
    upper: Hull,
    lower: Hull,
    flattest: Option<(End, End)>,
    steepest: Option<(End, End)>,
}

/// Ends in ascending order; those before `start` can be touched no more.
#[derive(Default)]
struct Hull {
    ends: Vec<End>,
    start: usize,
}

impl Hull {
    /// The end from which the line to `to` is the extreme one, by `is_better(line, best)`; it
    /// becomes the first of the hull.
    fn touch(&mut self, to: End, is_better: impl Fn((End, End), (End, End)) -> bool) -> End {
        let mut best = self.start;
        for at in self.start + 1..self.ends.len() {
            if is_better((self.ends[best], to), (self.ends[at], to)) {
                break;
            }
            best = at;
        }
        self.start = best;
        self.ends[best]
    }

    /// Adds an end, and removes those that it hides: `hides(before, to)` compares two lines to it.
    fn add(&mut self, end: End, hides: impl Fn((End, End), (End, End)) -> bool) {
        while let [.., before, last] = self.ends[self.start..] {
            if hides((before, last), (before, end)) {
                break;
            }
            self.ends.pop();
        }
        self.ends.push(end);
    }
}

impl Fit {
    /// Creates a fit with this error and no points.
    #[must_use]
    pub fn new(error: u32) -> Self {
        Self { error: i64::from(error), ..Self::default() }
    }

    /// Adds a point with a greater x than all before; false, and nothing changes, if no line fits
    /// then.
    pub fn add(&mut self, x: u64, y: i64) -> bool {
        let (high, low) = ((x, y + self.error), (x, y - self.error));
        if self.count > 0 && x <= self.last {
            return false;
        }
        if let (Some(flattest), Some(steepest)) = (self.flattest, self.steepest) {
            // The range at x lies below all lines, or above them.
            if is_flatter((flattest.0, high), flattest) || is_flatter(steepest, (steepest.0, low)) {
                return false;
            }
            if is_flatter((steepest.0, high), steepest) {
                self.steepest = Some((self.lower.touch(high, is_flatter), high));
            }
            if is_flatter(flattest, (flattest.0, low)) {
                self.flattest =
                    Some((self.upper.touch(low, |best, next| is_flatter(next, best)), low));
            }
        } else if self.count == 1 {
            self.steepest = self.lower.ends.first().map(|first| (*first, high));
            self.flattest = self.upper.ends.first().map(|first| (*first, low));
        }
        self.upper.add(high, is_flatter);
        self.lower.add(low, |before, to| is_flatter(to, before));
        (self.count, self.last) = (self.count + 1, x);
        true
    }

    /// The slope and the value at x = 0 of a line that fits, up to rounding; `None` with fewer than
    /// two points.
    #[must_use]
    pub fn line(&self) -> Option<(f64, f64)> {
        let (flattest, steepest) = (self.flattest?, self.steepest?);
        let slope_of = |(from, to): (End, End)| (to.1 - from.1) as f64 / (to.0 - from.0) as f64;
        let (flat, steep) = (slope_of(flattest), slope_of(steepest));
        let at = |(from, _): (End, End), slope: f64| from.1 as f64 - slope * from.0 as f64;
        let slope = f64::midpoint(flat, steep);
        if steep <= flat {
            return Some((slope, at(flattest, slope)));
        }
        // Both extreme lines fit, so those between them through their common point do.
        let x = (at(flattest, flat) - at(steepest, steep)) / (steep - flat);
        let y = at(flattest, flat) + flat * x;
        Some((slope, y - slope * x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    /// Whether some line passes all points, by trying the lines through all pairs of ends.
    fn fits(points: &[(u64, i64)], error: i64) -> bool {
        let passes = |from: End, to: End| {
            points.iter().all(|(x, y)| {
                let run = i128::from(to.0) - i128::from(from.0);
                let rise = i128::from(to.1) - i128::from(from.1);
                let at = i128::from(from.1) * run + rise * (i128::from(*x) - i128::from(from.0));
                (at - i128::from(*y) * run).abs() <= i128::from(error) * run.abs()
            })
        };
        let ends = || points.iter().flat_map(|(x, y)| [(*x, y + error), (*x, y - error)]);
        points.len() < 2 || ends().any(|from| ends().any(|to| from.0 < to.0 && passes(from, to)))
    }

    #[test]
    fn a_fit_takes_a_point_if_and_only_if_a_line_exists() {
        let mut rng = Rng::new(3);
        let (mut taken, mut refused) = (0, 0);
        for round in 0..400 {
            let error = [0, 1, 5, 40][round % 4];
            let scale = [1, 1 << 20, 1 << 50][round % 3];
            let mut fit = Fit::new(u32::try_from(error).unwrap());
            let (mut points, mut x, mut y): (Vec<(u64, i64)>, u64, i64) = (Vec::new(), 0, 0);
            for _ in 0..60 {
                points.push((x, y));
                let expected = fits(&points, error);
                assert_eq!(fit.add(x, y), expected, "{points:?} within {error}");
                if expected {
                    taken += 1;
                } else {
                    refused += 1;
                    points.pop();
                }
                if let Some((slope, base)) = fit.line() {
                    for (x, y) in &points {
                        let off = (slope * *x as f64 + base - *y as f64).abs();
                        assert!(off <= error as f64 + 1e-3, "{off} at {x}: {points:?}");
                    }
                }
                x += (1 + rng.below(20)) * scale;
                y += i64::try_from(rng.below(30)).unwrap();
            }
        }
        assert!(taken > 2_000 && refused > 2_000, "{taken} taken, {refused} refused");
    }

    #[test]
    fn points_on_a_line_are_all_taken() {
        let mut fit = Fit::new(0);
        assert!((0..10_000_i64).all(|n| fit.add(n.cast_unsigned() * 3, n * 7)));
        let (slope, base) = fit.line().unwrap();
        assert!((slope - 7.0 / 3.0).abs() < 1e-9 && base.abs() < 1e-6);
        assert!(!fit.add(30_000, 70_001) && !fit.add(29_997, 0));
    }
}
