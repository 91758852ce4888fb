//! Tests of read costs: flushes without updates, and blocks that stay cached.

use super::{World, tiny};
use crate::base::checksum::KeyHash;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::NewValues;
use crate::engine::tests::world::check_scans;
use crate::engine::tests::{key_of, uniform, value};
use crate::engine::{Engine, Work};
use crate::engines::turtle::TurtleConfig;
use crate::runtime::rng::Rng;
use crate::storage::cache::Presence;
use crate::storage::io::fault::{Call, Fault};
use crate::storage::quota::UNLIMITED;
use std::ops::Bound;

/// Returns a tree with much data in its buffers.
fn buffered(rng: &mut Rng) -> World {
    let options = TurtleConfig { pivots_max: 16, flush_percent: 400, ..tiny() };
    let mut world = World::new(options, 2);
    for _ in 0..30 {
        world.absorb(uniform(rng, 150));
    }
    assert!(world.tree.stats().buffered_bytes > 20_000, "{:?}", world.tree.stats());
    world
}

#[test]
fn what_reads_pay_for_goes_down_and_nothing_else_does() {
    let mut rng = Rng::new(15);
    let mut world = buffered(&mut rng);
    assert!(!world.tree.wants_maintenance());
    assert_eq!(world.maintain(), 0);
    let before = world.tree.stats();
    // Scans of the upper half of the keys.
    let middle = vec![0x80];
    let range = KeyRange { lower: Bound::Included(middle), upper: Bound::Unbounded };
    let mut rounds = 0;
    while world.event("read_flushes") == 0 || world.tree.wants_maintenance() {
        rounds += 1;
        assert!(rounds < 1_000, "reads pay and nothing is flushed");
        for _ in 0..20 {
            let version = world.tree.version();
            let mut cursor = version.cursor(range.clone(), Direction::Ascending).unwrap();
            while cursor.key().is_some() {
                cursor.advance().unwrap();
            }
        }
        world.maintain();
    }
    let after = world.tree.stats();
    let left = after.buffered_bytes * 100 / before.buffered_bytes;
    assert!((30..70).contains(&left), "{left}% of the buffers are left");
    world.check(&mut rng);
    // Lookups are charged, too, if many filters are checked.
    let version = world.tree.version();
    for (key, _) in world.model.clone() {
        for _ in 0..300 {
            let hash = KeyHash(rng.next_u64());
            let _ = version.get(&key, hash).unwrap();
        }
    }
    assert!(world.tree.wants_maintenance());
    assert!(world.maintain() > 0);
    assert!(world.tree.stats().buffered_bytes < after.buffered_bytes / 2);
    world.check(&mut rng);
}

#[test]
fn reads_pay_less_while_no_updates_are_expected() {
    let gets_until_due = |expected: bool| {
        let mut rng = Rng::new(15);
        let options = TurtleConfig { leaf_bytes: 256 << 10, flush_percent: 400, ..tiny() };
        let mut world = World::new(options, 1);
        world.absorb((0..2000).map(|n| (key_of(n), value(&mut rng, 92))).collect());
        world.absorb((0..200).map(|n| (key_of(10 * n), value(&mut rng, 92))).collect());
        assert!(world.tree.stats().buffered_bytes > 0);
        world.tree.expect_updates(expected);
        let version = world.tree.version();
        let key = key_of(0);
        (1..1_000_000).find(|_| {
            // Filter checks that exclude the key are charged to one of many lookups.
            let _ = version.get(&key, KeyHash(rng.next_u64())).unwrap();
            world.tree.wants_maintenance()
        })
    };
    let (usual, idle) = (gets_until_due(true).unwrap(), gets_until_due(false).unwrap());
    assert!((6..=10).contains(&(usual / idle)), "{usual} gets, or {idle}");
}

#[test]
fn merges_copy_what_is_cached_and_read_the_rest() {
    let mut rng = Rng::new(21);
    let options = TurtleConfig { leaf_bytes: 256 << 10, flush_percent: 20, ..tiny() };
    let mut world = World::new(options, 1);
    let entries = |rng: &mut Rng| (0..2000).map(|n| (key_of(2 * n), value(rng, 92))).collect();
    world.absorb(entries(&mut rng));
    let read_by_merges = |world: &World| world.tree.stats().merge_bytes_read;
    for cached in [0..0, 700..800, 0..2000] {
        world.reopen();
        let version = world.tree.version();
        // Once is enough unless other tests keep frames in use.
        let missed = || world.storage.stats().cache.misses;
        let read_all = || {
            let before = missed();
            for number in cached.clone() {
                let key = key_of(2 * number);
                assert!(version.get(&key, world.storage.key_hash(&key)).unwrap().found.is_some());
            }
            missed() == before
        };
        assert!((0..1_000).any(|_| read_all()));
        drop(version);
        let disk = world.tree.stats().disk_bytes;
        let before = read_by_merges(&world);
        world.absorb(entries(&mut rng));
        let read = read_by_merges(&world) - before;
        match cached.count() {
            0 => assert!(read > disk / 2, "{read} bytes of {disk}"),
            100 => assert!((disk / 8..disk * 3 / 4).contains(&read), "{read} bytes of {disk}"),
            _ => assert_eq!(read, 0, "all of it was there"),
        }
        world.check(&mut rng);
    }
}

