//! Reading runs: point lookups, scans, merges, and the check of everything.

mod cursor;
mod estimate;
mod large;
pub(in crate::run) mod lookup;
mod steps;
mod stream;
mod verify;
mod window;

pub use cursor::RunCursor;
pub use lookup::{FilterState, Located, Run, RunHit};
pub use stream::RunStream;
pub use verify::RunReport;
