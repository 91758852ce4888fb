//! Runs units on several threads until the profile has none left, and collects their counts.
//!
//! `journal.rs` records finished units in a file, `status.rs` has the status of a test, `caught.rs`
//! catches the panics of units.
//!
//! A unit that does not end, for example because of a deadlock, has failed. It cannot be aborted,
//! so the process ends.

mod caught;
pub mod journal;
pub mod status;

use crate::failure::{Failure, Result};
use crate::profile::{Job, Profile, Queue};
use crate::report::Progress;
use chelonia::internals::Clock;
use chelonia_torture::test::{Tally, Test};
use journal::Journal;
use status::{Failed, Status};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A unit takes seconds, one of `soak` minutes, and more on a busy machine; a unit that takes
/// longer than this does not end.
const UNIT_TIME_MAX: Duration = Duration::from_secs(1_200);

/// The interval of checks for such units.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The settings of a run.
pub struct Runner<'t> {
    /// Which units to run.
    pub profile: Profile,
    /// The seed of the units.
    pub seed: u64,
    /// No unit starts after this time.
    pub at_most: Option<Duration>,
    /// No unit starts after the first failure.
    pub until_failure: bool,
    /// The number of units that run at the same time.
    pub threads: usize,
    /// The tests to run.
    pub tests: &'t [Box<dyn Test>],
}

/// State shared by the threads.
struct Shared<'t> {
    queue: Queue<'t>,
    statuses: Vec<Status>,
    journal: Option<Journal>,
    progress: Progress,
    /// The current unit of each thread, and when it started.
    under_way: Vec<Option<(Job, Clock)>>,
    /// The error that ends the run early.
    failure: Option<Failure>,
}

fn lock<'s, 't>(shared: &'s Mutex<Shared<'t>>) -> MutexGuard<'s, Shared<'t>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner<'_> {
    /// Runs the units that `statuses` do not have yet, and returns the statuses at the end. If a
    /// unit does not end, the process exits with the code that `stuck` returns.
    pub fn run(
        &self,
        statuses: Vec<Status>,
        journal: Option<Journal>,
        stuck: &dyn Fn(&[Status]) -> i32,
    ) -> Result<Vec<Status>> {
        caught::install();
        let queue = Queue::new(self.profile, self.seed, self.at_most, self.tests, &statuses);
        let queue = queue.until_failure(self.until_failure);
        let progress = Progress::new(self.profile, self.tests, &statuses);
        let under_way = vec![None; self.threads.max(1)];
        let shared = Shared { queue, statuses, journal, progress, under_way, failure: None };
        let shared = Mutex::new(shared);
        std::thread::scope(|scope| {
            // Every working thread holds a sender; the channel closes when all are done.
            let (working, done) = mpsc::channel::<()>();
            for within in 0..self.threads.max(1) {
                let (shared, working) = (&shared, working.clone());
                scope.spawn(move || {
                    self.work(within, shared);
                    drop(working);
                });
            }
            drop(working);
            while done.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                if lock(&shared).fail_overdue(self.tests) {
                    let code = stuck(&lock(&shared).statuses);
                    std::process::exit(code);
                }
            }
        });
        let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop(shared.progress);
        if let Some(failure) = shared.failure {
            return Err(failure);
        }
        if let Some(mut journal) = shared.journal {
            journal.end(self.seed)?;
        }
        Ok(shared.statuses)
    }

    /// One thread: runs one unit after the other.
    fn work(&self, within: usize, shared: &Mutex<Shared<'_>>) {
        loop {
            let job = lock(shared).begin(within);
            let Some(job) = job else { return };
            let clock = Clock::real();
            let result = caught::run(within, || self.tests[job.test].run(job.unit));
            let took = clock.now();
            let mut shared = lock(shared);
            shared.under_way[within] = None;
            if let Err(failure) = shared.ended(self.tests, job, took, result) {
                shared.failure = Some(failure);
            }
        }
    }
}

impl Shared<'_> {
    /// Takes the next unit for thread `within`.
    fn begin(&mut self, within: usize) -> Option<Job> {
        let job = if self.failure.is_some() { None } else { self.queue.next(&self.statuses) };
        self.under_way[within] = job.map(|job| (job, Clock::real()));
        job
    }

    /// Reports a unit that takes too long, if there is one.
    fn fail_overdue(&mut self, tests: &[Box<dyn Test>]) -> bool {
        let overdue = |(_, since): &&(Job, Clock)| since.now() > UNIT_TIME_MAX;
        let Some((job, since)) = self.under_way.iter().flatten().find(overdue).cloned() else {
            return false;
        };
        let text = format!("the unit has not ended after {} s", UNIT_TIME_MAX.as_secs());
        // The process exits anyway.
        let _ = self.ended(tests, job, since.now(), Err(text));
        true
    }

    /// Records the result of a unit.
    fn ended(
        &mut self,
        tests: &[Box<dyn Test>],
        job: Job,
        took: Duration,
        result: Result<Tally, String>,
    ) -> Result<()> {
        let (name, unit, seed) = (tests[job.test].name(), job.unit.number, job.seed);
        let status = &mut self.statuses[job.test];
        match result {
            Ok(tally) => {
                status.add(unit, took, &tally);
                if let Some(journal) = &mut self.journal {
                    journal.add(name, unit, seed, took, &tally)?;
                }
            }
            Err(text) => {
                let failed = Failed { unit, seed, text };
                self.progress.failed(name, &failed);
                if let Some(journal) = &mut self.journal {
                    journal.add_failed(name, &failed, took)?;
                }
                status.fail(failed, took);
            }
        }
        self.progress.update(tests, &self.statuses);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chelonia_torture::test::{Target, Unit};

    /// Fails in unit 1.
    struct Brittle;

    impl Test for Brittle {
        fn name(&self) -> &'static str {
            "brittle"
        }

        fn about(&self) -> &'static str {
            "breaks once"
        }

        fn short_units(&self) -> u64 {
            3
        }

        fn targets(&self) -> &'static [Target] {
            &[Target { what: "things", count: 50 }]
        }

        fn run(&self, unit: Unit) -> Tally {
            assert!(unit.number != 1, "number one");
            let mut tally = Tally::default();
            tally.add("things", 10);
            tally
        }
    }

    fn run(profile: Profile, at_most: Option<Duration>) -> Status {
        let tests: [Box<dyn Test>; 1] = [Box::new(Brittle)];
        let runner =
            Runner { profile, seed: 1, at_most, until_failure: false, threads: 2, tests: &tests };
        runner.run(vec![Status::default()], None, &|_| 1).unwrap().remove(0)
    }

    #[test]
    fn profiles_end_and_failures_are_reported() {
        let _alone = caught::FAILING.lock().unwrap_or_else(PoisonError::into_inner);
        let long = run(Profile::Long, None);
        assert!(long.count("things") >= 50);
        assert_eq!(long.failures().len(), 1);
        assert!(long.failures()[0].text.contains("number one"), "{:?}", long.failures());
        // Units 0 and 2, and the one with a fresh seed.
        assert_eq!(run(Profile::Short, None).count("things"), 30);
        assert_eq!(run(Profile::Long, Some(Duration::ZERO)).units(), 0);
    }
}
