//! The status of a test: the counts of its units, and its failures.

use chelonia_torture::test::{Tally, Target};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

/// A unit that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// The number of the unit.
    pub unit: u64,
    /// The seed of its runner.
    pub seed: u64,
    /// The panic messages.
    pub text: String,
}

/// The status of one test.
#[derive(Clone, Default, Debug)]
pub struct Status {
    units: u64,
    ended: BTreeSet<u64>,
    spent: Duration,
    counts: BTreeMap<String, u64>,
    seen: BTreeMap<String, HashSet<u64>>,
    failures: Vec<Failed>,
}

impl Status {
    /// The number of units that succeeded.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The numbers of the units that ended, successfully or not. After a killed run there are gaps:
    /// the units that were running then.
    pub fn units_ended(&self) -> &BTreeSet<u64> {
        &self.ended
    }

    /// The total time of units.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// The failed units.
    pub fn failures(&self) -> &[Failed] {
        &self.failures
    }

    /// The count of `what`.
    pub fn count(&self, what: &str) -> u64 {
        let distinct = self.seen.get(what).map_or(0, |seen| seen.len() as u64);
        self.counts.get(what).copied().unwrap_or(0) + distinct
    }

    /// All counts, by name.
    pub fn counts(&self) -> BTreeMap<&str, u64> {
        let names = self.counts.keys().chain(self.seen.keys());
        names.map(|name| (name.as_str(), self.count(name))).collect()
    }

    /// Adds a unit that succeeded.
    pub fn add(&mut self, unit: u64, took: Duration, tally: &Tally) {
        for (what, count) in tally.counts() {
            *self.counts.entry(what.to_owned()).or_default() += count;
        }
        for (what, fingerprints) in tally.distinct() {
            self.seen.entry(what.to_owned()).or_default().extend(fingerprints);
        }
        self.units += 1;
        self.ended(unit, took);
    }

    /// Adds a unit of an earlier run, from the journal.
    pub fn add_recorded(
        &mut self,
        unit: u64,
        took: Duration,
        counts: impl IntoIterator<Item = (String, u64)>,
        distinct: impl IntoIterator<Item = (String, Vec<u64>)>,
    ) {
        for (what, count) in counts {
            *self.counts.entry(what).or_default() += count;
        }
        for (what, fingerprints) in distinct {
            self.seen.entry(what).or_default().extend(fingerprints);
        }
        self.units += 1;
        self.ended(unit, took);
    }

    /// Adds a unit that failed.
    pub fn fail(&mut self, failed: Failed, took: Duration) {
        self.ended(failed.unit, took);
        self.failures.push(failed);
    }

    fn ended(&mut self, unit: u64, took: Duration) {
        self.ended.insert(unit);
        self.spent += took;
    }

    /// The finished part of `targets`, from 0 to 1: that of the target furthest behind.
    pub fn done(&self, targets: &[Target]) -> f64 {
        let part = |target: &Target| self.count(target.what) as f64 / target.count.max(1) as f64;
        targets.iter().map(part).fold(1.0, f64::min)
    }

    /// Whether all of `targets` are met.
    pub fn has_met(&self, targets: &[Target]) -> bool {
        targets.iter().all(|target| self.count(target.what) >= target.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_fingerprint_counts_once() {
        let mut status = Status::default();
        let mut tally = Tally::default();
        tally.add("commits", 3);
        [5, 6, 5].into_iter().for_each(|state| tally.add_distinct("states", state));
        status.add(0, Duration::from_secs(1), &tally);
        status.add(1, Duration::from_secs(1), &tally);
        assert_eq!((status.count("commits"), status.count("states")), (6, 2));
        let target = |what, count| Target { what, count };
        assert!(!status.has_met(&[target("commits", 6), target("states", 4)]));
        assert!((status.done(&[target("commits", 6), target("states", 4)]) - 0.5).abs() < 1e-9);
        assert!(status.has_met(&[target("commits", 6), target("states", 2)]));
    }
}
