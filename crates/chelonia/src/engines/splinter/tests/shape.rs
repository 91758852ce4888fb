//! Tests of the shape of trees.

use super::{World, tiny};
use crate::engine::Engine;
use crate::engine::tests::world::{Item, Model};
use crate::engine::tests::{key_of, uniform, value};
use crate::runtime::rng::Rng;

/// Inserts in order pass all nodes by reference, and lie beside each other in one level; others are
/// merged [3].
#[test]
fn a_sequential_load_is_written_once() {
    let mut rng = Rng::new(71);
    for sequential in [true, false] {
        let mut world = World::new(tiny(), 1);
        for batch in 0..300_u64 {
            let first = batch * 40;
            let key = |n: u64| if sequential { n } else { n.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
            let batch: Model =
                (first..first + 40).map(|n| (key_of(key(n)), value(&mut rng, 92))).collect();
            world.absorb(batch);
            world.maintain();
        }
        world.check(&mut rng);
        assert!(world.tree.stats().height > 1);
        let merges = ["compactions", "leaf_merges"].map(|name| world.event(name) > 0);
        assert_eq!(merges, [!sequential; 2]);
        assert_eq!(world.event("levels_max") == 1, sequential);
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
