//! Views, pins and on-disk versions: what readers see, and what is retained for them.

pub mod dropped;
pub mod empty_ranges;
pub mod history;
pub mod lifetimes;
pub mod pins;
pub mod view;
pub mod visibility;
