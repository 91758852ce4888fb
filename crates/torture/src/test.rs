//! What a test is: one kind of harm done to the store, again and again, each time differently.
//!
//! ```text
//!   runner --- seed ---> test "crash" --- unit 0, 1, 2, ... ---> tally, or a failure
//! ```
//!
//! A *unit* is a few seconds of a test. What happens in it follows from the seed of the runner,
//! the test and the number of the unit alone, so that any failure can be seen again
//! (`chelonia-torture --repeat TEST:UNIT --seed SEED`); tests that need real time or real threads
//! say in their heads how much of that holds for them.
//!
//! A unit fails by panicking: what it does is written like a test.

use chelonia::internals::Rng;
use std::collections::BTreeMap;

/// One piece of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Its number in the test.
    pub number: u64,
    /// What it draws from: its own, whatever else runs.
    pub seed: u64,
}

impl Unit {
    /// Unit `number` of the test called `test`, in the runner that began with `seed`.
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

/// What a unit did, counted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    counts: BTreeMap<&'static str, u64>,
    distinct: BTreeMap<&'static str, Vec<u64>>,
}

impl Tally {
    /// Counts `more` of `what`.
    pub fn add(&mut self, what: &'static str, more: u64) {
        *self.counts.entry(what).or_default() += more;
    }

    /// Counts one of `what`, unless one with this fingerprint was counted before, in this unit or
    /// another.
    pub fn add_distinct(&mut self, what: &'static str, fingerprint: u64) {
        self.distinct.entry(what).or_default().push(fingerprint);
    }

    /// What is counted one by one.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(what, count)| (*what, *count))
    }

    /// Fingerprints of what is counted once.
    pub fn distinct(&self) -> impl Iterator<Item = (&'static str, &[u64])> {
        self.distinct.iter().map(|(what, fingerprints)| (*what, fingerprints.as_slice()))
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: Tally) {
        other.counts.into_iter().for_each(|(what, count)| self.add(what, count));
        for (what, mut fingerprints) in other.distinct {
            self.distinct.entry(what).or_default().append(&mut fingerprints);
        }
    }
}

/// How much of something the long profile has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// What is counted, as units count it.
    pub what: &'static str,
    /// So many.
    pub count: u64,
}

/// One kind of harm.
pub trait Test: Sync {
    /// One word.
    fn name(&self) -> &'static str;

    /// One line: what is done, and what is asserted.
    fn about(&self) -> &'static str;

    /// How many units the short profile runs.
    fn short_units(&self) -> u64;

    /// What the long profile has to count.
    fn targets(&self) -> &'static [Target];

    /// The last unit there is, if what is tried is finite.
    fn units_max(&self) -> Option<u64> {
        None
    }

    /// Why it cannot run here.
    fn excuse(&self) -> Option<String> {
        None
    }

    /// Runs a unit; panics if the store did what it must not.
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
