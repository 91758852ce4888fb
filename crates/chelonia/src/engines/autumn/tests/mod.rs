//! The policy at work, and the tree against a plain map through its whole life, in tiny geometries.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

use super::garnering::Garnering;
use super::plan::YOUNG_TRIGGER;
use super::{Autumn, AutumnOptions};
use crate::base::error::{ErrorKind, Result};
use crate::base::rng::Rng;
use crate::base::sync::Arc;
use crate::engine::tests::life::{Plan, live};
use crate::engine::tests::world::{self, Item, Model, Tried};
use crate::engine::tests::{key_of, uniform, value};
use crate::engine::{Engine, LevelOptions};
use crate::filters::FilterKind;
use crate::run::RunOptions;
use crate::storage::Storage;
use crate::storage::io::fault::{Call, Fault};
use crate::storage::io::{Access, Directory, OpenMode};
use std::collections::BTreeMap;

/// A tree beside a model.
type World = world::World<Autumn>;

impl Tried for Autumn {
    type Options = AutumnOptions;

    fn open_tried(
        storage: &Arc<Storage>,
        options: AutumnOptions,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        Autumn::open(storage, options, root)
    }
}

/// Trees so small that everything happens soon.
fn tiny() -> AutumnOptions {
    AutumnOptions {
        table_bytes: 4096,
        checkpoint_distance: 8 << 10,
        levels: LevelOptions { size_ratio: 2, ..LevelOptions::default() },
        run: RunOptions { filter: FilterKind::Bloom, bits_per_key: 12 },
    }
}

/// Levels below level 0 that hold something.
fn levels(world: &World) -> usize {
    world.tree.newest().levels.iter().filter(|level| !level.is_empty()).count()
}

