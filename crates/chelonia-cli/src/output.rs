//! Output: numbers for people, aligned tables, standard output and error.

use crate::descriptors;
use indicatif::HumanCount;
use std::io::{self, BufWriter, Write};

/// Standard output, buffered; flush it before the command ends.
pub type Output = BufWriter<Standard>;

/// Standard output without buffering; that of the standard library ignores that it is closed.
#[derive(Debug)]
pub struct Standard;

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if descriptors::is_closed(descriptors::OUTPUT) {
            return Err(descriptors::closed());
        }
        Ok(rustix::io::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard output.
pub fn output() -> Output {
    BufWriter::with_capacity(1 << 16, Standard)
}

/// Prints a line to standard error.
pub fn complain(text: &str) {
    // Nothing can be done if standard error is closed.
    let _ = io::stderr().write_fmt(format_args!("chelonia: {text}\n"));
}

/// A number with grouped digits: `12,345`.
pub fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A number of things: `1 entry`, `12,345 entries`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// A number of bytes with the unit that keeps it short: `12.3 MiB`.
pub fn bytes(number: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    // A number that rounds to 1024 has the next unit; `HumanBytes` prints 1024 of the former.
    while value >= 1023.95 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// The alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// At the left: words.
    Left,
    /// At the right: numbers.
    Right,
}

/// An aligned table.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
    /// The first row names the columns.
    has_heading: bool,
}

impl Table {
    /// A table without a heading.
    pub fn new(columns: &[Align]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), has_heading: false }
    }

    /// A table whose columns have names.
    pub fn with_heading(columns: &[(&str, Align)]) -> Self {
        let names = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let columns = columns.iter().map(|(_, align)| *align).collect();
        Self { columns, rows: vec![names], has_heading: true }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Prints the table, each line after `indent`.
    pub fn write(&self, out: &mut impl Write, indent: &str) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = indent.to_owned();
            for ((cell, align), width) in row.iter().zip(&self.columns).zip(&widths) {
                let width = *width;
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
            if index == 0 && self.has_heading {
                let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                writeln!(out, "{indent}{}", rules.join("  "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!([grouped(0), grouped(999), grouped(1000)], ["0", "999", "1,000"]);
        let files = |number| counted(number, "file", "files");
        assert_eq!([files(0), files(1), files(1000)], ["0 files", "1 file", "1,000 files"]);
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!([bytes(0), bytes(1023), bytes(1024)], ["0 B", "1023 B", "1.0 KiB"]);
        assert_eq!([bytes((1 << 20) - 1), bytes(1 << 40)], ["1.0 MiB", "1.0 TiB"]);
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn tables_are_aligned() {
        let mut table = Table::with_heading(&[("what", Align::Left), ("count", Align::Right)]);
        table.row(["files".to_owned(), "12".to_owned()]);
        table.row(["a longer one".to_owned(), "1,234".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out, "  ").unwrap();
        let expected = "  what          count\n  ------------  -----\n  files            12\n  \
                        a longer one  1,234\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
