//! The Garnering policy: level capacities, number of levels, and allocation of filter memory to
//! levels [Autumn 3.1].
//!
//! ```text
//!   C(i) / C(i-1) = T / c^(L-i)                              equation 4
//!   C(i)          = T^i / c^((2L-1-i) i / 2) * B             equation 5
//!
//!   L = 4, T = 2, c = 0.8      level      1      2      3      4
//!                              ratio    3.9    3.1    2.5    2
//!                              C / B    3.9   12.2   30.5   61.0
//! ```
//!
//! `T` is the size ratio of the last two levels; the ratio grows by `1/c` for each level above.
//! Every added level increases all capacities, so the number of levels grows with the square root
//! of the logarithm of the data. With `c` = 1 this is plain leveling: every ratio is `T`.
//!
//! `B` is the amount of data in one merge of level 0 into level 1.
//!
//! Relative capacities derive from the actual size of the last level: the level above it may hold a
//! `T`-th of that, and so on upwards. So the entries of the last level that upper levels hide are
//! limited to about a `T`-th of it, however full the last level is.

use crate::base::limits::{SIZE_RATIO_MAX, SIZE_RATIO_MIN};
use crate::filters::sizing::{BITS_PER_KEY_MAX, BITS_PER_KEY_MIN};

/// Maximum number of levels: plain leveling with a ratio of 2 needs this many for 2^40 times `B`.
pub(in crate::engines::autumn) const LEVELS_MAX: usize = 40;

/// Upper limit of any capacity, in bytes.
const CAPACITY_MAX: f64 = (1_u64 << 60) as f64;

/// Basis of level capacities.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::engines::autumn) enum Sizing {
    /// Capacities derive from the memory flushed at one time, by equation 5.
    #[default]
    Absolute,
    /// Capacities derive from the size of the last level, by equation 4.
    Relative,
}

/// The policy and its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::engines::autumn) struct Garnering {
    /// `T`.
    pub ratio: f64,
    /// `c`.
    pub scaling: f64,
    /// `B`, in bytes.
    pub base: u64,
    /// Basis of capacities.
    pub sizing: Sizing,
}

impl Garnering {
    /// Creates the policy from the options of a keyspace: `ratio` is `T`, `percent` is 100 times
    /// `c`.
    pub fn new(ratio: u32, percent: u32, base: u64, sizing: Sizing) -> Self {
        Self {
            ratio: f64::from(ratio.clamp(SIZE_RATIO_MIN, SIZE_RATIO_MAX)),
            scaling: f64::from(percent.clamp(1, 100)) / 100.0,
            base: base.max(1),
            sizing,
        }
    }

    /// Returns true if capacities grow with every added level.
    pub fn grows(&self) -> bool {
        self.scaling < 1.0
    }

    /// Equation 5: capacity in bytes of level `level` of `levels`.
    pub fn capacity(&self, level: usize, levels: usize) -> u64 {
        let (level, levels) = (level as f64, levels as f64);
        let scalings = (2.0 * levels - 1.0 - level) * level / 2.0;
        to_bytes(self.ratio.powf(level) / self.scaling.powf(scalings) * self.base as f64)
    }

    /// Equation 4: capacity of level `level` of `levels`, as a fraction of the size of the last
    /// level.
    pub fn part_of_last(&self, level: usize, levels: usize) -> f64 {
        let above = (levels - level) as f64;
        self.scaling.powf(above * (above - 1.0) / 2.0) / self.ratio.powf(above)
    }

    /// Returns the capacities of levels 1 to `sizes.len()`, whose current sizes are `sizes`.
    pub fn capacities(&self, sizes: &[u64]) -> Vec<u64> {
        let levels = sizes.len();
        let last = sizes.last().copied().unwrap_or(0);
        let of = |level| match self.sizing {
            Sizing::Absolute => self.capacity(level, levels),
            Sizing::Relative if level == levels => self.capacity(level, levels),
            Sizing::Relative => {
                // A level must be able to hold the data of one merge of level 0.
                let relative = to_bytes(last as f64 * self.part_of_last(level, levels));
                relative.max(self.base).min(self.capacity(level, levels))
            }
        };
        (1..=levels).map(of).collect()
    }

    /// Returns the least number of levels whose last one may hold `bytes`.
    #[cfg(test)]
    pub fn levels_for(&self, bytes: u64) -> usize {
        (1..LEVELS_MAX)
            .find(|levels| self.capacity(*levels, *levels) >= bytes)
            .unwrap_or(LEVELS_MAX)
    }

    /// Equations 8 and 9: bits per key of the filters of sorted sequences with these numbers of
    /// `entries`. They minimize the expected number of unnecessary block reads of a lookup, with
    /// `budget` bits per key overall.
    ///
    /// In the optimum, false positive rates are proportional to the sizes. A sequence whose rate
    /// would be above 1 has no filter, and the other filters share its memory.
    pub fn filter_bits(budget: u32, entries: &[u64]) -> Vec<u32> {
        let total: f64 = entries.iter().map(|count| *count as f64).sum();
        let memory = f64::from(budget) * total;
        // The rate of each is its size / e^x for one x; sequences that would have no filter are
        // removed until there are none.
        let mut sharing: Vec<usize> = (0..entries.len()).filter(|at| entries[*at] > 0).collect();
        let mut bits = vec![0.0; entries.len()];
        loop {
            let sum: f64 = sharing.iter().map(|at| entries[*at] as f64).sum();
            let weighted: f64 = sharing.iter().map(|at| xlogx(entries[*at] as f64)).sum();
            if sharing.is_empty() || sum == 0.0 {
                break;
            }
            let x = (memory * BLOOM + weighted) / sum;
            let least = 0.5 * f64::from(BITS_PER_KEY_MIN) * BLOOM;
            let before = sharing.len();
            sharing.retain(|at| x - (entries[*at] as f64).ln() >= least);
            if sharing.len() == before {
                for at in sharing {
                    bits[at] = (x - (entries[at] as f64).ln()) / BLOOM;
                }
                break;
            }
        }
        bits.into_iter().map(to_bits).collect()
    }
}

