//! Tests of the level policy, and of the tree against a model map over its whole life, with tiny
//! sizes.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

mod damage;
mod jobs;
mod long_keys;
mod room;

use super::merge::garnering::Garnering;
use super::merge::plan::LEVEL0_TRIGGER;
use super::table::Sequence;
use super::{Autumn, AutumnConfig};
use crate::base::error::{ErrorKind, Result};
use crate::base::keys::KeyRange;
use crate::base::stream::NewValues;
use crate::engine::tests::jobs::{failed_jobs_change_nothing, work};
use crate::engine::tests::life::{Plan, live};
use crate::engine::tests::world::{self, Item, Model, Tried};
use crate::engine::tests::{hostile, key_of, uniform, value};
use crate::engine::{Engine, LevelOptions, LiveOptions, do_job};
use crate::filters::FilterKind;
use crate::run::RunOptions;
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::io::{Access, Directory, OpenMode};
use crate::storage::quota::UNLIMITED;
use std::collections::BTreeMap;

/// A tree together with a model.
type World = world::World<Autumn>;

impl Tried for Autumn {
    type Options = AutumnConfig;

    fn open_tried(
        storage: &Arc<Storage>,
        options: AutumnConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        Autumn::open(storage, options, root)
    }
}

/// Options for trees so small that all events occur soon.
fn tiny() -> AutumnConfig {
    AutumnConfig {
        table_bytes: 4096,
        checkpoint_distance: 8 << 10,
        levels: LevelOptions::new().size_ratio(2),
        run: RunOptions { filter: FilterKind::Bloom, bits_per_key: 12 },
    }
}

/// Number of non-empty levels below level 0.
fn levels(world: &World) -> usize {
    world.tree.newest().levels.iter().filter(|level| !level.is_empty()).count()
}

