//! Tests of allocation on a nearly full device.

use super::{World, levels, tiny};
use crate::base::stream::NewValues;
use crate::engine::tests::world::{Item, Model, Updates};
use crate::engine::tests::{key_of, uniform, value};
use crate::engine::{Absorbed, Engine, Work, WriteBudget};
use crate::engines::autumn::AutumnConfig;
use crate::runtime::rng::Rng;
use crate::runtime::workers::Workers;
use crate::storage::quota::UNLIMITED;

/// Options for tables of several blocks, so that the index and the filter of each are a small part.
fn options() -> AutumnConfig {
    AutumnConfig { table_bytes: 64 << 10, checkpoint_distance: 256 << 10, ..tiny() }
}

fn gained(absorbed: &Absorbed) -> u64 {
    absorbed.gained.iter().map(|owned| owned.extent.bytes()).sum()
}

fn inline(run: impl FnOnce(&Work<'_>) -> Absorbed) -> Absorbed {
    run(&Work {
        workers: &Workers::inline(),
        progress: &|_| {},
        quota: &UNLIMITED,
        values: NewValues::Plain,
    })
}

/// Checks `Engine::space_times`, and `MINIMAL_BYTES` of `disk_full/pool.rs`.
#[test]
fn a_tight_absorb_allocates_little_more_than_its_updates() {
    let mut rng = Rng::new(21);
    let mut world = World::new(AutumnConfig { checkpoint_distance: 1 << 20, ..options() }, 1);
    for round in 0..60 {
        world.absorb(uniform(&mut rng, 2_000));
        if round % 6 == 5 {
            world.maintain();
            world.hold();
        }
    }
    assert!(levels(&world) >= 2);
    let (mut most, times) = (0, world.tree.space_times(WriteBudget::Minimal));
    for _ in 0..300 {
        let batch = uniform(&mut rng, 60);
        let absorbed = inline(|work| {
            world.tree.absorb(&Updates::new(batch.clone()), WriteBudget::Minimal, work).unwrap()
        });
        let (took, came) = (gained(&absorbed), 60 * 100);
        assert!(took <= times * came + (64 << 10), "{took} bytes for {came} of updates");
        most = most.max(took);
        world.note(&batch, absorbed);
    }
    assert!(most > 6_000, "{most}");
    // At the usual pace they are merged.
    world.absorb(uniform(&mut rng, 60));
    assert!(world.event("merges_within_level0") > 0);
    world.check(&mut rng);
}

/// Reclaims until nothing is left to gain, and compares the allocations of each unit with the
/// predicted need.
fn reclaim_all(world: &mut World) -> u64 {
    let mut units = 0;
    loop {
        let needed = world.tree.reclaim_needs_bytes();
        let work = Work {
            workers: &Workers::inline(),
            progress: &|_| {},
            quota: &UNLIMITED,
            values: NewValues::Plain,
        };
        let Some(absorbed) = world.tree.reclaim(&work).unwrap() else { return units };
        let took = gained(&absorbed);
        assert!(took <= needed, "unit {units}: {took} bytes, {needed} were to be enough");
        world.note(&Model::new(), absorbed);
        units += 1;
        assert!(units < 10_000, "what waits comes to an end");
    }
}

#[test]
fn a_unit_that_makes_room_allocates_no_more_than_it_says() {
    let mut rng = Rng::new(12);
    let mut world = World::new(options(), 1);
    for round in 0..100 {
        world.absorb(uniform(&mut rng, 2_000));
        if round % 4 == 3 {
            world.maintain();
        }
    }
    assert!(levels(&world) >= 3);
    world.hold();
    // Deletes and overwrites across all keys, and some of neighbours.
    for round in 0..40 {
        let mut batch = Model::new();
        let keys: Vec<Vec<u8>> = world.model.keys().cloned().collect();
        let from = rng.below(keys.len() as u64) as usize;
        let step = [1, 7, 997][round % 3];
        for key in keys.iter().skip(from).step_by(step).take(800) {
            let item = if rng.below(3) == 0 { value(&mut rng, 92) } else { Item::Deleted };
            batch.insert(key.clone(), item);
        }
        let absorbed = inline(|work| {
            world.tree.absorb(&Updates::new(batch.clone()), WriteBudget::Minimal, work).unwrap()
        });
        world.note(&batch, absorbed);
    }
    assert!(reclaim_all(&mut world) > 20);
    world.check(&mut rng);
    // One delete at each end of the key space, repeatedly: tables that overlap everything.
    for _ in 0..3 {
        for number in [0, 1 << 40, u64::MAX] {
            let batch: Model = [0, number].map(|it| (key_of(it), Item::Deleted)).into();
            let absorbed = inline(|work| {
                world.tree.absorb(&Updates::new(batch.clone()), WriteBudget::Minimal, work).unwrap()
            });
            world.note(&batch, absorbed);
        }
        assert!(reclaim_all(&mut world) > 4);
    }
    world.check(&mut rng);
}
