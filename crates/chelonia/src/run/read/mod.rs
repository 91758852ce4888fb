//! Reading runs: point lookups, scans, merges, and the check of everything.

mod cursor;
mod filter;
mod large;
pub(in crate::run) mod lookup;
mod ranges;
mod steps;
mod stream;
mod verify;
mod window;

pub use cursor::RunCursor;
pub use filter::{FilterState, RunFilter};
pub use lookup::{Located, Run, RunHit};
pub use stream::RunStream;
pub use verify::RunReport;
