//! The integration tests of the library: one binary, one module a subject.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a test that fails says so by a panic, and its figures are for people"
)]

mod bad_input;
mod concurrency;
mod crash;
mod crash_threads;
mod damage;
mod faults;
mod keyspaces;
mod kill;
mod log_space;
mod memory;
mod model;
mod queue;
mod records;
mod recovery;
mod support;
mod tidy;
mod verify;
