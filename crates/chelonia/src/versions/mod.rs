//! What readers see, and what is kept for them: views, pins, versions on disk.

pub mod dropped;
pub mod empty_ranges;
pub mod history;
pub mod lifetimes;
pub mod pins;
pub mod view;
pub mod visibility;
