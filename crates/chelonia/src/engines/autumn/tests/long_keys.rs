//! Tests of tables and nodes with long keys.

use super::{World, tiny};
use crate::engine::tests::long_keys::{live_with_long_keys, metadata_of_shared_keys};
use crate::engine::tests::uniform;
use crate::engines::autumn::Autumn;
use crate::engines::autumn::codec::{decode_node, encode_node};
use crate::engines::autumn::table::{NODE_TABLES_MAX, Node, Table};
use crate::runtime::rng::Rng;
use crate::structure::SharedKey;

#[test]
fn a_tree_of_long_keys_lives_like_a_map() {
    for seed in 0..6 {
        live_with_long_keys::<Autumn>(tiny(), seed);
    }
}

#[test]
fn keys_that_share_a_prefix_take_little_memory() {
    let metadata = metadata_of_shared_keys::<Autumn>(tiny());
    assert!(metadata < 4 << 20, "{metadata} bytes of metadata");
}

/// A node of maximum size, with keys that compress well on disk.
#[test]
fn a_forged_node_of_long_keys_takes_little_memory() {
    let mut rng = Rng::new(1);
    let mut world = World::new(tiny(), 1);
    world.absorb(uniform(&mut rng, 100));
    let version = world.tree.newest();
    let node_cache = &world.tree.shared.node_cache;
    let node = node_cache.load_owned(&version.level0[0].nodes[0].slot).unwrap();
    let run = &node.tables[0].run;
    for step in [0, 300] {
        let key = |number: usize| {
            let mut key = vec![7; 1_000 + step * number];
            key.extend([7; 20_000]);
            key.extend(number.to_be_bytes().map(|byte| byte | 8));
            SharedKey::whole(&key)
        };
        let mut keys: Vec<SharedKey> = (0..NODE_TABLES_MAX).map(key).collect();
        keys.sort();
        keys.dedup();
        let tables: Vec<Table> =
            keys.into_iter().map(|key| Table::whole(run.clone(), key.clone(), key)).collect();
        let bytes = encode_node(&Node::new(tables));
        let forged = decode_node(&bytes, node_cache).unwrap();
        let heap = forged.heap_bytes();
        assert!(heap < 1 << 20, "{heap} bytes of {} on disk", bytes.len());
    }
}
