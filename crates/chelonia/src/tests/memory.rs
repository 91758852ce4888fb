//! Freed memory: of a closed database, and after the budget was lowered.

use super::open;
use crate::base::error::ErrorKind;
use crate::engine::EngineKind;
use crate::runtime::sync::Arc;
use crate::storage::io::memory::MemoryDirectory;
use crate::{Database, Keyspace, KeyspaceOptions};

fn filled(database: &Database, engine: EngineKind, records: u32) -> Keyspace {
    let name = format!("{engine:?}");
    let keyspace = database.keyspace(&name, KeyspaceOptions::new().engine(engine)).unwrap();
    for number in 0..records {
        keyspace.insert(number.to_be_bytes(), [1; 1_000]).unwrap();
    }
    keyspace
}

#[test]
fn a_closed_database_retains_no_memory_for_its_handles() {
    let database = open(Arc::new(MemoryDirectory::new()));
    let keyspaces = EngineKind::ALL.map(|engine| filled(&database, engine, 10_000));
    database.checkpoint().unwrap();
    for keyspace in &keyspaces {
        assert_eq!(keyspace.iter().filter(|entry| entry.is_ok()).count(), 10_000);
        assert!((0..10_000_u32).all(|key| keyspace.get(key.to_be_bytes()).unwrap().is_some()));
    }
    let budget = Arc::clone(database.handle.core().storage.budget());
    assert!(budget.held() > 8 << 20, "{} bytes before", budget.held());
    let iterator = keyspaces[0].iter();
    database.close().unwrap();
    assert!(budget.held() < 1 << 20, "{} bytes after", budget.held());
    drop(iterator);
    assert_eq!(keyspaces[1].get("k").unwrap_err().kind(), ErrorKind::Stopped);
}

#[test]
fn an_idle_database_returns_memory_when_its_budget_is_lowered() {
    let database = open(Arc::new(MemoryDirectory::new()));
    database.set_memory(512 << 20).unwrap();
    let keyspace = filled(&database, EngineKind::Turtle, 100_000);
    let memtables = || database.stats().memory.memtable_bytes;
    assert!(memtables() > 64 << 20, "{} bytes of memtables", memtables());
    database.set_memory(32 << 20).unwrap();
    // The background does this without a request.
    database.handle.core().flush_all_immutable().unwrap();
    assert!(memtables() < 16 << 20, "{} bytes of memtables", memtables());
    assert!(database.handle.core().storage.budget().held() <= 32 << 20);
    assert_eq!(keyspace.iter().filter(|entry| entry.is_ok()).count(), 100_000);
}

#[test]
fn the_read_ahead_of_all_iterators_is_bounded() {
    const ITERATORS: u32 = 2_000;
    let database = open(Arc::new(MemoryDirectory::new()));
    for engine in EngineKind::ALL {
        let keyspace = filled(&database, engine, 20_000);
        database.checkpoint().unwrap();
        let first = |number: u32| number * 7 % 10_000;
        let mut iterators: Vec<_> =
            (0..ITERATORS).map(|it| keyspace.range(first(it).to_be_bytes()..)).collect();
        let mut most = 0;
        for round in 0..20 {
            for (number, iterator) in (0..).zip(&mut iterators) {
                let (front, back) = (iterator.next().unwrap(), iterator.next_back().unwrap());
                assert_eq!(*front.unwrap().0, (first(number) + round).to_be_bytes());
                assert_eq!(*back.unwrap().0, (19_999 - round).to_be_bytes());
                most = most.max(database.stats().memory.work_bytes);
            }
            if round == 10 {
                database.drop_keyspace(keyspace.name()).unwrap();
            }
        }
        let limit = database.stats().memory.budget_bytes / 4 + (1 << 20);
        assert!(most <= limit, "{engine:?}: {most} bytes of open cursors, not {limit}");
    }
}
