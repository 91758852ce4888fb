//! Fields of csv, quoted as in RFC 4180.
//!
//! The crate `csv` is not used: it accepts a quote that never closes, so that the rest of the file
//! becomes one field. Import must name the line of that quote, and count the lines after it.

use super::flaw::Flaw;
use std::borrow::Cow;

/// Quotes a field if necessary. The text form has no line breaks, so only these characters need
/// quotes.
pub fn quoted(field: &str) -> String {
    if field.contains(['"', ',']) || field.starts_with(' ') || field.ends_with(' ') {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_owned()
}

/// Splits off the first field; the rest begins with its comma.
pub fn field(record: &[u8]) -> Result<(Cow<'_, [u8]>, &[u8]), Flaw> {
    let Some(mut rest) = record.strip_prefix(b"\"") else {
        let end = record.iter().position(|byte| *byte == b',').unwrap_or(record.len());
        if record[..end].contains(&b'"') {
            return Err(Flaw::Quotes("a quote in an unquoted field"));
        }
        return Ok((Cow::Borrowed(&record[..end]), &record[end..]));
    };
    let mut field = Vec::new();
    loop {
        let Some(quote) = rest.iter().position(|byte| *byte == b'"') else {
            return Err(Flaw::Quotes("a quoted field does not end"));
        };
        field.extend_from_slice(&rest[..quote]);
        rest = &rest[quote + 1..];
        match rest.first() {
            Some(b'"') => {
                field.push(b'"');
                rest = &rest[1..];
            }
            None | Some(b',') => return Ok((Cow::Owned(field), rest)),
            Some(_) => return Err(Flaw::Quotes("text after the closing quote of a field")),
        }
    }
}

/// The position in a record of csv after the bytes so far.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
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
    /// The position after `bytes` more, and whether a quote among them opened a field.
    pub fn after(self, bytes: &[u8]) -> (Self, bool) {
        bytes.iter().fold((self, false), |(place, is_opened), byte| match (place, byte) {
            (Place::Begin, b'"') => (Place::Quoted, true),
            (Place::Quote, b'"') => (Place::Quoted, is_opened),
            (Place::Quoted, b'"') => (Place::Quote, is_opened),
            (Place::Quoted, _) => (Place::Quoted, is_opened),
            (_, b',') => (Place::Begin, is_opened),
            _ => (Place::Plain, is_opened),
        })
    }
}
