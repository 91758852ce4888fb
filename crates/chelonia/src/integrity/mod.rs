//! Integrity and inspection: verification, scrubbing, statistics, dumps.
//!
//! | file | content |
//! | --- | --- |
//! | `verify`, `scrub` | checks of everything stored: at once, and slowly in the background |
//! | `stats` | statistics; its head says how to add one |
//! | `backup` | copies as of one moment |
//! | `prometheus` | statistics as text for Prometheus |
//! | `dump` | the structure on disk, item by item |
//! | `inspect` | inspection for tests and tools |

pub mod backup;
mod dump;
#[cfg(any(test, feature = "internals"))]
pub mod inspect;
mod prometheus;
pub mod scrub;
pub mod stats;
pub mod verify;
