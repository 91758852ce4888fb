//! `Database::dump`: the structure on disk, item by item.

use chelonia::{
    Database, DumpItem, DumpVisitor, EngineKind, Error, ErrorKind, KeyspaceOptions, Result,
};

/// Accepts nothing.
struct Full;

impl DumpVisitor for Full {
    fn item(&mut self, _: &DumpItem<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::NoSpace, "full"))
    }
}

/// Counts items by kind.
#[derive(Default)]
struct Kinds(std::collections::BTreeMap<&'static str, usize>);

impl DumpVisitor for Kinds {
    fn item(&mut self, item: &DumpItem<'_>) -> Result<()> {
        *self.0.entry(item.kind).or_default() += 1;
        Ok(())
    }
}

#[test]
fn a_dump_has_the_superblock_and_every_keyspace_and_fails_after_a_close() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("db")).unwrap();
    for (name, engine) in
        [("one", EngineKind::Turtle), ("two", EngineKind::Autumn), ("three", EngineKind::Splinter)]
    {
        let keyspace = database.keyspace(name, KeyspaceOptions::default().engine(engine)).unwrap();
        keyspace.insert("stored", "value").unwrap();
        database.checkpoint().unwrap();
        keyspace.insert("logged", "value").unwrap();
    }
    let mut text = String::new();
    database.dump(&mut text).unwrap();
    assert!(text.starts_with("superblock generation "), "{text}");
    for line in [
        "keyspace id 1, name \"one\", engine turtle",
        "keyspace id 2, name \"two\", engine autumn",
        "keyspace id 3, name \"three\", engine splinter",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(text.matches("memtable keys estimate 1").count(), 1, "{text}");
    let mut kinds = Kinds::default();
    database.dump(&mut kinds).unwrap();
    // Every engine shows its runs.
    let expected =
        ["superblock", "catalog", "log", "keyspace", "memtable", "leaf", "table", "segment"];
    for kind in expected {
        assert!(kinds.0.contains_key(kind), "{kind} in {:?}", kinds.0);
    }
    assert_eq!(text.lines().count(), kinds.0.values().sum());
    let refused = database.dump(&mut Full).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let other = database.clone();
    database.close().unwrap();
    assert_eq!(other.dump(&mut text).unwrap_err().kind(), ErrorKind::Stopped);
}
