//! Flushes of idle memtables when writes cease and reads continue.

use super::{open, rotate};
use crate::flush::background::LogProgress;
use crate::runtime::sync::Arc;
use crate::storage::io::memory::MemoryDirectory;
use crate::{Database, Keyspace, KeyspaceOptions};

/// Number of records, of about one block each.
const RECORDS: u32 = 20_000;
const CHANGED: u32 = 1_200;

/// A database that is largely not in memory, with a partly filled memtable.
fn half_in_memory() -> (Database, Keyspace) {
    let database = open(Arc::new(MemoryDirectory::new()));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..RECORDS {
        keyspace.insert(number.to_be_bytes(), [1; 4000]).unwrap();
    }
    rotate(&database, &keyspace);
    database.handle.core().flush_all_immutable().unwrap();
    for number in 0..CHANGED {
        keyspace.insert(number.to_be_bytes(), [2; 4000]).unwrap();
    }
    (database, keyspace)
}

/// Reads the least recently read entries, and advances time.
fn read_and_tick(database: &Database, keyspace: &Keyspace, progress: &mut LogProgress, tick: u32) {
    for number in 1000 * tick..1000 * (tick + 1) {
        let number = CHANGED + number % (RECORDS - CHANGED);
        assert!(keyspace.get(number.to_be_bytes()).unwrap().is_some());
    }
    database.handle.core().log_tick(progress).unwrap();
}

#[test]
fn a_write_idle_memtable_is_flushed_while_others_read() {
    let (database, keyspace) = half_in_memory();
    let waiting = keyspace.core.memtable_bytes();
    assert!(waiting.0 > 4_000_000 && waiting.1 == 0, "{waiting:?}");
    let mut progress = LogProgress::default();
    // Occasional writes: not idle.
    for tick in 0..15_u32 {
        for number in 0..20 {
            keyspace.insert((tick * 20 + number).to_be_bytes(), [3; 400]).unwrap();
        }
        read_and_tick(&database, &keyspace, &mut progress, tick);
    }
    assert_eq!(keyspace.core.memtable_bytes().1, 0, "more may come");
    // No reads: no flush.
    (0..15).for_each(|_| database.handle.core().log_tick(&mut progress).unwrap());
    assert_eq!(keyspace.core.memtable_bytes().1, 0, "nobody reads");
    (15..30).for_each(|tick| read_and_tick(&database, &keyspace, &mut progress, tick));
    let (active, immutable) = keyspace.core.memtable_bytes();
    assert!(active == 0 && immutable > 4_000_000, "{active} and {immutable}");
    database.handle.core().flush_all_immutable().unwrap();
    assert_eq!(keyspace.core.memtable_bytes(), (0, 0));
    for number in 0..CHANGED {
        let value = keyspace.get(number.to_be_bytes()).unwrap().unwrap();
        assert!(if number < 300 { *value == [3; 400] } else { *value == [2; 4000] }, "{number}");
    }
}
