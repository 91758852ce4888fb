//! The program as its users meet it: arguments, pipes, exit codes. One module a subject.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod entries;
mod failures;
mod import;
mod support;
mod tour;
mod transfer;
mod whole;
