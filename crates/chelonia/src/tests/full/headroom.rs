//! Disk headroom: the space that puts leave for the memtables to be flushed.

use crate::KeyspaceOptions;
use crate::disk_full::accept::SpaceNeeds;
use crate::engine::WriteBudget;
use crate::options::commit::Deadline;
use crate::runtime::sync::Arc;
use crate::storage::io::fault::{FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::tests::open_faulty;
use crate::{CommitOptions, Database};
use std::time::Duration;

/// The factor of the engine that keyspaces have by default.
const FLUSH_TIMES: u64 = 3;

#[test]
fn flushed_memtables_held_by_readers_hide_no_lack_of_space() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    plan.set_capacity(Some(22 << 20));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let insert = |number: u64| {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        keyspace.insert(key, [7; 1000])
    };
    let reader = database.handle.core().storage.epochs().pin();
    (0..4_000).for_each(|number| insert(number).unwrap());
    database.checkpoint().unwrap();
    // The check sees more memtables than those that are to be flushed.
    insert(4_000).unwrap();
    drop(reader);
    database.handle.core().storage.epochs().settle();
    let core = database.handle.core();
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
    let core = database.handle.core();
    let mut count = 0_u32;
    while keyspace.insert(count.to_le_bytes(), vec![7; 100_000]).is_ok() {
        count += 1;
        let (updates, room) = (core.update_bytes(), core.pool_bytes().unwrap());
        assert!(updates * FLUSH_TIMES <= room, "after {count}: {updates} in {room}");
    }
    assert!(count > 100);
    database.checkpoint().unwrap();
}

/// A merge begins, then puts are accepted, then the merge takes all that it may, and a snapshot
/// retains what it replaces.
#[test]
fn work_that_began_before_puts_leaves_the_space_to_flush_them() {
    for value_bytes in [1_000, 100_000] {
        let (database, plan) = open_faulty(&MemoryDirectory::new());
        plan.set_capacity(Some(40 << 20));
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        let insert = |number: u64, bytes| keyspace.insert(number.to_be_bytes(), vec![7; bytes]);
        (0..1_000).for_each(|number| insert(number, 1_000).unwrap());
        database.checkpoint().unwrap();
        let core = database.handle.core();
        insert(1_000, 1_000).unwrap();
        let quota = core.quota_beside_flushes(0);
        (0..2_000).for_each(|number| insert(number, 1_000).unwrap());
        (0..4_000_000 / value_bytes).for_each(|number| insert(number as u64, value_bytes).unwrap());
        while core.storage.allocate(16, &quota).is_ok() {}
        drop(quota);
        let (needed, left) = (core.minimal_flush_bytes(0), core.pool_bytes());
        assert!(needed <= left.unwrap(), "{needed} of {left:?}");
        database.checkpoint().unwrap();
    }
}

/// Accepted writes claim their space once, however often commits look for space.
#[test]
fn commits_that_look_for_space_again_leave_a_merge_its_quota() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    plan.set_capacity(Some(400 << 20));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", "value").unwrap();
    let core = database.handle.core();
    let quota = core.quota_beside_flushes(0);
    for _ in 0..20 {
        // As another quota or a flush does.
        drop(core.quota_beside_flushes(0));
        keyspace.insert("key", "value").unwrap();
    }
    let left = (0..).take_while(|_| core.storage.allocate(256, &quota).is_ok()).count() << 20;
    assert!(left > 200 << 20, "{left} bytes");
}

