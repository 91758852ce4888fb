//! Tables: aligned on a terminal, or as Markdown.

/// Rows of cells under a heading. The first column holds words, and the last may; all others
/// numbers.
#[derive(Clone, Debug)]
pub struct Table {
    ends_with_words: bool,
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(heading: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let heading = heading.into_iter().map(Into::into).collect();
        Self { ends_with_words: false, heading, rows: Vec::new() }
    }

    /// The same with words in its last column.
    pub fn ending_with_words(mut self) -> Self {
        self.ends_with_words = true;
        self
    }

    /// Adds a row with as many cells as the heading has.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The names of the columns.
    pub fn heading(&self) -> &[String] {
        &self.heading
    }

    /// The rows.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Aligned, for a terminal.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let mut text = self.line(&self.heading, &widths);
        let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        text.push_str(&self.line(&rules, &widths));
        for row in &self.rows {
            text.push_str(&self.line(row, &widths));
        }
        text
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = row(&self.heading);
        let rules: Vec<String> = (0..self.heading.len())
            .map(|column| if self.is_words(column) { "---" } else { "---:" }.to_owned())
            .collect();
        text.push_str(&row(&rules));
        for cells in &self.rows {
            text.push_str(&row(cells));
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = std::iter::once(&self.heading).chain(&self.rows);
            let cells = cells.filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..self.heading.len()).map(width).collect()
    }

    fn is_words(&self, column: usize) -> bool {
        column == 0 || (self.ends_with_words && column + 1 == self.heading.len())
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let cell = |(index, (cell, width)): (usize, (&String, &usize))| match self.is_words(index) {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        };
        let cells: Vec<String> = cells.iter().zip(widths).enumerate().map(cell).collect();
        format!("{}\n", cells.join("  ").trim_end())
    }
}

/// A number with about three digits that count: `1234`, `56.7`, `8.90`, `0.012`.
pub fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 99.95 => format!("{number:.0}"),
        size if size >= 9.995 => format!("{number:.1}"),
        size if size >= 0.0995 || size == 0.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

/// Bytes as millions of them.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub fn megabytes(bytes: u64) -> String {
    short(bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_valid_markdown() {
        let mut table = Table::new(["phase", "kops"]);
        table.row(["load", "1234"]);
        table.row(["a+settle", "5.60"]);
        let text = "phase     kops\n--------  ----\nload      1234\na+settle  5.60\n";
        assert_eq!(table.text(), text);
        let markdown = "| phase | kops |\n| --- | ---: |\n| load | 1234 |\n| a+settle | 5.60 |\n";
        assert_eq!(table.markdown(), markdown);
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.0123, 0.5, 9.99, 9.999, 99.96, 123.4];
        let texts = ["0.00", "0.012", "0.50", "9.99", "10.0", "100", "123"];
        assert_eq!(numbers.map(short), texts);
        assert_eq!(megabytes(2_560_000), "2.56");
    }
}
