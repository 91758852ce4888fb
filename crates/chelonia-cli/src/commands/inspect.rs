//! `stats`, `checkpoint`, `keyspaces`, `drop`: a database or a keyspace at a time.

use super::{Purpose, open};
use crate::arguments::{Checkpoint, Drop, Inspect};
use crate::failure::{Context, Result};
use crate::output::{Align, Table, bytes, grouped, output};
use crate::text::Form;
use chelonia::{KeyspaceStats, Stats};
use serde_json::{Map, Value, json};
use std::io::Write;

/// A value of the statistics, and how it is printed.
#[derive(Debug)]
enum Figure {
    Bytes(u64),
    Count(u64),
    Perhaps(Option<u64>),
    Nanos(u64),
    Ratio(f64),
    Flag(bool),
    Word(String),
}

impl Figure {
    fn text(&self) -> String {
        match self {
            Figure::Bytes(number) => bytes(*number),
            Figure::Count(number) => grouped(*number),
            Figure::Perhaps(number) => number.map_or_else(|| "none".to_owned(), grouped),
            Figure::Nanos(number) => format!("{:.3} s", *number as f64 / 1e9),
            Figure::Ratio(number) => format!("{number:.2}"),
            Figure::Flag(true) => "yes".to_owned(),
            Figure::Flag(false) => "no".to_owned(),
            Figure::Word(word) => word.clone(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Figure::Bytes(number) | Figure::Count(number) | Figure::Nanos(number) => json!(number),
            Figure::Perhaps(number) => json!(number),
            Figure::Ratio(number) => json!(number),
            Figure::Flag(flag) => json!(flag),
            Figure::Word(word) => json!(word),
        }
    }
}

/// Named values under one heading.
type Section = Vec<(&'static str, Figure)>;

/// `stats`
pub fn stats(arguments: &Inspect) -> Result<()> {
    let database = open(&arguments.place, Purpose::Read)?;
    let stats = database.stats();
    let sections = sections(&stats);
    let mut out = output();
    if arguments.json {
        let mut all: Map<String, Value> =
            sections.iter().map(|(name, section)| ((*name).to_owned(), object(section))).collect();
        let keyspaces: Vec<Value> =
            stats.keyspaces.iter().map(|keyspace| object(&of_keyspace(keyspace))).collect();
        all.insert("keyspaces".to_owned(), Value::from(keyspaces));
        writeln!(out, "{}", Value::from(all))?;
        return Ok(out.flush()?);
    }
    for (name, section) in &sections {
        let is_of_this_open = COUNTED.contains(name);
        writeln!(out, "{name}{}", if is_of_this_open { ", since this open" } else { "" })?;
        table(section).write(&mut out, "  ")?;
    }
    for keyspace in &stats.keyspaces {
        // The name may contain control characters, and this may be a terminal.
        writeln!(out, "keyspace {}", Form::Text.write(keyspace.name.as_bytes()))?;
        table(&of_keyspace(keyspace)[1..]).write(&mut out, "  ")?;
    }
    Ok(out.flush()?)
}

fn object(section: &[(&'static str, Figure)]) -> Value {
    section.iter().map(|(name, figure)| ((*name).to_owned(), figure.json())).collect()
}

fn table(section: &[(&'static str, Figure)]) -> Table {
    let mut table = Table::new(&[Align::Left, Align::Right]);
    for (name, figure) in section {
        // The text of a time contains its unit.
        let name = name.strip_suffix("_nanos").unwrap_or(name);
        table.row([name.replace('_', " "), figure.text()]);
    }
    table
}

/// The sections whose counters start with this open.
const COUNTED: [&str; 3] = ["io", "commits", "background"];

fn sections(stats: &Stats) -> Vec<(&'static str, Section)> {
    vec![
        ("disk", disk(stats)),
        ("memory", memory(stats)),
        ("io", io(stats)),
        ("commits", commits(stats)),
        ("background", background(stats)),
        ("scrub", scrub(stats)),
    ]
}

fn disk(stats: &Stats) -> Section {
    let disk = &stats.disk;
    vec![
        ("data_file_bytes", Figure::Bytes(disk.data_file_bytes)),
        ("data_used_bytes", Figure::Bytes(disk.data_used_bytes)),
        ("data_allocated_bytes", Figure::Bytes(disk.data_allocated_bytes)),
        ("scratch_bytes", Figure::Bytes(disk.scratch_bytes)),
        ("retained_bytes", Figure::Bytes(disk.retained_bytes)),
        ("orphaned_bytes", Figure::Bytes(disk.orphaned_bytes)),
        ("log_file_bytes", Figure::Bytes(disk.log_file_bytes)),
    ]
}

fn memory(stats: &Stats) -> Section {
    let memory = &stats.memory;
    vec![
        ("budget_bytes", Figure::Bytes(memory.budget_bytes)),
        ("used_bytes", Figure::Bytes(memory.used_bytes)),
        ("held_bytes", Figure::Bytes(memory.held_bytes)),
        ("memtable_bytes", Figure::Bytes(memory.memtable_bytes)),
        ("cache_bytes", Figure::Bytes(memory.cache_bytes)),
        ("record_bytes", Figure::Bytes(memory.record_bytes)),
        ("work_bytes", Figure::Bytes(memory.work_bytes)),
        ("metadata_bytes", Figure::Bytes(memory.metadata_bytes)),
        ("log_bytes", Figure::Bytes(memory.log_bytes)),
    ]
}

fn io(stats: &Stats) -> Section {
    let io = &stats.io;
    vec![
        ("file_system", Figure::Word(io.file_system.clone())),
        ("direct", Figure::Flag(io.direct)),
        ("mapped_log", Figure::Flag(io.mapped_log)),
        ("data_read_bytes", Figure::Bytes(io.data_bytes_read)),
        ("data_written_bytes", Figure::Bytes(io.data_bytes_written)),
        ("log_written_bytes", Figure::Bytes(io.log_bytes_written)),
        ("data_reads", Figure::Count(io.data_reads)),
        ("data_writes", Figure::Count(io.data_writes)),
        ("data_syncs", Figure::Count(io.data_syncs)),
        ("log_syncs", Figure::Count(io.log_syncs)),
        ("cached_blocks", Figure::Count(io.cached_blocks)),
        ("cached_records", Figure::Count(io.cached_records)),
        ("record_fills", Figure::Count(io.record_fills)),
        ("record_evictions", Figure::Count(io.record_evictions)),
        ("cache_misses", Figure::Count(io.cache_misses)),
    ]
}

fn commits(stats: &Stats) -> Section {
    let commits = &stats.commits;
    vec![
        ("commits", Figure::Count(commits.commits)),
        ("entries", Figure::Count(commits.entries)),
        ("user_bytes", Figure::Bytes(commits.user_bytes)),
        ("delayed", Figure::Count(commits.delayed)),
        ("delay_nanos", Figure::Nanos(commits.delay_nanos)),
        ("delay_nanos_max", Figure::Nanos(commits.delay_nanos_max)),
        ("would_block", Figure::Count(commits.would_block)),
        ("last_seqno", Figure::Count(stats.last_seqno)),
        ("write_amplification", Figure::Ratio(stats.write_amplification)),
    ]
}

fn background(stats: &Stats) -> Section {
    let background = &stats.background;
    vec![
        ("flushes", Figure::Count(background.flushes)),
        ("checkpoints", Figure::Count(background.checkpoints)),
        ("backlog_bytes", Figure::Bytes(background.backlog_bytes)),
        ("pins", Figure::Count(background.pins as u64)),
        ("oldest_pinned_seqno", Figure::Perhaps(background.oldest_pinned_seqno)),
        ("tombstones_passed", Figure::Count(stats.scans.tombstones_passed)),
    ]
}

fn scrub(stats: &Stats) -> Section {
    let scrub = &stats.scrub;
    vec![
        ("passes", Figure::Count(scrub.passes)),
        ("blocks_read", Figure::Count(scrub.blocks)),
        ("damaged_blocks", Figure::Count(scrub.damaged_blocks)),
        ("findings", Figure::Count(scrub.findings.len() as u64)),
    ]
}

fn of_keyspace(stats: &KeyspaceStats) -> Section {
    let tree = &stats.engine_stats;
    let mut section = vec![
        ("name", Figure::Word(stats.name.clone())),
        ("engine", Figure::Word(stats.engine.to_owned())),
        ("memtable_bytes", Figure::Bytes(stats.memtable_bytes)),
        ("checkpoint_distance_bytes", Figure::Bytes(stats.checkpoint_distance_bytes)),
        ("versions_held", Figure::Count(stats.versions_held as u64)),
        ("maintenance_pending", Figure::Flag(stats.maintenance_pending)),
        ("debt_bytes", Figure::Bytes(stats.debt_bytes)),
        ("disk_bytes", Figure::Bytes(tree.disk_bytes)),
        ("height", Figure::Count(u64::from(tree.height))),
        ("nodes", Figure::Count(tree.nodes)),
        ("leaves", Figure::Count(tree.leaves)),
        ("leaf_bytes", Figure::Bytes(tree.leaf_bytes)),
        ("buffered_runs", Figure::Count(tree.buffered_runs)),
        ("buffered_bytes", Figure::Bytes(tree.buffered_bytes)),
        ("run_written_bytes", Figure::Bytes(tree.run_bytes_written)),
        ("node_written_bytes", Figure::Bytes(tree.node_bytes_written)),
        ("merge_read_bytes", Figure::Bytes(tree.merge_bytes_read)),
    ];
    section.extend(tree.events.iter().map(|(name, count)| (*name, Figure::Count(*count))));
    section
}

/// `checkpoint`
pub fn checkpoint(arguments: &Checkpoint) -> Result<()> {
    let database = open(&arguments.place, Purpose::Write)?;
    database.checkpoint()?;
    Ok(database.close()?)
}

/// `drop`
pub fn drop(arguments: &Drop) -> Result<()> {
    let database = open(&arguments.place, Purpose::Write)?;
    database
        .drop_keyspace(&arguments.keyspace)
        .context(arguments.place.path.display().to_string())?;
    Ok(database.close()?)
}

/// `keyspaces`
pub fn keyspaces(arguments: &Inspect) -> Result<()> {
    let database = open(&arguments.place, Purpose::Read)?;
    let mut out = output();
    for keyspace in database.stats().keyspaces {
        if arguments.json {
            let object = json!({ "keyspace": keyspace.name, "engine": keyspace.engine });
            writeln!(out, "{object}")?;
        } else {
            writeln!(out, "{}", Form::Text.write(keyspace.name.as_bytes()))?;
        }
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chelonia::{Database, KeyspaceOptions};

    #[test]
    fn every_public_statistic_is_printed() {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::open(directory.path().join("db")).unwrap();
        for name in ["a", "b"] {
            let keyspace = database.keyspace(name, KeyspaceOptions::default()).unwrap();
            keyspace.insert("key", "value").unwrap();
        }
        let _pin = database.snapshot();
        let stats = database.stats();
        // New fields of the structs are found in their debug output: `name: value`.
        let named = format!("{stats:?}").matches(": ").count();
        let groups =
            ["memory", "io", "disk", "commits", "scans", "background", "scrub", "keyspaces"].len()
                + ["engine_stats", "events"].len() * stats.keyspaces.len();
        let events: usize = stats.keyspaces.iter().map(|one| one.engine_stats.events.len()).sum();
        let printed = sections(&stats).iter().map(|(_, section)| section.len()).sum::<usize>()
            + stats.keyspaces.iter().map(|one| of_keyspace(one).len()).sum::<usize>();
        assert_eq!(printed, named - groups + events);
        let oldest = stats.background.oldest_pinned_seqno;
        assert!(oldest.is_some());
        let sections = sections(&stats);
        let (_, background) = sections.iter().find(|(name, _)| *name == "background").unwrap();
        assert_eq!(object(background)["oldest_pinned_seqno"], json!(oldest));
        database.close().unwrap();
    }
}
