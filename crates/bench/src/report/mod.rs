//! `report`: one page of all figures and results in a directory.
//!
//! The page is one file that needs no other and no network. Figures are drawn again from their
//! results, so that a page never shows a figure of other data; other files of the directory are
//! only searched for results. All text from files is escaped.

mod html;

use crate::compare::say;
use crate::compare::tables::{self, date};
use crate::driver::clock;
use crate::failure::{Failure, Result};
use crate::figures::data::{engines, notes, work};
use crate::figures::drawing::svg::svg;
use crate::figures::{Name, data_of};
use crate::options::parse_engine;
use crate::record::{self, Record};
use clap::Args;
use html::{Page, Section};
use std::path::{Path, PathBuf};

/// The page, if it is not named.
const FILE: &str = "report.html";

/// `report`
#[derive(Args, Debug)]
pub struct Report {
    /// Where figures and results are: NAME.jsonl of `figure`, files of `compare --json` and `run
    /// --json`
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The store that others are divided by in tables [default: the first of each file]
    #[arg(long, value_name = "NAME", value_parser = parse_engine)]
    pub baseline: Option<String>,
    /// The page [default: report.html in DIR]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Writes it.
pub fn report(arguments: &Report) -> Result<()> {
    let directory = &arguments.directory;
    let page = page(directory, arguments.baseline.as_deref())?;
    let path = arguments.html.clone().unwrap_or_else(|| directory.join(FILE));
    std::fs::write(&path, page)
        .map_err(|error| Failure::failed(format!("write {}", path.display()), error))?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}

/// The text of the page.
fn page(directory: &Path, baseline: Option<&str>) -> Result<String> {
    let mut page = Page::new("Measured beside its peers", &date(clock::unix_seconds()));
    let mut count = 0;
    for path in others(directory)? {
        match record::read(&path) {
            Ok(records) if !records.is_empty() => {
                page.section(&of_results(&path, &records, baseline));
                count += 1;
            }
            Ok(_) => {}
            Err(failure) => say(&format!("left out: {failure}")),
        }
    }
    for name in Name::ALL {
        let path = data_of(directory, name);
        if path.exists() {
            match record::read(&path).and_then(|records| of_figure(name, &records)) {
                Ok(section) => {
                    page.section(&section);
                    count += 1;
                }
                // One that was stopped before its first point must not keep the others back.
                Err(failure) => say(&format!("left out: {failure}")),
            }
        }
    }
    if count == 0 {
        return Err(Failure::usage(format!(
            "{} holds no results: `figure NAME --out` and `compare --json` write some",
            directory.display()
        )));
    }
    Ok(page.finish())
}

/// The files that may hold results and are no figure's, by name.
fn others(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Failure::failed(format!("look into {}", directory.display()), error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        let is_figure = Name::ALL.into_iter().any(|name| data_of(directory, name) == path);
        if matches!(ending, Some("json" | "jsonl")) && path.is_file() && !is_figure {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The tables of a comparison.
fn of_results(path: &Path, records: &[Record], baseline: Option<&str>) -> Section {
    let names = engines(records);
    let given = baseline.filter(|name| names.iter().any(|engine| engine == name));
    let baseline = given.or(names.first().map(String::as_str)).unwrap_or_default();
    let report = tables::Report::new(records, &names, baseline);
    let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
    let mut section = Section::new(&stem, &format!("Results: {stem}"));
    section.list(report.facts());
    for (title, table) in report.tables() {
        section.table(title, table.heading(), table.rows());
    }
    section
}

/// A figure, its description, and its points.
fn of_figure(name: Name, records: &[Record]) -> Result<Section> {
    let drawing = name.draw(records)?;
    let mut section = Section::new(name.name(), name.heading());
    section.drawing(&svg(&drawing.scene));
    let mut facts = vec![work(records)];
    facts.extend(notes(records));
    facts.extend(engines(records).iter().map(|engine| tables::about(records, engine)));
    section.folded_list("Settings", &facts);
    let header: Vec<String> = drawing.points.header.iter().map(|name| (*name).to_owned()).collect();
    section.folded_table("Points", &header, &drawing.points.rows);
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::drawing::svg::tests::check_well_formed;
    use crate::figures::tests::{stored, ycsb_results};

    #[test]
    fn a_page_holds_every_figure_and_every_table_and_nothing_from_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        for name in Name::ALL {
            record::append(&data_of(directory.path(), name), &stored(name).0).unwrap();
        }
        let mut records = ycsb_results();
        for record in &mut records {
            record.version = "<script>alert('x')</script>".to_owned();
        }
        record::append(&directory.path().join("third & first.json"), &records).unwrap();
        std::fs::write(directory.path().join("other.json"), "{\"not\": \"ours\"}\n").unwrap();
        let line = Report {
            directory: directory.path().to_owned(),
            baseline: Some("lmdb".to_owned()),
            html: None,
        };
        report(&line).unwrap();
        let text = std::fs::read_to_string(directory.path().join(FILE)).unwrap();
        assert_eq!(text.matches("<svg ").count(), Name::ALL.len());
        for name in Name::ALL {
            assert!(text.contains(&format!("<section id=\"{}\">", name.name())));
            assert!(text.contains(&format!("href=\"#{}\"", name.name())));
        }
        assert!(text.contains("Times as fast as lmdb") && text.contains("third &amp; first"));
        assert!(text.contains("&lt;script&gt;") && !text.contains("<script"));
        assert!(text.contains("2 x &lt;processor&gt; &amp; more"));
        for foreign in ["src=", "url(", "@import", "<link"] {
            assert!(!text.contains(foreign), "{foreign}");
        }
        check_well_formed(text.strip_prefix("<!DOCTYPE html>").unwrap());
    }

    #[test]
    fn a_directory_without_results_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let message = page(directory.path(), None).unwrap_err().to_string();
        assert!(message.contains("figure NAME"), "{message}");
        assert!(page(&directory.path().join("none"), None).is_err());
    }
}
