//! Tests of the tree against a model map over its whole life, with tiny sizes.

mod pages;

use super::sweep::SWEEP_TRIGGER;
use super::{Treeline, TreelineConfig};
use crate::base::error::{ErrorKind, Result};
use crate::engine::tests::jobs::{fail_in_jobs, live_beside_jobs, work};
use crate::engine::tests::life::{Plan, live};
use crate::engine::tests::long_keys::{live_with_long_keys, metadata_of_shared_keys};
use crate::engine::tests::world::{self, Item, Model, Tried};
use crate::engine::tests::{hostile, key_of, uniform, value};
use crate::engine::{Engine, do_job};
use crate::filters::FilterKind;
use crate::run::RunOptions;
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::io::fault::{Call, Fault};
use std::collections::BTreeMap;

/// A tree together with a model.
type World = world::World<Treeline>;

impl Tried for Treeline {
    type Options = TreelineConfig;

    fn open_tried(
        storage: &Arc<Storage>,
        options: TreelineConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        Treeline::open(storage, options, root)
    }
}

/// Options for trees so small that all events occur soon.
fn tiny() -> TreelineConfig {
    TreelineConfig {
        group_pages: 4,
        node_groups: 8,
        fill_percent: 85,
        checkpoint_distance: 8 << 10,
        run_bytes: 4096,
        sweep_bytes: 8 << 10,
        run: RunOptions { filter: FilterKind::Bloom, bits_per_key: 12 },
    }
}

fn absorb_until_due(world: &mut World, rng: &mut Rng) {
    for _ in 0..SWEEP_TRIGGER {
        world.absorb(uniform(rng, 80));
    }
}

#[test]
fn a_tree_lives_like_a_map_and_everything_happens() {
    let mut events = BTreeMap::new();
    let usual = Plan { options: tiny(), rounds: 150, batch_max: 150, value_max: 90, threads: 1 };
    let with = |options, threads| Plan { options, threads, ..usual };
    let single = TreelineConfig { group_pages: 1, ..tiny() };
    let large = TreelineConfig { group_pages: 16, fill_percent: 100, ..tiny() };
    for seed in 0..4 {
        live::<Treeline>(&usual, seed, &mut events);
        live::<Treeline>(&with(single, 3), seed, &mut events);
        live::<Treeline>(&with(large, 2), seed, &mut events);
    }
    // These events have tests of their own.
    events.remove("nodes_evicted");
    events.remove("sweeps_stuck");
    events.remove("page_splits");
    let missing: Vec<_> = events.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn a_tree_of_long_keys_lives_like_a_map() {
    for seed in 0..6 {
        live_with_long_keys::<Treeline>(tiny(), seed);
    }
}

#[test]
fn keys_that_share_a_prefix_take_little_memory() {
    let metadata = metadata_of_shared_keys::<Treeline>(tiny());
    assert!(metadata < 4 << 20, "{metadata} bytes of metadata");
}

#[test]
fn sweeps_are_installed_on_later_versions() {
    let ends = live_beside_jobs::<Treeline>(tiny(), &absorb_until_due);
    // Only those that the test threw away.
    assert!(ends.installed >= 8 && ends.dropped == 3, "{ends:?}");
}

#[test]
fn sweeps_that_fail_free_their_output() {
    assert!(fail_in_jobs::<Treeline>(tiny(), &absorb_until_due) > 2);
}

#[test]
fn hostile_bytes_and_devices_are_survived() {
    // Groups of one page that is half full, and nodes of one group, so that there are many.
    let small = TreelineConfig { group_pages: 1, node_groups: 1, fill_percent: 50, ..tiny() };
    hostile::battery::<Treeline>(small);
}

#[test]
fn a_failed_sweep_changes_nothing() {
    let mut rng = Rng::new(6);
    for call in [Call::Write, Call::Read, Call::Allocate] {
        let mut world = World::new(tiny(), 1);
        let mut failed = 0;
        for round in 0..24 {
            absorb_until_due(&mut world, &mut rng);
            // Discard the caches: sweeps must read their inputs.
            world.reopen();
            let root = world.tree.root().unwrap();
            let used = world.storage.stats().space.used_blocks;
            world.faults.fail(Fault::once(call, round % 11));
            let swept = do_job(&world.tree, &work(&world.workers));
            world.faults.heal();
            match swept {
                Err(error) => {
                    failed += 1;
                    assert_eq!(error.kind(), ErrorKind::Io);
                    assert_eq!(world.tree.root().unwrap(), root);
                    assert_eq!(world.storage.stats().space.used_blocks, used);
                }
                Ok(Some(absorbed)) => world.note(&Model::new(), absorbed),
                Ok(None) => {}
            }
            world.maintain();
        }
        world.check(&mut rng);
        assert!(failed > 2, "{call:?} failed {failed} times");
    }
}

#[test]
fn memtables_that_a_job_sweeps_are_not_merged_before_its_install() {
    let mut rng = Rng::new(9);
    let mut world = World::new(TreelineConfig { checkpoint_distance: 1 << 20, ..tiny() }, 1);
    absorb_until_due(&mut world, &mut rng);
    let workers = world.workers;
    let (batches, absorbed): (Vec<Model>, Vec<_>) = {
        let mut job = world.tree.plan(&work(&workers)).unwrap().unwrap();
        job.run(&work(&workers)).unwrap();
        let batches: Vec<Model> = (0..10).map(|_| uniform(&mut rng, 80)).collect();
        let mut absorbed: Vec<_> =
            batches.iter().map(|batch| world.try_absorb(batch).unwrap()).collect();
        absorbed.push(job.install(&work(&workers)).unwrap().unwrap());
        (batches, absorbed)
    };
    assert!(world.event("staged_merges") > 0);
    let batches = batches.into_iter().chain([Model::new()]);
    batches.zip(absorbed).for_each(|(batch, absorbed)| world.note(&batch, absorbed));
    world.check(&mut rng);
    world.maintain();
    world.check(&mut rng);
}

#[test]
fn an_idle_tree_has_all_its_entries_in_pages() {
    let mut rng = Rng::new(7);
    let mut world = World::new(tiny(), 2);
    world.absorb(uniform(&mut rng, 80));
    assert!(!world.tree.wants_maintenance());
    world.tree.expect_updates(false);
    assert!(world.tree.wants_maintenance());
    world.maintain();
    assert!(!world.tree.wants_maintenance());
    assert_eq!(world.tree.stats().buffered_runs, 0);
    world.check(&mut rng);
}

#[test]
fn a_tree_whose_entries_are_all_deleted_takes_no_space() {
    let mut rng = Rng::new(8);
    let mut world = World::new(tiny(), 2);
    world.tree.expect_updates(false);
    for _ in 0..20 {
        world.absorb(uniform(&mut rng, 80));
        world.maintain();
    }
    let keys: Vec<Vec<u8>> = world.model.keys().cloned().collect();
    // From the least key on: what begins at the least key goes first.
    for part in keys.chunks(80) {
        world.absorb(part.iter().map(|key| (key.clone(), Item::Deleted)).collect());
        world.maintain();
        world.check(&mut rng);
    }
    assert_eq!((world.tree.stats().disk_bytes, world.owned.len()), (0, 0));
    world.absorb((0..80).map(|n| (key_of(n), value(&mut rng, 92))).collect());
    world.maintain();
    world.check(&mut rng);
}
