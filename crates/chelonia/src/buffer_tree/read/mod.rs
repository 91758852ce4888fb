//! Reading: lookups, cursors, and the read costs that trigger flushes.

pub mod cursor;
pub mod lookup;
pub mod read_cost;
