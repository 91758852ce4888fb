//! Tests of the tree against a model map over its whole life, with tiny sizes.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

mod chaos;
mod damage;
mod hostile;
mod jobs;
mod life;
mod reads;
mod reclaim;
mod shape;
mod space;

use crate::base::error::Result;
use crate::engine::tests::long_keys::{live_with_long_keys, metadata_of_shared_keys};
use crate::engine::tests::world::{self, Tried};
use crate::engines::splinter::{Splinter, SplinterConfig};
use crate::filters::FilterKind;
use crate::run::RunOptions;
use crate::runtime::sync::Arc;
use crate::storage::Storage;

/// A tree together with a model.
pub type World = world::World<Splinter>;

impl Tried for Splinter {
    type Options = SplinterConfig;

    fn open_tried(
        storage: &Arc<Storage>,
        options: SplinterConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        Splinter::open(storage, options, root)
    }
}

/// Options for trees so small that all events occur soon.
pub fn tiny() -> SplinterConfig {
    let run = RunOptions { filter: FilterKind::Bloom, bits_per_key: 12 };
    SplinterConfig { fanout: 4, branch_bytes: 4096, space_percent: 160, run }
}

#[test]
fn a_tree_of_long_keys_lives_like_a_map() {
    for seed in 0..6 {
        live_with_long_keys::<Splinter>(tiny(), seed);
        live_with_long_keys::<Splinter>(SplinterConfig { fanout: 8, ..tiny() }, seed);
    }
}

#[test]
fn keys_that_share_a_prefix_take_little_memory() {
    let metadata = metadata_of_shared_keys::<Splinter>(tiny());
    assert!(metadata < 4 << 20, "{metadata} bytes of metadata");
}
