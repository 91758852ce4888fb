//! Absorbs that fail, full devices, and the space that minimal flushes and reclaiming take.

use super::*;
use crate::base::stream::NewValues;
use crate::engine::tests::jobs::work;

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
fn a_roll_back_gives_back_all_that_it_can() {
    let mut rng = Rng::new(13);
    let world = World::new(tiny(), 1);
    let used = || world.storage.stats().space.used_blocks;
    let before = used();
    let shared = &world.tree.shared;
    let output =
        Output::new(&shared.node_cache, &shared.events, world.options.run, &work(&world.workers));
    let mut runs = Vec::new();
    for (key, item) in uniform(&mut rng, 3) {
        let mut writer = output.leaf_writer();
        writer.add(&key, item.update()).unwrap();
        runs.push(writer.finish(None).unwrap().run);
        writer.give_back();
    }
    // One extent cannot be freed again: an error, but no reason to keep the others.
    world.storage.free(runs[0].reference().extent).unwrap();
    let error = output.into_ledger().roll_back(&world.storage).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(used(), before);
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
            let work = Work {
                workers: &Workers::inline(),
                progress: &|_| {},
                quota: &UNLIMITED,
                values: NewValues::Plain,
            };
            let absorbed = world.tree.absorb(&updates, WriteBudget::Minimal, &work).unwrap();
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
    units_keep_their_word(world, 30, &mut rng);
}

#[test]
fn a_unit_over_leaves_of_before_allocates_no_more_than_it_says() {
    let mut rng = Rng::new(14);
    let usual = TurtleConfig { pivots_max: 16, ..tiny() };
    let mut world = World::new(TurtleConfig { leaf_bytes: 64 * usual.leaf_bytes, ..usual }, 1);
    world.absorb(uniform(&mut rng, 5000));
    world.options = usual;
    world.reopen();
    units_keep_their_word(world, 3, &mut rng);
}

/// Buffers `batches` of updates, then frees space unit by unit.
fn units_keep_their_word(mut world: World, batches: usize, rng: &mut Rng) {
    for _ in 0..batches {
        let batch = uniform(rng, 100);
        let work = Work {
            workers: &Workers::inline(),
            progress: &|_| {},
            quota: &UNLIMITED,
            values: NewValues::Plain,
        };
        let absorbed =
            world.tree.absorb(&Updates::new(batch.clone()), WriteBudget::Minimal, &work).unwrap();
        world.note(&batch, absorbed);
    }
    let (mut units, mut most) = (0, 0);
    while world.tree.stats().buffered_bytes > 0 {
        let needed = world.tree.reclaim_needs_bytes();
        let work = Work {
            workers: &Workers::inline(),
            progress: &|_| {},
            quota: &UNLIMITED,
            values: NewValues::Plain,
        };
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
    world.check(rng);
}
