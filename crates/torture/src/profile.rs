//! Decides which units are run, and in which order.
//!
//! | profile | units of a test | seed |
//! | --- | --- | --- |
//! | short | a fixed number, and one with a fresh seed | always the same |
//! | long | until its targets are met | given, or always the same |
//!
//! Threads take units from a [`Queue`] until it is empty. The test that is furthest behind comes
//! first, so that every test has run if a profile is stopped early.

use crate::runner::status::Status;
use chelonia::internals::{Clock, Rng};
use chelonia_torture::test::{Test, Unit};
use clap::ValueEnum;
use std::collections::BTreeSet;
use std::time::Duration;

/// The extent of a run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Profile {
    /// A few minutes, for every change
    Short,
    /// Until every target is met: about half an hour on two cores
    Long,
}

/// The default seed.
pub const SEED: u64 = 0xc4e1_0017;

/// A test that failed this often is not run any further.
const FAILURES_MAX: usize = 3;

/// A unit to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The index of the test in the list.
    pub test: usize,
    /// The unit.
    pub unit: Unit,
    /// The seed of the runner.
    pub seed: u64,
}

/// The units that are left to run.
pub struct Queue<'t> {
    profile: Profile,
    until_failure: bool,
    seed: u64,
    /// Started with the run.
    clock: Clock,
    at_most: Option<Duration>,
    tests: &'t [Box<dyn Test>],
    places: Vec<Place>,
}

/// The progress of a test.
#[derive(Default)]
struct Place {
    /// Units handed out, including those that earlier runs finished.
    taken: BTreeSet<u64>,
    /// The unit with a fresh seed was handed out.
    fresh: bool,
}

impl Place {
    /// The lowest unit not handed out.
    fn next(&self) -> u64 {
        let taken = self.taken.iter();
        taken
            .zip(0..)
            .find(|(unit, number)| **unit != *number)
            .map_or_else(|| self.taken.len() as u64, |(_, number)| number)
    }
}

impl<'t> Queue<'t> {
    /// All of `profile`, for at most `at_most`; `statuses` has the work of earlier runs.
    pub fn new(
        profile: Profile,
        seed: u64,
        at_most: Option<Duration>,
        tests: &'t [Box<dyn Test>],
        statuses: &[Status],
    ) -> Self {
        let place = |status: &Status| Place { taken: status.units_ended().clone(), fresh: false };
        let places = statuses.iter().map(place).collect();
        Self { profile, until_failure: false, seed, clock: Clock::real(), at_most, tests, places }
    }

    /// Starts no unit after the first failure, if `until_failure`.
    pub fn until_failure(mut self, until_failure: bool) -> Self {
        self.until_failure = until_failure;
        self
    }

    /// The next unit, given the current statuses; `None` if there is none.
    pub fn next(&mut self, statuses: &[Status]) -> Option<Job> {
        let is_late = self.at_most.is_some_and(|time| self.clock.now() >= time);
        let has_failed = statuses.iter().any(|status| !status.failures().is_empty());
        if is_late || (self.until_failure && has_failed) {
            return None;
        }
        let open = (0..self.tests.len()).filter(|test| self.is_open(*test, &statuses[*test]));
        let behind = |test: &usize| {
            let done = self.done(*test, &statuses[*test]);
            // On a tie, the test with fewer units handed out.
            (done.to_bits(), self.places[*test].taken.len())
        };
        let test = open.min_by_key(behind)?;
        let name = self.tests[test].name();
        let place = &mut self.places[test];
        let number = place.next();
        if self.profile == Profile::Short && number >= self.tests[test].short_units() {
            place.fresh = true;
            let seed = fresh_seed();
            return Some(Job { test, unit: Unit::new(name, 0, seed), seed });
        }
        place.taken.insert(number);
        Some(Job { test, unit: Unit::new(name, number, self.seed), seed: self.seed })
    }

    /// Whether the test has a unit left to run.
    fn is_open(&self, test: usize, status: &Status) -> bool {
        let (place, test) = (&self.places[test], &self.tests[test]);
        if status.failures().len() >= FAILURES_MAX || test.excuse().is_some() {
            return false;
        }
        let is_left = test.units_max().is_none_or(|most| place.next() < most);
        match self.profile {
            Profile::Short => place.next() < test.short_units() || !place.fresh,
            Profile::Long => is_left && !status.has_met(test.targets()),
        }
    }

    /// The finished part of the test, from 0 to 1.
    fn done(&self, test: usize, status: &Status) -> f64 {
        let all = match self.profile {
            Profile::Short => self.tests[test].short_units(),
            Profile::Long => return status.done(self.tests[test].targets()),
        };
        status.units() as f64 / (all + 1) as f64
    }
}

/// A random seed.
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
    Rng::new(seed).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chelonia_torture::test::{Tally, Target};

    /// A test with four units.
    struct Finite;

    impl Test for Finite {
        fn name(&self) -> &'static str {
            "finite"
        }

        fn about(&self) -> &'static str {
            "has four units"
        }

        fn short_units(&self) -> u64 {
            2
        }

        fn targets(&self) -> &'static [Target] {
            &[Target { what: "things", count: 4 }]
        }

        fn units_max(&self) -> Option<u64> {
            Some(4)
        }

        fn run(&self, _: Unit) -> Tally {
            Tally::default()
        }
    }

    #[test]
    fn units_that_a_killed_run_did_not_finish_are_run_again() {
        let tests: [Box<dyn Test>; 1] = [Box::new(Finite)];
        let mut statuses = [Status::default()];
        for unit in [0, 2] {
            statuses[0].add(unit, Duration::ZERO, &Tally::default());
        }
        let units = |profile| {
            let mut queue = Queue::new(profile, 7, None, &tests, &statuses);
            let next = || queue.next(&statuses).filter(|job| job.seed == 7);
            std::iter::from_fn(next).map(|job| job.unit.number).collect::<Vec<_>>()
        };
        assert_eq!(units(Profile::Long), [1, 3]);
        assert_eq!(units(Profile::Short), [1]);
    }
}
