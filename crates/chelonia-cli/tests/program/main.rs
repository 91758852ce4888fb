//! The program as its users run it: arguments, pipes, exit codes. One module per subject.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod databases;
mod entries;
mod failures;
mod import;
mod support;
mod tour;
mod transfer;
