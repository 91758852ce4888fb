//! Inspection: verification, scrubbing, statistics, dumps.

#[cfg(any(test, feature = "internals"))]
pub mod dump;
pub mod inspect;
pub mod scrub;
pub mod stats;
pub mod verify;
