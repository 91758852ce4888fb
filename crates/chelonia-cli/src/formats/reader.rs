//! Reads records one by one.
//!
//! Empty lines are skipped, and so is a byte order mark at the start of the input: no format writes
//! one there. A quoted field of csv may contain line breaks. Everything skipped or changed is
//! counted.

use super::csv::Place;
use super::fields::{Fields, Picked, pick};
use super::flaw::Flaw;
use super::format::{FACTOR_MAX, Format};
use crate::columns::Choice;
use crate::json;
use crate::text::Form;
use std::io::{self, BufRead, Read};

/// The longest record, in bytes: the longest key and value with every byte escaped.
const RECORD_BYTES_MAX: usize =
    FACTOR_MAX * (chelonia::limits::KEY_BYTES_MAX + chelonia::limits::VALUE_BYTES_MAX) + 1024;

/// Written before text by some programs: U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The same mark in UTF-16, in both orders of bytes.
const WIDE_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// The least and the largest number of bytes that are examined for UTF-16 without a mark.
const WIDE_BYTES_MIN: usize = 6;
const WIDE_BYTES_SEEN: usize = 32;

/// How records are read.
#[derive(Clone, Debug)]
pub struct Layout {
    pub format: Format,
    pub form: Form,
    /// Fields of tsv and csv are taken without decoding escapes.
    pub raw: bool,
    /// The first line (of tsv or csv) that is not empty is a heading.
    pub header: bool,
    /// The columns (of tsv or csv) of key and value, if two of several were selected.
    pub choice: Option<Choice>,
}

/// An entry and the line it began on, or the reason why there is none.
#[derive(PartialEq, Eq, Debug)]
pub struct Record {
    /// From 1.
    pub line: u64,
    /// Key and value, or the flaw of the record.
    pub entry: Result<(Vec<u8>, Vec<u8>), Flaw>,
    /// Columns, or members of the object, that are neither key nor value.
    pub left_out: usize,
    /// Escapes were decoded, so the entry differs from the bytes of the input.
    pub is_unescaped: bool,
}

impl Record {
    fn new(line: u64, taken: Result<Taken, Flaw>) -> Self {
        match taken {
            Ok(Taken { entry, left_out, is_unescaped }) => {
                Self { line, entry: Ok(entry), left_out, is_unescaped }
            }
            Err(flaw) => Self { line, entry: Err(flaw), left_out: 0, is_unescaped: false },
        }
    }
}

/// The content of a valid record.
struct Taken {
    entry: (Vec<u8>, Vec<u8>),
    left_out: usize,
    is_unescaped: bool,
}

/// Counts of lines.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LineCounts {
    /// Skipped empty lines.
    pub empty: u64,
    /// Records that end with CR LF.
    pub crlf: u64,
    /// Records that end with LF only.
    pub lf: u64,
}

/// Reads records one by one.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    layout: Layout,
    line: u64,
    skip_heading: bool,
    counts: LineCounts,
    buffer: Vec<u8>,
}

impl<R: BufRead> Reader<R> {
    /// Reads `input`.
    pub fn new(input: R, layout: Layout) -> Self {
        let skip_heading = layout.header && layout.format != Format::Jsonl;
        let counts = LineCounts::default();
        Self { input, layout, line: 0, skip_heading, counts, buffer: Vec::new() }
    }

    /// The number of the last line that was read.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The lines read so far.
    pub fn counts(&self) -> LineCounts {
        self.counts
    }

