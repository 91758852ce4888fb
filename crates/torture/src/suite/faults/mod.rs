//! Failing calls: each place in the library that calls the file system meets every way in which a
//! call can fail, once and from then on.

mod script;
mod sites;

use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{Call, Failure, Fault, FaultPlan};
use sites::Site;

/// The number of calls of a place that are failed, spread over the run.
const CALLS: usize = 3;

/// The same of a place that reads: who waits for the bytes differs from call to call.
const READS: usize = 40;

/// What readers of other units still hold comes free later: then a call may not come, or have
/// another number.
const ATTEMPTS: usize = 5;

const FAILURES: [Failure; 6] = [
    Failure::Io,
    Failure::NoSpace,
    Failure::TooManyFiles,
    Failure::IoHalfDone,
    Failure::IoAllDone,
    Failure::IoForgetting,
];

/// A unit is a place.
pub struct Faults;

impl Test for Faults {
    fn name(&self) -> &'static str {
        "faults"
    }

    fn about(&self) -> &'static str {
        "fails calls at every place that calls the file system, once and for good"
    }

    fn short_units(&self) -> u64 {
        sites::all().len() as u64
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "call sites", count: 63 }]
    }

    fn units_max(&self) -> Option<u64> {
        Some(sites::all().len() as u64)
    }

    fn run(&self, unit: Unit) -> Tally {
        let sites = sites::all();
        let number = usize::try_from(unit.number).unwrap();
        let (site, calls) = &sites[(number * 7) % sites.len()];
        let mut tally = Tally::default();
        tally.add_distinct("call sites", (number % sites.len()) as u64);
        let mut hits = fail_calls(site, calls, &mut tally);
        for _ in 0..ATTEMPTS {
            if hits == 0 {
                // The numbers were those of an unusual run.
                let calls = sites::look().remove(site).unwrap_or_default();
                hits = fail_calls(site, &calls, &mut tally);
            }
        }
        assert!(hits > 0, "{site:?}: none of its calls came");
        tally.add("of them at the place", hits);
        tally
    }
}

/// Fails some of these calls of a place in every way; gives how many came from there.
fn fail_calls(site: &Site, calls: &[u64], tally: &mut Tally) -> u64 {
    let most = if site.call == Call::Read { READS } else { CALLS };
    let step = calls.len().div_ceil(most);
    let mut hits = 0;
    for call in calls.iter().step_by(step.max(1)) {
        for failure in FAILURES {
            for sticky in [false, true] {
                let came = (0..ATTEMPTS).any(|_| fails(site, *call, failure, sticky));
                hits += u64::from(came);
                tally.add("failures", 1);
            }
        }
    }
    hits
}

/// Runs the script, in which one call fails, or all from that one on; false if it did not come.
fn fails(site: &Site, call: u64, failure: Failure, sticky: bool) -> bool {
    let what = format!("{site:?}, call {call}: {failure:?}, sticky: {sticky}");
    let plan = FaultPlan::new();
    plan.fail(Fault { call: None, file_prefix: String::new(), after: call, sticky, failure });
    let failed = sites::watch(&plan, call);
    let mut came = false;
    script::run(&plan, &mut |left, database, progress| {
        let failed = failed.lock().unwrap().clone();
        came = failed.as_ref() == Some(site);
        // Everything that the script does waits for its syncs.
        let call = failed.map(|site| site.call);
        let is_sync = call == Some(Call::Sync);
        let is_told = progress.error.is_some() || !is_sync;
        assert!(is_told, "{what}: nobody is told that a sync failed");
        script::check(&plan, left, (database, call), progress, &what);
    });
    came
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_profile_comes_to_every_place() {
        assert_eq!(Faults.targets()[0].count, sites::all().len() as u64);
    }
}
