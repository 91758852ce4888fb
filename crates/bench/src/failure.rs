//! Reasons why a command fails, and their exit codes.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// A result of a command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason.
#[derive(Clone, Debug)]
pub enum Failure {
    /// A store returned a wrong value, or none for an existing key. Exit code 1.
    Wrong(String),
    /// The command line or the input is wrong. Exit code 2.
    Usage(String),
    /// A store or a file operation failed. Exit code 3.
    Failed(String),
    /// The reader of our output closed the pipe. Exit code 0.
    Quiet,
}

impl Failure {
    /// A wrong or missing value.
    pub fn wrong(message: impl Into<String>) -> Self {
        Failure::Wrong(message.into())
    }

    /// A wrong command line or input.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::Usage(message.into())
    }

    /// Something failed while `what` was done.
    pub fn failed(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Failure::Failed(format!("{what}: {error}"))
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Quiet => 0,
            Failure::Wrong(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 3,
        }
    }

    /// Prints the failure, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if !matches!(self, Failure::Quiet) {
            // Nothing can be done if standard error is closed.
            let _ =
                io::Write::write_fmt(&mut io::stderr(), format_args!("chelonia-bench: {self}\n"));
        }
        ExitCode::from(self.code())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Wrong(message) | Failure::Usage(message) | Failure::Failed(message) => {
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