    /// The next record; `None` at the end of the input.
    pub fn next(&mut self) -> io::Result<Option<Record>> {
        loop {
            self.buffer.clear();
            let line = self.line + 1;
            if !self.read_line()? {
                return Ok(None);
            }
            if line == 1 {
                check_encoding(&self.buffer)?;
                if self.buffer.starts_with(BYTE_ORDER_MARK) {
                    self.buffer.drain(..BYTE_ORDER_MARK.len());
                }
            }
            if let Some(flaw) = self.read_to_closing_quote()? {
                return Ok(Some(Record::new(line, Err(flaw))));
            }
            let content = without_break(&self.buffer);
            if content.is_empty() {
                // Nor is an empty line a heading.
                self.counts.empty += 1;
                continue;
            }
            match self.buffer.len() - content.len() {
                2 => self.counts.crlf += 1,
                1 if self.buffer.ends_with(b"\n") => self.counts.lf += 1,
                _ => {}
            }
            if std::mem::take(&mut self.skip_heading) {
                read_heading(&mut self.layout, content).map_err(|error| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("line {line}: {error}"))
                })?;
                continue;
            }
            return Ok(Some(Record::new(line, read_record(&self.layout, content))));
        }
    }

    /// Adds further lines to a record of csv until its quotes are closed.
    fn read_to_closing_quote(&mut self) -> io::Result<Option<Flaw>> {
        if self.layout.format != Format::Csv {
            return Ok(None);
        }
        let first = self.line;
        let mut opened = first;
        let (mut place, _) = Place::Begin.after(&self.buffer);
        while place == Place::Quoted {
            let known = self.buffer.len();
            if !self.read_line()? {
                let lines_lost = self.line - first;
                return Ok(Some(Flaw::Unclosed { opened, lines_lost }));
            }
            let (next, is_opened) = place.after(&self.buffer[known..]);
            place = next;
            if is_opened {
                opened = self.line;
            }
        }
        Ok(None)
    }

    /// Adds the next line with its break to the buffer; false at the end.
    fn read_line(&mut self) -> io::Result<bool> {
        let room = RECORD_BYTES_MAX.saturating_sub(self.buffer.len()) as u64;
        let mut bounded = (&mut self.input).take(room);
        let count = bounded.read_until(b'\n', &mut self.buffer)?;
        if count as u64 == room {
            let message = format!("line {}: longer than the longest possible entry", self.line + 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.line += u64::from(count > 0);
        Ok(count > 0)
    }
}

/// Fails if the first line is UTF-16: it has a byte order mark, or every other byte is zero.
fn check_encoding(line: &[u8]) -> io::Result<()> {
    let start = &line[..line.len().min(WIDE_BYTES_SEEN) / 2 * 2];
    let is_zero = |skipped: usize, zero: bool| {
        start.iter().skip(skipped).step_by(2).all(|byte| (*byte == 0) == zero)
    };
    let is_wide = start.len() >= WIDE_BYTES_MIN
        && ((is_zero(0, true) && is_zero(1, false)) || (is_zero(1, true) && is_zero(0, false)));
    if !is_wide && !WIDE_MARKS.iter().any(|mark| line.starts_with(mark)) {
        return Ok(());
    }
    let text = "the input is UTF-16, and must be UTF-8: convert it, as with \
                `iconv -f UTF-16 -t UTF-8`";
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// Resolves the names of columns.
fn read_heading(layout: &mut Layout, line: &[u8]) -> Result<(), String> {
    let Some(choice) = &mut layout.choice else { return Ok(()) };
    let names: Result<Vec<_>, Flaw> = Fields::new(layout.format, line).collect();
    choice.place(&names.map_err(|_| "the quotes in the header are misplaced".to_owned())?)
}

/// Parses a record without its line break.
fn read_record(layout: &Layout, content: &[u8]) -> Result<Taken, Flaw> {
    if layout.format == Format::Jsonl {
        let (key, value, left_out) = json::read_entry(content).map_err(Flaw::Json)?;
        return Ok(Taken { entry: (key, value), left_out, is_unescaped: false });
    }
    let places = layout.choice.as_ref().and_then(Choice::places);
    let Picked { key, value, left_out } = pick(Fields::new(layout.format, content), places)?;
    if layout.raw {
        let entry = (key.into_owned(), value.into_owned());
        return Ok(Taken { entry, left_out, is_unescaped: false });
    }
    let decoded = |name: &str, field: &[u8]| {
        layout.form.read(field).map_err(|error| {
            let advice = "add --raw to take fields as they are";
            Flaw::Spelling(match layout.form {
                Form::Text => format!("the {name}: {error}: {advice}"),
                Form::Hex => format!("the {name}: {error}"),
            })
        })
    };
    let is_unescaped =
        layout.form == Form::Text && (key.contains(&b'\\') || value.contains(&b'\\'));
    let entry = (decoded("key", &key)?, decoded("value", &value)?);
    Ok(Taken { entry, left_out, is_unescaped })
}

fn without_break(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn layout(format: Format, form: Form) -> Layout {
        Layout { format, form, raw: false, header: false, choice: None }
    }

    fn read_all(format: Format, form: Form, input: &[u8]) -> Vec<Record> {
        let mut reader = Reader::new(input, layout(format, form));
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn entries() -> Vec<(Vec<u8>, Vec<u8>)> {
        let all: Vec<u8> = (0..=255).collect();
        let samples: [&[u8]; 10] = [
            // The first of the input: it must not be mistaken for a byte order mark.
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
            let mut reader =
                Reader::new(file, Layout { header: true, ..layout(format, Form::Text) });
            let first = reader.next().unwrap().unwrap();
            assert_eq!(first.entry, Ok((b"k".to_vec(), b"v".to_vec())), "{format:?}");
            assert_eq!(reader.next().unwrap(), None);
        }
    }

    /// Bytes, partly UTF-8, with the characters that the formats treat specially.
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
        fn any_entry_is_read_back(
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
                    let layout = Layout { header, ..layout(format, form) };
                    let mut reader = Reader::new(&file[..], layout);
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
    fn a_byte_order_mark_at_the_start_is_skipped() {
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
    fn bad_records_name_their_line_and_the_next_is_read() {
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
    fn quoted_fields_contain_anything() {
        let records = read_all(Format::Csv, Form::Text, b"\"a\nb\",\"say \"\"hi\"\", ok\"\nc,d\n");
        assert_eq!(records[0].entry, Ok((b"a\nb".to_vec(), b"say \"hi\", ok".to_vec())));
        assert_eq!((records[1].line, records.len()), (3, 2));
        let open = read_all(Format::Csv, Form::Text, b"\"a,b\nc,d\n");
        assert!(open[0].entry.is_err());
    }

    #[test]
    fn headings_are_skipped() {
        let mut reader = Reader::new(
            &b"key,value\na,b\n"[..],
            Layout { header: true, ..layout(Format::Csv, Form::Text) },
        );
        assert_eq!(reader.next().unwrap().unwrap().line, 2);
        assert_eq!(reader.next().unwrap(), None);
    }
}
