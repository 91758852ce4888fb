//! Tests of read-triggered flushes as jobs.

use super::{World, tiny};
use crate::base::checksum::KeyHash;
use crate::engine::Engine;
use crate::engine::tests::jobs::{fail_in_jobs, live_beside_jobs, work};
use crate::engine::tests::uniform;
use crate::engine::tests::world::Model;
use crate::engines::turtle::{Turtle, TurtleConfig};
use crate::runtime::rng::Rng;

fn options() -> TurtleConfig {
    TurtleConfig { pivots_max: 16, flush_percent: 400, ..tiny() }
}

/// Reads until a flush is due.
fn read_until_due(world: &mut World, rng: &mut Rng) {
    for _ in 0..6 {
        world.absorb(uniform(rng, 150));
    }
    let version = world.tree.version();
    let keys: Vec<Vec<u8>> = world.model.keys().cloned().collect();
    for _ in 0..1_000 {
        for key in &keys {
            let _ = version.get(key, KeyHash(rng.next_u64())).unwrap();
        }
        if world.tree.wants_maintenance() {
            return;
        }
    }
    panic!("reads pay and nothing is due");
}

#[test]
fn flushes_are_installed_unless_an_absorb_overtakes_them() {
    let ends = live_beside_jobs::<Turtle>(options(), &read_until_due);
    assert!(ends.installed >= 3 && ends.dropped >= 6, "{ends:?}");
}

#[test]
fn flushes_that_fail_free_their_output() {
    assert!(fail_in_jobs::<Turtle>(options(), &read_until_due) > 2);
}

#[test]
fn absorbs_do_not_starve_flushes() {
    let mut rng = Rng::new(51);
    let mut world = World::new(options(), 1);
    let workers = world.workers;
    let mut overtaken = 0;
    loop {
        read_until_due(&mut world, &mut rng);
        let mut job = world.tree.plan(&work(&workers)).unwrap().unwrap();
        assert!(world.tree.plan(&work(&workers)).unwrap().is_none(), "one at a time");
        if job.keeps_lock() {
            break;
        }
        job.run(&work(&workers)).unwrap();
        let batch = uniform(&mut rng, 50);
        let absorbed = world.try_absorb(&batch).unwrap();
        assert!(job.install(&work(&workers)).unwrap().is_none());
        world.note(&batch, absorbed);
        overtaken += 1;
    }
    assert_eq!(overtaken, 2);
    // After it was installed, jobs run without the lock again.
    let mut job = world.tree.plan(&work(&workers)).unwrap().unwrap();
    job.run(&work(&workers)).unwrap();
    let absorbed = job.install(&work(&workers)).unwrap().unwrap();
    world.note(&Model::new(), absorbed);
    world.check(&mut rng);
    read_until_due(&mut world, &mut rng);
    assert!(!world.tree.plan(&work(&workers)).unwrap().unwrap().keeps_lock());
}
