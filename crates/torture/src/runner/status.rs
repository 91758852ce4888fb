//! How a test stands: what its units have counted, and how they failed.

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
    /// What it said.
    pub text: String,
}

/// How one test stands.
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
    /// Units that ended well.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The numbers of the units that ended, however. Those of a run that was killed have gaps:
    /// what was under way then is not among them.
    pub fn units_ended(&self) -> &BTreeSet<u64> {
        &self.ended
    }

    /// The time that units took, added up.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Those that failed.
    pub fn failures(&self) -> &[Failed] {
        &self.failures
    }

    /// How many of `what` were counted.
    pub fn count(&self, what: &str) -> u64 {
        let distinct = self.seen.get(what).map_or(0, |seen| seen.len() as u64);
        self.counts.get(what).copied().unwrap_or(0) + distinct
    }

    /// Everything that was counted, by name.
    pub fn counts(&self) -> BTreeMap<&str, u64> {
        let names = self.counts.keys().chain(self.seen.keys());
        names.map(|name| (name.as_str(), self.count(name))).collect()
    }

    /// A unit ended well.
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

    /// The same of an earlier run, as it was journal.
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

    /// A unit failed.
    pub fn fail(&mut self, failed: Failed, took: Duration) {
        self.ended(failed.unit, took);
        self.failures.push(failed);
    }

    fn ended(&mut self, unit: u64, took: Duration) {
        self.ended.insert(unit);
        self.spent += took;
    }

    /// How much of `targets` is done, from 0 to 1: of the one that is furthest behind.
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
    fn what_was_seen_before_counts_once() {
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
