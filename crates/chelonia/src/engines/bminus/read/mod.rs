//! Reads of a version.

pub mod cursor;
pub mod lookup;
pub mod pages;
