//! `backup`: a verified copy of a database.

use super::{Purpose, open};
use crate::arguments::Backup;
use crate::failure::{Context, Result};
use crate::output::{Align, Table, bytes, grouped, output};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::Write;

/// `backup`
pub fn backup(arguments: &Backup) -> Result<()> {
    let database = open(&arguments.place, Purpose::Write)?;
    let style = "{bar:40} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}";
    let style = ProgressStyle::with_template(style);
    let bar = ProgressBar::new(0).with_style(style.expect("the template is a constant"));
    let made = database.backup_with(&arguments.destination, |progress| {
        bar.set_length(progress.bytes_total);
        bar.set_position(progress.bytes_done);
    });
    bar.finish_and_clear();
    let report = made.context(arguments.place.path.display().to_string())?;
    let mut out = output();
    if arguments.json {
        let object = json!({
            "seqno": report.seqno,
            "keyspaces": report.keyspaces,
            "bytes": report.bytes,
            "entries": report.entries,
        });
        writeln!(out, "{object}")?;
    } else {
        let mut table = Table::new(&[Align::Left, Align::Right]);
        table.row(["keyspaces".to_owned(), grouped(report.keyspaces as u64)]);
        table.row(["entries".to_owned(), grouped(report.entries)]);
        table.row(["copied".to_owned(), bytes(report.bytes)]);
        table.row(["last write".to_owned(), grouped(report.seqno)]);
        table.write(&mut out, "")?;
    }
    out.flush()?;
    database.close().context(arguments.place.path.display().to_string())
}