/// ln(2)^2: a Bloom filter of `b` bits per key has a false positive rate of e^(-b ln2^2) [eq. 2].
const BLOOM: f64 = std::f64::consts::LN_2 * std::f64::consts::LN_2;

fn xlogx(x: f64) -> f64 {
    if x > 0.0 { x * x.ln() } else { 0.0 }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "capacities are positive and far below 2^63"
)]
fn to_bytes(capacity: f64) -> u64 {
    if capacity.is_finite() { capacity.clamp(1.0, CAPACITY_MAX) as u64 } else { 1 << 60 }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few bits, clamped")]
fn to_bits(bits: f64) -> u32 {
    match bits.round().clamp(0.0, f64::from(BITS_PER_KEY_MAX)) as u32 {
        0 => 0,
        some => some.max(BITS_PER_KEY_MIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(ratio: u32, percent: u32) -> Garnering {
        Garnering::new(ratio, percent, 1 << 20, Sizing::Absolute)
    }

    #[test]
    fn ratios_are_those_of_equation_4() {
        for (ratio, percent) in [(2, 80), (3, 40), (5, 100)] {
            let policy = policy(ratio, percent);
            for levels in 1..=6 {
                let mut above = policy.base;
                for level in 1..=levels {
                    let capacity = policy.capacity(level, levels);
                    let is = capacity as f64 / above as f64;
                    let below = i32::try_from(levels - level).unwrap();
                    let wanted = policy.ratio / policy.scaling.powi(below);
                    assert!((is / wanted - 1.0).abs() < 1e-3, "level {level} of {levels}: {is}");
                    above = capacity;
                }
            }
        }
    }

    #[test]
    fn the_first_of_six_levels_has_the_share_that_the_paper_names() {
        let capacities: Vec<u64> = (1..=6).map(|level| policy(2, 80).capacity(level, 6)).collect();
        let share = capacities[0] as f64 / capacities.iter().sum::<u64>() as f64;
        assert!((share - 0.0018).abs() < 0.0001, "{share}");
    }

    #[test]
    fn a_level_that_is_added_makes_room_above_it_unless_ratios_are_constant() {
        for levels in 1..6 {
            let grows = |policy: Garnering| {
                policy.capacity(levels, levels + 1) > policy.capacity(levels, levels)
            };
            assert!(grows(policy(2, 80)) && grows(policy(2, 99)));
            assert!(!grows(policy(2, 100)) && !policy(2, 100).grows());
        }
    }

    #[test]
    fn levels_grow_with_the_root_of_the_logarithm() {
        let levels = |percent, power: u32| policy(2, percent).levels_for(1 << (20 + power));
        // With c = 1 the number of levels is the logarithm itself.
        assert_eq!([4, 8, 16, 32].map(|power| levels(100, power)), [4, 8, 16, 32]);
        // 2^16 times the data, four times the logarithm: about twice the levels.
        assert_eq!([4, 8, 16, 32].map(|power| levels(40, power)), [3, 4, 5, 7]);
        assert!(levels(80, 32) < 16);
    }

    #[test]
    fn relative_capacities_follow_the_last_level() {
        let policy = Garnering { sizing: Sizing::Relative, ..policy(4, 50) };
        let last = policy.capacity(3, 3);
        let full = policy.capacities(&[0, 0, last]);
        let near = |a: u64, b: u64| a.abs_diff(b) <= a / 1000;
        assert!(near(full[1], last / 4) && near(full[0], last / 4 / 8), "{full:?}");
        let half = policy.capacities(&[0, 0, last / 2]);
        assert!(near(half[1], full[1] / 2), "{half:?}");
        // Capacities never fall below the base, nor exceed those of equation 5.
        assert_eq!(policy.capacities(&[0, 0, 0]), [policy.base, policy.base, last]);
        assert_eq!(policy.capacities(&[0, 0, 9 * last]), full);
    }

    #[test]
    fn filters_have_rates_in_the_proportion_of_sizes() {
        let entries = [1_000, 10_000, 100_000, 1_000_000];
        let bits = Garnering::filter_bits(10, &entries);
        // A tenth of the size, a tenth of the rate: 4.8 more bits.
        assert_eq!(bits, [24, 19, 14, 9]);
        let spent: u64 =
            entries.iter().zip(&bits).map(|(count, bits)| count * u64::from(*bits)).sum();
        assert!(spent.abs_diff(10 * 1_111_000) < 1_111_000 / 2, "{spent}");
        // With little memory the largest sequence has no filter; the others share all bits.
        assert_eq!(Garnering::filter_bits(1, &entries), [19, 14, 9, 0]);
        assert_eq!(Garnering::filter_bits(10, &[0, 7, 0]), [0, 10, 0]);
        assert!(Garnering::filter_bits(10, &[]).is_empty());
    }
}
