//! The formats of import and export: one entry a record, keys and values in the chosen form.
//!
//! | format | record |
//! | --- | --- |
//! | tsv | `key`, tab, `value`, line break |
//! | csv | `key,value` and a line break; quoted as RFC 4180 says where need be |
//! | jsonl | `{"key": "...", "value": "..."}` and a line break |
//!
//! What stands in a field is the text form (or hexadecimal) of `text.rs`, so that any bytes survive
//! in every format. Empty lines are passed over. A quoted field of csv may hold line breaks; they
//! are part of it.

use crate::text::Form;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::io::{self, BufRead, Read, Write};
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

/// The longest record that is read, in bytes: the longest key and value, every byte escaped.
const RECORD_BYTES_MAX: usize =
    4 * (chelonia::limits::KEY_BYTES_MAX + chelonia::limits::VALUE_BYTES_MAX) + 1024;

impl Format {
    /// The format that the name of `file` tells, else tsv.
    pub fn of(file: &Path) -> Self {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Format::Csv,
            Some("jsonl" | "ndjson" | "json") => Format::Jsonl,
            _ => Format::Tsv,
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

    /// Writes one entry.
    pub fn write(
        self,
        out: &mut impl Write,
        form: Form,
        key: &[u8],
        value: &[u8],
    ) -> io::Result<()> {
        let (key, value) = (form.write(key), form.write(value));
        match self {
            Format::Tsv => writeln!(out, "{key}\t{value}"),
            Format::Csv => writeln!(out, "{},{}", quoted(&key), quoted(&value)),
            Format::Jsonl => writeln!(out, "{}", json!({ "key": key, "value": value })),
        }
    }
}

/// A field of csv. The form has no line breaks, so that only these two characters need quotes.
fn quoted(field: &str) -> String {
    if field.contains(['"', ',']) || field.starts_with(' ') || field.ends_with(' ') {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_owned()
}

/// An entry and the line it began on, or why there is none.
#[derive(PartialEq, Eq, Debug)]
pub struct Record {
    /// From 1.
    pub line: u64,
    /// Key and value, or what is wrong with the record.
    pub entry: Result<(Vec<u8>, Vec<u8>), String>,
}

/// Reads records one by one.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    format: Format,
    form: Form,
    line: u64,
    skip_heading: bool,
    buffer: Vec<u8>,
}

impl<R: BufRead> Reader<R> {
    /// Reads `input`.
    pub fn new(input: R, format: Format, form: Form, has_heading: bool) -> Self {
        let skip_heading = has_heading && format != Format::Jsonl;
        Self { input, format, form, line: 0, skip_heading, buffer: Vec::new() }
    }

    /// The next record; none at the end of the input.
    pub fn next(&mut self) -> io::Result<Option<Record>> {
        loop {
            self.buffer.clear();
            let line = self.line + 1;
            if !self.read_line()? {
                return Ok(None);
            }
            let mut place = Place::Begin.after(&self.buffer);
            while self.format == Format::Csv && place == Place::Quoted {
                let known = self.buffer.len();
                if !self.read_line()? {
                    let lost = self.line - line;
                    let text = format!(
                        "a quoted field does not end; it took the {lost} lines behind it along"
                    );
                    let entry = Err(text);
                    return Ok(Some(Record { line, entry }));
                }
                place = place.after(&self.buffer[known..]);
            }
            let content = without_break(&self.buffer);
            if std::mem::take(&mut self.skip_heading) || content.is_empty() {
                continue;
            }
            let entry = match self.format {
                Format::Tsv => parse_tsv(content),
                Format::Csv => parse_csv(content),
                Format::Jsonl => parse_jsonl(content),
            };
            let entry = entry.and_then(|(key, value)| {
                let key = self.form.read(&key).map_err(|error| format!("the key: {error}"))?;
                let value =
                    self.form.read(&value).map_err(|error| format!("the value: {error}"))?;
                Ok((key, value))
            });
            return Ok(Some(Record { line, entry }));
        }
    }

