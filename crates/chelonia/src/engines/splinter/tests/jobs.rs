//! Tests of merges as jobs.

use super::{World, tiny};
use crate::engine::Engine;
use crate::engine::tests::jobs::{fail_in_jobs, live_beside_jobs, work};
use crate::engine::tests::world::Model;
use crate::engine::tests::{key_of, uniform, value};
use crate::engines::splinter::Splinter;
use crate::runtime::rng::Rng;

/// Absorbs until a merge is due.
fn absorb_until_due(world: &mut World, rng: &mut Rng) {
    for _ in 0..200 {
        world.absorb(uniform(rng, 100));
        if world.tree.wants_maintenance() {
            return;
        }
    }
    panic!("updates are buffered and nothing is due");
}

#[test]
fn merges_are_installed_after_absorbs() {
    let ends = live_beside_jobs::<Splinter>(tiny(), &absorb_until_due);
    assert!(ends.installed >= 6, "{ends:?}");
}

#[test]
fn merges_that_fail_free_their_output() {
    assert!(fail_in_jobs::<Splinter>(tiny(), &absorb_until_due) > 2);
}

/// A merge of a trunk node is held while its runs are flushed on, some or all of them.
#[test]
fn a_merge_is_installed_where_its_runs_were_not_flushed() {
    let mut rng = Rng::new(63);
    let mut world = World::new(tiny(), 1);
    for _ in 0..60 {
        world.absorb(uniform(&mut rng, 100));
        world.maintain();
    }
    assert!(world.tree.stats().height > 1);
    let workers = world.workers;
    for absorbs in [0, 1, 2, 3, 4, 20] {
        while !world.tree.wants_maintenance() {
            world.absorb(uniform(&mut rng, 6));
        }
        let mut job = world.tree.plan(&work(&workers)).unwrap().unwrap();
        job.run(&work(&workers)).unwrap();
        let mut done = Vec::new();
        for _ in 0..absorbs {
            let batch = uniform(&mut rng, 40);
            done.push((batch.clone(), world.try_absorb(&batch).unwrap()));
        }
        let absorbed = job.install(&work(&workers)).unwrap();
        done.extend(absorbed.map(|absorbed| (Model::new(), absorbed)));
        done.into_iter().for_each(|(batch, absorbed)| world.note(&batch, absorbed));
        world.check(&mut rng);
        // The merges that the reads of the check have paid for.
        world.maintain();
    }
    let events = ["compactions", "jobs_dropped"].map(|name| world.event(name));
    assert!(events[0] > 1 && events[1] > 0, "{events:?}");
}

/// A merge is held while the tree grows by splits and flushes around it.
#[test]
fn a_merge_is_installed_after_splits() {
    let mut rng = Rng::new(61);
    let mut installed = 0;
    for absorbs in [1, 3, 10, 30, 60] {
        for _ in 0..6 {
            let mut world = World::new(tiny(), 1);
            let workers = world.workers;
            for _ in 0..rng.below(20) {
                world.absorb(uniform(&mut rng, 100));
                world.maintain();
            }
            absorb_until_due(&mut world, &mut rng);
            let mut job = world.tree.plan(&work(&workers)).unwrap().unwrap();
            job.run(&work(&workers)).unwrap();
            let mut done = Vec::new();
            for _ in 0..absorbs {
                let batch = uniform(&mut rng, 100);
                done.push((batch.clone(), world.try_absorb(&batch).unwrap()));
                // Others are done meanwhile.
                while let Some(mut other) = world.tree.plan(&work(&workers)).unwrap() {
                    other.run(&work(&workers)).unwrap();
                    let absorbed = other.install(&work(&workers)).unwrap();
                    done.extend(absorbed.map(|absorbed| (Model::new(), absorbed)));
                }
            }
            if let Some(absorbed) = job.install(&work(&workers)).unwrap() {
                installed += 1;
                done.push((Model::new(), absorbed));
            }
            done.into_iter().for_each(|(batch, absorbed)| world.note(&batch, absorbed));
            world.check(&mut rng);
            world.maintain();
            world.check(&mut rng);
        }
    }
    assert!(installed > 20, "{installed}");
}

/// Several merges of one tree are outstanding at the same time.
#[test]
fn merges_of_one_tree_run_side_by_side() {
    let mut rng = Rng::new(62);
    let mut world = World::new(tiny(), 1);
    let workers = world.workers;
    for _ in 0..60 {
        world.absorb(uniform(&mut rng, 100));
        world.maintain();
    }
    let mut most = 0;
    for _ in 0..10 {
        let mut done = Vec::new();
        for _ in 0..12 {
            let batch = uniform(&mut rng, 100);
            done.push((batch.clone(), world.try_absorb(&batch).unwrap()));
        }
        let mut jobs = Vec::new();
        while let Some(job) = world.tree.plan(&work(&workers)).unwrap() {
            jobs.push(job);
        }
        most = most.max(jobs.len());
        jobs.iter_mut().for_each(|job| job.run(&work(&workers)).unwrap());
        // In an order that is not that of the plans.
        while let Some(job) = jobs.pop() {
            let absorbed = job.install(&work(&workers)).unwrap();
            done.extend(absorbed.map(|absorbed| (Model::new(), absorbed)));
        }
        drop(jobs);
        done.into_iter().for_each(|(batch, absorbed)| world.note(&batch, absorbed));
        world.check(&mut rng);
    }
    assert!(most > 1, "{most} merges at a time");
}

/// An output that two nodes refer to, because its node was split meanwhile, is counted twice.
#[test]
fn the_output_of_a_node_that_was_split_is_shared() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(tiny(), 1);
        let workers = world.workers;
        for _ in 0..10 + 4 * seed {
            world.absorb(uniform(&mut rng, 100));
            world.maintain();
        }
        // Leaves become due, then the root.
        for place in 0..4_u64 {
            let base = (place << 62) + (1 << 60);
            let batch = (0..300).map(|n| (key_of(base + n), value(&mut rng, 92))).collect();
            world.absorb(batch);
        }
        for _ in 0..10 {
            let mut key = |n: u64| key_of((n << 61) + rng.below(1 << 61));
            let keys: Vec<_> = (0..8_u64).map(&mut key).collect();
            world.absorb(keys.into_iter().map(|key| (key, value(&mut rng, 10))).collect());
        }
        let (mut done, mut jobs) = (Vec::new(), Vec::new());
        while let Some(job) = world.tree.plan(&work(&workers)).unwrap() {
            jobs.push(job);
        }
        jobs.iter_mut().for_each(|job| job.run(&work(&workers)).unwrap());
        if seed % 2 == 0 {
            jobs.reverse();
        }
        for job in jobs {
            done.extend(job.install(&work(&workers)).unwrap());
        }
        done.into_iter().for_each(|absorbed| world.note(&Model::new(), absorbed));
        world.check(&mut rng);
        world.maintain();
        world.check(&mut rng);
        world.reopen();
        world.absorb(uniform(&mut rng, 100));
        world.maintain();
        world.check(&mut rng);
    }
}