#[test]
fn a_tree_lives_like_a_map_and_everything_happens() {
    let mut events = BTreeMap::new();
    let usual = Plan { options: tiny(), rounds: 150, batch_max: 150, value_max: 90, threads: 1 };
    let with = |levels: LevelOptions, threads| Plan {
        options: AutumnOptions { levels, ..usual.options },
        threads,
        ..usual
    };
    let plain = LevelOptions { size_ratio: 3, scaling_percent: 100, ..tiny().levels };
    let flat = LevelOptions { scaling_percent: 40, filters_by_level: false, ..tiny().levels };
    let relative = LevelOptions { relative: true, ..tiny().levels };
    for seed in 0..4 {
        live::<Autumn>(&usual, seed, &mut events);
        live::<Autumn>(&with(plain, 3), seed, &mut events);
        live::<Autumn>(&with(flat, 1), seed, &mut events);
        live::<Autumn>(&with(relative, 2), seed, &mut events);
    }
    // These have tests of their own.
    events.remove("nodes_evicted");
    events.remove("tables_stuck");
    let missing: Vec<_> = events.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn levels_follow_the_formula() {
    let mut rng = Rng::new(1);
    for (ratio, percent) in [(2, 100), (2, 80), (3, 80), (3, 40), (5, 40)] {
        let shape = LevelOptions { size_ratio: ratio, scaling_percent: percent, ..tiny().levels };
        let mut world = World::new(AutumnOptions { levels: shape, ..tiny() }, 1);
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
        assert!(version.young.len() < YOUNG_TRIGGER);
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
        world.tree.set_levels(shape);
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
        let shape = LevelOptions { size_ratio: 4, relative, ..tiny().levels };
        let mut world = World::new(AutumnOptions { levels: shape, ..tiny() }, 1);
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
                let young: u64 = version.young.iter().map(|it| it.totals().bytes).sum();
                let held = stats.leaf_bytes + stats.buffered_bytes - young;
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

/// Flips a bit at each of these places of the data file; the second time it flips it back.
fn flip(world: &World, places: &[u64]) {
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    for place in places {
        let mut byte = [0];
        file.read_at(&mut byte, *place).unwrap();
        file.write_at(&[byte[0] ^ 0x10], *place).unwrap();
    }
}

#[test]
fn damage_stops_nothing_else_and_loses_nothing() {
    let mut rng = Rng::new(7);
    for damaged_level in [0, 1] {
        let mut world = World::new(tiny(), 1);
        for _ in 0..60 {
            world.absorb(uniform(&mut rng, 80));
            world.maintain();
        }
        // Some tables of a level; what is cached is gone after the reopen.
        let version = world.tree.newest();
        let level = Arc::clone(&version.levels[damaged_level]);
        drop(version);
        let tables = level
            .tables_in(&world.tree.shared.residence, &crate::base::keys::KeyRange::all())
            .unwrap();
        let offset = |table: &super::table::Table| table.run.reference().extent.offset() + 1000;
        let places: Vec<u64> = tables.iter().step_by(3).map(offset).collect();
        assert!(places.len() > 2, "{} tables", tables.len());
        drop((tables, level));
        world.reopen();
        flip(&world, &places);
        for _ in 0..40 {
            world.absorb(uniform(&mut rng, 80));
            world.maintain();
        }
        assert!(world.event("tables_stuck") > 0);
        let version = world.tree.version();
        let mut unreadable = 0;
        for (key, item) in &world.model {
            match version.get(key, world.storage.key_hash(key)) {
                Ok(answer) => assert_eq!(answer.found, Some(world::found(item))),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    unreadable += 1;
                }
            }
        }
        assert!((1..world.model.len() / 4).contains(&unreadable), "{unreadable} keys");
        drop(version);
        // All of it was kept: it is there again when the device gives it back.
        flip(&world, &places);
        world.reopen();
        world.check(&mut rng);
        world.maintain();
        world.check(&mut rng);
    }
}

#[test]
fn a_failed_absorb_or_unit_changes_nothing() {
    let mut rng = Rng::new(6);
    for call in [Call::Write, Call::Read, Call::Allocate] {
        let mut world = World::new(tiny(), 1);
        let mut failed = 0;
        for round in 0..24 {
            for _ in 0..YOUNG_TRIGGER {
                world.absorb(uniform(&mut rng, 80));
            }
            // They begin to sink.
            let work = crate::engine::Work { workers: &world.workers, progress: &|_| {} };
            let began = world.tree.maintain(&work).unwrap();
            world.note(&Model::new(), began.unwrap());
            // Nothing is cached: what is merged has to be read.
            world.reopen();
            let root = world.tree.root().unwrap();
            let used = world.storage.stats().space.used_blocks;
            world.faults.fail(Fault::once(call, round % 11));
            let work = crate::engine::Work { workers: &world.workers, progress: &|_| {} };
            let maintained = world.tree.maintain(&work);
            world.faults.heal();
            match maintained {
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

/// Tables of level 0 that are live in part only.
fn clipped(world: &World) -> usize {
    let version = world.tree.newest();
    let residence = &world.tree.shared.residence;
    let tables = version.young.iter().flat_map(|sequence| {
        sequence.tables_in(residence, &crate::base::keys::KeyRange::all()).unwrap()
    });
    tables.filter(|table| !table.is_whole()).count()
}

#[test]
fn what_sank_out_of_level_0_stays_hidden() {
    let mut rng = Rng::new(9);
    let mut world = World::new(tiny(), 1);
    let mut seen = 0;
    for round in 0..4 {
        // Sparse and dense in turn, so that tables of the one end within those of the other.
        for sequence in 0..YOUNG_TRIGGER {
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
            let work = crate::engine::Work { workers: &world.workers, progress: &|_| {} };
            let Some(absorbed) = world.tree.maintain(&work).unwrap() else { break };
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
    world.absorb(uniform(&mut rng, 80));
    let version = world.tree.newest();
    assert!(version.young.len() == 1 && levels(&world) >= 3);
    let sequences = version.young.iter().chain(&version.levels);
    let entries: Vec<u64> = sequences.map(|sequence| sequence.totals().entries).collect();
    let bits = Garnering::filter_bits(tiny().run.bits_per_key, &entries);
    assert!(bits.first() > bits.last(), "{entries:?}: {bits:?}");
    for (place, bits) in bits.iter().enumerate() {
        let asked = world.tree.filter_bits(&version, Some(place), 0);
        assert_eq!(asked, *bits, "sequence {place} of {entries:?}");
    }
    // A sequence that is to come counts in its own place.
    for coming in [1, 80, 100_000] {
        let all: Vec<u64> = [coming].into_iter().chain(entries.iter().copied()).collect();
        let bits = Garnering::filter_bits(tiny().run.bits_per_key, &all);
        assert_eq!(world.tree.filter_bits(&version, None, coming), bits[0], "{coming}");
    }
    for place in 0..entries.len() {
        let mut all = entries.clone();
        all[place] += 1_000;
        let bits = Garnering::filter_bits(tiny().run.bits_per_key, &all);
        assert_eq!(world.tree.filter_bits(&version, Some(place), all[place]), bits[place]);
    }
}
