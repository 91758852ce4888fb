//! Tests of damaged and forged input: it is never trusted and never causes a panic, and
//! verification finds it.

use super::damage::nodes;
use super::{World, tiny};
use crate::base::keys::Direction;
use crate::base::stream::SortedUpdates;
use crate::buffer_tree::codec::{RootBlob, decode_node, encode_node};
use crate::buffer_tree::level::{LevelOutput, LevelPivot, write_level};
use crate::buffer_tree::node::{Child, Pivot, Segment};
use crate::buffer_tree::output::Output;
use crate::buffer_tree::source::Source;
use crate::engine::tests::jobs::work;
use crate::engine::tests::world::{Report, Updates};
use crate::engine::tests::{hostile, key_of, uniform};
use crate::engine::{Engine, Version};
use crate::engines::turtle::{TreeVersion, Turtle, TurtleConfig};
use crate::merge::{Merge, Tombstones, UpdatesStream};
use crate::runtime::rng::Rng;
use crate::runtime::sync::{Arc, AtomicBool, Ordering};
use crate::structure::{SharedKey, take_payloads, to_blocks};

/// Returns a tree with several heights and full buffers.
fn grown(rng: &mut Rng) -> World {
    let mut world = World::new(TurtleConfig { pivots_max: 8, ..tiny() }, 1);
    world.absorb(uniform(rng, 1500));
    for _ in 0..12 {
        world.absorb(uniform(rng, 100));
    }
    assert!(world.tree.stats().buffered_runs > 0 && world.tree.stats().height >= 2);
    world
}

#[test]
fn nodes_come_back_and_damaged_ones_do_not_panic() {
    let mut rng = Rng::new(1);
    let world = grown(&mut rng);
    let node_cache = &world.tree.shared.node_cache;
    for node in nodes(&world) {
        let bytes = encode_node(&node);
        let blocks = to_blocks(&bytes);
        let mut blocks = blocks;
        take_payloads(&mut blocks, bytes.len() as u32);
        assert_eq!(blocks, bytes);
        let again = decode_node(&bytes, node.height, node_cache).unwrap();
        assert_eq!(encode_node(&again), bytes);
        assert_eq!(again.summary(), node.summary());
        assert!(decode_node(&bytes, node.height + 1, node_cache).is_err());
        for end in 0..bytes.len() {
            assert!(decode_node(&bytes[..end], node.height, node_cache).is_err());
        }
        for _ in 0..2000 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + rng.below(3) {
                let place = rng.below(damaged.len() as u64) as usize;
                damaged[place] =
                    [0, 1, 0x7f, 0x80, 0xff, rng.next_u64() as u8][rng.below(6) as usize];
            }
            if let Ok(node) = decode_node(&damaged, node.height, node_cache) {
                // Decoded nodes must be usable.
                let (_, _) = (node.summary(), node.pivot_of(&key_of(rng.next_u64())));
                encode_node(&node);
            }
        }
    }
    let mut noise = vec![0; 500];
    for _ in 0..2000 {
        rng.fill(&mut noise);
        noise[0] = 1;
        noise[1] = 1;
        noise[3..6].fill(0);
        noise[7..10].fill(0);
        let _ = decode_node(&noise, 1, node_cache);
    }
}

#[test]
fn root_blobs_come_back() {
    let mut rng = Rng::new(2);
    let world = grown(&mut rng);
    let blob = world.tree.root().unwrap();
    assert_eq!(RootBlob::decode(&blob).unwrap().encode(), blob);
    for end in 0..blob.len() {
        assert!(RootBlob::decode(&blob[..end]).is_err());
    }
}

#[test]
fn hostile_bytes_and_devices_are_survived() {
    hostile::battery::<Turtle>(TurtleConfig { pivots_max: 8, ..tiny() });
}

/// Returns a version whose root node was changed.
fn changed(world: &World, change: impl FnOnce(&mut Vec<Pivot>)) -> TreeVersion {
    let version = world.tree.newest();
    let shared = &world.tree.shared;
    let root = shared.node_cache.load_owned(&version.root).unwrap();
    let mut pivots = root.pivots.clone();
    change(&mut pivots);
    let output =
        Output::new(&shared.node_cache, &shared.events, world.options.run, &work(&world.workers));
    let written = output.write_node(root.height, pivots).unwrap();
    let Child::Node(root, summary) = written.child else { panic!("a node was written") };
    TreeVersion {
        shared: Arc::clone(shared),
        root,
        summary,
        disk_blocks: version.disk_blocks,
        unit_bounds: crate::runtime::sync::OnceLock::new(),
    }
}

