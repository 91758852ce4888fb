//! A system that refuses memory although the budget has some left.

use super::open_faulty;
use crate::base::error::ErrorKind;
use crate::storage::io::fault::{Call, Fault};
use crate::storage::io::memory::MemoryDirectory;
use crate::{Database, KeyspaceOptions};

/// Takes all the mapped memory for slabs.
fn exhaust(database: &Database) -> impl Drop + use<> {
    let budget = database.handle.core().storage.budget();
    budget.refuse_memory(true);
    let mut held = Vec::new();
    while let Ok(slab) = budget.take_work_slab() {
        held.push(slab);
    }
    Held(held)
}

struct Held<T>(Vec<T>);

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

#[test]
fn calls_without_memory_fail_and_succeed_once_there_is_memory() {
    let (database, _) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("large", [7; 100_000]).unwrap();
    (0..500_u32).for_each(|key| keyspace.insert(key.to_be_bytes(), [7; 1000]).unwrap());
    for round in 0..3 {
        let held = exhaust(&database);
        let refused = [
            keyspace.insert("key", "value").err(),
            keyspace.remove(7_u32.to_be_bytes()).err(),
            keyspace.insert("key", [1; 100_000]).err(),
            keyspace.get("large").err(),
            database.checkpoint().err(),
        ];
        for (call, error) in refused.iter().enumerate() {
            let kind = error.as_ref().map(|error| error.kind());
            // There may be nothing left to flush.
            let is_idle = call == 4 && round > 0 && kind.is_none();
            assert!(is_idle || kind == Some(ErrorKind::OutOfMemory), "{round} {call}: {error:?}");
        }
        assert_eq!(keyspace.get("key").unwrap().is_some(), round > 0);
        assert!(database.handle.core().health.cause().is_none());
        drop(held);
        // Mapped memory is used, even if no more can be mapped.
        keyspace.insert("key", "value").unwrap();
        assert_eq!(keyspace.get("large").unwrap().unwrap().len(), 100_000);
        database.handle.core().storage.budget().refuse_memory(false);
        database.checkpoint().unwrap();
    }
    assert_eq!(keyspace.iter().count(), 502);
    assert!(database.verify().unwrap().is_clean());
}

#[test]
fn commits_are_refused_before_a_memtable_runs_out_of_memory() {
    let (database, _) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.set_checkpoint_distance(1 << 30).unwrap();
    database.handle.core().storage.budget().refuse_memory(true);
    let mut accepted = 0_u32;
    let error = loop {
        match keyspace.insert(accepted.to_be_bytes(), [1; 2000]) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    let mut batch = database.batch();
    for key in 0..3_000_u32 {
        batch.insert(&keyspace, key.to_le_bytes(), [2; 2000]);
    }
    assert_eq!(batch.commit().unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(keyspace.iter().count(), accepted as usize);
    database.handle.core().storage.budget().refuse_memory(false);
    keyspace.insert("after", "all").unwrap();
    assert_eq!(keyspace.iter().count(), accepted as usize + 1);
}

#[test]
fn large_values_with_a_failed_sync_are_not_durable() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    let keyspace = database.keyspace("default", KeyspaceOptions::default()).unwrap();
    plan.fail(Fault::once(Call::Sync, 0).on("data"));
    keyspace.insert("key", vec![7; 100_000]).unwrap();
    // Two commits wait for the same sync: its failure for the first is no success for the second.
    let core = database.handle.core();
    assert!(core.sync_large_values().is_err());
    assert!(core.sync_large_values().is_err());
    assert!(database.sync().is_err());
}
