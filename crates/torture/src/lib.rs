//! The torture tests of Chelonia: crashes, faults, bit rot and races. The program
//! `chelonia-torture` runs them for minutes or hours, the tests of this crate a few units of each.
//!
//! `test.rs` defines a torture test, `suite/mod.rs` lists all of them.

#![allow(
    clippy::unwrap_used,
    reason = "a unit that finds something wrong fails by a panic, as a test does"
)]

pub mod golden;
pub mod marks;
pub mod suite;
pub mod test;
