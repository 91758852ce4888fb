//! Zipfian ranks: few ranks get most of the draws.
//!
//! Rank `i` (from 0) of `n` is drawn with probability `1 / (i + 1)^theta / zeta(n)`, where
//! `zeta(n)` is the sum of all those weights. Drawn as in Gray et al., "Quickly generating
//! billion-record synthetic databases" (SIGMOD 1994), which YCSB uses too: exact for the first two
//! ranks, for the others within some percent. Ranks become records through a permutation
//! (scrambled), so that hot records are neighbours neither in key order nor in order of insertion.

use crate::workload::random::{Permutation, Random};

/// The skew of YCSB.
pub const THETA: f64 = 0.99;

/// The number of weights that are summed; the rest is an integral.
const EXACT_WEIGHTS: u64 = 1_000_000;

/// A distribution over ranks.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    /// Over the ranks 0 .. `count`; there is at least one.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn new(count: u64) -> Self {
        let count = count.max(1);
        let zeta = zeta(count);
        let eta = if count <= 2 {
            0.0
        } else {
            (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta_of_two() / zeta)
        };
        Self { count, zeta, alpha: 1.0 / (1.0 - THETA), eta, second: zeta_of_two() }
    }

    /// Draws a rank.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction of a count is a count, and it is clamped"
    )]
    pub fn draw(&self, random: &mut Random) -> u64 {
        let u = random.fraction();
        let weight = u * self.zeta;
        if weight < 1.0 || self.count == 1 {
            return 0;
        }
        if weight < self.second || self.count == 2 {
            return 1;
        }
        let rank = self.count as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }
}

fn zeta_of_two() -> f64 {
    1.0 + 0.5_f64.powf(THETA)
}

/// The sum of the weights of `count` ranks.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn zeta(count: u64) -> f64 {
    let exact = count.min(EXACT_WEIGHTS);
    let mut sum: f64 = (1..=exact).map(|rank| (rank as f64).powf(-THETA)).sum();
    if count > exact {
        // The midpoint rule: the sum of k+1 ..= n is the integral from k + 1/2 to n + 1/2.
        let integral = |x: f64| (x + 0.5).powf(1.0 - THETA) / (1.0 - THETA);
        sum += integral(count as f64) - integral(exact as f64);
    }
    sum
}

/// A zipfian choice of records.
#[derive(Clone, Debug)]
pub struct ScrambledZipf {
    zipf: Zipf,
    records: Permutation,
}

impl ScrambledZipf {
    /// Over the records 0 .. `count`.
    pub fn new(count: u64) -> Self {
        Self { zipf: Zipf::new(count), records: Permutation::new(count, 0x7a69_7066) }
    }

    /// Draws a record.
    pub fn draw(&self, random: &mut Random) -> u64 {
        self.records.of(self.zipf.draw(random))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_sum_beyond_the_exact_part_is_the_sum() {
        let count = EXACT_WEIGHTS + 200_000;
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let exact: f64 = (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum();
        assert!((zeta(count) - exact).abs() < 1e-9 * exact);
    }

    #[test]
    fn ranks_are_as_frequent_as_their_weights() {
        let count = 20_000;
        let zipf = Zipf::new(count);
        let mut random = Random::new(5);
        let draws = 400_000_u32;
        let mut ranks = vec![0_u32; usize::try_from(count).unwrap()];
        for _ in 0..draws {
            ranks[usize::try_from(zipf.draw(&mut random)).unwrap()] += 1;
        }
        let share = |range: std::ops::Range<usize>| {
            f64::from(ranks[range].iter().sum::<u32>()) / f64::from(draws)
        };
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let expected = |range: std::ops::Range<usize>| {
            range.map(|rank| ((rank + 1) as f64).powf(-THETA)).sum::<f64>() / zeta(count)
        };
        for (range, tolerance) in
            [(0..1, 0.02), (1..2, 0.03), (0..10, 0.08), (0..200, 0.06), (0..2000, 0.03)]
        {
            let (seen, expected) = (share(range.clone()), expected(range.clone()));
            let off = (seen / expected - 1.0).abs();
            assert!(off < tolerance, "{range:?}: {seen} instead of {expected}");
        }
    }

    #[test]
    fn small_counts_stay_in_range() {
        for count in 1..6 {
            let zipf = ScrambledZipf::new(count);
            let mut random = Random::new(count);
            let mut seen = BTreeMap::new();
            for _ in 0..2000 {
                *seen.entry(zipf.draw(&mut random)).or_insert(0) += 1;
            }
            assert!(seen.keys().all(|record| *record < count), "{seen:?}");
            assert_eq!(u64::try_from(seen.len()).unwrap(), count, "{seen:?}");
        }
    }
}
