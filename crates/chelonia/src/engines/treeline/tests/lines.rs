//! Tests of groups whose pages are found by a line, and of forecasts.

use super::{TreelineConfig, World, sweep, tiny};
use crate::engine::Engine;
use crate::engine::tests::{key_of, uniform, value};
use crate::runtime::rng::Rng;

/// Options of trees whose pages are found by lines.
fn with_lines() -> TreelineConfig {
    TreelineConfig { group_pages: 16, fill_percent: 70, epsilon_percent: 15, ..tiny() }
}

/// Memory of the nodes of a tree, all of them loaded, for each group.
fn node_bytes_of(world: &mut World) -> u64 {
    let before = world.tree.storage().budget().used();
    world.tree.version().extents(&mut |_| Ok(())).unwrap();
    let groups = world.tree.stats().leaves;
    (world.tree.storage().budget().used() - before) / groups
}

#[test]
fn regular_keys_are_in_full_groups_with_a_small_index() {
    let mut bytes = Vec::new();
    for options in [with_lines(), TreelineConfig { epsilon_percent: 0, ..with_lines() }] {
        let mut world = World::new(options, 1);
        let mut rng = Rng::new(31);
        world.absorb((0..8_000_u64).map(|n| (key_of(n * 1_000), value(&mut rng, 92))).collect());
        sweep(&mut world);
        world.check(&mut rng);
        assert!((15..30).contains(&world.tree.stats().leaves), "{:?}", world.tree.stats());
        world.reopen();
        bytes.push(node_bytes_of(&mut world));
        world.check(&mut rng);
    }
    assert!(bytes[0] + 50 < bytes[1], "{bytes:?}");
}

#[test]
fn keys_without_order_are_in_small_groups_that_are_found() {
    let mut rng = Rng::new(32);
    let mut world = World::new(with_lines(), 2);
    world.absorb(uniform(&mut rng, 4_000));
    sweep(&mut world);
    world.check(&mut rng);
    let written = world.event("groups_of_one_page");
    let groups = world.tree.stats().leaves;
    assert!(written < groups, "{written} of {groups} groups have one page");
    // In place, by divisions, and by writing groups anew.
    for count in [3, 30, 300] {
        for _ in 0..4 {
            world.absorb(uniform(&mut rng, count));
            sweep(&mut world);
            world.check(&mut rng);
        }
        world.reopen();
    }
}

#[test]
fn a_divided_page_ends_the_line_of_its_group() {
    let mut rng = Rng::new(33);
    let mut world = World::new(with_lines(), 1);
    world.absorb((0..2_000_u64).map(|n| (key_of(n << 8), value(&mut rng, 92))).collect());
    sweep(&mut world);
    let before = world.event("groups_rewritten");
    for batch in 0..3 {
        world.absorb((1..20_u64).map(|n| (key_of(batch << 16 | n), value(&mut rng, 92))).collect());
        sweep(&mut world);
        world.check(&mut rng);
    }
    assert_eq!((world.event("page_splits"), world.event("groups_rewritten")), (3, before));
    world.reopen();
    world.check(&mut rng);
}

/// Inserts near one place in rounds; returns the pages written with space, and the bytes on disk.
fn hot_inserts(forecast_rounds: u32) -> (u64, u64) {
    let mut rng = Rng::new(34);
    let options = TreelineConfig { group_pages: 16, forecast_rounds, ..tiny() };
    let mut world = World::new(options, 1);
    world.absorb((0..4_000_u64).map(|n| (key_of(n << 16), value(&mut rng, 92))).collect());
    sweep(&mut world);
    for _ in 0..10 {
        let near = |rng: &mut Rng| key_of((1_000 + rng.below(400)) << 16 | rng.below(1 << 16));
        world.absorb((0..30).map(|_| (near(&mut rng), value(&mut rng, 92))).collect());
        sweep(&mut world);
    }
    world.check(&mut rng);
    (world.event("pages_with_space"), world.tree.stats().disk_bytes)
}

#[test]
fn pages_have_space_where_inserts_are_expected() {
    let (off, on) = (hot_inserts(0), hot_inserts(20));
    assert!(off.0 == 0 && on.0 > 0, "with a forecast {on:?}, without {off:?}");
    // In the groups around the place, and not in all of them.
    assert!(off.1 < on.1 && on.1 < off.1 * 3 / 2, "with a forecast {on:?}, without {off:?}");
}
