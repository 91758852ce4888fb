//! The columns of tsv and csv, as the command line selects them: by number, or by a name of the
//! heading.

use std::borrow::Cow;

/// The number of heading names shown in an error.
const SHOWN_NAMES_MAX: usize = 20;

/// A column, as named on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Column {
    /// Counted from 1.
    Number(usize),
    /// Its name in the heading.
    Name(String),
}

/// Reads a column: a number from 1, or a name.
pub fn parse_column(text: &str) -> Result<Column, String> {
    if text.is_empty() {
        return Err("a column is a number, or a name in the header".to_owned());
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Column::Name(text.to_owned()));
    }
    match text.parse() {
        Ok(0) => Err("columns are counted from 1".to_owned()),
        Ok(number) => Ok(Column::Number(number)),
        Err(_) => Err("there is no column with this number".to_owned()),
    }
}

impl Column {
    /// Its index in a record; `None` for a name, which the heading must resolve first.
    fn index(&self) -> Option<usize> {
        match self {
            Column::Number(number) => Some(number - 1),
            Column::Name(_) => None,
        }
    }
}

/// The two selected columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The column of the key.
    pub key: Column,
    /// The column of the value; it may be the same.
    pub value: Column,
}

impl Choice {
    /// Their indexes in a record; `None` before `place` has resolved names.
    pub fn places(&self) -> Option<(usize, usize)> {
        Some((self.key.index()?, self.value.index()?))
    }

    /// Resolves names by the `heading`; the error names a missing or ambiguous one.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
