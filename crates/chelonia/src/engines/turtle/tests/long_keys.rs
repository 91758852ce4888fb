//! Nodes of long keys.

use super::tiny;
use crate::engine::tests::long_keys::{live_with_long_keys, metadata_of_shared_keys};
use crate::engines::turtle::{Turtle, TurtleConfig};

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
