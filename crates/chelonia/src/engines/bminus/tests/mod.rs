//! Tests of the tree against a model map over its whole life, with tiny sizes.

mod images;
mod sizes;

use super::version::BminusVersion;
use super::{Bminus, BminusConfig};
use crate::base::error::Result;
use crate::engine::tests::hostile;
use crate::engine::tests::life::{Plan, live};
use crate::engine::tests::long_keys::{live_with_long_keys, metadata_of_shared_keys};
use crate::engine::tests::world::{self, Tried};
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::block::BlockKind;
use std::collections::BTreeMap;

/// A tree together with a model.
type World = world::World<Bminus>;

impl Tried for Bminus {
    type Options = BminusConfig;
    const HAS_BUFFERS: bool = false;
    const ENTRIES: BlockKind = BlockKind::Page;

    fn open_tried(
        storage: &Arc<Storage>,
        options: BminusConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        Bminus::open(storage, options, root)
    }
}

/// Options for trees so small that all events occur soon.
fn tiny() -> BminusConfig {
    BminusConfig {
        page_blocks: 1,
        segment_bytes: 128,
        delta_bytes: 1024,
        shadow: true,
        node_pages: 8,
    }
}

#[test]
fn a_tree_lives_like_a_map_and_everything_happens() {
    let mut events = BTreeMap::new();
    let usual = Plan { options: tiny(), rounds: 150, batch_max: 150, value_max: 90, threads: 1 };
    let with = |options, threads| Plan { options, threads, ..usual };
    let large = BminusConfig { page_blocks: 4, segment_bytes: 256, delta_bytes: 4096, ..tiny() };
    let wide = BminusConfig { page_blocks: 2, node_pages: 32, ..tiny() };
    let without_deltas = BminusConfig { delta_bytes: 0, ..tiny() };
    let baseline = BminusConfig { shadow: false, ..tiny() };
    for seed in 0..4 {
        live::<Bminus>(&usual, seed, &mut events);
        live::<Bminus>(&with(large, 3), seed, &mut events);
        live::<Bminus>(&with(wide, 2), seed, &mut events);
        live::<Bminus>(&with(without_deltas, 1), seed, &mut events);
        live::<Bminus>(&with(baseline, 2), seed, &mut events);
    }
    // These events have tests of their own.
    events.remove("nodes_evicted");
    events.remove("suspects_settled");
    events.remove("nodes_cleared");
    let missing: Vec<_> = events.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn a_tree_of_long_keys_lives_like_a_map() {
    for seed in 0..6 {
        live_with_long_keys::<Bminus>(tiny(), seed);
    }
}

#[test]
fn keys_that_share_a_prefix_take_little_memory() {
    // Small nodes share less.
    let metadata = metadata_of_shared_keys::<Bminus>(BminusConfig { node_pages: 64, ..tiny() });
    assert!(metadata < 4 << 20, "{metadata} bytes of metadata");
}

#[test]
fn hostile_bytes_and_devices_do_no_harm() {
    let small = BminusConfig { node_pages: 3, ..tiny() };
    hostile::battery::<Bminus>(small);
    hostile::battery::<Bminus>(BminusConfig { shadow: false, ..small });
}
