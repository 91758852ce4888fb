//! Tests of the tree against a model map over its whole life, with tiny sizes.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

mod damage;
mod full_device;
mod hostile;
mod jobs;
mod life;
mod long_keys;
mod maintenance;
mod parallel;
mod reads;
mod references;
mod shape;

use crate::base::error::{ErrorKind, Result};
use crate::buffer_tree::counts::{Met, walk_references};
use crate::buffer_tree::output::Output;
use crate::buffer_tree::read::read_cost::paid_within;
use crate::engine::tests::world::{self, Item, Model, Tried, Updates, check_scans, found};
use crate::engine::tests::{key_of, uniform, value};
use crate::engine::{Engine, Work, WriteBudget};
use crate::engines::turtle::{Turtle, TurtleConfig};
use crate::filters::FilterKind;
use crate::run::RunOptions;
use crate::runtime::rng::Rng;
use crate::runtime::sync::{Arc, AtomicBool, Ordering};
use crate::runtime::workers::Workers;
use crate::storage::Storage;
use crate::storage::block::BlockKind;
use crate::storage::io::fault::{Call, Fault};
use crate::storage::quota::UNLIMITED;

/// A tree together with a model.
pub type World = world::World<Turtle>;

impl Tried for Turtle {
    type Options = TurtleConfig;

    fn open_tried(
        storage: &Arc<Storage>,
        options: TurtleConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        Turtle::open(storage, options, root)
    }
}

/// Options for trees so small that all events occur soon.
pub fn tiny() -> TurtleConfig {
    TurtleConfig {
        leaf_bytes: 4096,
        pivots_max: 4,
        levels_max: 3,
        flush_percent: 100,
        run: RunOptions { filter: FilterKind::Bloom, bits_per_key: 12 },
    }
}

impl World {
    /// Average fill of leaves, in percent of their maximum weight.
    pub fn leaf_fill_percent(&self) -> u64 {
        let events = self.tree.stats();
        let leaf = self.tree.newest().summary.leaf;
        100 * leaf.weight() / (events.leaves * self.options.leaf_bytes).max(1)
    }

    /// Sum of the read costs of all pivots.
    pub fn paid(&self) -> u64 {
        let guard = self.tree.shared.node_cache.storage().epochs().pin();
        let version = self.tree.newest();
        let node = self.tree.shared.node_cache.load_owned(&version.root).unwrap();
        node.pivots.iter().map(|pivot| paid_within(pivot, &guard)).sum()
    }
}

#[test]
fn a_large_first_absorb_is_cut_and_fills_leaves() {
    let mut rng = Rng::new(1);
    for threads in [1, 3] {
        let mut world = World::new(tiny(), threads);
        world.absorb(uniform(&mut rng, 4000));
        world.check(&mut rng);
        assert_eq!(world.event("flushes_cut"), 1);
        assert!(world.leaf_fill_percent() >= 80, "{}", world.leaf_fill_percent());
        assert!(world.tree.stats().height >= 3);
    }
}

#[test]
fn a_sequential_load_leaves_full_leaves() {
    let mut rng = Rng::new(2);
    let mut world = World::new(tiny(), 1);
    for batch in 0..40_u64 {
        let first = batch * 150;
        world.absorb((first..first + 150).map(|n| (key_of(n), value(&mut rng, 92))).collect());
    }
    world.check(&mut rng);
    assert!(world.leaf_fill_percent() >= 85, "{}", world.leaf_fill_percent());
    assert!(world.event("leaves_kept") > 0);
    // Nodes on the left are full, too.
    let stats = world.tree.stats();
    assert!(stats.leaves <= stats.nodes * 3, "{} leaves {} nodes", stats.leaves, stats.nodes);
}

#[test]
fn overwriting_does_not_grow_the_tree() {
    let mut rng = Rng::new(3);
    let mut world = World::new(tiny(), 1);
    world.absorb(uniform(&mut rng, 3000));
    let keys: Vec<_> = world.model.keys().cloned().collect();
    let leaves = world.tree.stats().leaves;
    for _ in 0..60 {
        let pick = |rng: &mut Rng| keys[rng.below(keys.len() as u64) as usize].clone();
        world.absorb((0..300).map(|_| (pick(&mut rng), value(&mut rng, 92))).collect());
    }
    world.check(&mut rng);
    let after = world.tree.stats().leaves;
    assert!(after <= leaves + leaves / 4, "{leaves} leaves became {after}");
    assert!(world.event("entries_shadowed") > 1000);
}

#[test]
fn deleting_everything_gives_everything_back() {
    let mut rng = Rng::new(4);
    for pieces in [1, 7] {
        let mut world = World::new(tiny(), 1);
        for _ in 0..20 {
            world.absorb(uniform(&mut rng, 200));
        }
        assert!(world.tree.stats().height > 3);
        let keys: Vec<_> = world.model.keys().cloned().collect();
        for part in keys.chunks(keys.len().div_ceil(pieces)) {
            world.absorb(part.iter().map(|key| (key.clone(), Item::Deleted)).collect());
            world.check(&mut rng);
        }
        assert!(world.event("pivots_removed") > 0);
        assert!(world.event("tombstones_dropped") > 0);
        assert_eq!(world.owned.len(), 0);
        assert_eq!(world.tree.stats().height, 0);
        world.reopen();
        world.check(&mut rng);
        world.absorb(uniform(&mut rng, 100));
        world.check(&mut rng);
    }
}

