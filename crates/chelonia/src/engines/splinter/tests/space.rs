//! Space is returned, however little the updates weigh that make it superfluous.

use super::{World, tiny};
use crate::engine::Engine;
use crate::engine::tests::world::{Item, Model};
use crate::engine::tests::{key_of, value};
use crate::engines::splinter::SplinterConfig;
use crate::runtime::rng::Rng;

const KEYS: u64 = 4_000;

/// A tree of several levels whose updates of `item` all fit into its root.
fn updated(item: &Item) -> (World, u64) {
    let mut rng = Rng::new(17);
    let options = SplinterConfig { fanout: 4, branch_bytes: 64 << 10, ..tiny() };
    let mut world = World::new(options, 1);
    for part in 0..20 {
        let keys = (0..KEYS).filter(|number| number % 20 == part);
        world.absorb(keys.map(|number| (key_of(number << 40), value(&mut rng, 1_000))).collect());
        world.maintain();
    }
    assert!(world.tree.stats().height > 1);
    let before = world.tree.stats().disk_bytes;
    for part in 0..8 {
        let keys = (0..KEYS).filter(|number| number % 4 == part % 4);
        world.absorb(keys.map(|number| (key_of(number << 40), item.clone())).collect::<Model>());
        world.maintain();
    }
    world.check(&mut rng);
    (world, before)
}

#[test]
fn deletes_reach_the_leaves_that_they_empty() {
    let (world, before) = updated(&Item::Deleted);
    let after = world.tree.stats().disk_bytes;
    assert!(after < before / 10, "{after} of {before}");
}

#[test]
fn short_values_reach_the_long_ones_that_they_replace() {
    let (world, before) = updated(&Item::Value(vec![7]));
    let after = world.tree.stats().disk_bytes;
    assert!(after < before / 2, "{after} of {before}");
}
