//! Tests of unreadable blocks: they fail only the reads that need them.

use super::{World, tiny};
use crate::base::error::ErrorKind;
use crate::base::ids::BlockNo;
use crate::buffer_tree::counts::walk_nodes;
use crate::buffer_tree::node::Node;
use crate::engine::Engine;
use crate::engine::tests::world::{Item, Report};
use crate::engine::tests::{key_of, uniform, value};
use crate::engines::turtle::TurtleConfig;
use crate::run::{Run, RunRef};
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::io::{Access, Directory, OpenMode};
use std::collections::BTreeSet;

/// Flips a bit in each of these blocks.
pub fn flip(world: &World, blocks: &[BlockNo]) {
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    for block in blocks {
        let place = block.0 * 4096 + 1000;
        let mut byte = [0];
        file.read_at(&mut byte, place).unwrap();
        file.write_at(&[byte[0] ^ 0x10], place).unwrap();
    }
}

/// Returns the nodes of the newest version.
pub fn nodes(world: &World) -> Vec<Arc<Node>> {
    let mut nodes = Vec::new();
    let version = world.tree.newest();
    let node_cache = &world.tree.shared.node_cache;
    walk_nodes(node_cache, &version.root, &mut None, &mut |slot, _| {
        nodes.push(node_cache.load_owned(slot)?);
        Ok(())
    })
    .unwrap();
    nodes
}

fn runs(world: &World) -> Vec<Arc<Run>> {
    nodes(world).iter().flat_map(|node| node.runs().collect::<Vec<_>>()).collect()
}

fn block(run: &Run, index: u32) -> BlockNo {
    BlockNo(run.reference().extent.start.0 + u64::from(index))
}

/// Returns the number of unreadable keys of the model; the others must be correct.
fn unreadable(world: &World) -> usize {
    let version = world.tree.version();
    let mut count = 0;
    for (key, item) in &world.model {
        match version.get(key, world.storage.key_hash(key)) {
            Ok(answer) => assert_eq!(answer.found, Some(crate::engine::tests::world::found(item))),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                count += 1;
            }
        }
    }
    count
}

/// Returns the blocks reported by a verification.
fn named(world: &World) -> Vec<BlockNo> {
    let mut report = Report::default();
    world.tree.version().verify(&mut report).unwrap();
    report.findings.iter().map(|error| BlockNo(error.offset().unwrap() / 4096)).collect()
}

/// Overwrites, deletes and inserts, repeatedly.
fn go_on(world: &mut World, rng: &mut Rng, rounds: usize) {
    for _ in 0..rounds {
        let keys: Vec<_> = world.model.keys().cloned().collect();
        let mut batch = uniform(rng, 60);
        for _ in 0..60 {
            let key = keys[rng.below(keys.len() as u64) as usize].clone();
            let item = if rng.one_in(4) { Item::Deleted } else { value(rng, 92) };
            batch.insert(key, item);
        }
        world.absorb(batch);
    }
}

fn grown(rng: &mut Rng, threads: usize) -> World {
    let options = TurtleConfig { pivots_max: 8, leaf_bytes: 16 << 10, ..tiny() };
    let mut world = World::new(options, threads);
    world.absorb(uniform(rng, 6000));
    for _ in 0..6 {
        world.absorb(uniform(rng, 300));
    }
    assert!(world.tree.stats().buffered_runs > 0 && world.tree.stats().height >= 2);
    world
}

/// Every kind of block, of leaves and of buffered runs.
#[test]
fn a_damaged_run_stops_no_absorb_and_hides_nothing_else() {
    let sorts: [fn(&RunRef) -> Option<u32>; 3] = [
        |run| (run.data_blocks > 2).then_some(run.data_blocks / 2),
        |run| (run.index_blocks > 0).then_some(run.data_blocks),
        |run| Some(run.data_blocks - 1),
    ];
    let mut rng = Rng::new(1);
    for (number, sort) in sorts.iter().enumerate() {
        for threads in [1, 2] {
            let mut world = grown(&mut rng, threads);
            let runs = runs(&world);
            let place = |run: &Arc<Run>| sort(run.reference()).map(|index| block(run, index));
            let places: Vec<_> = runs.iter().filter_map(place).step_by(9).collect();
            assert!(places.len() > 2, "{number}");
            drop(runs);
            flip(&world, &places);
            world.reopen();
            let before = unreadable(&world);
            go_on(&mut world, &mut rng, 25);
            assert!(unreadable(&world) <= before, "{number}");
            assert!(world.event("pivots_stuck") > 0 && world.event("passes_repeated") > 0);
            let most = nodes(&world).iter().map(|node| node.levels()).max();
            assert!(most <= Some(2 * world.options.levels_max), "{most:?} levels");
            world.reopen();
            go_on(&mut world, &mut rng, 2);
            let named: BTreeSet<_> = named(&world).into_iter().collect();
            assert!(!named.is_empty() && named.iter().all(|block| places.contains(block)));
        }
    }
}

#[test]
fn a_damaged_list_of_large_values_is_found_in_the_entries() {
    let mut rng = Rng::new(2);
    let mut world = World::new(tiny(), 1);
    let large = |world: &World| Item::Large(world.storage.write_large(&[7; 5000]).unwrap());
    for round in 0..30 {
        let mut batch = uniform(&mut rng, 100);
        for _ in 0..20 {
            batch.insert(key_of(rng.below(200) << 56), large(&world));
        }
        if round % 10 == 5 {
            let listing = runs(&world).into_iter().filter(|run| run.reference().large_blocks > 0);
            let lists = listing.map(|run| block(&run, run.reference().large_start()));
            let lists: Vec<_> = lists.collect();
            assert!(!lists.is_empty());
            flip(&world, &lists);
            // The references are counted again by a walk over the lists.
            world.reopen();
            let named: BTreeSet<_> = named(&world).into_iter().collect();
            assert_eq!(named, lists.into_iter().collect());
        }
        world.absorb(batch);
        assert_eq!(unreadable(&world), 0);
    }
    assert_eq!(world.event("passes_repeated"), 0);
}

#[test]
fn damage_again_and_again_stops_nothing() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut world = grown(&mut rng, 1);
        for _ in 0..8 {
            let all = runs(&world);
            let mut places = BTreeSet::new();
            for _ in 0..3 {
                let run = &all[rng.below(all.len() as u64) as usize];
                let blocks = u64::from(run.reference().extent.blocks);
                places.insert(block(run, rng.below(blocks) as u32));
            }
            drop(all);
            flip(&world, &Vec::from_iter(places));
            if rng.one_in(2) {
                world.reopen();
            }
            go_on(&mut world, &mut rng, 6);
            unreadable(&world);
        }
        world.reopen();
        assert!(!named(&world).is_empty() && unreadable(&world) < world.model.len() / 4);
    }
}
