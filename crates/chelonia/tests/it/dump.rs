//! `Database::dump`: the structure on disk as text.

use chelonia::{Database, EngineKind, ErrorKind, KeyspaceOptions};
use std::fmt;

/// Accepts nothing.
struct Full;

impl fmt::Write for Full {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Err(fmt::Error)
    }
}

#[test]
fn a_dump_has_the_superblock_and_every_keyspace_and_fails_after_a_close() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("db")).unwrap();
    for (name, engine) in [("one", EngineKind::Turtle), ("two", EngineKind::Autumn)] {
        let keyspace = database.keyspace(name, KeyspaceOptions::default().engine(engine)).unwrap();
        keyspace.insert("stored", "value").unwrap();
        database.checkpoint().unwrap();
        keyspace.insert("logged", "value").unwrap();
    }
    let mut text = String::new();
    database.dump(&mut text).unwrap();
    assert!(text.starts_with("superblock generation "), "{text}");
    for line in ["keyspace 1 \"one\": engine turtle", "keyspace 2 \"two\": engine autumn"] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(text.matches("in the log only: about 1 keys").count(), 1, "{text}");
    let refused = database.dump(&mut Full).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let other = database.clone();
    database.close().unwrap();
    assert_eq!(other.dump(&mut text).unwrap_err().kind(), ErrorKind::Stopped);
}
