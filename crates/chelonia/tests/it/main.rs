//! The integration tests of the library: one binary, one module per subject.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a test that fails says so by a panic, and its figures are for people"
)]

mod arguments;
mod backup;
mod bad_files;
mod compression;
mod crowds;
mod damage;
mod double_open;
mod dump;
mod epochs;
mod events;
mod faults;
mod fork;
mod hostile_sizes;
mod key_only;
mod keyspaces;
mod log_space;
mod logs;
mod long_keys;
mod memory;
mod privacy;
mod prometheus;
mod queue;
mod records;
mod recovery;
mod salvage;
mod side_by_side;
mod support;
mod sync_later;
mod tidy;
mod transactions;
mod verify;
