//! The table of a run or comparison on a simulated drive (`drive/mod.rs`).

use crate::compare::summary;
use crate::drive::{Class, Totals};
use crate::record::Record;
use crate::table::{Table, short};

/// The title of the table.
pub const TITLE: &str =
    "Bytes that the drive wrote, compressed, for each byte of keys and values; and what it stores";

/// A row for each store and phase with writes; `None` if no database was on a simulated drive.
pub fn table(records: &[Record]) -> Option<Table> {
    let mut rows: Vec<(&str, &str)> = Vec::new();
    let wrote = |record: &&Record| record.drive.is_some() && user_bytes(record).is_some();
    for record in records.iter().filter(wrote) {
        let row = (record.phase.as_str(), record.engine.as_str());
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows.first()?;
    let mut table = Table::new([
        "phase",
        "store",
        "log",
        "pages",
        "rest",
        "all",
        "not compressed",
        "stored / live",
        "not compressed",
    ]);
    for (phase, engine) in rows {
        let figure = |of: fn(&Record, Totals) -> Option<f64>| {
            let spread =
                summary::figure(records, engine, phase, |record| of(record, record.drive?));
            spread.map_or("-".to_owned(), |spread| short(spread.median))
        };
        table.row([
            phase.to_owned(),
            engine.to_owned(),
            figure(|record, drive| per_user_byte(record, of_class(drive, Class::Log))),
            figure(|record, drive| per_user_byte(record, of_class(drive, Class::Pages))),
            figure(|record, drive| per_user_byte(record, of_class(drive, Class::Rest))),
            figure(|record, drive| per_user_byte(record, drive.all().physical)),
            figure(|record, drive| per_user_byte(record, drive.all().logical)),
            figure(|record, drive| per_live_byte(record, drive.stored.physical)),
            figure(|record, drive| per_live_byte(record, drive.stored.logical)),
        ]);
    }
    Some(table)
}

fn of_class(drive: Totals, class: Class) -> u64 {
    drive.written[class as usize].physical
}

fn user_bytes(record: &Record) -> Option<u64> {
    record.settings["user_bytes"].as_u64().filter(|bytes| *bytes > 0)
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn per_user_byte(record: &Record, bytes: u64) -> Option<f64> {
    Some(bytes as f64 / user_bytes(record)? as f64)
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn per_live_byte(record: &Record, bytes: u64) -> Option<f64> {
    Some(bytes as f64 / record.live_bytes.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Bytes;
    use crate::record::tests::sample;
    use serde_json::json;

    #[test]
    fn rows_are_of_phases_with_writes_on_a_drive() {
        let mut load = sample("turtle", "load", 2.0);
        load.settings = json!({ "user_bytes": 1000 });
        let get = sample("turtle", "c", 2.0);
        assert!(table(&[load.clone(), get.clone()]).is_none());
        let bytes = |physical| Bytes { logical: 4000, physical };
        let written = [bytes(100), bytes(1500), bytes(50)];
        load.drive = Some(Totals { written, stored: bytes(64_000) });
        let text = table(&[load, get]).unwrap().text();
        let line = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        let expected = ["load", "turtle", "0.10", "1.50", "0.050", "1.65", "12.0", "0.50", "0.031"];
        assert_eq!(line, expected);
    }
}