/// A commit passes the check of space and waits; meanwhile a merge begins, which takes all that it
/// may.
#[test]
fn a_commit_that_waited_leaves_the_space_to_flush_it() {
    let plan = FaultPlan::new();
    let faulty = FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan.clone()).unwrap();
    let database = Database::builder("memory").memory(64 << 20).in_directory(Arc::new(faulty));
    let database = database.open().unwrap();
    plan.set_capacity(Some(100 << 20));
    let options = KeyspaceOptions::new().checkpoint_distance(100_000);
    let keyspace = database.keyspace("k", options).unwrap();
    let core = database.handle.core();
    // The log has segments for what comes.
    (0..6_000_u32).for_each(|key| keyspace.insert(key.to_be_bytes(), [7; 1000]).unwrap());
    database.checkpoint().unwrap();
    let flush = keyspace.core.flush.lock();
    // Longer than any delay of a paced commit.
    let patient = CommitOptions::new().timeout(Duration::from_millis(100));
    let inserts = (0_u32..).map(|key| keyspace.insert_with(key.to_be_bytes(), [7; 1000], patient));
    assert_eq!(inserts.take_while(Result::is_ok).count(), 300);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut batch = database.batch();
            (0..700_u32).for_each(|key| {
                batch.insert(&keyspace, key.to_le_bytes(), [7; 1000]);
            });
            // Nothing is flushed: the commit is refused when its time is over.
            batch.commit_with(CommitOptions::new().timeout(Duration::from_secs(2)))
        });
        while !core.pacer.is_waited_for() {
            std::thread::yield_now();
        }
        let quota = core.quota_beside_flushes(0);
        while core.storage.allocate(16, &quota).is_ok() {}
        drop(quota);
        // The distance does not hold the commit any more.
        keyspace.reset_checkpoint_distance().unwrap();
        let refused = writer.join().unwrap().err();
        let (needed, left) = (core.minimal_flush_bytes(0), core.pool_bytes());
        assert!(needed <= left.unwrap(), "{needed} of {left:?}, refused: {refused:?}");
    });
    drop(flush);
    database.checkpoint().unwrap();
}

/// On a full device nothing is known to suffice, before and after a quota begins.
#[test]
fn a_delete_that_waited_claims_its_space_of_work_that_began() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    plan.set_capacity(Some(22 << 20));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let inserts = (0_u32..).map(|key| keyspace.insert(key.to_be_bytes(), [7; 1000]));
    assert!(inserts.take_while(Result::is_ok).count() > 1_000);
    let core = database.handle.core();
    // More than a put could have.
    let needs = SpaceNeeds { update_bytes: 1 << 20, counted_bytes: 0, large_bytes: 0 };
    let deadline = Deadline::after(None, &core.clock);
    core.headroom.forget();
    let known = core.check_disk(needs, || true, deadline).unwrap();
    assert_eq!(known.enough_until, 0);
    let quota = core.storage.begin_quota(core.claimed()).limited(1 << 20);
    core.headroom.forget();
    let _pending = core.accept_on_disk(known, needs, || true, deadline).unwrap();
    assert!(core.storage.allocate(1, &quota).is_err(), "all of it is claimed");
}

/// A database uses the largest factor of its engines for updates that are in no memtable yet, from
/// the moment on from which it has such a keyspace.
#[test]
fn updates_in_no_memtable_need_space_as_for_the_most_demanding_engine() {
    let (database, plan) = open_faulty(&MemoryDirectory::new());
    plan.set_capacity(Some(40 << 20));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    (0..100_u32).for_each(|key| keyspace.insert(key.to_be_bytes(), [7; 1000]).unwrap());
    let core = database.handle.core();
    let (usual, minimal) = (WriteBudget::Usual, WriteBudget::Minimal);
    let (updates, claimed) = (core.update_bytes(), core.claimed());
    assert!(updates > 100_000);
    assert_eq!(core.flush_bytes(usual, 10), FLUSH_TIMES * (updates + 10));
    assert_eq!(claimed, (FLUSH_TIMES + 1) * core.logged_bytes());
    assert!(core.headroom.known().enough_until > 0);
    assert!(core.headroom.factors.set(6, 4, core.logged_bytes()));
    assert_eq!(core.flush_bytes(usual, 10), FLUSH_TIMES * updates + 60);
    assert_eq!(core.flush_bytes(minimal, 10), 2 * updates + 40);
    assert_eq!(core.claimed(), claimed);
    let before = core.logged_bytes();
    keyspace.insert("key", [7; 1000]).unwrap();
    assert_eq!(core.claimed(), claimed + 7 * (core.logged_bytes() - before));
    // The set of keyspaces changes.
    database.keyspace("other", KeyspaceOptions::new()).unwrap();
    let factors = || [core.headroom.factors.usual(), core.headroom.factors.minimal()];
    assert_eq!(factors(), [3, 2]);
    ["k", "other"].into_iter().for_each(|name| database.drop_keyspace(name).unwrap());
    assert_eq!(factors(), [1, 1]);
    assert!(core.headroom.known().enough_until > 0);
    database.keyspace("new", KeyspaceOptions::new()).unwrap();
    assert_eq!((factors(), core.headroom.known().enough_until), ([3, 2], 0));
}
