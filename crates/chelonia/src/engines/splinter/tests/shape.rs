//! Tests of the shape of trees.

use super::{World, tiny};
use crate::engine::tests::world::{Item, Model};
use crate::engine::tests::{key_of, uniform, value};
use crate::engine::{Engine, LiveOptions};
use crate::engines::splinter::SplinterConfig;
use crate::runtime::rng::Rng;

/// Absorbs 300 batches of keys that begin with `prefix`.
fn loaded(rng: &mut Rng, prefix: &[u8], batch: impl Fn(u64) -> Vec<u64>) -> World {
    let mut world = World::new(tiny(), 1);
    for number in 0..300 {
        let keys = batch(number).into_iter().map(|key| [prefix, &key_of(key)].concat());
        world.absorb(keys.map(|key| (key, value(rng, 92))).collect());
        world.maintain();
    }
    world.check(rng);
    assert!(world.tree.stats().height > 1);
    world
}

/// Inserts in order pass all nodes by reference, and come to be in one level; others are
/// merged [3].
#[test]
fn a_sequential_load_is_written_once() {
    let mut rng = Rng::new(71);
    for sequential in [true, false] {
        let key = |n: u64| if sequential { n } else { n.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
        let batch = |number| (0..40).map(|n| key(40 * number + n)).collect();
        let world = loaded(&mut rng, b"", batch);
        let merges = ["compactions", "leaf_merges"].map(|name| world.event(name) > 0);
        assert_eq!(merges, [!sequential; 2]);
        assert_eq!(world.event("levels_max") == 1, sequential);
    }
}

/// Of two threads that insert one sequence together, only those runs overlap older ones where one
/// thread was behind the other.
#[test]
fn a_sequential_load_by_two_threads_is_merged_little() {
    let mut rng = Rng::new(76);
    let late = |number: u64| if number == 0 { 0 } else { 60 * number - number * 7 % 13 };
    let together = loaded(&mut rng, b"", |number| {
        let ahead = (60 * number..60 * (number + 1)).map(|n| 2 * n);
        ahead.chain((late(number)..late(number + 1)).map(|n| 2 * n + 1)).collect()
    });
    // Nodes keep a prefix of the least key of a branch, which distinguishes these.
    let alike = loaded(&mut rng, &[b'k'; 80], |number| (40 * number..40 * (number + 1)).collect());
    for (world, prefix) in [(together, 0), (alike, 80)] {
        let loaded = world.model.len() as u64 * (108 + prefix);
        let merged = world.event("merged_bytes");
        assert!(merged < loaded * 3 / 2, "{merged} of {loaded}");
        assert!(world.event("levels_max") < 8, "{}", world.event("levels_max"));
    }
}

#[test]
fn overwriting_does_not_grow_the_tree() {
    let mut rng = Rng::new(72);
    let mut world = World::new(tiny(), 1);
    world.absorb(uniform(&mut rng, 3000));
    world.maintain();
    let keys: Vec<_> = world.model.keys().cloned().collect();
    let live = 3000 * 108;
    for _ in 0..60 {
        let pick = |rng: &mut Rng| keys[rng.below(keys.len() as u64) as usize].clone();
        world.absorb((0..300).map(|_| (pick(&mut rng), value(&mut rng, 92))).collect());
        world.maintain();
        let stored = world.tree.stats().buffered_bytes;
        assert!(stored < 4 * live, "{stored} bytes for {live}");
    }
    world.check(&mut rng);
}

/// `space_percent` is obeyed, from its change on.
#[test]
fn overwritten_leaves_take_the_space_that_is_allowed() {
    let mut spaces = Vec::new();
    for (percent, then) in
        [(300, None), (160, None), (120, None), (300, Some(120)), (120, Some(120))]
    {
        let mut rng = Rng::new(75);
        let mut world = World::new(SplinterConfig { space_percent: percent, ..tiny() }, 1);
        world.absorb(uniform(&mut rng, 5000));
        world.maintain();
        let keys: Vec<_> = world.model.keys().cloned().collect();
        let mut most = 0;
        for round in 0..60 {
            let pick = |rng: &mut Rng| keys[rng.below(keys.len() as u64) as usize].clone();
            world.absorb((0..300).map(|_| (pick(&mut rng), value(&mut rng, 92))).collect());
            if let Some(then) = then.filter(|_| round == 30) {
                // After an open the share of updates of existing keys is not known at first.
                world.reopen();
                world.maintain();
                if then != percent {
                    world.tree.set_live_options(LiveOptions::SpacePercent(then as u32));
                    assert!(world.tree.wants_maintenance());
                }
                most = 0;
            }
            world.maintain();
            if round >= 20 && then.is_none_or(|_| round > 31) {
                most = most.max(world.tree.stats().buffered_bytes);
            }
        }
        world.check(&mut rng);
        spaces.push(most * 100 / (5000 * 108));
    }
    let [high, usual, low, lowered, reopened] = spaces[..] else { unreachable!() };
    assert!(high > usual + 8 && usual > low + 10, "{spaces:?}");
    assert!(lowered < low + 5 && reopened < low + 5, "{spaces:?}");
}

#[test]
fn deleting_everything_leaves_nothing() {
    let mut rng = Rng::new(73);
    let mut world = World::new(tiny(), 1);
    for _ in 0..20 {
        world.absorb(uniform(&mut rng, 200));
        world.maintain();
    }
    assert!(world.tree.stats().height > 1);
    let keys: Vec<_> = world.model.keys().cloned().collect();
    for keys in keys.chunks(200) {
        world.absorb(keys.iter().map(|key| (key.clone(), Item::Deleted)).collect());
        world.maintain();
    }
    // The rest is merged as on a full device.
    let workers = world.workers;
    while let Some(absorbed) = {
        let work = crate::engine::tests::jobs::work(&workers);
        world.tree.reclaim(&work).unwrap()
    } {
        world.note(&Model::new(), absorbed);
    }
    world.check(&mut rng);
    let stats = world.tree.stats();
    assert_eq!((stats.height, stats.buffered_bytes, stats.disk_bytes), (0, 0, 0), "{stats:?}");
    assert!(world.event("root_shrunk") > 0);
}

/// Sizes follow from what is stored, not from the sizes of memtables.
#[test]
fn the_levels_of_a_node_are_bounded_however_small_memtables_are() {
    let mut rng = Rng::new(74);
    let mut world = World::new(tiny(), 1);
    for _ in 0..400 {
        world.absorb(uniform(&mut rng, 4));
        world.maintain();
    }
    world.check(&mut rng);
    // A flush of 3 F + 1 levels, onto 2 F + 1 of the child.
    let most = (3 * 4 + 1) + (2 * 4 + 1);
    assert!(world.event("levels_max") <= most, "{} levels", world.event("levels_max"));
}

/// Merges that never run do not stop absorbs.
#[test]
fn a_root_without_merges_takes_any_number_of_memtables() {
    let mut rng = Rng::new(75);
    let mut world = World::new(tiny(), 1);
    for _ in 0..300 {
        world.absorb(uniform(&mut rng, 20));
    }
    world.check(&mut rng);
    world.maintain();
    world.check(&mut rng);
}
