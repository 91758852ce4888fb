//! Reading runs: point lookups, scans, merges, the check of everything, and what damage leaves.

mod cursor;
mod filter;
mod large;
pub(in crate::run) mod lookup;
mod ranges;
mod salvage;
mod steps;
mod stream;
mod verify;
mod window;

pub use cursor::RunCursor;
pub use filter::{FilterState, RunFilter};
pub use lookup::{Located, Run, RunHit};
pub use salvage::RunPart;
pub use stream::RunStream;
pub use verify::RunReport;
