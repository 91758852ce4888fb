//! Where in the library calls to the file system come from.
//!
//! A run of the script is the same call after the other every time, until one of them fails. So one
//! run that notes for each call where it comes from tells which numbers of calls to fail to reach
//! every place.

use super::script;
use chelonia::internals::{Call, FaultPlan};
use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// A place in the source that calls the file system.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Site {
    /// What it calls.
    pub call: Call,
    /// File and line below the library's sources.
    pub place: String,
}

/// All places that the script reaches, each with the numbers of its calls.
pub fn all() -> &'static [(Site, Vec<u64>)] {
    static SITES: OnceLock<Vec<(Site, Vec<u64>)>> = OnceLock::new();
    SITES.get_or_init(|| {
        let plan = FaultPlan::new();
        let seen: Arc<Mutex<BTreeMap<Site, Vec<u64>>>> = Arc::default();
        let noted = Arc::clone(&seen);
        let mut number = 0;
        plan.on_call(move |call, _file| {
            let place = place_of(&Backtrace::force_capture().to_string());
            noted.lock().unwrap().entry(Site { call, place }).or_default().push(number);
            number += 1;
        });
        script::run_healthy(&plan);
        plan.on_call(|_, _| {});
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.into_iter().collect()
    })
}

/// The innermost place of a trace that lies in the library, but not in its door to the file system.
/// Traces name places as seen from where the process is: for the library's own tests, its folder.
fn place_of(trace: &str) -> String {
    let places = trace.lines().filter_map(|line| line.trim().strip_prefix("at "));
    let within = places.filter_map(|place| {
        let below = place.split_once("crates/chelonia/src/").map(|(_, rest)| rest);
        below.or_else(|| place.strip_prefix("./src/"))
    });
    let mut outside = within.filter(|place| !place.starts_with("storage/io/"));
    let place = outside.next().unwrap_or_else(|| panic!("nobody calls: {trace}"));
    // Without the column.
    place.rsplit_once(':').map_or(place, |(place, _)| place).to_owned()
}
