//! Why a command ended without doing what it was asked, and the exit code for it.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// A result of a command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command ended.
#[derive(Clone, Debug)]
pub enum Failure {
    /// A store gave a wrong value, or none where there is one. Exit code 1.
    Wrong(String),
    /// The command line or the input is wrong. Exit code 2.
    Usage(String),
    /// A store or a file could not do it. Exit code 3.
    Failed(String),
    /// Whoever read our output has gone: nobody is left to tell. Exit code 0.
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

    /// Tells the user, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !matches!(self, Failure::Quiet) {
            // Where standard error is closed there is nobody to tell.
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

/// Output errors: the only ones that come without a file's name.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Quiet,
            _ => Failure::failed("standard output", error),
        }
    }
}
