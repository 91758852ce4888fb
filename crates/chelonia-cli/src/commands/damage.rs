//! `verify` and `salvage`: reports damage, copies readable data.

use super::{Purpose, open};
use crate::arguments::{Salvage, Verify};
use crate::failure::{Context, Failure, Result};
use crate::output::{Align, Table, bytes, complain, grouped, output};
use crate::text::Form;
use chelonia::{Error, ErrorKind, Loss, SalvageReport, SalvagedKeyspace, VerifyReport, limits};
use serde_json::{Value, json};
use std::io::Write;
use std::ops::Bound;

/// A finding in JSON.
fn finding_json(finding: &Error) -> Value {
    json!({
        "kind": format!("{:?}", finding.kind()),
        "file": finding.file(),
        "offset": finding.offset(),
        "message": finding.to_string(),
    })
}

/// `verify`
pub fn verify(arguments: &Verify) -> Result<()> {
    let place = &arguments.place;
    let report = match (open(place, Purpose::Read), &arguments.keyspace) {
        (Ok(database), None) => database.verify()?,
        (Ok(database), Some(name)) => {
            database.keyspace(name, chelonia::KeyspaceOptions::default())?.verify()?
        }
        // A block that every open needs is damaged: report this one finding.
        (Err(Failure::Store(_, error)), _) if error.kind() == ErrorKind::Corrupt => {
            let mut report = VerifyReport::default();
            report.findings.push(error);
            report.findings_total += 1;
            report
        }
        (Err(failure), _) => return Err(failure),
    };
    let mut out = output();
    if arguments.json {
        let object = json!({
            "clean": report.is_clean(),
            "blocks": report.blocks,
            "entries": report.entries,
            "log_bytes": report.log_bytes,
            "log_entries": report.log_entries,
            "findings_total": report.findings_total,
            "findings": report.findings.iter().map(finding_json).collect::<Vec<Value>>(),
        });
        writeln!(out, "{object}")?;
    } else {
        let mut table = Table::new(&[Align::Left, Align::Right]);
        table.row(["blocks read".to_owned(), grouped(report.blocks)]);
        table.row(["entries in trees".to_owned(), grouped(report.entries)]);
        table.row(["log read".to_owned(), bytes(report.log_bytes)]);
        table.row(["writes in the log".to_owned(), grouped(report.log_entries)]);
        table.row(["findings".to_owned(), grouped(report.findings_total)]);
        table.write(&mut out, "")?;
        for finding in &report.findings {
            writeln!(out, "{:?}: {finding}", finding.kind())?;
        }
    }
    out.flush()?;
    if report.is_clean() {
        return Ok(());
    }
    Err(Failure::no(format!("{} is damaged", place.path.display())))
}

/// `salvage`
pub fn salvage(arguments: &Salvage) -> Result<()> {
    let memory = arguments.memory.unwrap_or(limits::MEMORY_BYTES_DEFAULT);
    let salvage = chelonia::Salvage::new(&arguments.source, &arguments.destination);
    let report = salvage.memory(memory).run().context(arguments.source.display().to_string())?;
    let mut out = output();
    if arguments.json {
        let object = json!({
            "complete": report.is_complete(),
            "keyspaces": report.keyspaces.iter().map(keyspace_json).collect::<Vec<Value>>(),
            "log_records": report.log_records,
            "log_damage": report.log_damage.iter().map(finding_json).collect::<Vec<Value>>(),
        });
        writeln!(out, "{object}")?;
    } else {
        print(&report, &mut out)?;
    }
    out.flush()?;
    if report.is_complete() {
        return Ok(());
    }
    Err(Failure::no(format!("data of {} was lost", arguments.source.display())))
}

fn print(report: &SalvageReport, out: &mut impl Write) -> Result<()> {
    let columns = [
        ("keyspace", Align::Left),
        ("entries", Align::Right),
        ("suspect", Align::Right),
        ("places lost", Align::Right),
    ];
    let mut table = Table::with_heading(&columns);
    for keyspace in &report.keyspaces {
        let suspect = keyspace.suspect.as_ref().map_or(0, |(_, entries)| *entries);
        table.row([
            Form::Text.write(keyspace.name.as_bytes()),
            grouped(keyspace.entries),
            grouped(suspect),
            grouped(keyspace.losses_total),
        ]);
    }
    table.write(out, "")?;
    writeln!(out, "records of the log taken over: {}", grouped(report.log_records))?;
    for keyspace in &report.keyspaces {
        let name = Form::Text.write(keyspace.name.as_bytes());
        if let Some((suspect, _)) = &keyspace.suspect {
            let suspect = Form::Text.write(suspect.as_bytes());
            complain(&format!(
                "entries of {name} that may be out of date are in keyspace {suspect}"
            ));
        }
        for loss in &keyspace.losses {
            writeln!(out, "{name}, {}: {}", range(loss, Form::Text), loss.cause)?;
        }
    }
    for finding in &report.log_damage {
        writeln!(out, "log: {finding}")?;
    }
    Ok(())
}

/// The keys of a loss as text.
fn range(loss: &Loss, form: Form) -> String {
    let lower = match &loss.lower {
        Bound::Included(key) => format!("from {}", form.write(key)),
        Bound::Excluded(key) => format!("after {}", form.write(key)),
        Bound::Unbounded => "from the first key".to_owned(),
    };
    let upper = match &loss.upper {
        Bound::Included(key) => format!("up to {}", form.write(key)),
        Bound::Excluded(key) => format!("before {}", form.write(key)),
        Bound::Unbounded => "to the last key".to_owned(),
    };
    format!("{lower} {upper}")
}

fn keyspace_json(keyspace: &SalvagedKeyspace) -> Value {
    let bound = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Included(key) => json!({ "key_hex": Form::Hex.write(key), "included": true }),
        Bound::Excluded(key) => json!({ "key_hex": Form::Hex.write(key), "included": false }),
        Bound::Unbounded => Value::Null,
    };
    let losses = keyspace.losses.iter().map(|loss| {
        json!({
            "from": bound(&loss.lower),
            "to": bound(&loss.upper),
            "cause": finding_json(&loss.cause),
        })
    });
    let (suspect, suspect_entries) = keyspace.suspect.clone().unzip();
    json!({
        "name": keyspace.name,
        "entries": keyspace.entries,
        "suspect_keyspace": suspect,
        "suspect_entries": suspect_entries.unwrap_or(0),
        "losses_total": keyspace.losses_total,
        "losses": losses.collect::<Vec<Value>>(),
    })
}
