//! Disk headroom: the space that puts leave for the memtables to be flushed.

use crate::KeyspaceOptions;
use crate::disk_full::accept::FLUSH_TIMES;
use crate::storage::io::memory::MemoryDirectory;
use crate::tests::open_faulty;

#[test]
fn flushed_memtables_held_by_readers_hide_no_lack_of_space() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    plan.set_capacity(Some(22 << 20));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let insert = |number: u64| {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        keyspace.insert(key, [7; 1000])
    };
    let reader = database.handle.storage.epochs().pin();
    (0..4_000).for_each(|number| insert(number).unwrap());
    database.checkpoint().unwrap();
    // The check sees more memtables than those that are to be flushed.
    insert(4_000).unwrap();
    drop(reader);
    database.handle.storage.epochs().settle();
    let core = &database.handle;
    let accepted = (4_001..).take_while(|number| insert(*number).is_ok()).inspect(|number| {
        let (updates, room) = (core.update_bytes(), core.pool_bytes().unwrap());
        assert!(updates * FLUSH_TIMES <= room, "after {number}: {updates} in {room}");
    });
    assert!(accepted.count() > 500);
    database.checkpoint().unwrap();
}

#[test]
fn large_values_reduce_headroom() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    plan.set_capacity(Some(40 << 20));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    (0..2_000_u32).for_each(|key| keyspace.insert(key.to_be_bytes(), [7; 1000]).unwrap());
    let core = &database.handle;
    let mut count = 0_u32;
    while keyspace.insert(count.to_le_bytes(), vec![7; 100_000]).is_ok() {
        count += 1;
        let (updates, room) = (core.update_bytes(), core.pool_bytes().unwrap());
        assert!(updates * FLUSH_TIMES <= room, "after {count}: {updates} in {room}");
    }
    assert!(count > 100);
    database.checkpoint().unwrap();
}
