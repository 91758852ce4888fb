//! The state that all handles and background threads of a database share.

pub mod core;
pub mod health;
pub mod keyspace;
pub mod open_cursors;
pub mod postponed;
pub mod reads;
pub mod scrubbing;
pub mod signals;
