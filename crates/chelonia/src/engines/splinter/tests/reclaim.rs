//! Tests of reclaiming on full devices.

use super::damage::damage_every;
use super::{World, tiny};
use crate::engine::Engine;
use crate::engine::tests::jobs::work;
use crate::engine::tests::world::Model;
use crate::engine::tests::{key_of, uniform, value};
use crate::engines::splinter::SplinterConfig;
use crate::runtime::rng::Rng;

/// A child that can take no more levels keeps its parent's parts above it.
#[test]
fn reclaim_loses_nothing() {
    for seed in [3, 9] {
        let mut rng = Rng::new(seed);
        let options = SplinterConfig { fanout: 16, branch_bytes: 1024, ..tiny() };
        let mut world = World::new(options, 1);
        let workers = world.workers;
        while world.tree.stats().height < 3 {
            world.absorb(uniform(&mut rng, 500));
            world.maintain();
        }
        for round in 0..200 {
            world.absorb(uniform(&mut rng, 3 + (seed / 2 % 3) as usize));
            if round % 5 == 4 && round > 60 {
                if let Some(absorbed) = world.tree.reclaim(&work(&workers)).unwrap() {
                    world.note(&Model::new(), absorbed);
                }
                world.check(&mut rng);
            }
        }
    }
}

#[test]
fn a_unit_allocates_no_more_than_it_says() {
    let mut rng = Rng::new(9);
    let mut world = World::new(SplinterConfig { branch_bytes: 32 << 10, ..tiny() }, 1);
    let workers = world.workers;
    while world.tree.stats().height < 3 {
        let batch = (0..100).map(|_| (key_of(rng.next_u64()), value(&mut rng, 1_000))).collect();
        world.absorb(batch);
        world.maintain();
    }
    for _ in 0..300 {
        let needs = world.tree.reclaim_needs_bytes();
        let Some(absorbed) = world.tree.reclaim(&work(&workers)).unwrap() else { return };
        let took: u64 = absorbed.gained.iter().map(|owned| owned.extent.bytes()).sum();
        assert!(took <= needs, "{took} > {needs}");
        world.note(&Model::new(), absorbed);
    }
    panic!("reclaiming never ends");
}

#[test]
fn an_unreadable_leaf_does_not_end_reclaiming() {
    let mut rng = Rng::new(5);
    let mut world = World::new(tiny(), 1);
    let workers = world.workers;
    for _ in 0..30 {
        world.absorb(uniform(&mut rng, 100));
        world.maintain();
    }
    let keys: Vec<_> = world.model.keys().cloned().collect();
    for keys in keys.chunks(500) {
        let some = keys.iter().step_by(3).cloned();
        world.absorb(some.map(|key| (key, value(&mut rng, 92))).collect());
    }
    assert!(damage_every(&world, 9, &mut rng) > 1);
    world.is_damaged = true;
    world.reopen();
    let mut units = 0;
    while let Some(absorbed) = world.tree.reclaim(&work(&workers)).unwrap() {
        world.note(&Model::new(), absorbed);
        units += 1;
        assert!(units < 400, "reclaiming never ends");
    }
    assert!(world.event("leaf_merges") > 5, "{} merges", world.event("leaf_merges"));
}
