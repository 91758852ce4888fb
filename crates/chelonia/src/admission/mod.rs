//! What a write waits for: memory, the pace of flushes, space on the disk.

pub mod governor;
pub mod headroom;
pub mod pacing;