#[test]
fn a_tree_lives_like_a_map_and_everything_happens() {
    let mut events = BTreeMap::new();
    let usual = Plan { options: tiny(), rounds: 150, batch_max: 150, value_max: 90, threads: 1 };
    let with = |levels: LevelOptions, threads| Plan {
        options: AutumnConfig { levels, ..usual.options },
        threads,
        ..usual
    };
    let plain = LevelOptions { size_ratio: 3, scaling_percent: 100, ..tiny().levels };
    let flat =
        LevelOptions { scaling_percent: 40, allocate_filters_by_level: false, ..tiny().levels };
    let relative = LevelOptions { dynamic_sizes: true, ..tiny().levels };
    for seed in 0..4 {
        live::<Autumn>(&usual, seed, &mut events);
        live::<Autumn>(&with(plain, 3), seed, &mut events);
        live::<Autumn>(&with(flat, 1), seed, &mut events);
        live::<Autumn>(&with(relative, 2), seed, &mut events);
    }
    // These events have tests of their own.
    events.remove("nodes_evicted");
    events.remove("tables_stuck");
    events.remove("merges_within_level0");
    let missing: Vec<_> = events.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn levels_follow_the_formula() {
    let mut rng = Rng::new(1);
    for (ratio, percent) in [(2, 100), (2, 80), (3, 80), (3, 40), (5, 40)] {
        let shape = LevelOptions { size_ratio: ratio, scaling_percent: percent, ..tiny().levels };
        let mut world = World::new(AutumnConfig { levels: shape, ..tiny() }, 1);
        for _ in 0..160 {
            world.absorb(uniform(&mut rng, 80));
            world.maintain();
        }
        world.check(&mut rng);
        let policy = world.options.policy();
        let version = world.tree.newest();
        let sizes: Vec<u64> = version.levels.iter().map(|level| level.weight()).collect();
        let capacities = policy.capacities(&sizes);
        for (level, (size, capacity)) in sizes.iter().zip(&capacities).enumerate() {
            assert!(
                size <= capacity,
                "T {ratio} c {percent}: level {level}: {sizes:?} {capacities:?}"
            );
        }
        assert!(version.level0.len() < LEVEL0_TRIGGER);
        let total: u64 = sizes.iter().sum();
        let formula = policy.levels_for(total / u64::from(ratio) * u64::from(ratio - 1));
        assert!(sizes.len().abs_diff(formula) <= 1, "{} levels, not {formula}", sizes.len());
    }
}

#[test]
fn what_ascends_is_written_once() {
    let mut rng = Rng::new(2);
    let mut world = World::new(tiny(), 1);
    for batch in 0..60_u64 {
        let first = batch * 80;
        world.absorb((first..first + 80).map(|n| (key_of(n), value(&mut rng, 92))).collect());
        world.maintain();
    }
    world.check(&mut rng);
    let stats = world.tree.stats();
    assert!(stats.run_bytes_written <= stats.disk_bytes + stats.disk_bytes / 50, "{stats:?}");
    assert!(world.event("tables_moved") > 100 && levels(&world) >= 1);
}

#[test]
fn parameters_turn_while_the_tree_runs() {
    let mut rng = Rng::new(3);
    let mut world = World::new(tiny(), 1);
    let keys: Vec<u64> = (0..6000).map(|_| rng.next_u64()).collect();
    let mut next = 0;
    let mut write = |world: &mut World, rng: &mut Rng, batches: u64| {
        for _ in 0..batches {
            let batch = (0..80).map(|_| {
                next += 1;
                (key_of(keys[next % keys.len()]), value(rng, 92))
            });
            let batch: Model = batch.collect();
            world.absorb(batch);
            world.maintain();
        }
    };
    write(&mut world, &mut rng, 80);
    let deep = levels(&world);
    for (ratio, percent) in [(5, 40), (2, 100), (2, 80)] {
        let shape = LevelOptions { size_ratio: ratio, scaling_percent: percent, ..tiny().levels };
        world.options.levels = shape;
        world.tree.set_live_options(LiveOptions::Levels(shape));
        write(&mut world, &mut rng, 40);
        world.check(&mut rng);
        let policy = world.options.policy();
        let total: u64 = world.tree.newest().levels.iter().map(|level| level.weight()).sum();
        let most = policy.levels_for(total);
        assert!(levels(&world) <= most + 1, "{} levels, {most} by the formula", levels(&world));
    }
    assert!(deep >= 3 && world.event("levels_removed") > 0);
}

#[test]
fn relative_capacities_bound_what_is_obsolete() {
    let mut rng = Rng::new(4);
    let amplification = |relative: bool, rng: &mut Rng| {
        let shape = LevelOptions { size_ratio: 4, dynamic_sizes: relative, ..tiny().levels };
        let mut world = World::new(AutumnConfig { levels: shape, ..tiny() }, 1);
        let keys: Vec<u64> = (0..4000).map(|_| rng.next_u64()).collect();
        let mut most: f64 = 0.0;
        for round in 0..200 {
            let pick = |rng: &mut Rng| keys[rng.below(keys.len() as u64) as usize];
            world.absorb((0..80).map(|_| (key_of(pick(rng)), value(rng, 92))).collect());
            world.maintain();
            if round > 120 {
                let live: usize = world.model.keys().map(|key| key.len() + 92).sum();
                let stats = world.tree.stats();
                let version = world.tree.newest();
                let level0: u64 = version.level0.iter().map(|it| it.totals().bytes).sum();
                let held = stats.leaf_bytes + stats.buffered_bytes - level0;
                most = most.max(held as f64 / live as f64);
            }
        }
        world.check(rng);
        most
    };
    let bounded = amplification(true, &mut rng);
    assert!(bounded < 1.45, "{bounded}: more than (T + 1) / T and what comes in at one time");
    assert!(amplification(false, &mut rng) > bounded);
}

#[test]
fn tombstones_go_at_the_bottom() {
    let mut rng = Rng::new(5);
    let mut world = World::new(tiny(), 1);
    for _ in 0..60 {
        world.absorb(uniform(&mut rng, 80));
        world.maintain();
    }
    let keys: Vec<Vec<u8>> = world.model.keys().cloned().collect();
    for part in keys.chunks(80) {
        world.absorb(part.iter().map(|key| (key.clone(), Item::Deleted)).collect());
        world.maintain();
        world.check(&mut rng);
    }
    assert!(world.event("tombstones_dropped") > 1000);
    let left = world.tree.stats();
    assert!(left.leaf_bytes + left.buffered_bytes < 60 << 10, "{left:?}");
    world.reopen();
    world.check(&mut rng);
}

#[test]
fn drops_become_tables() {
    let mut rng = Rng::new(12);
    let options = AutumnConfig { table_bytes: 64 << 10, ..tiny() };
    for descends in [false, true] {
        let mut world = World::new(options, 1);
        for drop in 0..1_500_u64 {
            let drop = if descends { 1_500 - drop } else { drop };
            let keys = 3 * drop..3 * drop + 3;
            world.absorb(keys.map(|n| (key_of(n), value(&mut rng, 92))).collect());
            world.maintain();
        }
        let version = world.tree.newest();
        let tables: u64 = version.sequences().map(|sequence| sequence.tables()).sum();
        let bytes: u64 = version.sequences().map(|sequence| sequence.weight()).sum();
        assert!(tables < 3 * bytes / options.table_bytes + 10, "{tables} tables of {bytes} bytes");
        let written = world.tree.stats().run_bytes_written;
        // Each absorb writes two blocks at first.
        assert!(written < 1_500 * 2 * 4096 + 20 * bytes, "{written} written of {bytes} bytes");
    }
}

#[test]
fn a_failed_unit_changes_nothing() {
    failed_jobs_change_nothing::<Autumn>(tiny(), &|world, rng| {
        for _ in 0..LEVEL0_TRIGGER {
            world.absorb(uniform(rng, 80));
        }
        // The sequences begin to sink.
        let began = do_job(&world.tree, &work(&world.workers)).unwrap();
        world.note(&Model::new(), began.unwrap());
    });
}

#[test]
fn hostile_bytes_and_devices_are_survived() {
    hostile::battery::<Autumn>(tiny());
}

/// Number of partly live tables of level 0.
fn clipped(world: &World) -> usize {
    let version = world.tree.newest();
    let node_cache = &world.tree.shared.node_cache;
    let tables = version
        .level0
        .iter()
        .flat_map(|sequence| sequence.tables_in(node_cache, &KeyRange::all()).unwrap().tables);
    tables.filter(|table| !table.is_complete()).count()
}

#[test]
fn what_sank_out_of_level_0_stays_hidden() {
    let mut rng = Rng::new(9);
    let mut world = World::new(tiny(), 1);
    let mut seen = 0;
    for round in 0..4 {
        // Alternate sparse and dense sequences, so that tables of one lie within those of the
        // other.
        for sequence in 0..LEVEL0_TRIGGER {
            let step = if sequence % 2 == 0 { 3 } else { 1 };
            let keys = (0..1500_u64).step_by(step).filter(|_| !rng.one_in(8)).collect::<Vec<_>>();
            let batch = keys.into_iter().map(|key| match rng.one_in(4) {
                true => (key_of(key), Item::Deleted),
                false => (key_of(key), value(&mut rng, 92)),
            });
            let batch: Model = batch.collect();
            world.absorb(batch);
        }
        loop {
            let work = crate::engine::Work {
                workers: &world.workers,
                progress: &|_| {},
                quota: &UNLIMITED,
                values: NewValues::Plain,
            };
            let Some(absorbed) = crate::engine::do_job(&world.tree, &work).unwrap() else { break };
            world.note(&Model::new(), absorbed);
            let clipped = clipped(&world);
            if clipped > 0 {
                world.check(&mut rng);
                seen += 1;
            }
            if clipped > 0 && seen % 8 == round {
                world.reopen();
            }
        }
    }
    assert!(seen > 20, "{seen} times was a table live in part only");
}

#[test]
fn filters_of_levels_are_as_large_as_the_policy_says() {
    let mut rng = Rng::new(10);
    let mut world = World::new(tiny(), 1);
    for _ in 0..100 {
        world.absorb(uniform(&mut rng, 80));
        world.maintain();
    }
    // Level 0 is large: it is temporary, and the levels share the budget without it.
    (0..20).for_each(|_| world.absorb(uniform(&mut rng, 80)));
    let version = world.tree.newest();
    assert!(version.level0.len() >= 20 && levels(&world) >= 3);
    let entries_of = |sequence: &Arc<Sequence>| sequence.totals().entries;
    let entries: Vec<u64> = version.levels.iter().map(entries_of).collect();
    // No filter has more than twice the average bits.
    let average = tiny().run.bits_per_key;
    let bits_of = |entries: &[u64]| -> Vec<u32> {
        let bits = Garnering::filter_bits(average, entries).into_iter();
        bits.map(|bits| bits.min(2 * average)).collect()
    };
    let bits = bits_of(&entries);
    assert!(bits.first() > bits.last(), "{entries:?}: {bits:?}");
    for (level, bits) in bits.iter().enumerate() {
        let asked = world.tree.filter_bits(&version, Some(level), 0);
        assert_eq!(asked, *bits, "level {} of {entries:?}", level + 1);
        let mut more = entries.clone();
        more[level] += 1_000;
        let asked = world.tree.filter_bits(&version, Some(level), more[level]);
        assert_eq!(asked, bits_of(&more)[level]);
    }
    // A new sequence of level 0 counts together with all existing ones.
    for coming in [1, 80, 100_000] {
        let others = version.level0.iter().chain(&version.levels).map(entries_of);
        let all: Vec<u64> = [coming].into_iter().chain(others).collect();
        assert_eq!(world.tree.filter_bits(&version, None, coming), bits_of(&all)[0], "{coming}");
    }
}

#[test]
fn what_room_is_needed_is_known_while_an_absorb_runs() {
    let mut rng = Rng::new(3);
    let mut world = World::new(tiny(), 1);
    world.absorb(uniform(&mut rng, 80));
    let _absorbing = world.tree.writer.lock();
    assert!(world.tree.reclaim_needs_bytes() > 0);
}

#[test]
fn a_memtable_in_hundreds_of_parts_leaves_few_sequences() {
    let mut rng = Rng::new(9);
    let mut world = World::new(AutumnConfig { checkpoint_distance: 1 << 20, ..tiny() }, 1);
    let keys: Vec<u64> = (0..2_000).map(|_| rng.next_u64()).collect();
    let mut versions = Vec::new();
    let mut user_bytes = 0;
    for part in 0..400_usize {
        let batch: Model = (0..5)
            .map(|at| (key_of(keys[(5 * part + at) % 2_000]), value(&mut rng, 200)))
            .collect();
        user_bytes += batch.keys().map(|key| key.len() as u64 + 200).sum::<u64>();
        world.absorb(batch);
        versions.push(world.tree.newest());
    }
    world.check(&mut rng);
    let most = versions.iter().map(|version| version.level0.len()).max().unwrap();
    assert!(most <= 16, "{most} sequences");
    assert!(world.event("merges_within_level0") >= 100);
    // Each entry is written once, and once more per power of four of the parts; small parts also
    // need whole blocks of data, index and filter.
    let stats = world.tree.stats();
    assert!(stats.run_bytes_written < 10 * user_bytes + 400 * 3 * 4096, "{stats:?}");
}
