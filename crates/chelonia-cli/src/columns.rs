//! The columns of tsv and csv: how a record is split into fields, and which two are an entry.
//!
//! | record | fields |
//! | --- | --- |
//! | tsv | what stands between tabs |
//! | csv | what stands between commas; quoted as RFC 4180 says where need be |
//!
//! A record has two columns, key and value, unless two of several were chosen. What is wrong with
//! a record is a [`Flaw`], which has a [`FlawKind`] to be counted by.

use crate::formats::{Format, csv};
use crate::output::counted;
use std::borrow::Cow;

/// How many names of a heading an error shows.
const SHOWN_NAMES_MAX: usize = 20;

/// A column, as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Column {
    /// Counted from 1.
    Number(usize),
    /// What the heading calls it.
    Name(String),
}

/// Reads a column: a number from 1, or a name.
pub fn parse_column(text: &str) -> Result<Column, String> {
    if text.is_empty() {
        return Err("a column is a number, or a name of the heading".to_owned());
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Column::Name(text.to_owned()));
    }
    match text.parse() {
        Ok(0) => Err("columns are counted from 1".to_owned()),
        Ok(number) => Ok(Column::Number(number)),
        Err(_) => Err("there is no column of this number".to_owned()),
    }
}

impl Column {
    /// Its place in a record, from 0; none for a name, which only a heading can place.
    fn index(&self) -> Option<usize> {
        match self {
            Column::Number(number) => Some(number - 1),
            Column::Name(_) => None,
        }
    }
}

/// The two columns that are key and value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Which is the key.
    pub key: Column,
    /// Which is the value; it may be the same.
    pub value: Column,
}

impl Choice {
    /// Their places in a record, from 0; none before a heading has placed their names.
    pub fn places(&self) -> Option<(usize, usize)> {
        Some((self.key.index()?, self.value.index()?))
    }

    /// Replaces names by what `heading` says; the error says what it does not have.
    pub fn place(&mut self, heading: &[Cow<'_, [u8]>]) -> Result<(), String> {
        for column in [&mut self.key, &mut self.value] {
            let Column::Name(name) = column else { continue };
            let is_it = |field: &Cow<'_, [u8]>| field.as_ref() == name.as_bytes();
            match heading.iter().filter(|field| is_it(field)).count() {
                0 => return Err(format!("no column is called {name:?}: {}", listed(heading))),
                1 => {}
                count => return Err(format!("{count} columns are called {name:?}: give a number")),
            }
            *column = Column::Number(heading.iter().take_while(|field| !is_it(field)).count() + 1);
        }
        Ok(())
    }
}

/// The names of a heading, for people.
fn listed(heading: &[Cow<'_, [u8]>]) -> String {
    let shown = heading.iter().take(SHOWN_NAMES_MAX);
    let names: Vec<String> =
        shown.map(|name| format!("{:?}", String::from_utf8_lossy(name))).collect();
    let more = if heading.len() > SHOWN_NAMES_MAX { ", ..." } else { "" };
    format!("there are {}{more}", names.join(", "))
}

/// What is wrong with a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// It has this many columns, where two are expected.
    Columns(usize, Format),
    /// It has this many columns, and not the one that was chosen.
    NoColumn(usize, usize),
    /// A field is not written as it must be.
    Spelling(String),
    /// Quotes of csv stand where they cannot.
    Quotes(&'static str),
    /// A quote that was opened at a line never closes, and hides lines behind the record's first.
    Unclosed { opened: u64, lines_lost: u64 },
    /// It is no JSON object with a key and a value.
    Json(String),
    /// The store takes no key or value of this size.
    Size(String),
}

/// What flaws are counted by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FlawKind {
    Columns,
    Spelling,
    Quotes,
    Json,
    Size,
}

impl FlawKind {
    /// Each kind, in the order in which they are shown.
    pub const ALL: [Self; 5] =
        [Self::Columns, Self::Spelling, Self::Quotes, Self::Json, Self::Size];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Columns => "columns",
            Self::Spelling => "spelling",
            Self::Quotes => "quotes",
            Self::Json => "json",
            Self::Size => "size",
        }
    }

    /// What is wrong with a record of this kind, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Columns => "with other columns than expected",
            Self::Spelling => "with bad escapes or digits",
            Self::Quotes => "with misplaced or unclosed quotes",
            Self::Json => "that are no JSON object with a key and a value",
            Self::Size => "with a key or value that is too long",
        }
    }
}

impl Flaw {
    /// What it is counted by.
    pub fn kind(&self) -> FlawKind {
        match self {
            Flaw::Columns(..) | Flaw::NoColumn(..) => FlawKind::Columns,
            Flaw::Spelling(_) => FlawKind::Spelling,
            Flaw::Quotes(_) | Flaw::Unclosed { .. } => FlawKind::Quotes,
            Flaw::Json(_) => FlawKind::Json,
            Flaw::Size(_) => FlawKind::Size,
        }
    }

    /// The text for people about a record that begins at `line`.
    pub fn at(&self, line: u64) -> String {
        let columns = |count: &usize| counted(*count as u64, "column", "columns");
        match self {
            Flaw::Columns(1, Format::Csv) => {
                format!("line {line}: there is no comma between key and value")
            }
            Flaw::Columns(1, _) => format!("line {line}: there is no tab between key and value"),
            Flaw::Columns(found, _) => format!(
                "line {line} has {}, expected 2: choose with --key-column, --value-column",
                columns(found)
            ),
            Flaw::NoColumn(found, chosen) => {
                format!("line {line} has {}, and column {chosen} was chosen", columns(found))
            }
            Flaw::Unclosed { opened, lines_lost: 0 } => {
                format!("the quote opened at line {opened} never closes")
            }
            Flaw::Unclosed { opened, lines_lost } => {
                let more = counted(*lines_lost, "more line is", "more lines are");
                format!("the quote opened at line {opened} never closes: {more} lost")
            }
            Flaw::Spelling(text) | Flaw::Json(text) | Flaw::Size(text) => {
                format!("line {line}: {text}")
            }
            Flaw::Quotes(text) => format!("line {line}: {text}"),
        }
    }
}

