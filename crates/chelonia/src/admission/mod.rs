//! What a write waits for: its share of the memory budget, and the pace of flushes.

pub mod governor;
pub mod pacing;