    /// Adds the next line with its break to the buffer; false at the end.
    fn read_line(&mut self) -> io::Result<bool> {
        let room = RECORD_BYTES_MAX.saturating_sub(self.buffer.len()) as u64;
        let mut bounded = (&mut self.input).take(room);
        let count = bounded.read_until(b'\n', &mut self.buffer)?;
        if count as u64 == room {
            let message = format!("line {}: longer than any entry can be", self.line + 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.line += u64::from(count > 0);
        Ok(count > 0)
    }
}

/// Where in a record of csv the bytes so far end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the beginning of a field.
    Begin,
    /// In a field without quotes, or after the closing quote.
    Plain,
    /// Between quotes: a line break is part of the field.
    Quoted,
    /// After a quote between quotes: a second one is a quote, anything else ends the field.
    Quote,
}

impl Place {
    /// The place after `bytes` more.
    fn after(self, bytes: &[u8]) -> Self {
        bytes.iter().fold(self, |place, byte| match (place, byte) {
            (Place::Begin | Place::Quote, b'"') => Place::Quoted,
            (Place::Quoted, b'"') => Place::Quote,
            (Place::Quoted, _) => Place::Quoted,
            (_, b',') => Place::Begin,
            _ => Place::Plain,
        })
    }
}

fn without_break(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

type Fields = Result<(Vec<u8>, Vec<u8>), String>;

fn parse_tsv(line: &[u8]) -> Fields {
    let mut fields = line.split(|byte| *byte == b'\t');
    match (fields.next(), fields.next(), fields.next()) {
        (Some(key), Some(value), None) => Ok((key.to_vec(), value.to_vec())),
        (_, None, _) => Err("there is no tab between key and value".to_owned()),
        _ => Err("there is more than one tab: write `\\t` within a field".to_owned()),
    }
}

fn parse_csv(record: &[u8]) -> Fields {
    let mut fields = Vec::new();
    let mut rest = record;
    loop {
        let (field, after) = csv_field(rest)?;
        fields.push(field);
        match after.split_first() {
            None => break,
            Some((_, tail)) => rest = tail,
        }
        if fields.len() > 2 {
            break;
        }
    }
    match <[Vec<u8>; 2]>::try_from(fields) {
        Ok([key, value]) => Ok((key, value)),
        Err(fields) => Err(format!("{} fields instead of key and value", fields.len())),
    }
}

/// The field at the front, and the rest with its comma.
fn csv_field(record: &[u8]) -> Result<(Vec<u8>, &[u8]), String> {
    let Some(mut rest) = record.strip_prefix(b"\"") else {
        let end = record.iter().position(|byte| *byte == b',').unwrap_or(record.len());
        if record[..end].contains(&b'"') {
            return Err("a quote within a field that has none around it".to_owned());
        }
        return Ok((record[..end].to_vec(), &record[end..]));
    };
    let mut field = Vec::new();
    loop {
        let Some(quote) = rest.iter().position(|byte| *byte == b'"') else {
            return Err("a quoted field does not end".to_owned());
        };
        field.extend_from_slice(&rest[..quote]);
        rest = &rest[quote + 1..];
        match rest.first() {
            Some(b'"') => {
                field.push(b'"');
                rest = &rest[1..];
            }
            None | Some(b',') => return Ok((field, rest)),
            Some(_) => return Err("text after the closing quote of a field".to_owned()),
        }
    }
}

fn parse_jsonl(line: &[u8]) -> Fields {
    let parsed: Value = match serde_json::from_slice(line) {
        Ok(parsed @ Value::Object(_)) => parsed,
        _ => return Err("the line is not one JSON object".to_owned()),
    };
    let field = |name: &str| match parsed.get(name) {
        Some(Value::String(text)) => Ok(text.clone().into_bytes()),
        Some(_) => Err(format!("`{name}` is not a string")),
        None => Err(format!("there is no `{name}`")),
    };
    Ok((field("key")?, field("value")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(format: Format, form: Form, input: &[u8]) -> Vec<Record> {
        let mut reader = Reader::new(input, format, form, false);
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn entries() -> Vec<(Vec<u8>, Vec<u8>)> {
        let all: Vec<u8> = (0..=255).collect();
        let samples: [&[u8]; 9] = [
            b"",
            b" ",
            b"key",
            b"with,comma and \"quotes\"",
            b"\"",
            b"tab\there, break\r\nthere\r",
            b"back\\slash\\x41",
            "\u{e9}\u{1f422}\u{2028}".as_bytes(),
            &all,
        ];
        let pairs = samples.iter().flat_map(|key| samples.iter().map(move |value| (key, value)));
        pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    #[test]
    fn any_entry_survives_every_format() {
        for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
            for form in [Form::Text, Form::Hex] {
                let mut file = Vec::new();
                for (key, value) in entries() {
                    format.write(&mut file, form, &key, &value).unwrap();
                }
                let lines = file.iter().filter(|byte| **byte == b'\n').count();
                assert_eq!(lines, entries().len(), "one line an entry");
                let back: Result<Vec<_>, _> =
                    read_all(format, form, &file).into_iter().map(|record| record.entry).collect();
                assert_eq!(back.unwrap(), entries(), "{format:?} {form:?}");
            }
        }
    }

    const JSON_LINES: &[u8] = br#"{"key":"a","value":"b"}

{
[]
{"key":1}
{"key":"c","value":"d"}"#;

    #[test]
    fn bad_records_tell_their_line_and_the_next_is_read() {
        let cases: [(Format, &[u8]); 3] = [
            (Format::Tsv, b"a\tb\n\nno tab\na\tb\tc\nbad \\q\tx\r\nc\td"),
            (Format::Csv, b"a,b\n\nno comma\na,b,c\nx\"y,\"z\"\r\nc,d"),
            (Format::Jsonl, JSON_LINES),
        ];
        for (format, input) in cases {
            let records = read_all(format, Form::Text, input);
            let lines: Vec<(u64, bool)> =
                records.iter().map(|record| (record.line, record.entry.is_ok())).collect();
            assert_eq!(
                lines,
                [(1, true), (3, false), (4, false), (5, false), (6, true)],
                "{format:?}"
            );
            assert_eq!(records[4].entry, Ok((b"c".to_vec(), b"d".to_vec())));
        }
    }

    #[test]
    fn quoted_fields_hold_anything() {
        let records = read_all(Format::Csv, Form::Text, b"\"a\nb\",\"say \"\"hi\"\", ok\"\nc,d\n");
        assert_eq!(records[0].entry, Ok((b"a\nb".to_vec(), b"say \"hi\", ok".to_vec())));
        assert_eq!((records[1].line, records.len()), (3, 2));
        let open = read_all(Format::Csv, Form::Text, b"\"a,b\nc,d\n");
        assert!(open[0].entry.is_err());
    }

    #[test]
    fn headings_are_passed_over() {
        let mut reader = Reader::new(&b"key,value\na,b\n"[..], Format::Csv, Form::Text, true);
        assert_eq!(reader.next().unwrap().unwrap().line, 2);
        assert_eq!(reader.next().unwrap(), None);
        assert_eq!(Format::of(Path::new("x/a.csv")), Format::Csv);
        assert_eq!(Format::of(Path::new("-")), Format::Tsv);
    }
}
