//! Processes that die, on real file systems.
//!
//! ```text
//!   this process                         child (chelonia-torture child PATH)
//!     start it ------------------------>  open, find the last number of each thread
//!     read the pipe <-- "thread number"   commit, print, commit, print, ...
//!     SIGKILL, or a power cut --------->  dies
//!     open, check, verify
//! ```
//!
//! The unit determines when the child dies, but not its progress until then.

mod child;
mod kill;
mod power;
mod shutdown;
mod soak;

pub use child::Child;
pub use kill::Kill;
pub use power::Power;
pub use soak::{Soak, SoakChild};
