//! Tests of merges as jobs.

use super::{World, levels, tiny};
use crate::engine::tests::jobs::{fail_in_jobs, live_beside_jobs, plan_free, work};
use crate::engine::tests::uniform;
use crate::engine::tests::world::Model;
use crate::engine::{Engine, Job};
use crate::engines::autumn::merge::plan::LEVEL0_TRIGGER;
use crate::engines::autumn::{Autumn, AutumnConfig};
use crate::runtime::rng::Rng;

fn sink_soon(world: &mut World, rng: &mut Rng) {
    for _ in 0..LEVEL0_TRIGGER {
        world.absorb(uniform(rng, 80));
    }
}

#[test]
fn merges_are_installed_on_later_versions() {
    let ends = live_beside_jobs::<Autumn>(tiny(), &sink_soon);
    // Only those that the test threw away.
    assert!(ends.installed >= 8 && ends.dropped == 3, "{ends:?}");
}

#[test]
fn merges_that_fail_free_their_output() {
    assert!(fail_in_jobs::<Autumn>(tiny(), &sink_soon) > 2);
}

#[test]
fn several_merges_of_one_tree_are_in_flight_at_once() {
    let mut rng = Rng::new(41);
    let mut world = World::new(AutumnConfig { checkpoint_distance: 32 << 10, ..tiny() }, 1);
    let workers = world.workers;
    let mut most = 0;
    for round in 0..60 {
        world.absorb(uniform(&mut rng, 300));
        if round % 10 < 9 {
            continue;
        }
        loop {
            let (mut done, mut jobs) = (Vec::new(), Vec::new());
            while let Some(job) = plan_free(&world, &workers, &mut done) {
                jobs.push(job);
            }
            if done.is_empty() && jobs.is_empty() {
                break;
            }
            most = most.max(jobs.len());
            jobs.iter_mut().for_each(|job| job.run(&work(&workers)).unwrap());
            // The last one planned is the first one installed.
            let install = |job: Box<dyn Job + '_>| job.install(&work(&workers)).unwrap().unwrap();
            done.extend(jobs.into_iter().rev().map(install));
            done.into_iter().for_each(|absorbed| world.note(&Model::new(), absorbed));
        }
        world.check(&mut rng);
    }
    assert!(levels(&world) >= 3 && most >= 2, "{most} jobs in {} levels", levels(&world));
    assert!(!world.tree.wants_maintenance());
}
