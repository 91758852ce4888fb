//! Tests of nodes with long keys.

use super::{World, tiny};
use crate::base::stream::NewValues;
use crate::engine::tests::long_keys::{live_with_long_keys, metadata_of_shared_keys};
use crate::engine::tests::value;
use crate::engine::tests::world::{Model, Updates};
use crate::engine::{Engine, Work, WriteBudget};
use crate::engines::turtle::{Turtle, TurtleConfig};
use crate::runtime::rng::Rng;
use crate::runtime::workers::Workers;
use crate::storage::quota::UNLIMITED;

#[test]
fn a_tree_of_long_keys_lives_like_a_map() {
    for seed in 0..6 {
        live_with_long_keys::<Turtle>(tiny(), seed);
        live_with_long_keys::<Turtle>(TurtleConfig { pivots_max: 16, ..tiny() }, seed);
    }
}

#[test]
fn keys_that_share_a_prefix_take_little_memory() {
    let metadata = metadata_of_shared_keys::<Turtle>(TurtleConfig { pivots_max: 64, ..tiny() });
    assert!(metadata < 4 << 20, "{metadata} bytes of metadata");
}

/// On a full device nothing is flushed: much is pending, and most segments begin within a pivot.
#[test]
fn a_node_with_hundreds_of_segments_that_begin_at_long_keys_is_read_again() {
    let options = TurtleConfig { leaf_bytes: 128 << 10, pivots_max: 64, ..tiny() };
    let mut world = World::new(options, 1);
    let mut rng = Rng::new(3);
    let prefix = vec![b'p'; 65_500];
    let mut batch = |from: u64, count: u64| -> Model {
        let numbers =
            (0..60).flat_map(|pivot| (from..from + count).map(move |it| 100 * pivot + it));
        let key = |number: u64| [&prefix[..], &number.to_be_bytes()].concat();
        numbers.map(|number| (key(number), value(&mut rng, 8))).collect()
    };
    world.absorb(batch(0, 1));
    for round in 1..4 {
        let batch = batch(10 * round, 3);
        let work = Work {
            workers: &Workers::inline(),
            progress: &|_| {},
            quota: &UNLIMITED,
            values: NewValues::Plain,
        };
        let absorbed =
            world.tree.absorb(&Updates::new(batch.clone()), WriteBudget::Minimal, &work).unwrap();
        world.note(&batch, absorbed);
    }
    let stats = world.tree.stats();
    assert!(stats.nodes == 1 && stats.buffered_runs > 250, "{stats:?}");
    // Each pass rewrites the node.
    assert!(stats.node_bytes_written < 1 << 20, "{stats:?}");
    world.reopen();
    world.check(&mut Rng::new(4));
}
