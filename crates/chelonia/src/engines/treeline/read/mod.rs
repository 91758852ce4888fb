//! Reads: of one key, of many keys, of a range.

pub(in crate::engines::treeline) mod cursor;
mod lookup;
