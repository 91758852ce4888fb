//! Admission of writes: memory, pacing by flushes, disk space.

pub mod governor;
pub mod headroom;
pub mod pacing;
