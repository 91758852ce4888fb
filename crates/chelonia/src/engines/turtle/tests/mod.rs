//! Tests of the tree against a model map over its whole life, with tiny sizes.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

mod damage;
mod hostile;
mod life;
mod long_keys;
mod maintenance;
mod shape;

use crate::base::error::{ErrorKind, Result};
use crate::engine::tests::world::{self, Item, Model, Tried, Updates, check_scans, found};
use crate::engine::tests::{key_of, uniform, value};
use crate::engine::{Engine, Work};
use crate::engines::turtle::pass::counts::{Met, walk_references};
use crate::engines::turtle::pass::output::Output;
use crate::engines::turtle::read::read_cost::paid_within;
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
fn large_values_live_as_long_as_a_run_lists_them() {
    let mut rng = Rng::new(6);
    let mut world = World::new(tiny(), 1);
    let large = |world: &World| Item::Large(world.storage.write_large(&[7; 5000]).unwrap());
    let mut batch = uniform(&mut rng, 600);
    for number in 0..50 {
        batch.insert(key_of(number << 56), large(&world));
    }
    world.absorb(batch);
    for round in 0..60 {
        let mut batch = uniform(&mut rng, 60);
        batch.insert(key_of(rng.below(50) << 56), large(&world));
        batch.insert(key_of(rng.below(50) << 56), Item::Deleted);
        world.absorb(batch);
        if round % 10 == 0 {
            world.reopen();
            world.check(&mut rng);
        }
    }
    for _ in 0..2 {
        let mut keys: Vec<_> = world.model.keys().cloned().collect();
        keys.push(key_of(5));
        world.absorb(keys.into_iter().map(|key| (key, Item::Deleted)).collect());
    }
    assert_eq!(world.owned.len(), 0);
}

