//! Splits a record of tsv or csv into fields, and picks the two that are key and value.
//!
//! | record | fields |
//! | --- | --- |
//! | tsv | separated by tabs |
//! | csv | separated by commas, quoted as in RFC 4180 if necessary |
//!
//! A record has two columns, key and value, unless the command line selects two of several.

use super::csv;
use super::flaw::Flaw;
use super::format::Format;
use std::borrow::Cow;

/// The fields of a record.
#[derive(Debug)]
pub struct Fields<'a> {
    format: Format,
    /// `None` after the last field.
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

/// Picks the fields at the `places` of key and value, or the only two if none were selected.
pub fn pick<'a>(fields: Fields<'a>, places: Option<(usize, usize)>) -> Result<Picked<'a>, Flaw> {
    let separator = if fields.format == Format::Csv { "comma" } else { "tab" };
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
        _ if places.is_none() => Err(Flaw::Columns(count, separator)),
        _ => Err(Flaw::NoColumn(count, key_place.max(value_place) + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::flaw::FlawKind;
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
    fn two_columns_are_expected_or_selected() {
        let entry = |key: &str, value: &str, left_out| Ok((key.into(), value.into(), left_out));
        assert_eq!(picked(Format::Tsv, b"a\tb", None), entry("a", "b", 0));
        assert_eq!(picked(Format::Csv, b"\"a,\",\"\"", None), entry("a,", "", 0));
        let five = b"1\t2\t3\t4\t5";
        assert_eq!(picked(Format::Tsv, five, None), Err(Flaw::Columns(5, "tab")));
        assert_eq!(picked(Format::Tsv, five, Some((4, 0))), entry("5", "1", 3));
        assert_eq!(picked(Format::Tsv, five, Some((2, 2))), entry("3", "3", 4));
        assert_eq!(picked(Format::Tsv, five, Some((0, 5))), Err(Flaw::NoColumn(5, 6)));
        assert_eq!(picked(Format::Csv, b"a,\"b\nc\",d", Some((1, 2))), entry("b\nc", "d", 1));
        let misplaced = picked(Format::Csv, b"a,b,x\"y", Some((0, 1))).unwrap_err();
        assert_eq!(misplaced.kind(), FlawKind::Quotes);
    }
}
