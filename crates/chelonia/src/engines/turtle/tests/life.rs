//! Tests of long lives, in which all events occur.

use super::tiny;
use crate::engine::Engine;
use crate::engine::tests::life::{Plan, live};
use crate::engines::turtle::{Turtle, TurtleConfig};
use std::collections::BTreeMap;

/// Wide and shallow, small entries: buffers matter.
fn wide() -> TurtleConfig {
    TurtleConfig { pivots_max: 16, levels_max: 4, ..tiny() }
}

#[test]
fn a_tree_lives_like_a_map_and_everything_happens() {
    let mut events = BTreeMap::new();
    let narrow = Plan { options: tiny(), rounds: 150, batch_max: 300, value_max: 120, threads: 1 };
    let wide = Plan { options: wide(), rounds: 250, batch_max: 150, value_max: 40, threads: 1 };
    let lazy = Plan { options: TurtleConfig { flush_percent: 200, ..wide.options }, ..wide };
    for seed in 0..5 {
        live::<Turtle>(&narrow, seed, &mut events);
        live::<Turtle>(&wide, seed, &mut events);
        live::<Turtle>(&lazy, seed, &mut events);
    }
    // These events have tests of their own.
    events.remove("nodes_evicted");
    events.remove("flushes_cut");
    events.remove("pivots_stuck");
    events.remove("passes_repeated");
    let missing: Vec<_> = events.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let plan = Plan { options: wide(), rounds: 60, batch_max: 400, value_max: 60, threads: 1 };
    let stats = |threads| {
        let world = live::<Turtle>(&Plan { threads, ..plan }, 5, &mut BTreeMap::new());
        let stats = world.tree.stats();
        let shape = (stats.height, stats.nodes, stats.leaves, stats.buffered_runs);
        (world.model.len(), shape, stats.leaf_bytes, stats.buffered_bytes, stats.disk_bytes)
    };
    assert_eq!(stats(1), stats(3));
}
