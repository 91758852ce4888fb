//! The formats, and how entries are written in them.

use super::csv::quoted;
use crate::json;
use crate::text::Form;
use clap::ValueEnum;
use std::io::{self, Write};
use std::path::Path;

/// A format of import and export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Key, tab, value
    Tsv,
    /// Key, comma, value
    Csv,
    /// A JSON object a line
    Jsonl,
}

/// The largest number of bytes in a record for one byte of an entry: `\x00`, escaped in JSON.
pub const FACTOR_MAX: usize = json::TEXT_FACTOR_MAX;

impl Format {
    /// The format for the extension of `file`; tsv if there is none.
    pub fn of(file: &Path) -> Result<Self, String> {
        let Some(extension) = file.extension() else { return Ok(Format::Tsv) };
        match extension.to_ascii_lowercase().to_str() {
            Some("tsv" | "tab" | "txt") => Ok(Format::Tsv),
            Some("csv") => Ok(Format::Csv),
            Some("jsonl" | "ndjson" | "json") => Ok(Format::Jsonl),
            _ => Err(format!(
                "{}: there is no format .{}: add --format tsv, csv or jsonl",
                file.display(),
                extension.display()
            )),
        }
    }

    /// Writes the names of the columns; jsonl has them in each record.
    pub fn write_heading(self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Format::Tsv => writeln!(out, "key\tvalue"),
            Format::Csv => writeln!(out, "key,value"),
            Format::Jsonl => Ok(()),
        }
    }

    /// Writes the key of an entry, without its value.
    pub fn write_key(self, out: &mut impl Write, form: Form, key: &[u8]) -> io::Result<()> {
        match self {
            Format::Tsv => writeln!(out, "{}", form.write(key)),
            Format::Csv => writeln!(out, "{}", quoted(&form.write(key))),
            Format::Jsonl => json::write_key(out, form, key),
        }
    }

    /// Writes one entry.
    pub fn write(
        self,
        out: &mut impl Write,
        form: Form,
        key: &[u8],
        value: &[u8],
    ) -> io::Result<()> {
        if self == Format::Jsonl {
            return json::write_entry(out, form, key, value);
        }
        let (key, value) = (form.write(key), form.write(value));
        if self == Format::Csv {
            return writeln!(out, "{},{}", quoted(&key), quoted(&value));
        }
        writeln!(out, "{key}\t{value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_takes_more_than_factor_max_bytes() {
        for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
            for byte in 0..=u8::MAX {
                let (value, mut line) = ([byte; 100], Vec::new());
                format.write(&mut line, Form::Text, b"", &value).unwrap();
                assert!(line.len() <= FACTOR_MAX * value.len() + 64, "{format:?} {byte}");
            }
        }
    }

    #[test]
    fn the_extension_determines_the_format_or_is_refused() {
        for (name, format) in [
            ("x/a.csv", Format::Csv),
            ("A.CSV", Format::Csv),
            ("a.b.ndjson", Format::Jsonl),
            ("a.txt", Format::Tsv),
            ("-", Format::Tsv),
            ("/dev/fd/3", Format::Tsv),
            ("plain", Format::Tsv),
            (".hidden", Format::Tsv),
        ] {
            assert_eq!(Format::of(Path::new(name)), Ok(format), "{name}");
        }
        for name in ["out.parquet", "a.csv.gz", "a.", "x.tsv~"] {
            let error = Format::of(Path::new(name)).unwrap_err();
            assert!(error.ends_with(": add --format tsv, csv or jsonl"), "{error}");
        }
    }
}
