//! Writing: absorbs and merges, which tables they take, and what they write.

pub mod absorb;
pub mod choose;
pub mod claims;
pub mod garnering;
pub mod job;
pub mod level0_picker;
pub mod merging;
pub mod output;
pub mod plan;
pub mod unit;
