//! Tests that the shape of a tree depends on what is stored, not on the size of the memtables that
//! it came from.

use super::{World, tiny};
use crate::base::stream::NewValues;
use crate::engine::tests::{key_of, value};
use crate::engine::{Engine, Work};
use crate::engines::turtle::TurtleConfig;
use crate::runtime::rng::Rng;
use crate::storage::quota::UNLIMITED;

/// Entries of about 1 KiB that a tree is made of.
const ENTRIES: u64 = 40_000;

/// Leaves sized by what is stored.
fn automatic() -> TurtleConfig {
    TurtleConfig { leaf_bytes: 0, pivots_max: 64, levels_max: 12, flush_percent: 0, ..tiny() }
}

/// Writes all keys once, in random order, with `distance` entries in each memtable.
fn write_all(world: &mut World, rng: &mut Rng, distance: u64) {
    let mut keys: Vec<u64> = (0..ENTRIES).collect();
    for last in (1..keys.len()).rev() {
        keys.swap(last, usize::try_from(rng.below(last as u64 + 1)).unwrap());
    }
    for part in keys.chunks(usize::try_from(distance).unwrap()) {
        world.absorb(part.iter().map(|key| (key_of(*key), value(rng, 1000))).collect());
    }
}

/// Moves all buffered updates to the leaves.
fn settle(world: &mut World) {
    let workers = world.workers;
    let work =
        Work { workers: &workers, progress: &|_| {}, quota: &UNLIMITED, values: NewValues::Plain };
    while let Some(absorbed) = world.tree.reclaim(&work).unwrap() {
        world.note(&super::Model::new(), absorbed);
    }
}

/// Numbers of leaves and nodes, the height, and bytes on disk.
fn shape(world: &World) -> [u64; 4] {
    let stats = world.tree.stats();
    assert_eq!(stats.buffered_runs, 0);
    [stats.leaves, stats.nodes, stats.height.into(), stats.disk_bytes]
}

/// Fails unless each number is within a tenth of its mean; small ones may differ by two.
fn check_alike(shapes: &[[u64; 4]]) {
    for column in 0..4 {
        let numbers = shapes.iter().map(|shape| shape[column]);
        let mean = numbers.clone().sum::<u64>() / shapes.len() as u64;
        let is_near = |number: u64| number.abs_diff(mean) <= (mean / 10).max(2);
        assert!(numbers.clone().all(is_near), "{shapes:?}");
    }
}

#[test]
fn settled_trees_have_one_shape_for_all_distances() {
    let mut rng = Rng::new(30);
    let mut shapes = Vec::new();
    for distance in [ENTRIES / 160, ENTRIES / 40, ENTRIES / 10, ENTRIES / 2, ENTRIES] {
        let mut world = World::new(automatic(), 1);
        write_all(&mut world, &mut rng, distance);
        write_all(&mut world, &mut rng, distance);
        settle(&mut world);
        shapes.push(shape(&world));
    }
    check_alike(&shapes);
}

#[test]
fn a_shorter_distance_for_a_while_leaves_no_trace() {
    let mut rng = Rng::new(31);
    let mut shapes = Vec::new();
    for turned in [ENTRIES / 4, ENTRIES / 160] {
        let mut world = World::new(automatic(), 1);
        write_all(&mut world, &mut rng, ENTRIES / 4);
        write_all(&mut world, &mut rng, turned);
        write_all(&mut world, &mut rng, ENTRIES / 4);
        settle(&mut world);
        shapes.push(shape(&world));
    }
    check_alike(&shapes);
}

#[test]
fn small_leaves_are_joined_as_flushes_meet_them() {
    let mut rng = Rng::new(32);
    let small = TurtleConfig { leaf_bytes: 32 << 10, ..automatic() };
    let mut shapes = Vec::new();
    for options in [automatic(), small] {
        let mut world = World::new(options, 1);
        write_all(&mut world, &mut rng, ENTRIES / 4);
        world.options = automatic();
        world.reopen();
        for _ in 0..2 {
            write_all(&mut world, &mut rng, ENTRIES / 40);
        }
        settle(&mut world);
        shapes.push(shape(&world));
    }
    check_alike(&shapes);
}
