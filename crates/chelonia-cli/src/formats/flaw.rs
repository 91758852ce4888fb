//! Why a record of an import is not an entry, with a kind to count it by and a text for people.

use crate::output::counted;

/// Why a record is not an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// It has this many columns, where two are expected; the separator of columns, by name.
    Columns(usize, &'static str),
    /// It has this many columns, but not the selected one.
    NoColumn(usize, usize),
    /// A field has invalid escapes or digits.
    Spelling(String),
    /// Quotes of csv are misplaced.
    Quotes(&'static str),
    /// A quote opened at a line never closes; this many lines after the record's first are lost.
    Unclosed { opened: u64, lines_lost: u64 },
    /// It is not a JSON object with a key and a value.
    Json(String),
    /// The key or the value is too long for the store.
    Size(String),
}

/// The kind of a flaw; flaws are counted by it.
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

    /// A description of the kind, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Columns => "with other columns than expected",
            Self::Spelling => "with bad escapes or digits",
            Self::Quotes => "with misplaced or unclosed quotes",
            Self::Json => "that are not a JSON object with a key and a value",
            Self::Size => "with a key or value that is too long",
        }
    }
}

impl Flaw {
    /// The kind of the flaw.
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
            Flaw::Columns(1, separator) => {
                format!("line {line}: there is no {separator} between key and value")
            }
            Flaw::Columns(found, _) => format!(
                "line {line} has {}, expected 2: choose with --key-column, --value-column",
                columns(found)
            ),
            Flaw::NoColumn(found, chosen) => {
                format!("line {line} has {}, but column {chosen} was selected", columns(found))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flaw_names_its_line_and_what_to_do() {
        let cases = [
            (
                Flaw::Columns(5, "tab"),
                "line 7 has 5 columns, expected 2: choose with --key-column, --value-column",
            ),
            (Flaw::Columns(1, "comma"), "line 7: there is no comma between key and value"),
            (Flaw::NoColumn(1, 5), "line 7 has 1 column, but column 5 was selected"),
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