#[test]
fn a_walk_over_references_remembers_only_what_it_can_meet_twice() {
    let mut rng = Rng::new(15);
    let mut world = World::new(tiny(), 1);
    let walk = |world: &World, window: u64| {
        let (mut runs, mut large) = (0, Vec::new());
        let (shared, root) = (&world.tree.shared, &world.tree.newest().root);
        let memory = walk_references(&shared.node_cache, root, window, &mut |met| {
            match met {
                Met::Run(_) => runs += 1,
                Met::Large(value, is_first) => large.push((value.extent.start, is_first)),
                Met::Node(_) => {}
            }
            Ok(())
        });
        large.sort_unstable();
        (memory.unwrap(), runs, large)
    };
    for _ in 0..10 {
        world.absorb(uniform(&mut rng, 300));
    }
    let (memory, runs, _) = walk(&world, 4096);
    assert!(runs > 100 && memory.shared.len() < runs / 5, "{} of {runs}", memory.shared.len());
    assert_eq!((memory.chunks_max, memory.walks), (0, 1));
    for round in 0..30 {
        let mut batch = uniform(&mut rng, 40);
        for number in 0..100 {
            let large = world.storage.write_large(&[7; 200_000]).unwrap();
            batch.insert(key_of(rng.below(1000) << 54 | number), Item::Large(large));
        }
        world.absorb(batch);
        if round % 10 == 9 {
            let (whole, _, all) = walk(&world, 1 << 40);
            assert_eq!(whole.walks, 1);
            let (memory, _, again) = walk(&world, 4096);
            assert_eq!(memory.chunks_max, 1);
            assert!(memory.walks > 5, "{} walks", memory.walks);
            assert_eq!(memory.shared, whole.shared);
            assert_eq!(again, all);
        }
    }
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

#[test]
fn a_failed_absorb_changes_nothing() {
    let mut rng = Rng::new(8);
    let mut world = World::new(tiny(), 1);
    for _ in 0..6 {
        world.absorb(uniform(&mut rng, 300));
    }
    for (call, step) in [(Call::Write, 7), (Call::Read, 23), (Call::Allocate, 1)] {
        // Discard the caches: merges must read their inputs.
        world.reopen();
        let mut failed = 0;
        for round in 0..40 {
            let batch = uniform(&mut rng, 300);
            let used = world.storage.stats().space.used_blocks;
            let root = world.tree.root().unwrap();
            world.faults.fail(Fault::once(call, round * step));
            let absorbed = world.try_absorb(&batch);
            world.faults.heal();
            match absorbed {
                Err(error) => {
                    failed += 1;
                    assert_eq!(error.kind(), ErrorKind::Io);
                    assert_eq!(world.tree.root().unwrap(), root);
                    assert_eq!(world.storage.stats().space.used_blocks, used);
                }
                // The counts belong to the tree that was built: start again from there.
                Ok(absorbed) => {
                    world.note(&batch, absorbed);
                    break;
                }
            }
        }
        world.check(&mut rng);
        world.absorb(uniform(&mut rng, 300));
        world.check(&mut rng);
        assert!(failed > 0, "{call:?}");
    }
}

#[test]
fn a_full_device_is_an_error_and_no_more() {
    let mut rng = Rng::new(9);
    let mut world = World::new(tiny(), 1);
    world.absorb(uniform(&mut rng, 2000));
    world.faults.set_capacity(Some(world.faults.taken_bytes() + (64 << 10)));
    let batch = uniform(&mut rng, 2000);
    let error = world.try_absorb(&batch).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    world.check(&mut rng);
    world.faults.set_capacity(None);
    world.absorb(batch);
    world.check(&mut rng);
}

#[test]
fn readers_go_on_while_the_tree_changes() {
    let mut rng = Rng::new(10);
    let mut world = World::with_memory(tiny(), 2, 4 << 20);
    world.absorb(uniform(&mut rng, 1500));
    let constant = world.model.clone();
    let done = AtomicBool::new(false);
    let tree = Arc::new(std::mem::replace(
        &mut world.tree,
        super::Turtle::open(&world.storage, tiny(), None).unwrap(),
    ));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (tree, constant, done, storage) = (&tree, &constant, &done, &world.storage);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let keys: Vec<_> = constant.keys().collect();
                while !done.load(Ordering::Relaxed) {
                    let version = tree.version();
                    for _ in 0..50 {
                        let key = keys[rng.below(keys.len() as u64) as usize];
                        let found = version.get(key, storage.key_hash(key)).unwrap();
                        assert_eq!(found.found, Some(world::found(&constant[key])));
                    }
                    let seen = world::count(&version);
                    assert!(seen >= constant.len());
                }
            });
        }
        // Only other keys change, and no space is freed: readers may hold any version.
        for _ in 0..30 {
            let mut batch = uniform(&mut rng, 200);
            batch.retain(|key, _| !constant.contains_key(key));
            world::absorb_into(&*tree, batch, &world.workers).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_roll_back_gives_back_all_that_it_can() {
    let mut rng = Rng::new(13);
    let world = World::new(tiny(), 1);
    let used = || world.storage.stats().space.used_blocks;
    let before = used();
    let shared = &world.tree.shared;
    let output = Output::new(&shared.node_cache, &shared.events, world.options.run, &UNLIMITED);
    let mut runs = Vec::new();
    for (key, item) in uniform(&mut rng, 3) {
        let mut writer = output.leaf_writer();
        writer.add(&key, item.update()).unwrap();
        runs.push(writer.finish(None).unwrap().run);
        output.give_back(writer);
    }
    // One extent cannot be freed again: an error, but no reason to keep the others.
    world.storage.free(runs[0].reference().extent).unwrap();
    let error = output.roll_back().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(used(), before);
}

#[test]
fn neighbours_that_are_got_together_read_each_block_once() {
    let mut rng = Rng::new(14);
    let options = TurtleConfig { leaf_bytes: 256 << 10, ..tiny() };
    let mut world = World::new(options, 1);
    world.absorb((0..2000).map(|n| (key_of(n), value(&mut rng, 92))).collect());
    world.reopen();
    let version = world.tree.version();
    // The nodes, and the path to the leaf; each read prefetches a few adjacent blocks.
    version.get(&key_of(1500), world.storage.key_hash(&key_of(1500))).unwrap();
    let keys: Vec<_> = (100..160).map(key_of).collect();
    let asked: Vec<_> =
        keys.iter().map(|key| (key.as_slice(), world.storage.key_hash(key))).collect();
    let before = world.storage.stats().file.blocks_read;
    assert!(version.multi_get(&asked).unwrap().iter().all(|answer| answer.found.is_some()));
    let after = world.storage.stats().file.blocks_read;
    let read = |kind: BlockKind| after[kind as usize] - before[kind as usize];
    // 60 entries of 100 bytes lie in two or three blocks.
    assert!((2..=3).contains(&read(BlockKind::Data)), "{} data blocks", read(BlockKind::Data));
    assert!(read(BlockKind::Filter) <= 1, "{} filter blocks", read(BlockKind::Filter));
}

#[test]
fn any_number_of_keys_is_got_together_from_a_cold_tree() {
    let mut rng = Rng::new(15);
    // No filters: newer runs are searched unnecessarily, in further rounds.
    let run = RunOptions { filter: FilterKind::Bloom, bits_per_key: 0 };
    for run in [tiny().run, run] {
        let mut world = World::new(TurtleConfig { leaf_bytes: 64 << 10, run, ..tiny() }, 1);
        for step in [1, 3, 7] {
            world.absorb(
                (0..3000).step_by(step).map(|n| (key_of(n), value(&mut rng, 60))).collect(),
            );
        }
        for count in [0, 1, 31, 32, 33, 64, 128, 129, 1000] {
            world.reopen();
            let keys: Vec<_> = (0..count).map(|_| key_of(rng.below(4000))).collect();
            let asked: Vec<_> =
                keys.iter().map(|key| (key.as_slice(), world.storage.key_hash(key))).collect();
            let answers = world.tree.version().multi_get(&asked).unwrap();
            assert_eq!(answers.len(), keys.len());
            for (key, answer) in keys.iter().zip(answers) {
                assert_eq!(answer.found, world.model.get(key).map(found), "{count} of {key:?}");
            }
        }
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
fn many_tight_absorbs_leave_nodes_that_can_be_read() {
    let mut rng = Rng::new(11);
    // A root over leaves, and one over nodes.
    for entries in [30, 1000] {
        let mut world = World::new(tiny(), 1);
        world.absorb(uniform(&mut rng, entries));
        for _ in 0..100 {
            let batch = uniform(&mut rng, 5);
            let updates = Updates::new(batch.clone());
            let work = Work { workers: &Workers::inline(), progress: &|_| {}, quota: &UNLIMITED };
            let absorbed = world.tree.absorb_minimal(&updates, &work).unwrap();
            world.note(&batch, absorbed);
        }
        assert!(world.event("levels_max") > 32, "{}", world.event("levels_max"));
        world.reopen();
        world.check(&mut rng);
    }
}

#[test]
fn a_unit_that_makes_room_allocates_no_more_than_it_says() {
    let mut rng = Rng::new(12);
    let mut world = World::new(TurtleConfig { pivots_max: 16, ..tiny() }, 1);
    world.absorb(uniform(&mut rng, 1500));
    for _ in 0..30 {
        let batch = uniform(&mut rng, 100);
        let work = Work { workers: &Workers::inline(), progress: &|_| {}, quota: &UNLIMITED };
        let absorbed = world.tree.absorb_minimal(&Updates::new(batch.clone()), &work).unwrap();
        world.note(&batch, absorbed);
    }
    let (mut units, mut most) = (0, 0);
    while world.tree.stats().buffered_bytes > 0 {
        let needed = world.tree.reclaim_needs_bytes();
        let work = Work { workers: &Workers::inline(), progress: &|_| {}, quota: &UNLIMITED };
        let absorbed = world.tree.reclaim(&work).unwrap().unwrap();
        let runs = absorbed.gained.iter().map(|owned| owned.extent.bytes()).sum::<u64>();
        // Besides the entries each run has an index and a filter, here of a block each.
        assert!(runs <= 2 * needed + (64 << 10), "{runs} bytes, {needed} were to be enough");
        most = most.max(runs);
        world.note(&Model::new(), absorbed);
        units += 1;
        assert!(units < 10_000, "what waits comes to an end");
    }
    assert!(most > 40 << 10, "{most}");
    world.check(&mut rng);
}
