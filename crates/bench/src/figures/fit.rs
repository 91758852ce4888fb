//! Least-squares lines through measured points, and their errors.
//!
//! A law says something only if it could be wrong. Two points are always on a line, so a line needs
//! three. The reported error is the largest of all points, as a share of the measured value.

use crate::figures::data::to_f64;

/// The least number of points.
const POINTS_MIN: usize = 3;

/// Points closer than this are one point, which determines no line.
const WIDTH_MIN: f64 = 1e-6;

/// The line `a + b * x`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fit {
    /// The value at 0.
    pub a: f64,
    /// The slope.
    pub b: f64,
    /// The largest error at a point, as a share of its value.
    pub error_max: f64,
}

impl Fit {
    /// The line through points `(x, y)`; `None` if they determine none.
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let xs = || points.iter().map(|(x, _)| *x);
        let width = xs().fold(f64::NEG_INFINITY, f64::max) - xs().fold(f64::INFINITY, f64::min);
        if points.len() < POINTS_MIN || width < WIDTH_MIN {
            return None;
        }
        let count = u64::try_from(points.len()).map_or(1.0, to_f64);
        let x_mean = xs().sum::<f64>() / count;
        let y_mean = points.iter().map(|(_, y)| y).sum::<f64>() / count;
        let (mut together, mut alone) = (0.0, 0.0);
        for (x, y) in points {
            together += (x - x_mean) * (y - y_mean);
            alone += (x - x_mean) * (x - x_mean);
        }
        let b = together / alone;
        let line = Self { a: y_mean - b * x_mean, b, error_max: 0.0 };
        let error = |(x, y): &(f64, f64)| (line.at(*x) - y).abs() / y.abs().max(f64::MIN_POSITIVE);
        Some(Self { error_max: points.iter().map(error).fold(0.0, f64::max), ..line })
    }

    /// The value at `x`.
    pub fn at(self, x: f64) -> f64 {
        self.a + self.b * x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(seen: f64, expected: f64) {
        assert!((seen - expected).abs() < 1e-9, "{seen}, not {expected}");
    }

    #[test]
    fn a_known_law_comes_back() {
        for (a, b) in [(1.25, 0.3), (7.0, -2.5), (3.0, 0.0)] {
            let points: Vec<(f64, f64)> =
                [-1.5, 0.0, 2.0, 2.5, 9.0].map(|x| (x, a + b * x)).to_vec();
            let fit = Fit::of(&points).unwrap();
            near(fit.a, a);
            near(fit.b, b);
            near(fit.error_max, 0.0);
            near(fit.at(4.0), a + b * 4.0);
        }
    }

    #[test]
    fn the_largest_error_of_the_points_is_reported() {
        // By hand: the means are 2 and 3, the slope (1 * 2 + 1 * 3) / 2.
        let fit = Fit::of(&[(1.0, 1.0), (2.0, 2.0), (3.0, 6.0)]).unwrap();
        near(fit.b, 2.5);
        near(fit.a, -2.0);
        // It says 0.5, 3 and 5.5 there: half as much as the first, half more than the second.
        near(fit.error_max, 0.5);
        // No line near it has less of squares.
        let squares = |a: f64, b: f64| {
            let off = |(x, y): (f64, f64)| (a + b * x - y).powi(2);
            [(1.0, 1.0), (2.0, 2.0), (3.0, 6.0)].map(off).iter().sum::<f64>()
        };
        let least = squares(fit.a, fit.b);
        for (a, b) in [(0.1, 0.0), (-0.1, 0.0), (0.0, 0.1), (0.0, -0.1), (0.1, -0.05)] {
            assert!(squares(fit.a + a, fit.b + b) > least);
        }
    }

    #[test]
    fn points_that_determine_no_line_have_none() {
        assert_eq!(Fit::of(&[]), None);
        assert_eq!(Fit::of(&[(1.0, 1.0), (2.0, 3.0)]), None);
        assert_eq!(Fit::of(&[(1.0, 1.0), (1.0, 3.0), (1.0, 2.0)]), None);
    }
}
