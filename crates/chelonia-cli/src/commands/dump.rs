//! `dump`: the structure on disk as text, or as JSON.

use super::outline::Outline;
use super::patience::until_free;
use crate::arguments::Dump;
use crate::failure::{Context, Failure, Result};
use crate::output::{Output, output};
use crate::text::Form;
use chelonia::Database;
use std::fmt;
use std::io::{self, Write};

/// Passes text on to standard output and keeps the error that formatting cannot carry.
struct Adapter {
    out: Output,
    error: Option<io::Error>,
}

impl Adapter {
    fn finish(self) -> io::Result<Output> {
        self.error.map_or(Ok(self.out), Err)
    }
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
    let (path, wait) = (&arguments.path, arguments.patience.wait);
    let open = || Database::builder(path).read_only(true).open();
    let into = |out: &mut dyn fmt::Write| until_free(path, wait, open)?.dump(out);
    let (dumped, written) = if arguments.json {
        let form = if arguments.hex { Form::Hex } else { Form::Text };
        let mut outline = Outline::new(output(), form);
        (into(&mut outline), outline.finish())
    } else {
        let mut adapter = Adapter { out: output(), error: None };
        (into(&mut adapter), adapter.finish())
    };
    // What could be read before a failure is worth seeing.
    written.and_then(|mut out| out.flush()).map_err(Failure::from)?;
    dumped.context(path.display().to_string())
}
