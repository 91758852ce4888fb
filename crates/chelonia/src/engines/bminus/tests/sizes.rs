//! Tests of pages that are larger than usual, for records that need it.

use super::{BminusConfig, World, tiny};
use crate::engine::Engine;
use crate::engine::tests::key_of;
use crate::engine::tests::world::{Item, Model};
use crate::runtime::rng::Rng;

/// Records with values of `bytes` bytes under the first `count` keys.
fn records(count: u64, bytes: usize) -> Model {
    (0..count).map(|key| (key_of(key), Item::Value(vec![7; bytes]))).collect()
}

#[test]
fn a_page_of_a_large_record_shrinks_with_it() {
    let wide = BminusConfig { node_pages: 128, ..tiny() };
    for options in [wide, BminusConfig { shadow: false, ..wide }] {
        let mut world = World::new(options, 1);
        world.absorb(records(400, 6_000));
        let large = world.tree.stats().disk_bytes;
        // Few at a time: most pages have no neighbor that was changed too.
        for round in 0..60 {
            world.absorb(
                records(400, 20 + round / 20).into_iter().skip(round % 20).step_by(20).collect(),
            );
        }
        let small = world.tree.stats().disk_bytes;
        // A node keeps some homes that are not used.
        assert!(small < large / 3, "{small} of {large} bytes for records of 20 bytes");
        world.check(&mut Rng::new(1));
    }
}
