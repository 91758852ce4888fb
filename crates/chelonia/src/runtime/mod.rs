//! Operating system services besides memory and files: time, randomness, threads and their
//! synchronisation; and the coverage marks of tests.

pub mod clock;
pub mod coverage;
#[cfg(any(test, feature = "internals"))]
pub mod rng;
pub mod sync;
pub mod workers;
