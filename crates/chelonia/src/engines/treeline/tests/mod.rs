//! Tests of the tree against a model map over its whole life, with tiny sizes.

mod lines;
mod pages;

use super::sweep::SWEEP_TRIGGER;
use super::{Treeline, TreelineConfig};
use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::engine::tests::jobs::{
    fail_in_jobs, failed_jobs_change_nothing, live_beside_jobs, work,
};
use crate::engine::tests::life::{Plan, live};
use crate::engine::tests::long_keys::{live_with_long_keys, metadata_of_shared_keys};
use crate::engine::tests::world::{self, Item, Model, Tried};
use crate::engine::tests::{hostile, key_of, uniform, value};
use crate::engine::{Engine, Job};
use crate::filters::FilterKind;
use crate::run::RunOptions;
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
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
        epsilon_percent: 0,
        forecast_rounds: 0,
        checkpoint_distance: 8 << 10,
        run_bytes: 4096,
        sweep_bytes: 8 << 10,
        run: RunOptions { filter: FilterKind::Bloom, bits_per_key: 12 },
    }
}

/// Sweeps all staged memtables, due or not.
fn sweep(world: &mut World) {
    loop {
        let swept = {
            let Some(mut job) = world.tree.plan_sweep(u64::MAX) else { return };
            job.run(&work(&world.workers)).unwrap();
            Box::new(job).install(&work(&world.workers)).unwrap().unwrap()
        };
        world.note(&Model::new(), swept);
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
    let lines =
        TreelineConfig { fill_percent: 70, epsilon_percent: 15, forecast_rounds: 2, ..tiny() };
    for seed in 0..4 {
        live::<Treeline>(&usual, seed, &mut events);
        live::<Treeline>(&with(single, 3), seed, &mut events);
        live::<Treeline>(&with(large, 2), seed, &mut events);
        live::<Treeline>(&with(lines, 1), seed, &mut events);
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
    // Small nodes share less, and small jobs have small nodes.
    let usual = TreelineConfig {
        group_pages: 16,
        node_groups: 64,
        checkpoint_distance: 1 << 20,
        sweep_bytes: 1 << 20,
        ..tiny()
    };
    let metadata = metadata_of_shared_keys::<Treeline>(usual);
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
    failed_jobs_change_nothing::<Treeline>(tiny(), &absorb_until_due);
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
fn an_idle_tree_sweeps_as_many_updates_as_it_has_pages() {
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
fn few_updates_wait_until_scans_have_read_as_much_as_a_sweep() {
    let mut rng = Rng::new(10);
    let mut world = World::new(tiny(), 1);
    world.tree.expect_updates(false);
    world.absorb(uniform(&mut rng, 2_000));
    world.maintain();
    world.absorb(uniform(&mut rng, 10));
    assert!(!world.tree.wants_maintenance());
    assert_eq!(world.maintain(), 0);
    let mut scans = 0;
    while !world.tree.wants_maintenance() {
        world.tree.version().cursor(KeyRange::all(), Direction::Ascending).unwrap();
        scans += 1;
    }
    // Ten pages are read and written, and one run of a few blocks is read.
    assert!((20..30).contains(&scans), "{scans}");
    world.maintain();
    assert_eq!(world.tree.stats().buffered_runs, 0);
    assert!(!world.tree.wants_maintenance());
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
