//! The torture tests.
//!
//! | test | action | assertion |
//! | --- | --- | --- |
//! | `crash` | random histories, cut everywhere | a prefix, with what was acknowledged |
//! | `crash-every` | every history of up to three operations, cut in the last | the same |
//! | `crash-twice` | a second operation after a cut in the first | the same |
//! | `crash-threads` | cuts while threads write, flush and sync | the same, per thread |
//! | `model` | random histories under many sets of options | answers of an ordered map |
//! | `simulation` | faults, full devices, cuts, from one seed | possible answers, typed errors |
//! | `faults` | every call site fails in every way | typed errors, reads, nothing lost |
//! | `full-device` | devices filled in every way, then emptied | deletes are accepted |
//! | `kill` | SIGKILL, on the real file system | as `crash` |
//! | `power` | a mounted file system is shut down | as `crash`, through the kernel |
//! | `soak` | eight times as much data as memory | values; bounded memory, files, space |
//! | `crowd` | hundreds of keyspaces and pins, full batches | answers of a map, within the budget |
//! | `readers` | reads concurrent with writers, flushes, checkpoints | one point in commit order |
//! | `isolation` | transactions of eight threads | strictly serializable, by two checkers |
//! | `rot-flips` | every byte flipped, one by one | reported with file and offset |
//! | `rot-blocks` | blocks zeroed, swapped, misdirected, aged | the same |
//! | `decoders` | forged input for every decoder | no panic |
//! | `forged` | complete stores with forged input | typed errors, bounded memory and time |
//! | `schedules` | threads under many schedules (feature `shuttle`) | as `crash-threads` |
//!
//! `docs/testing.md` describes each in more detail.
//!
//! To add a test: a file here that implements [`Test`], a line in [`all`], a row above and in
//! `docs/testing.md`, and a call in `crates/torture/tests/suite/main.rs`. Then verify that it can
//! fail: with a mutant (`mutants/mod.rs`) that the other tests miss.

mod crash;
mod crash_every;
mod crash_threads;
mod crash_twice;
mod crowd;
mod faults;
mod forged;
mod full_device;
mod isolation;
mod model;
mod process;
mod readers;
mod rot;
#[cfg(feature = "shuttle")]
mod schedules;
mod simulation;
mod support;

use crate::test::Test;
pub use forged::{fuzz_store, write_seeds};
pub use process::{Child, SoakChild};

/// All tests. With the feature `shuttle`, only those written for its scheduler.
pub fn all() -> Vec<Box<dyn Test>> {
    let scheduled = scheduled();
    if scheduled.is_empty() { of_the_machine() } else { scheduled }
}

#[cfg(feature = "shuttle")]
fn scheduled() -> Vec<Box<dyn Test>> {
    vec![Box::new(schedules::Schedules)]
}

#[cfg(not(feature = "shuttle"))]
fn scheduled() -> Vec<Box<dyn Test>> {
    Vec::new()
}

fn of_the_machine() -> Vec<Box<dyn Test>> {
    vec![
        Box::new(crash::Random),
        Box::new(crash_every::Every),
        Box::new(crash_twice::Twice),
        Box::new(crash_threads::Threads),
        Box::new(model::Model),
        Box::new(simulation::Simulation),
        Box::new(faults::Faults),
        Box::new(full_device::FullDevice),
        Box::new(process::Kill),
        Box::new(process::Power),
        Box::new(process::Soak),
        Box::new(crowd::Crowd),
        Box::new(readers::Readers),
        Box::new(isolation::Isolation),
        Box::new(rot::Flips),
        Box::new(rot::Blocks),
        Box::new(forged::Decoders),
        Box::new(forged::Stores),
    ]
}
