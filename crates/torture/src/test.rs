//! Defines a torture test: one way of trying to make the store lose data, in many variations.
//!
//! ```text
//!   runner --- seed ---> test "crash" --- unit 0, 1, 2, ... ---> tally, or a failure
//! ```
//!
//! A *unit* is the smallest piece of work of a test and takes a few seconds. It is fully determined
//! by the seed of the runner, the name of the test and the number of the unit, so a failure can be
//! repeated (`chelonia-torture --repeat TEST:UNIT --seed SEED`). Tests with real time or real
//! threads say in their heads how far this holds for them.
//!
//! A unit fails by a panic, like any test in Rust.

use chelonia::internals::Rng;
use std::collections::BTreeMap;

/// The smallest piece of work of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Its number in the test.
    pub number: u64,
    /// The seed of its random numbers, independent of other units.
    pub seed: u64,
}

impl Unit {
    /// Unit `number` of the test called `test`, of a runner with `seed`.
    pub fn new(test: &str, number: u64, seed: u64) -> Self {
        let named = test.bytes().fold(seed, |mixed, byte| {
            (mixed ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        });
        Self { number, seed: Rng::new(named ^ number.rotate_left(40)).next_u64() }
    }

    /// Its random numbers.
    pub fn rng(self) -> Rng {
        Rng::new(self.seed)
    }
}

/// Counts of what a unit did.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    counts: BTreeMap<&'static str, u64>,
    distinct: BTreeMap<&'static str, Vec<u64>>,
}

impl Tally {
    /// Adds `more` to the count of `what`.
    pub fn add(&mut self, what: &'static str, more: u64) {
        *self.counts.entry(what).or_default() += more;
    }

    /// Counts one of `what`, unless one with this fingerprint was counted before, by this unit or
    /// another.
    pub fn add_distinct(&mut self, what: &'static str, fingerprint: u64) {
        self.distinct.entry(what).or_default().push(fingerprint);
    }

    /// The counts without fingerprints.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(what, count)| (*what, *count))
    }

    /// The fingerprints of things counted once.
    pub fn distinct(&self) -> impl Iterator<Item = (&'static str, &[u64])> {
        self.distinct.iter().map(|(what, fingerprints)| (*what, fingerprints.as_slice()))
    }

    /// Adds the counts of another tally.
    pub fn merge(&mut self, other: Tally) {
        other.counts.into_iter().for_each(|(what, count)| self.add(what, count));
        for (what, mut fingerprints) in other.distinct {
            self.distinct.entry(what).or_default().append(&mut fingerprints);
        }
    }
}

/// A count that the long profile has to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The name of the count.
    pub what: &'static str,
    /// The least value.
    pub count: u64,
}

/// A torture test.
pub trait Test: Sync {
    /// The name, one word.
    fn name(&self) -> &'static str;

    /// One line: the action and the assertions.
    fn about(&self) -> &'static str;

    /// The number of units in the short profile.
    fn short_units(&self) -> u64;

    /// The counts that the long profile has to reach.
    fn targets(&self) -> &'static [Target];

    /// The number of units, if it is finite.
    fn units_max(&self) -> Option<u64> {
        None
    }

    /// The reason why it cannot run here, if there is one.
    fn excuse(&self) -> Option<String> {
        None
    }

    /// Runs a unit; panics if an assertion fails.
    fn run(&self, unit: Unit) -> Tally;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_differ_by_test_number_and_seed() {
        let seeds = [("crash", 0, 1), ("crash", 1, 1), ("model", 0, 1), ("crash", 0, 2)];
        let mut drawn: Vec<u64> =
            seeds.map(|(test, number, seed)| Unit::new(test, number, seed).seed).to_vec();
        assert_eq!(Unit::new("crash", 0, 1).seed, drawn[0]);
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), seeds.len());
    }
}
