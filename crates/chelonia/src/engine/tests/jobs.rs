//! Jobs beside absorbs: planned, run, and installed on a later version, dropped, or failed.

use super::uniform;
use super::world::{Model, Tried, World};
use crate::base::error::ErrorKind;
use crate::base::stream::NewValues;
use crate::engine::{Job, Work, do_job};
use crate::runtime::rng::Rng;
use crate::runtime::workers::Workers;
use crate::storage::io::fault::{Call, Fault};
use crate::storage::quota::UNLIMITED;

/// Rounds of each test.
const ROUNDS: u64 = 12;

/// How many jobs of [`live_beside_jobs`] were installed and dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ends {
    pub installed: u64,
    pub dropped: u64,
}

/// Work with all threads of a world.
pub fn work(workers: &Workers) -> Work<'_> {
    Work { workers, progress: &|_| {}, quota: &UNLIMITED, values: NewValues::Plain }
}

/// Bytes that nothing refers to: what is in use beside the newest version. No version is held.
fn leaked<E: Tried>(world: &World<E>) -> u64 {
    let allocated = world.owned.iter().filter(|owned| owned.is_allocated());
    let owned: u64 = allocated.map(|owned| u64::from(owned.extent.blocks)).sum();
    world.storage.stats().space.used_blocks - owned
}

/// Plans the next job that can run without the lock; jobs that keep it are done before.
pub fn plan_free<'w, E: Tried>(
    world: &'w World<E>,
    workers: &'w Workers,
    done: &mut Vec<crate::engine::Absorbed>,
) -> Option<Box<dyn Job + 'w>> {
    while let Some(mut job) = world.tree.plan(&work(workers)).unwrap() {
        if !job.keeps_lock() {
            return Some(job);
        }
        job.run(&work(workers)).unwrap();
        done.extend(job.install(&work(workers)).unwrap());
    }
    None
}

/// Absorbs between plan, run and install of jobs that `make_due` causes: every version has the
/// content of the model, and nothing leaks, whether a job is installed or dropped.
pub fn live_beside_jobs<E: Tried>(
    options: E::Options,
    make_due: &dyn Fn(&mut World<E>, &mut Rng),
) -> Ends {
    let mut rng = Rng::new(31);
    let mut world = World::<E>::new(options, 2);
    let mut ends = Ends::default();
    let workers = world.workers;
    let unused = leaked(&world);
    for round in 0..ROUNDS {
        make_due(&mut world, &mut rng);
        let mut done = Vec::new();
        let Some(mut job) = plan_free(&world, &workers, &mut done) else {
            done.into_iter().for_each(|absorbed| world.note(&Model::new(), absorbed));
            continue;
        };
        let batch = uniform(&mut rng, 60);
        let mut batches: Vec<Model> = done.iter().map(|_| Model::new()).collect();
        let absorb = |done: &mut Vec<_>| done.push(world.try_absorb(&batch).unwrap());
        if round % 3 == 0 {
            absorb(&mut done);
        }
        job.run(&work(&workers)).unwrap();
        if round % 3 == 1 {
            absorb(&mut done);
        }
        if round % 3 < 2 {
            batches.push(batch.clone());
        }
        if round % 4 == 3 {
            // Thrown away by its caller.
            drop(job);
            ends.dropped += 1;
        } else {
            match job.install(&work(&workers)).unwrap() {
                Some(absorbed) => {
                    ends.installed += 1;
                    done.push(absorbed);
                    batches.push(Model::new());
                }
                None => ends.dropped += 1,
            }
        }
        for (batch, absorbed) in batches.iter().zip(done) {
            world.note(batch, absorbed);
        }
        world.check(&mut rng);
        assert_eq!(leaked(&world), unused, "round {round}");
    }
    world.maintain();
    world.check(&mut rng);
    assert_eq!(leaked(&world), unused);
    ends
}

/// A job that fails at any write or allocation frees its output, and the work is planned again.
pub fn fail_in_jobs<E: Tried>(
    options: E::Options,
    make_due: &dyn Fn(&mut World<E>, &mut Rng),
) -> u64 {
    let mut rng = Rng::new(32);
    let mut world = World::<E>::new(options, 1);
    let (workers, mut failed) = (world.workers, 0);
    for round in 0..ROUNDS {
        make_due(&mut world, &mut rng);
        let mut done = Vec::new();
        let job = plan_free(&world, &workers, &mut done);
        let used = world.storage.stats().space.used_blocks;
        let result = job.map(|mut job| {
            let call = if round % 2 == 0 { Call::Read } else { Call::Write };
            world.faults.fail(Fault::once(call, round));
            let ran = job.run(&work(&workers));
            let installed = ran.and_then(|()| job.install(&work(&workers)));
            world.faults.heal();
            installed
        });
        match result.transpose() {
            Ok(absorbed) => done.extend(absorbed.flatten()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io);
                assert_eq!(world.storage.stats().space.used_blocks, used, "round {round}");
                failed += 1;
            }
        }
        done.into_iter().for_each(|absorbed| world.note(&Model::new(), absorbed));
        world.check(&mut rng);
        world.maintain();
    }
    failed
}

/// A job of a tree whose caches are empty changes nothing if a write, read or allocation fails.
pub fn failed_jobs_change_nothing<E: Tried>(
    options: E::Options,
    make_due: &dyn Fn(&mut World<E>, &mut Rng),
) {
    let mut rng = Rng::new(6);
    for call in [Call::Write, Call::Read, Call::Allocate] {
        let mut world = World::<E>::new(options, 1);
        let mut failed = 0;
        for round in 0..24 {
            make_due(&mut world, &mut rng);
            // Discard the caches: the job must read its inputs.
            world.reopen();
            let root = world.tree.root().unwrap();
            let used = world.storage.stats().space.used_blocks;
            world.faults.fail(Fault::once(call, round % 11));
            let done = do_job(&world.tree, &work(&world.workers));
            world.faults.heal();
            match done {
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
