//! The floor that everything stands on: limits, ids, bytes, checksums, errors, memory, time.
//!
//! Nothing here knows of files, trees or logs. Every other module may import this one; it imports
//! nothing of ours.

pub mod budget;
pub mod bytes;
pub mod check;
pub mod checksum;
pub mod clock;
pub mod codec;
pub mod epoch;
pub mod error;
pub mod fork;
pub mod ids;
pub mod keys;
pub mod limits;
pub mod pages;
pub mod reach;
pub mod residents;
pub mod rng;
pub mod slab;
pub mod split;
pub mod stream;
pub mod sync;
pub mod text;
pub mod workers;
