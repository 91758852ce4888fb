//! Tests of long lives, in which all events occur.

use super::tiny;
use crate::engine::Engine;
use crate::engine::tests::life::{Plan, live};
use crate::engines::splinter::{Splinter, SplinterConfig};
use std::collections::BTreeMap;

#[test]
fn a_tree_lives_like_a_map_and_everything_happens() {
    let mut events = BTreeMap::new();
    let narrow = Plan { options: tiny(), rounds: 150, batch_max: 300, value_max: 120, threads: 1 };
    let wide = SplinterConfig { fanout: 8, ..tiny() };
    let wide = Plan { options: wide, rounds: 250, batch_max: 150, value_max: 40, ..narrow };
    for seed in 0..5 {
        live::<Splinter>(&narrow, seed, &mut events);
        live::<Splinter>(&wide, seed, &mut events);
    }
    // These events have tests of their own.
    for name in [
        "nodes_evicted",
        "pivots_stuck",
        "passes_repeated",
        "jobs_dropped",
        "root_shrunk",
        "trivial_moves",
    ] {
        events.remove(name);
    }
    let missing: Vec<_> = events.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn the_content_does_not_depend_on_the_number_of_threads() {
    let plan = Plan { options: tiny(), rounds: 80, batch_max: 400, value_max: 60, threads: 1 };
    for threads in [2, 4] {
        let world = live::<Splinter>(&Plan { threads, ..plan }, 5, &mut BTreeMap::new());
        assert!(world.tree.stats().height > 1);
    }
}