/// The fields of a record.
#[derive(Debug)]
pub struct Fields<'a> {
    format: Format,
    /// None behind the last field.
    rest: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    /// The fields of a `record` of tsv or csv.
    pub fn new(format: Format, record: &'a [u8]) -> Self {
        Self { format, rest: Some(record) }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Cow<'a, [u8]>, Flaw>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.rest.take()?;
        let (field, after) = if self.format == Format::Csv {
            match csv::field(record) {
                Ok(field) => field,
                Err(flaw) => return Some(Err(flaw)),
            }
        } else {
            let end = record.iter().position(|byte| *byte == b'\t').unwrap_or(record.len());
            (Cow::Borrowed(&record[..end]), &record[end..])
        };
        self.rest = after.split_first().map(|(_, tail)| tail);
        Some(Ok(field))
    }
}

/// The two fields of an entry, and how many others the record has.
#[derive(PartialEq, Eq, Debug)]
pub struct Picked<'a> {
    pub key: Cow<'a, [u8]>,
    pub value: Cow<'a, [u8]>,
    pub left_out: usize,
}

/// Picks the fields at the `places` of key and value, if two were chosen.
pub fn pick<'a>(fields: Fields<'a>, places: Option<(usize, usize)>) -> Result<Picked<'a>, Flaw> {
    let format = fields.format;
    let (key_place, value_place) = places.unwrap_or((0, 1));
    let (mut key, mut value) = (None, None);
    let mut count = 0;
    for field in fields {
        let field = field?;
        if count == key_place {
            key = Some(field.clone());
        }
        if count == value_place {
            value = Some(field);
        }
        count += 1;
    }
    match (key, value) {
        (Some(key), Some(value)) if places.is_some() || count == 2 => {
            let taken = if key_place == value_place { 1 } else { 2 };
            Ok(Picked { key, value, left_out: count - taken })
        }
        _ if places.is_none() => Err(Flaw::Columns(count, format)),
        _ => Err(Flaw::NoColumn(count, key_place.max(value_place) + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(
        format: Format,
        record: &[u8],
        places: Option<(usize, usize)>,
    ) -> Result<(String, String, usize), Flaw> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        pick(Fields::new(format, record), places)
            .map(|picked| (text(&picked.key), text(&picked.value), picked.left_out))
    }

    #[test]
    fn two_columns_are_expected_or_chosen() {
        let entry = |key: &str, value: &str, left_out| Ok((key.into(), value.into(), left_out));
        assert_eq!(picked(Format::Tsv, b"a\tb", None), entry("a", "b", 0));
        assert_eq!(picked(Format::Csv, b"\"a,\",\"\"", None), entry("a,", "", 0));
        let five = b"1\t2\t3\t4\t5";
        assert_eq!(picked(Format::Tsv, five, None), Err(Flaw::Columns(5, Format::Tsv)));
        assert_eq!(picked(Format::Tsv, five, Some((4, 0))), entry("5", "1", 3));
        assert_eq!(picked(Format::Tsv, five, Some((2, 2))), entry("3", "3", 4));
        assert_eq!(picked(Format::Tsv, five, Some((0, 5))), Err(Flaw::NoColumn(5, 6)));
        assert_eq!(picked(Format::Csv, b"a,\"b\nc\",d", Some((1, 2))), entry("b\nc", "d", 1));
        let misplaced = picked(Format::Csv, b"a,b,x\"y", Some((0, 1))).unwrap_err();
        assert_eq!(misplaced.kind(), FlawKind::Quotes);
    }

    #[test]
    fn names_are_placed_by_the_heading() {
        let choice = |key: &str, value: &str| Choice {
            key: parse_column(key).unwrap(),
            value: parse_column(value).unwrap(),
        };
        let heading: Vec<Cow<[u8]>> =
            ["id", "text", "text"].iter().map(|name| Cow::Borrowed(name.as_bytes())).collect();
        let mut by_name = choice("id", "2");
        assert_eq!(by_name.places(), None);
        by_name.place(&heading).unwrap();
        assert_eq!(by_name.places(), Some((0, 1)));
        let error = choice("Id", "2").place(&heading).unwrap_err();
        assert_eq!(error, "no column is called \"Id\": there are \"id\", \"text\", \"text\"");
        assert!(choice("id", "text").place(&heading).unwrap_err().contains("give a number"));
        for bad in ["", "0", "99999999999999999999"] {
            assert!(parse_column(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_flaw_names_its_line_and_what_to_do() {
        let cases = [
            (
                Flaw::Columns(5, Format::Tsv),
                "line 7 has 5 columns, expected 2: choose with --key-column, --value-column",
            ),
            (Flaw::Columns(1, Format::Csv), "line 7: there is no comma between key and value"),
            (Flaw::NoColumn(1, 5), "line 7 has 1 column, and column 5 was chosen"),
            (
                Flaw::Unclosed { opened: 9, lines_lost: 1 },
                "the quote opened at line 9 never closes: 1 more line is lost",
            ),
            (
                Flaw::Unclosed { opened: 7, lines_lost: 0 },
                "the quote opened at line 7 never closes",
            ),
        ];
        for (flaw, text) in cases {
            assert_eq!(flaw.at(7), text);
        }
    }
}
