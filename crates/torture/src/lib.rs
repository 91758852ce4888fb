//! The tests of Chelonia: crashes, faults, rot and races, for the program `chelonia-torture` and
//! for the tests of this crate.
//!
//! `test.rs` says what a test is, `suite/mod.rs` names them all. The program (`main.rs`) runs
//! them by the minute or by the hour; the tests of this crate run a few units of each.

#![allow(
    clippy::unwrap_used,
    reason = "a unit that finds something wrong fails by a panic, as a test does"
)]

pub mod golden;
pub mod marks;
pub mod suite;
pub mod test;
