//! Reading: lookups and cursors.

pub mod cursor;
pub mod lookup;