#[test]
fn maintenance_that_fails_changes_nothing() {
    let mut rng = Rng::new(16);
    let mut world = buffered(&mut rng);
    let wants = (0..1_000).any(|_| {
        check_scans(&world.tree.version(), &world.model);
        world.tree.wants_maintenance()
    });
    assert!(wants, "reads pay and nothing is due");
    let (stats, used) = (world.tree.stats(), world.storage.stats().space.used_blocks);
    world.faults.fail(Fault::sticky(Call::Write, 0));
    let work = Work {
        workers: &world.workers,
        progress: &|_| {},
        quota: &UNLIMITED,
        values: NewValues::Plain,
    };
    assert!(crate::engine::do_job(&world.tree, &work).is_err());
    world.faults.heal();
    assert_eq!(world.storage.stats().space.used_blocks, used);
    assert_eq!(world.tree.stats().disk_bytes, stats.disk_bytes);
    world.check(&mut rng);
    check_scans(&world.tree.version(), &world.model);
    world.maintain();
    world.check(&mut rng);
}

#[test]
fn what_was_cached_of_a_leaf_stays_cached_when_the_leaf_is_replaced() {
    let mut rng = Rng::new(17);
    let options = TurtleConfig { leaf_bytes: 256 << 10, ..tiny() };
    let mut world = World::new(options, 1);
    world.absorb((0..2000).map(|n| (key_of(2 * n), value(&mut rng, 92))).collect());
    world.reopen();
    let version = world.tree.version();
    for number in 0..500 {
        let key = key_of(2 * number);
        assert!(version.get(&key, world.storage.key_hash(&key)).unwrap().found.is_some());
    }
    drop(version);
    let changes = (0..2000).map(|n| (key_of(2 * n + 1), value(&mut rng, 92))).collect();
    world.absorb(changes);
    let version = world.tree.version();
    let read = |range: std::ops::Range<u64>| {
        let keys: Vec<_> = range.map(|number| key_of(2 * number)).collect();
        let read = |key: &&Vec<u8>| {
            version.get(key, world.storage.key_hash(key)).unwrap().presence == Presence::Absent
        };
        keys.iter().filter(read).count()
    };
    assert_eq!(read(0..450), 0, "what was read before is in memory still");
    // Each read prefetches adjacent blocks.
    assert!(read(700..2000) > 0, "the rest is not");
}

#[test]
fn reads_from_the_device_pay_for_what_is_hidden() {
    let mut rng = Rng::new(18);
    // Read costs of reading all of a tree of 4 MB, from the device and then from memory, after it
    // was filled and a part of it was overwritten.
    let mut paid = |overwritten: u64| {
        let options = TurtleConfig { leaf_bytes: 64 << 10, flush_percent: 0, ..tiny() };
        let mut world = World::new(options, 1);
        for part in 0..2 {
            let keys = (0..5_000).map(|number| key_of(2 * number + part));
            world.absorb(keys.map(|key| (key, value(&mut rng, 400))).collect());
        }
        let keys = (0..overwritten).map(|number| key_of(number * (10_000 / overwritten)));
        world.absorb(keys.map(|key| (key, value(&mut rng, 400))).collect());
        let hidden = world.tree.stats().buffered_bytes > 0;
        assert!(hidden, "{:?}", world.tree.stats());
        let pass = || {
            let before = world.paid();
            let version = world.tree.version();
            for number in 0..10_000 {
                let key = key_of(number);
                assert!(version.get(&key, world.storage.key_hash(&key)).unwrap().found.is_some());
            }
            world.paid() - before
        };
        (pass(), pass())
    };
    let (cold, warm) = paid(1_000);
    assert!(cold > warm + warm / 2, "{cold} and {warm}");
    let (cold_few, warm_few) = paid(100);
    assert!(cold_few - warm_few < cold - warm, "{cold_few} and {warm_few}");
}

/// The same updates come to two trees; one of them is read meanwhile, less than a flush costs.
#[test]
fn buffers_have_fewer_levels_where_somebody_reads() {
    let options = TurtleConfig { pivots_max: 64, levels_max: 12, flush_percent: 400, ..tiny() };
    let sources = [0, 40].map(|scans: usize| {
        let mut rng = Rng::new(16);
        let mut world = World::new(options, 1);
        world.absorb(uniform(&mut rng, 1_500));
        for _ in 0..10 {
            world.absorb(uniform(&mut rng, 60));
            for _ in 0..scans {
                let lower = Bound::Included(rng.next_u64().to_be_bytes().to_vec());
                let range = KeyRange { lower, upper: Bound::Unbounded };
                let _ = world.tree.version().cursor(range, Direction::Ascending).unwrap();
            }
        }
        assert_eq!(world.event("merged_for_reads") > 0, scans > 0);
        assert_eq!(world.event("read_flushes"), 0);
        let before = [world.event("ranges_opened"), world.event("sources_opened")];
        world.check(&mut rng);
        let after = [world.event("ranges_opened"), world.event("sources_opened")];
        100 * (after[1] - before[1]) / (after[0] - before[0])
    });
    let [unread, read] = sources;
    assert!(read * 3 < unread * 2, "{read} sources of 100 ranges, {unread} without reads");
}
