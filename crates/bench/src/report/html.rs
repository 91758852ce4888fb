//! The parts of a page. All text is escaped here, and only here; drawings come as finished SVG.

use crate::figures::drawing::svg::escape;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// Tables with more rows are folded.
const ROWS_SHOWN: usize = 40;

/// A page that is being filled.
#[derive(Debug)]
pub struct Page {
    title: String,
    written: String,
    /// Id and title.
    contents: Vec<(String, String)>,
    body: String,
}

/// A part of a page, with a title.
#[derive(Debug)]
pub struct Section {
    id: String,
    title: String,
    body: String,
}

impl Page {
    /// An empty page that was written on a day.
    pub fn new(title: &str, written: &str) -> Self {
        let (title, written) = (title.to_owned(), written.to_owned());
        Self { title, written, contents: Vec::new(), body: String::new() }
    }

    /// Adds a part.
    pub fn section(&mut self, section: &Section) {
        self.contents.push((section.id.clone(), section.title.clone()));
        // Writing to a string cannot fail.
        let _ = write!(
            self.body,
            "<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n",
            section.id,
            escape(&section.title),
            section.body
        );
    }

    /// The text of the page.
    pub fn finish(self) -> String {
        let mut contents = String::new();
        for (id, title) in &self.contents {
            let _ = writeln!(contents, "<li><a href=\"#{id}\">{}</a></li>", escape(title));
        }
        let title = escape(&self.title);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n\
             <h1>{title}</h1>\n<p>Written by chelonia-bench {} on {}. Sizes are decimal; medians \
             over repeats, with the least and the greatest where there are several.</p>\n\
             <nav><ul>\n{contents}</ul></nav>\n</header>\n<main>\n{}</main>\n</body>\n</html>\n",
            env!("CARGO_PKG_VERSION"),
            escape(&self.written),
            self.body
        )
    }
}

impl Section {
    /// An empty part; `name` is what it can be linked by.
    pub fn new(name: &str, title: &str) -> Self {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        let id = name.chars().map(plain).collect();
        Self { id, title: title.to_owned(), body: String::new() }
    }

    /// Adds facts.
    pub fn list(&mut self, facts: &[String]) {
        self.body.push_str("<ul class=\"facts\">\n");
        for fact in facts {
            let _ = writeln!(self.body, "<li>{}</li>", escape(fact));
        }
        self.body.push_str("</ul>\n");
    }

    /// Adds facts that are folded.
    pub fn folded_list(&mut self, title: &str, facts: &[String]) {
        self.fold(title, |section| section.list(facts));
    }

    /// Adds a table; a long one is folded.
    pub fn table(&mut self, title: &str, header: &[String], rows: &[Vec<String>]) {
        if rows.len() > ROWS_SHOWN {
            self.folded_table(title, header, rows);
        } else {
            let _ = writeln!(self.body, "<h3>{}</h3>", escape(title));
            self.rows(header, rows);
        }
    }

    /// Adds a table that is folded.
    pub fn folded_table(&mut self, title: &str, header: &[String], rows: &[Vec<String>]) {
        let title = format!("{title} ({} rows)", rows.len());
        self.fold(&title, |section| section.rows(header, rows));
    }

    /// Adds a finished SVG.
    pub fn drawing(&mut self, svg: &str) {
        let _ = writeln!(self.body, "<figure>\n{}\n</figure>", svg.trim_end());
    }

    fn fold(&mut self, title: &str, fill: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.body, "<details>\n<summary>{}</summary>", escape(title));
        fill(self);
        self.body.push_str("</details>\n");
    }

    fn rows(&mut self, header: &[String], rows: &[Vec<String>]) {
        self.body.push_str("<div class=\"wide\"><table>\n<thead><tr>");
        for name in header {
            let _ = write!(self.body, "<th scope=\"col\">{}</th>", escape(name));
        }
        self.body.push_str("</tr></thead>\n<tbody>\n");
        for row in rows {
            self.body.push_str("<tr>");
            for cell in row {
                let class = if is_words(cell) { " class=\"words\"" } else { "" };
                let _ = write!(self.body, "<td{class}>{}</td>", cell_text(cell));
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</tbody>\n</table></div>\n");
    }
}

/// A cell; text in brackets after a number is below it, so that tables are not too wide.
fn cell_text(cell: &str) -> String {
    match cell.split_once(" (") {
        Some((number, spread)) if !is_words(number) => {
            format!("{}<small>({}</small>", escape(number), escape(spread))
        }
        _ => escape(cell),
    }
}

/// True for names; numbers, and dashes in their place, are set to the right.
fn is_words(cell: &str) -> bool {
    cell.starts_with(|letter: char| letter.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_tables_are_folded_and_cells_are_escaped() {
        let mut section = Section::new("a b", "a & b");
        let row = vec!["<turtle>".to_owned(), "1.5 (1-2)".to_owned()];
        section.table(
            "short",
            &["store".to_owned(), "kops".to_owned()],
            std::slice::from_ref(&row),
        );
        assert!(!section.body.contains("<details>") && section.body.contains("&lt;turtle&gt;"));
        section.table("long", &[], &vec![row; ROWS_SHOWN + 1]);
        assert!(section.body.contains("<summary>long (41 rows)</summary>"));
        assert!(section.body.contains("<td>1.5<small>(1-2)</small></td>"), "{}", section.body);
        assert_eq!(section.id, "a-b");
        assert!(is_words("turtle") && !is_words("\u{2013}") && !is_words("12 (N' = 3)"));
    }
}
