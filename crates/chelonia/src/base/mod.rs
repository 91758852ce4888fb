//! Common types of all modules: limits, ids, keys, bytes, streams of entries, errors.
//!
//! Every other module may import this one; it imports none.

pub mod bytes;
pub mod check;
pub mod checksum;
pub mod codec;
pub mod dump;
pub mod error;
pub mod ids;
pub mod keys;
pub mod limits;
pub mod stream;
