//! Integrity and inspection: verification, scrubbing, statistics, dumps.

pub mod dump;
#[cfg(any(test, feature = "internals"))]
pub mod inspect;
pub mod scrub;
pub mod stats;
pub mod verify;