/// Returns the number of findings for a tree whose root node was changed.
fn findings_on(world: &World, change: impl FnOnce(&mut Vec<Pivot>)) -> usize {
    let changed = changed(world, change);
    let mut report = Report::default();
    changed.verify(&mut report).unwrap();
    report.findings.len()
}

#[test]
fn verification_finds_what_is_wrong() {
    let mut rng = Rng::new(4);
    let world = grown(&mut rng);
    let with_parts = |pivots: &mut Vec<Pivot>| {
        pivots.iter().position(|pivot| !pivot.parts.is_empty()).expect("the root buffers")
    };
    assert_eq!(findings_on(&world, |_| {}), 0);
    let found = [
        findings_on(&world, |pivots| {
            let pivot = with_parts(pivots);
            pivots[pivot].parts.edit(|parts| parts[0].totals.bytes -= 1);
        }),
        findings_on(&world, |pivots| {
            let pivot = with_parts(pivots);
            let run = Arc::clone(&pivots[pivot].parts[0].segment.run);
            let first = SharedKey::whole(b"\xff\xff\xff\xff");
            let segment = Arc::new(Segment { run, first, shared: AtomicBool::new(false) });
            pivots[pivot].parts.edit(|parts| parts[0].segment = segment);
        }),
        findings_on(&world, |pivots| {
            let pivot = with_parts(pivots);
            let twice = pivots[pivot].parts[0].clone();
            pivots[pivot].parts.edit(|parts| parts.insert(0, twice));
        }),
        findings_on(&world, |pivots| {
            let pivot = &mut pivots[1];
            pivot.key = SharedKey::after(&pivot.key, pivot.key.len(), &[0]);
        }),
        findings_on(&world, |pivots| {
            if let Child::Node(_, summary) = &mut pivots[0].child {
                summary.leaf.entries += 1;
            }
        }),
    ];
    assert!(found.iter().all(|findings| *findings > 0), "{found:?}");
    let marked = nodes(&world)
        .iter()
        .flat_map(|node| node.segments())
        .any(|segment| segment.shared.load(Ordering::Relaxed));
    if marked {
        let version = world.tree.newest();
        let mut report = Report::default();
        version.verify(&mut report).unwrap();
        assert!(report.findings.is_empty());
    }
}

#[test]
fn a_pass_refuses_a_node_with_pivots_outside_of_its_range() {
    let mut rng = Rng::new(5);
    let world = grown(&mut rng);
    let root = world.tree.shared.node_cache.load_owned(&world.tree.newest().root).unwrap();
    let Child::Node(first, _) = &root.pivots[0].child else { panic!("the root has nodes") };
    let first = world.tree.shared.node_cache.load_owned(first).unwrap();
    let inside = first.pivots.last().unwrap().key.clone();
    assert!(first.pivots.len() > 1);
    let forged = changed(&world, |pivots| pivots.insert(1, Pivot::settled(inside, Child::None)));
    *world.tree.newest.write() = Arc::new(forged);
    world.tree.writer.lock().counts = None;
    let error = world.try_absorb(&uniform(&mut rng, 2000)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("a pivot outside of its range"), "{error}");
}

#[test]
fn a_level_refuses_entries_before_the_pivot_that_they_are_for() {
    let mut rng = Rng::new(6);
    let world = grown(&mut rng);
    let shared = &world.tree.shared;
    let output =
        Output::new(&shared.node_cache, &shared.events, world.options.run, &work(&world.workers));
    let updates = Updates::new(uniform(&mut rng, 300));
    let key = |rank| SharedKey::whole(updates.key(rank));
    let level_of = |first: &SharedKey, second: &SharedKey, upper: &SharedKey| {
        let pivot = |index, key, upper| LevelPivot { index, key, upper, incoming: 0 };
        let pivots = [pivot(0, first, Some(upper.view())), pivot(1, second, None)];
        let stream = UpdatesStream::new(&updates, vec![0..100, 100..300], &|_| {});
        let sources = vec![Source::Updates(stream)];
        let mut merge = Merge::new(sources, Direction::Ascending, Tombstones::Keep).unwrap();
        let writer = output.level_writer();
        let level = LevelOutput { writer, run_max: 1 << 20, was_cached: None };
        write_level(level, &mut merge, &pivots, None).map(|parts| parts.len())
    };
    assert_eq!(level_of(&SharedKey::LEAST, &key(100), &key(100)).unwrap(), 2);
    let before_the_first = level_of(&key(10), &key(100), &key(100));
    let between = level_of(&SharedKey::LEAST, &key(101), &key(100));
    for refused in [before_the_first, between] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("outside of the pivots"), "{error}");
    }
}
