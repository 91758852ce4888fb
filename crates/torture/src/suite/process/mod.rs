//! Processes that die, on real file systems.
//!
//! ```text
//!   this process                         child (chelonia-torture child PATH)
//!     start it ------------------------>  open, find where each thread was
//!     read the pipe <-- "thread number"   commit, say so, commit, say so, ...
//!     SIGKILL, or the power goes ------>  dies
//!     open, check, verify
//! ```
//!
//! When the end comes follows from the unit; what the child was doing then does not.

mod child;
mod kill;
mod power;
mod shutdown;
mod soak;

pub use child::Child;
pub use kill::Kill;
pub use power::Power;
pub use soak::{Soak, SoakChild};
