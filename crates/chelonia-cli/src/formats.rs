//! The formats of import and export: one entry a record, keys and values in the chosen form.
//!
//! | format | record |
//! | --- | --- |
//! | tsv | `key`, tab, `value`, line break |
//! | csv | `key,value` and a line break; quoted as RFC 4180 says where need be |
//! | jsonl | `{"key": "...", "value": "..."}` and a line break |
//!
//! What stands in a field of tsv and csv is the text form (or hexadecimal) of `text.rs`, and
//! `json.rs` says what stands in jsonl, so that any bytes survive in every format. Empty lines are
//! passed over, and so is a byte order mark at the start of the input: no format writes it there. A
//! quoted field of csv may hold line breaks; they are part of it.

use crate::json;
use crate::output::counted;
use crate::text::Form;
use clap::ValueEnum;
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

/// Bytes of a record that one byte of an entry is at most: `\x00`, and what JSON makes of it.
const FACTOR_MAX: usize = json::TEXT_FACTOR_MAX;

/// The longest record that is read, in bytes: the longest key and value, every byte escaped.
const RECORD_BYTES_MAX: usize =
    FACTOR_MAX * (chelonia::limits::KEY_BYTES_MAX + chelonia::limits::VALUE_BYTES_MAX) + 1024;

/// What some programs write before text: U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
            if line == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.drain(..BYTE_ORDER_MARK.len());
            }
            let mut place = Place::Begin.after(&self.buffer);
            while self.format == Format::Csv && place == Place::Quoted {
                let known = self.buffer.len();
                if !self.read_line()? {
                    let lost = self.line - line;
                    let lost = counted(lost, "line", "lines");
                    let text = format!("a quoted field does not end; it took {lost} along");
                    let entry = Err(text);
                    return Ok(Some(Record { line, entry }));
                }
                place = place.after(&self.buffer[known..]);
            }
            let content = without_break(&self.buffer);
            // An empty line is no heading either.
            if content.is_empty() || std::mem::take(&mut self.skip_heading) {
                continue;
            }
            let entry = match self.format {
                Format::Tsv => parse_tsv(content).and_then(|fields| decoded(self.form, &fields)),
                Format::Csv => parse_csv(content).and_then(|fields| decoded(self.form, &fields)),
                Format::Jsonl => json::read_entry(content),
            };
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

/// The bytes that two fields stand for.
fn decoded(form: Form, (key, value): &(Vec<u8>, Vec<u8>)) -> Fields {
    let key = form.read(key).map_err(|error| format!("the key: {error}"))?;
    let value = form.read(value).map_err(|error| format!("the value: {error}"))?;
    Ok((key, value))
}

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
        Err(fields) if fields.len() == 1 => {
            Err("there is no comma between key and value".to_owned())
        }
        Err(_) => Err("there are more fields than key and value".to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn read_all(format: Format, form: Form, input: &[u8]) -> Vec<Record> {
        let mut reader = Reader::new(input, format, form, false);
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn entries() -> Vec<(Vec<u8>, Vec<u8>)> {
        let all: Vec<u8> = (0..=255).collect();
        let samples: [&[u8]; 10] = [
            // The first of the input: it must not be taken for a mark that is no part of it.
            BYTE_ORDER_MARK,
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

    #[test]
    fn a_heading_is_the_first_line_that_is_not_empty() {
        for (format, file) in [
            (Format::Tsv, &b"\n\r\nkey\tvalue\nk\tv\n"[..]),
            (Format::Csv, &b"\xef\xbb\xbf\nkey,value\nk,v\n"[..]),
        ] {
            let mut reader = Reader::new(file, format, Form::Text, true);
            let first = reader.next().unwrap().unwrap();
            assert_eq!(first.entry, Ok((b"k".to_vec(), b"v".to_vec())), "{format:?}");
            assert_eq!(reader.next().unwrap(), None);
        }
    }

    /// Bytes of which some are UTF-8 and some are not, with what the formats treat apart.
    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let pieces = prop_oneof![
            any::<u8>().prop_map(|byte| vec![byte]),
            any::<char>().prop_map(|character| character.to_string().into_bytes()),
            prop::sample::select(&b"\\\"', \t\r\n\0x{}"[..]).prop_map(|byte| vec![byte]),
        ];
        prop_oneof![vec(any::<u8>(), 0..40), vec(pieces, 0..12).prop_map(|all| all.concat())]
    }

    proptest! {
        #[test]
        fn whatever_was_written_is_read_again(
            entries in vec((any_bytes(), any_bytes()), 1..8),
            marked: bool,
            header: bool,
        ) {
            for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
                for form in [Form::Text, Form::Hex] {
                    let mut file = if marked { BYTE_ORDER_MARK.to_vec() } else { Vec::new() };
                    if header {
                        format.write_heading(&mut file).unwrap();
                    }
                    for (key, value) in &entries {
                        let start = file.len();
                        format.write(&mut file, form, key, value).unwrap();
                        let room = FACTOR_MAX * (key.len() + value.len()) + 64;
                        prop_assert!(file.len() - start <= room, "{format:?} {form:?}");
                    }
                    let mut reader = Reader::new(&file[..], format, form, header);
                    for entry in &entries {
                        let record = reader.next().unwrap().unwrap();
                        prop_assert_eq!(record.entry.as_ref(), Ok(entry), "{:?}", format);
                    }
                    prop_assert_eq!(reader.next().unwrap(), None);
                }
            }
        }
    }

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
    fn a_byte_order_mark_at_the_start_is_passed_over() {
        let cases: [(Format, &[u8]); 3] = [
            (Format::Tsv, b"\xef\xbb\xbfa\tb\n"),
            (Format::Csv, b"\xef\xbb\xbf\"a\",b\r\n"),
            (Format::Jsonl, b"\xef\xbb\xbf{\"key\":\"a\",\"value\":\"b\"}"),
        ];
        for (format, input) in cases {
            let records = read_all(format, Form::Text, input);
            assert_eq!(records[0].entry, Ok((b"a".to_vec(), b"b".to_vec())), "{format:?}");
        }
        let records = read_all(Format::Tsv, Form::Text, b"a\tb\n\xef\xbb\xbfc\td\n");
        assert_eq!(records[1].entry, Ok((b"\xef\xbb\xbfc".to_vec(), b"d".to_vec())));
        assert!(read_all(Format::Tsv, Form::Text, BYTE_ORDER_MARK).is_empty());
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
