//! Reasons why the program fails, and their exit codes.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// The exit code if an assertion about the store failed.
pub const BROKEN: i32 = 1;

/// A result of the program.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason.
#[derive(Clone, Debug)]
pub enum Failure {
    /// An assertion about the store failed. Exit code 1.
    Broken(String),
    /// The command line or the input is wrong. Exit code 2.
    Usage(String),
    /// A file could not be read or written. Exit code 3.
    Failed(String),
    /// The reader of our output closed the pipe. Exit code 0.
    Quiet,
}

impl Failure {
    /// A wrong command line or input.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::Usage(message.into())
    }

    /// Something failed while `what` was done.
    pub fn failed(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Failure::Failed(format!("{what}: {error}"))
    }

    /// Prints the failure, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        let code = match self {
            Failure::Quiet => return ExitCode::SUCCESS,
            Failure::Broken(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 3,
        };
        // Nothing can be done if standard error is closed.
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("chelonia-torture: {self}\n"));
        ExitCode::from(code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Broken(message) | Failure::Usage(message) | Failure::Failed(message) => {
                f.write_str(message)
            }
            Failure::Quiet => Ok(()),
        }
    }
}

/// Errors of standard output: no other I/O error comes without the name of a file.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Quiet,
            _ => Failure::failed("standard output", error),
        }
    }
}
