//! Operating system services besides memory and files: time, randomness, threads and their
//! synchronisation; and the coverage marks of tests.
//!
//! | file | content |
//! | --- | --- |
//! | `clock`, `rng` | time; seeded random numbers |
//! | `workers` | the tasks of a job on a few threads |
//! | `sync` | locks and atomics; under `shuttle`, those of its scheduler |
//! | `coverage` | marks for rare cases that tests must reach |

pub mod clock;
pub mod coverage;
#[cfg(any(test, feature = "internals"))]
pub mod rng;
pub mod sync;
pub mod workers;
