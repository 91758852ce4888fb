//! The page on events has the names that the engines count by.

use chelonia::internals::MemoryDirectory;
use chelonia::{Database, EngineKind, KeyspaceOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/engines/events.md"));

/// The cells of a row.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn the_page_names_all_events_of_each_engine() {
    let mut rows = PAGE.lines().filter(|line| line.starts_with('|')).map(cells);
    let engines = rows.next().unwrap();
    let rows: Vec<_> = rows.skip(1).collect();
    let database = Database::builder("memory")
        .memory(48 << 20)
        .internals(|internals| internals.directory = Some(Arc::new(MemoryDirectory::new())))
        .open()
        .unwrap();
    for engine in EngineKind::ALL {
        let column = engines.iter().position(|name| *name == engine.name()).unwrap();
        let marked = rows.iter().filter(|row| row[column] == "x");
        let documented: BTreeSet<_> = marked.map(|row| row[0].trim_matches('`')).collect();
        let options = KeyspaceOptions::new().engine(engine);
        drop(database.keyspace(engine.name(), options).unwrap());
        let stats = database.stats();
        let keyspace = stats.keyspaces.iter().find(|it| it.name == engine.name()).unwrap();
        let counted = keyspace.engine_stats.events.iter().map(|(name, _)| *name);
        assert_eq!(documented, counted.collect(), "{}", engine.name());
    }
}