#[test]
fn what_was_flushed_beside_a_buffered_range_stays_gone() {
    let mut rng = Rng::new(12);
    let mut cleared = 0;
    for round in 0..12 {
        let mut world = World::new(TurtleConfig { pivots_max: 16, ..tiny() }, 1);
        world.absorb(uniform(&mut rng, 350));
        // Buffered: one segment with entries for many pivots.
        world.absorb(uniform(&mut rng, 40));
        let version = world.tree.newest();
        let root = world.tree.shared.node_cache.load_owned(&version.root).unwrap();
        assert_eq!(root.height, 1);
        let victim = 1 + round % (root.pivots.len() - 2);
        let around = &root.pivots[victim - 1..=victim + 1];
        if around.iter().any(|pivot| pivot.parts.is_empty()) {
            continue;
        }
        // Its leaf becomes empty; buffered entries of its neighbours' segment lie in its range.
        let range = around[1].key.to_bytes().into_owned()..around[2].key.to_bytes().into_owned();
        let gone = world.model.range(range).map(|(key, _)| (key.clone(), Item::Deleted));
        let gone: Model = gone.collect();
        world.absorb(gone);
        world.check(&mut rng);
        cleared += 1;
    }
    assert!(cleared > 3, "{cleared}");
}

#[test]
fn a_tree_that_loses_most_of_itself_becomes_lower() {
    let mut rng = Rng::new(11);
    let mut world = World::new(tiny(), 1);
    for _ in 0..20 {
        world.absorb(uniform(&mut rng, 200));
    }
    let height = world.tree.stats().height;
    let keys: Vec<_> = world.model.keys().cloned().collect();
    let most = keys.iter().filter(|key| key[0] < 250);
    world.absorb(most.map(|key| (key.clone(), Item::Deleted)).collect());
    for _ in 0..6 {
        world.check(&mut rng);
        let keys: Vec<_> = world.model.keys().cloned().collect();
        world.absorb(keys.into_iter().map(|key| (key, value(&mut rng, 40))).collect());
    }
    world.check(&mut rng);
    assert!(world.event("root_shrunk") > 0);
    assert!(world.tree.stats().height < height);
}

#[test]
fn tombstones_that_wait_are_taken_down() {
    let mut rng = Rng::new(5);
    let mut world = World::new(tiny(), 1);
    world.absorb(uniform(&mut rng, 2000));
    let keys: Vec<_> = world.model.keys().cloned().collect();
    for part in 0..6 {
        let some = keys.iter().enumerate().filter(|(index, _)| index % 12 == part);
        world.absorb(some.map(|(_, key)| (key.clone(), Item::Deleted)).collect());
        world.check(&mut rng);
    }
    assert!(world.event("tombstone_flushes") > 0);
}

#[test]
fn many_trees_share_the_memory_of_one() {
    let mut rng = Rng::new(12);
    let mut world = World::with_memory(tiny(), 1, 4 << 20);
    for _ in 0..10 {
        world.absorb(uniform(&mut rng, 600));
    }
    let root = world.tree.root().unwrap();
    let open = || Turtle::open(&world.storage, tiny(), Some(&root)).unwrap();
    let trees: Vec<_> = (0..20).map(|_| open()).collect();
    let node_clock = world.storage.node_clock();
    for tree in &trees {
        check_scans(&tree.version(), &world.model);
        let bytes = node_clock.bytes();
        assert!(bytes <= node_clock.share() + 16_384, "{bytes}");
    }
    // One worker alone would exceed its part of that, and may take the share of the idle ones.
    let loads = |tree: &Turtle| {
        let events = tree.stats().events;
        events.iter().find(|(name, _)| *name == "nodes_loaded").map_or(0, |(_, count)| *count)
    };
    let busy = &trees[0];
    check_scans(&busy.version(), &world.model);
    let before = loads(busy);
    check_scans(&busy.version(), &world.model);
    assert!(node_clock.bytes() > node_clock.share() / trees.len() as u64);
    assert!(loads(busy) < before + before / 4, "{} after {before}", loads(busy));
    let evicted = |tree: &Turtle| {
        tree.stats().events.iter().any(|(name, count)| *name == "nodes_evicted" && *count > 0)
    };
    assert!(trees.iter().any(evicted));
    drop(trees);
    let held = node_clock.bytes();
    drop(world.tree);
    let epochs = world.storage.epochs();
    let mut looks = (0..10_000).map(|_| {
        epochs.collect();
        std::thread::yield_now();
        node_clock.bytes()
    });
    assert!(looks.any(|bytes| bytes < held || bytes == 0), "{held}");
}
