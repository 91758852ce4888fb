//! The formats of import and export: one entry a record, keys and values in the chosen form.
//!
//! | format | record |
//! | --- | --- |
//! | tsv | `key`, tab, `value`, line break |
//! | csv | `key,value` and a line break; quoted as RFC 4180 says where need be |
//! | jsonl | `{"key": "...", "value": "..."}` and a line break |
//!
//! What stands in a field of tsv and csv is the text form (or hexadecimal) of `text.rs`, and
//! `json.rs` says what stands in jsonl, so that any bytes survive in every format. Of records that
//! other programs wrote, fields can be taken as they are, and two columns be chosen among several
//! (`columns.rs`). `reader.rs` reads records, `csv.rs` has the quotes of csv.

pub mod csv;
mod reader;

use crate::columns::Choice;
use crate::json;
use crate::text::Form;
use clap::ValueEnum;
use csv::quoted;
pub use reader::{LineCounts, Reader, Record};
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

/// Bytes of a record that one byte of an entry is at most: `\x00`, and what JSON makes of it.
const FACTOR_MAX: usize = json::TEXT_FACTOR_MAX;

impl Format {
    /// The format that the end of the name of `file` says; tsv if the name has no extension.
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

/// How records are read.
#[derive(Clone, Debug)]
pub struct Layout {
    pub format: Format,
    pub form: Form,
    /// Fields of tsv and csv are taken as they are, without escapes.
    pub raw: bool,
    /// The first line (of tsv or csv) that is not empty is a heading.
    pub header: bool,
    /// The columns (of tsv or csv) that are key and value, if two of several were chosen.
    pub choice: Option<Choice>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_takes_more_room_than_a_record_has() {
        for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
            for byte in 0..=u8::MAX {
                let (value, mut line) = ([byte; 100], Vec::new());
                format.write(&mut line, Form::Text, b"", &value).unwrap();
                assert!(line.len() <= FACTOR_MAX * value.len() + 64, "{format:?} {byte}");
            }
        }
    }

    #[test]
    fn a_name_says_its_format_or_is_refused() {
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
