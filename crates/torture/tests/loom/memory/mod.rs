//! As in the library.

pub mod budget;
pub mod fork;
