//! The files of the library, and what they lean on.

#[path = "../../../../chelonia/src/db/history.rs"]
pub mod history;
pub mod lifetimes;
#[path = "../../../../chelonia/src/db/snapshots.rs"]
pub mod snapshots;
pub mod view;
#[path = "../../../../chelonia/src/db/visibility.rs"]
pub mod visibility;
