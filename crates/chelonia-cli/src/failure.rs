//! Reasons why a command fails, and their exit codes.

use crate::output::complain;
use std::fmt;
use std::io;
use std::process::ExitCode;

/// A result of a command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason.
#[derive(Debug)]
pub enum Failure {
    /// A key or keyspace does not exist, or a comparison failed. Exit code 1.
    No(String),
    /// The command line or the input is wrong. Exit code 2.
    Usage(String),
    /// The store returned an error. Exit code 2 if an argument was invalid, else 3.
    Store(String, chelonia::Error),
    /// A file or pipe of the user could not be read or written. Exit code 3.
    Io(String, io::Error),
    /// A signal ended the command. The exit code is that of a process ended by the signal.
    Interrupted(String, u8),
    /// The reader of our output closed the pipe. Exit code 0.
    Quiet,
}

impl Failure {
    /// A wrong command line or input.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::Usage(message.into())
    }

    /// Something missing, or a difference.
    pub fn no(message: impl Into<String>) -> Self {
        Failure::No(message.into())
    }

    /// A failed read or write of `what`.
    pub fn io(what: impl Into<String>, error: io::Error) -> Self {
        Failure::Io(what.into(), error)
    }

    /// The same failure with `more` in its text.
    pub fn with(self, more: &str) -> Self {
        match self {
            Failure::No(text) => Failure::No(format!("{text}; {more}")),
            Failure::Usage(text) => Failure::Usage(format!("{text}; {more}")),
            Failure::Interrupted(text, code) => {
                Failure::Interrupted(format!("{text}; {more}"), code)
            }
            Failure::Store(what, error) => {
                let what =
                    if what.is_empty() { more.to_owned() } else { format!("{more}; {what}") };
                Failure::Store(what, error)
            }
            Failure::Io(what, error) => Failure::Io(format!("{more}; {what}"), error),
            Failure::Quiet => Failure::Quiet,
        }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Quiet => 0,
            Failure::No(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Store(_, error) => match error.kind() {
                chelonia::ErrorKind::InvalidArgument => 2,
                _ => 3,
            },
            Failure::Io(..) => 3,
            Failure::Interrupted(_, code) => *code,
        }
    }

    /// Prints the failure, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if !matches!(self, Failure::Quiet) {
            complain(&self.to_string());
        }
        ExitCode::from(self.code())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::No(message) | Failure::Usage(message) | Failure::Interrupted(message, _) => {
                f.write_str(message)
            }
            Failure::Store(what, error) if what.is_empty() || names(what, error) => {
                fmt::Display::fmt(error, f)
            }
            Failure::Store(what, error) => write!(f, "{what}: {error}"),
            Failure::Io(what, error) => write!(f, "{what}: {error}"),
            Failure::Quiet => Ok(()),
        }
    }
}

/// True if the error names the path `what`, or a file below it; then the text does not repeat it.
fn names(what: &str, error: &chelonia::Error) -> bool {
    let text = error.to_string();
    if text.starts_with(&format!("{what} ")) || text.contains(&format!(" {what}: ")) {
        return true;
    }
    let place = std::path::absolute(what).ok();
    let is_below = error.path().is_some_and(|path| place.is_some_and(|it| path.starts_with(it)));
    is_below || error.file() == Some(what)
}

impl From<chelonia::Error> for Failure {
    fn from(error: chelonia::Error) -> Self {
        Failure::Store(String::new(), error)
    }
}

/// Errors of standard output: no other I/O error comes without the name of a file.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Quiet,
            _ => Failure::Io("standard output".to_owned(), error),
        }
    }
}

/// Adds to an error of the store what the command was doing.
pub trait Context<T> {
    /// Puts `what` before the text of the error.
    fn context(self, what: impl Into<String>) -> Result<T>;
}

impl<T> Context<T> for chelonia::Result<T> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|error| Failure::Store(what.into(), error))
    }
}
