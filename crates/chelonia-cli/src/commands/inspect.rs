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
enum Statistic {
    Bytes(u64),
    Count(u64),
    Perhaps(Option<u64>),
    Nanos(u64),
    Ratio(f64),
    Flag(bool),
    Word(String),
}

impl Statistic {
    fn text(&self) -> String {
        match self {
            Statistic::Bytes(number) => bytes(*number),
            Statistic::Count(number) => grouped(*number),
            Statistic::Perhaps(number) => number.map_or_else(|| "none".to_owned(), grouped),
            Statistic::Nanos(number) => format!("{:.3} s", *number as f64 / 1e9),
            Statistic::Ratio(number) => format!("{number:.2}"),
            Statistic::Flag(true) => "yes".to_owned(),
            Statistic::Flag(false) => "no".to_owned(),
            Statistic::Word(word) => word.clone(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Statistic::Bytes(number) | Statistic::Count(number) | Statistic::Nanos(number) => {
                json!(number)
            }
            Statistic::Perhaps(number) => json!(number),
            Statistic::Ratio(number) => json!(number),
            Statistic::Flag(flag) => json!(flag),
            Statistic::Word(word) => json!(word),
        }
    }
}

/// Named values under one heading.
type Section = Vec<(&'static str, Statistic)>;

/// `stats`
pub fn stats(arguments: &Inspect) -> Result<()> {
    let database = open(&arguments.place, Purpose::Read)?;
    let stats = database.stats();
    let sections = sections(&stats);
    let mut out = output();
    if arguments.json {
        let mut all: Map<String, Value> =
            sections.iter().map(|(name, section)| ((*name).to_owned(), object(section))).collect();
        let keyspaces: Vec<Value> = stats.keyspaces.iter().map(keyspace_object).collect();
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
        let mut events = events(keyspace);
        events.retain(|(_, statistic)| !matches!(statistic, Statistic::Count(0)));
        if !events.is_empty() {
            writeln!(out, "  events, since this open")?;
            table(&events).write(&mut out, "    ")?;
        }
    }
    Ok(out.flush()?)
}

/// A keyspace, with its events in an object of their own: an event may be named as a statistic.
fn keyspace_object(keyspace: &KeyspaceStats) -> Value {
    let mut all = object(&of_keyspace(keyspace));
    all["events"] = object(&events(keyspace));
    all
}

fn object(section: &[(&'static str, Statistic)]) -> Value {
    section.iter().map(|(name, statistic)| ((*name).to_owned(), statistic.json())).collect()
}

fn table(section: &[(&'static str, Statistic)]) -> Table {
    let mut table = Table::new(&[Align::Left, Align::Right]);
    for (name, statistic) in section {
        // The text of a time contains its unit.
        let name = name.strip_suffix("_nanos").unwrap_or(name);
        table.row([name.replace('_', " "), statistic.text()]);
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
        ("data_file_bytes", Statistic::Bytes(disk.data_file_bytes)),
        ("data_used_bytes", Statistic::Bytes(disk.data_used_bytes)),
        ("data_allocated_bytes", Statistic::Bytes(disk.data_allocated_bytes)),
        ("scratch_bytes", Statistic::Bytes(disk.scratch_bytes)),
        ("retained_bytes", Statistic::Bytes(disk.retained_bytes)),
        ("orphaned_bytes", Statistic::Bytes(disk.orphaned_bytes)),
        ("log_file_bytes", Statistic::Bytes(disk.log_file_bytes)),
    ]
}

fn memory(stats: &Stats) -> Section {
    let memory = &stats.memory;
    vec![
        ("budget_bytes", Statistic::Bytes(memory.budget_bytes)),
        ("used_bytes", Statistic::Bytes(memory.used_bytes)),
        ("held_bytes", Statistic::Bytes(memory.held_bytes)),
        ("memtable_bytes", Statistic::Bytes(memory.memtable_bytes)),
        ("cache_bytes", Statistic::Bytes(memory.cache_bytes)),
        ("record_bytes", Statistic::Bytes(memory.record_bytes)),
        ("work_bytes", Statistic::Bytes(memory.work_bytes)),
        ("metadata_bytes", Statistic::Bytes(memory.metadata_bytes)),
        ("log_bytes", Statistic::Bytes(memory.log_bytes)),
    ]
}

fn io(stats: &Stats) -> Section {
    let io = &stats.io;
    vec![
        ("file_system", Statistic::Word(io.file_system.clone())),
        ("direct", Statistic::Flag(io.direct)),
        ("mapped_log", Statistic::Flag(io.mapped_log)),
        ("data_read_bytes", Statistic::Bytes(io.data_bytes_read)),
        ("data_written_bytes", Statistic::Bytes(io.data_bytes_written)),
        ("log_written_bytes", Statistic::Bytes(io.log_bytes_written)),
        ("data_reads", Statistic::Count(io.data_reads)),
        ("data_writes", Statistic::Count(io.data_writes)),
        ("data_syncs", Statistic::Count(io.data_syncs)),
        ("log_syncs", Statistic::Count(io.log_syncs)),
        ("cached_blocks", Statistic::Count(io.cached_blocks)),
        ("cached_records", Statistic::Count(io.cached_records)),
        ("record_fills", Statistic::Count(io.record_fills)),
        ("record_evictions", Statistic::Count(io.record_evictions)),
        ("cache_misses", Statistic::Count(io.cache_misses)),
    ]
}

fn commits(stats: &Stats) -> Section {
    let commits = &stats.commits;
    vec![
        ("commits", Statistic::Count(commits.commits)),
        ("entries", Statistic::Count(commits.entries)),
        ("user_bytes", Statistic::Bytes(commits.user_bytes)),
        ("delayed", Statistic::Count(commits.delayed)),
        ("delay_nanos", Statistic::Nanos(commits.delay_nanos)),
        ("delay_nanos_max", Statistic::Nanos(commits.delay_nanos_max)),
        ("would_block", Statistic::Count(commits.would_block)),
        ("conflicts", Statistic::Count(commits.conflicts)),
        ("last_seqno", Statistic::Count(stats.last_seqno)),
        ("write_amplification", Statistic::Ratio(stats.write_amplification)),
    ]
}

fn background(stats: &Stats) -> Section {
    let background = &stats.background;
    vec![
        ("flushes", Statistic::Count(background.flushes)),
        ("checkpoints", Statistic::Count(background.checkpoints)),
        ("jobs_planned", Statistic::Count(background.jobs_planned)),
        ("jobs_installed", Statistic::Count(background.jobs_installed)),
        ("jobs_dropped", Statistic::Count(background.jobs_dropped)),
        ("backlog_bytes", Statistic::Bytes(background.backlog_bytes)),
        ("pins", Statistic::Count(background.pins as u64)),
        ("oldest_pinned_seqno", Statistic::Perhaps(background.oldest_pinned_seqno)),
        ("tombstones_passed", Statistic::Count(stats.scans.tombstones_passed)),
    ]
}

fn scrub(stats: &Stats) -> Section {
    let scrub = &stats.scrub;
    vec![
        ("passes", Statistic::Count(scrub.passes)),
        ("blocks_read", Statistic::Count(scrub.blocks)),
        ("damaged_blocks", Statistic::Count(scrub.damaged_blocks)),
        ("findings", Statistic::Count(scrub.findings.len() as u64)),
    ]
}

fn of_keyspace(stats: &KeyspaceStats) -> Section {
    let tree = &stats.engine_stats;
    vec![
        ("name", Statistic::Word(stats.name.clone())),
        ("engine", Statistic::Word(stats.engine.to_owned())),
        ("compression", Statistic::Word(stats.compression.name().to_owned())),
        ("memtable_bytes", Statistic::Bytes(stats.memtable_bytes)),
        ("checkpoint_distance_bytes", Statistic::Bytes(stats.checkpoint_distance_bytes)),
        ("checkpoint_distance_set_bytes", Statistic::Perhaps(stats.checkpoint_distance_set_bytes)),
        ("flushes", Statistic::Count(stats.flushes)),
        ("flushed_bytes", Statistic::Bytes(stats.flushed_bytes)),
        ("versions_held", Statistic::Count(stats.versions_held as u64)),
        ("maintenance_pending", Statistic::Flag(stats.maintenance_pending)),
        ("debt_bytes", Statistic::Bytes(stats.debt_bytes)),
        ("disk_bytes", Statistic::Bytes(tree.disk_bytes)),
        ("height", Statistic::Count(u64::from(tree.height))),
        ("nodes", Statistic::Count(tree.nodes)),
        ("leaves", Statistic::Count(tree.leaves)),
        ("leaf_bytes", Statistic::Bytes(tree.leaf_bytes)),
        ("buffered_runs", Statistic::Count(tree.buffered_runs)),
        ("buffered_bytes", Statistic::Bytes(tree.buffered_bytes)),
        ("run_written_bytes", Statistic::Bytes(tree.run_bytes_written)),
        ("node_written_bytes", Statistic::Bytes(tree.node_bytes_written)),
        ("merge_read_bytes", Statistic::Bytes(tree.merge_bytes_read)),
    ]
}

fn events(stats: &KeyspaceStats) -> Section {
    let events = stats.engine_stats.events.iter();
    events.map(|(name, count)| (*name, Statistic::Count(*count))).collect()
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
        let printed = sections(&stats).iter().map(|(_, section)| section.len()).sum::<usize>()
            + stats.keyspaces.iter().map(|one| of_keyspace(one).len()).sum::<usize>();
        assert_eq!(printed, named - groups);
        for one in &stats.keyspaces {
            let printed = &keyspace_object(one)["events"];
            let events = &one.engine_stats.events;
            assert_eq!(printed.as_object().map(Map::len), Some(events.len()));
            assert!(events.iter().all(|(name, count)| printed[*name] == json!(count)));
        }
        let oldest = stats.background.oldest_pinned_seqno;
        assert!(oldest.is_some());
        let sections = sections(&stats);
        let (_, background) = sections.iter().find(|(name, _)| *name == "background").unwrap();
        assert_eq!(object(background)["oldest_pinned_seqno"], json!(oldest));
        database.close().unwrap();
    }
}
