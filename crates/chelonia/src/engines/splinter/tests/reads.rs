//! Tests of merges that reads pay for.

use super::{World, tiny};
use crate::base::keys::{Direction, KeyRange};
use crate::buffer_tree::node::{Child, Node, Pivot};
use crate::engine::Engine;
use crate::engine::tests::{key_of, uniform};
use crate::runtime::rng::Rng;
use std::ops::Bound;

/// Maximum number of times that each part of the keys is scanned.
const SCANS_MAX: usize = 20_000;

/// Scans a 64th of all possible keys.
fn scan(world: &World, part: u64) {
    let [lower, upper] = [part << 58, part << 58 | ((1 << 58) - 1)].map(key_of);
    let range = KeyRange { lower: Bound::Included(lower), upper: Bound::Included(upper) };
    let mut cursor = world.tree.version().cursor(range, Direction::Ascending).unwrap();
    while cursor.key().is_some() {
        cursor.advance().unwrap();
    }
}

/// Returns the greatest number of levels of the root's pivots, and of those below.
fn levels(world: &World) -> [usize; 2] {
    let cache = &world.tree.shared.node_cache;
    let most = |node: &Node| node.pivots.iter().map(Pivot::levels).max().unwrap_or(0);
    let root = cache.load_owned(&world.tree.newest().root).unwrap();
    let below = root.pivots.iter().filter_map(|pivot| match &pivot.child {
        Child::Node(slot, _) => Some(most(&cache.load_owned(slot).unwrap())),
        Child::Leaf(_) | Child::None => None,
    });
    [most(&root), below.max().unwrap_or(0)]
}

#[test]
fn scans_pay_for_merges_at_every_height() {
    let mut rng = Rng::new(91);
    let mut world = World::new(tiny(), 1);
    while world.tree.stats().height != 2 || levels(&world).into_iter().any(|levels| levels < 3) {
        world.absorb(uniform(&mut rng, 60));
        world.maintain();
    }
    assert!(!world.tree.wants_maintenance());
    let merges = |world: &World| ["compactions", "leaf_merges"].map(|name| world.event(name));
    let before = merges(&world);
    for _ in 0..SCANS_MAX {
        for part in 0..64 {
            scan(&world, part);
            if world.tree.wants_maintenance() {
                world.maintain();
            }
        }
        if levels(&world).into_iter().all(|levels| levels < 2) {
            break;
        }
    }
    assert_eq!(levels(&world), [1, 1]);
    let after = merges(&world);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    // Nothing is left to gain.
    scan(&world, 5);
    assert!(!world.tree.wants_maintenance());
    world.check(&mut rng);
}
