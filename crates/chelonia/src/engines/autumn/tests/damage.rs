//! Damaged blocks of each kind: reads, absorbs and merges go on beside them.

use super::*;

/// Flips a bit at each of these offsets of the data file; a second call restores it.
fn flip(world: &World, places: &[u64]) {
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    for place in places {
        let mut byte = [0];
        file.read_at(&mut byte, *place).unwrap();
        file.write_at(&[byte[0] ^ 0x10], *place).unwrap();
    }
}

/// Kind of damage of a test.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Damaged {
    /// Tables of a level.
    Tables(usize),
    /// Tables of a sequence of level 0 that has begun to sink.
    Level0,
    /// A node in the middle of a level.
    Node(usize),
    /// The node of a sequence of level 0.
    Level0Node,
}

/// Returns the offsets in the data file to damage.
fn places_of(world: &World, damaged: Damaged) -> Vec<u64> {
    let version = world.tree.newest();
    let node = |sequence: &crate::engines::autumn::table::Sequence, index: usize| {
        vec![sequence.nodes[index].slot.reference().unwrap().extent.offset() + 100]
    };
    let tables = |sequence: &crate::engines::autumn::table::Sequence, step: usize| {
        let node_cache = &world.tree.shared.node_cache;
        let found = sequence.tables_in(node_cache, &KeyRange::all()).unwrap();
        let offset = |table: &crate::engines::autumn::table::Table| {
            table.run.reference().extent.offset() + 1000
        };
        found.tables.iter().skip(1).step_by(step).map(offset).collect::<Vec<_>>()
    };
    match damaged {
        Damaged::Tables(level) => tables(&version.levels[level], 12),
        Damaged::Level0 => tables(version.level0.last().unwrap(), 5),
        Damaged::Node(level) => {
            let nodes = version.levels[level].nodes.len();
            assert!(nodes > 1, "one node is the whole level");
            node(&version.levels[level], nodes / 2 - 1)
        }
        Damaged::Level0Node => node(version.level0.last().unwrap(), 0),
    }
}

#[test]
fn damage_stops_nothing_else_and_loses_nothing() {
    use Damaged::{Level0, Level0Node, Node, Tables};
    let mut rng = Rng::new(7);
    for damaged in [Tables(0), Tables(1), Level0, Node(2), Level0Node] {
        let mut world = World::new(tiny(), 1);
        for _ in 0..160 {
            world.absorb(uniform(&mut rng, 80));
            world.maintain();
        }
        while world.tree.newest().level0.is_empty() {
            world.absorb(uniform(&mut rng, 80));
        }
        let places = places_of(&world, damaged);
        assert!(!places.is_empty(), "{damaged:?}");
        // Discard the caches.
        world.reopen();
        flip(&world, &places);
        world.is_damaged = true;
        for _ in 0..120 {
            world.absorb(uniform(&mut rng, 80));
            world.maintain();
        }
        let version = world.tree.newest();
        assert!(version.level0.len() < 40, "{damaged:?}: {} in level 0", version.level0.len());
        let waiting: u64 = version.level0.iter().map(|sequence| sequence.weight()).sum();
        let all: u64 = version.sequences().map(|sequence| sequence.weight()).sum();
        let mut unreadable = 0;
        for (key, item) in &world.model {
            match crate::engine::Version::get(&*version, key, world.storage.key_hash(key)) {
                Ok(answer) => assert_eq!(answer.found, Some(world::found(item))),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    unreadable += 1;
                }
            }
        }
        let most = if damaged == Level0Node { 1.0 } else { 0.5 };
        let part = f64::from(unreadable) / world.model.len() as f64;
        assert!(unreadable > 0 && part < most, "{damaged:?}: {unreadable} keys, {part}");
        assert!(waiting < all / 2 || damaged == Level0Node, "{damaged:?}: {waiting} of {all}");
        drop(version);
        // All data was kept: it is readable again when the device recovers.
        flip(&world, &places);
        world.reopen();
        world.is_damaged = false;
        world.check(&mut rng);
        world.maintain();
        world.check(&mut rng);
        let version = world.tree.newest();
        assert!(version.level0.len() < LEVEL0_TRIGGER, "{damaged:?}: {}", version.level0.len());
    }
}
