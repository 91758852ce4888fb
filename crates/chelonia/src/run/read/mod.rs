//! Reading runs: point lookups, scans, merges, verification, and salvage of damaged runs.

mod candidates;
mod cursor;
mod filter;
mod large;
pub(in crate::run) mod lookup;
mod ranges;
mod rounds;
mod salvage;
mod steps;
mod stream;
mod verify;

pub use candidates::{Candidate, Candidates, find_newest};
pub use cursor::{RunCursor, first_blocks, scan_blocks_max};
pub use filter::{FilterState, RunFilter};
pub use lookup::{Run, RunHit};
pub use ranges::RangesStream;
pub use rounds::find_many;
pub use salvage::RunPart;
pub use steps::Steps;
pub use stream::RunStream;
