//! Failing calls: each call site of the file system in the library meets every kind of failure,
//! once and permanently.

mod script;
mod sites;

use crate::suite::support::LAYOUTS;
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{Call, Failure, Fault, FaultPlan};
use sites::Site;

/// The number of calls of a site that are failed, spread over the run.
const CALLS: usize = 3;

/// The same for sites of reads, whose callers differ from call to call.
const READS: usize = 40;

/// Attempts to reach a call: memory that readers of other units hold is freed at another time, so a
/// call may be missing or have another number.
const ATTEMPTS: usize = 5;

const FAILURES: [Failure; 6] = [
    Failure::Io,
    Failure::NoSpace,
    Failure::TooManyFiles,
    Failure::IoHalfDone,
    Failure::IoAllDone,
    Failure::IoForgetting,
];

/// A unit is a call site.
pub struct Faults;

impl Test for Faults {
    fn name(&self) -> &'static str {
        "faults"
    }

    fn about(&self) -> &'static str {
        "fails calls at every call site of the file system, once and permanently"
    }

    fn short_units(&self) -> u64 {
        sites::all().len() as u64
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "call sites", count: 113 }]
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
                // The numbers came from an unusual run.
                let calls = sites::look(site.layout).remove(site).unwrap_or_default();
                hits = fail_calls(site, &calls, &mut tally);
            }
        }
        assert!(hits > 0, "{site:?}: none of its calls was reached");
        tally.add("of them at the place", hits);
        tally
    }
}

/// The file of the library that makes segments of the log.
const NEW_SEGMENT: &str = "log/segments/prepare.rs";

/// Fails these calls of a site in every way; returns how many came from this site.
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

/// Runs the script while this call fails, or all calls from this one on; false if it was not
/// reached.
fn fails(site: &Site, call: u64, failure: Failure, sticky: bool) -> bool {
    let what = format!("{site:?}, call {call}: {failure:?}, sticky: {sticky}");
    let plan = FaultPlan::new();
    plan.fail(Fault { call: None, file_prefix: String::new(), after: call, sticky, failure });
    let failed = sites::watch(site.layout, &plan, call);
    let mut came = false;
    script::run(LAYOUTS[site.layout], &plan, &mut |left, database, progress| {
        let failed = failed.lock().unwrap().clone();
        came = failed.as_ref() == Some(site);
        // Every operation of the script waits for its syncs. A new segment of the log for which
        // there was no space once, however, is made again, and smaller.
        let is_new = failed.as_ref().is_some_and(|site| site.place.starts_with(NEW_SEGMENT));
        let is_repeated = is_new && failure == Failure::NoSpace && !sticky;
        let call = failed.map(|site| site.call);
        let is_sync = call == Some(Call::Sync) && !is_repeated;
        let is_reported = progress.error.is_some() || !is_sync;
        assert!(is_reported, "{what}: a failed sync was not reported");
        script::check(&plan, left, (database, call), progress, &what);
    });
    came
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_profile_reaches_every_site() {
        assert_eq!(Faults.targets()[0].count, sites::all().len() as u64);
    }
}
