//! `dump`: the structure on disk as text. The one command that looks inside.

use crate::arguments::Dump;
use crate::failure::{Context, Failure, Result};
use crate::output::{Output, output};
use std::fmt;
use std::io::{self, Write};

/// Passes text on to standard output and keeps the error that formatting cannot carry.
struct Adapter {
    out: Output,
    error: Option<io::Error>,
}

impl fmt::Write for Adapter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}

/// `dump`
pub fn dump(arguments: &Dump) -> Result<()> {
    let mut adapter = Adapter { out: output(), error: None };
    let dumped = chelonia::internals::dump(&arguments.path, &mut adapter);
    if let Some(error) = adapter.error {
        return Err(Failure::from(error));
    }
    // What could be read before a failure is worth seeing.
    adapter.out.flush()?;
    dumped.context(arguments.path.display().to_string())
}
