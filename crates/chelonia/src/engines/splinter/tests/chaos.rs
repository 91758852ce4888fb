//! Random histories: jobs are planned, run, installed and dropped in any order, between absorbs,
//! reclaims and reopens, while versions are held.

use super::{World, tiny};
use crate::engine::tests::jobs::work;
use crate::engine::tests::world::{Item, Model};
use crate::engine::tests::{key_of, value};
use crate::engine::{Absorbed, Engine, Job};
use crate::engines::splinter::{Splinter, SplinterConfig};
use crate::runtime::rng::Rng;
use crate::runtime::workers::Workers;

/// The keys of a batch.
#[derive(Clone, Copy)]
enum Keys {
    Anywhere,
    Ascending,
    Narrow(u64),
    Known,
    Removed,
    Wide,
}

struct Chaos {
    rng: Rng,
    world: World,
    count_max: u64,
    next: u64,
}

/// Changes that the world does not know yet, and outstanding jobs with whether they ran.
struct Outstanding<'t> {
    tree: &'t Splinter,
    workers: &'t Workers,
    done: Vec<(Model, Absorbed)>,
    jobs: Vec<(Box<dyn Job + 't>, bool)>,
}

impl Outstanding<'_> {
    fn install(&mut self, at: usize) {
        let (mut job, ran) = self.jobs.swap_remove(at);
        if !ran {
            job.run(&work(self.workers)).unwrap();
        }
        let absorbed = job.install(&work(self.workers)).unwrap();
        self.done.extend(absorbed.map(|absorbed| (Model::new(), absorbed)));
    }

    fn step(&mut self, kind: u64, rng: &mut Rng) {
        let at = rng.below(self.jobs.len().max(1) as u64) as usize;
        match kind {
            0 | 1 => {
                let job = self.tree.plan(&work(self.workers)).unwrap();
                self.jobs.extend(job.map(|job| (job, false)));
            }
            2 if !self.jobs.is_empty() && !self.jobs[at].1 => {
                self.jobs[at].0.run(&work(self.workers)).unwrap();
                self.jobs[at].1 = true;
            }
            3 | 4 if !self.jobs.is_empty() && rng.one_in(10) => drop(self.jobs.swap_remove(at)),
            3 | 4 if !self.jobs.is_empty() => self.install(at),
            5 if rng.one_in(6) => {
                let absorbed = self.tree.reclaim(&work(self.workers)).unwrap();
                self.done.extend(absorbed.map(|absorbed| (Model::new(), absorbed)));
            }
            _ => {}
        }
    }
}

impl Chaos {
    fn batch(&mut self, keys: Keys, known: &[Vec<u8>]) -> Model {
        let rng = &mut self.rng;
        let mut batch = Model::new();
        let most = if rng.one_in(4) { 3 } else { self.count_max };
        let start = rng.next_u64();
        for _ in 0..=rng.below(most) {
            let key = match keys {
                Keys::Ascending => {
                    self.next += 1;
                    key_of(self.next)
                }
                Keys::Narrow(from) => key_of(from.wrapping_add(rng.below(1 << 12))),
                Keys::Known | Keys::Removed if !known.is_empty() => {
                    known[rng.below(known.len() as u64) as usize].clone()
                }
                Keys::Wide => key_of(start.wrapping_add(rng.below(1 << 60))),
                Keys::Anywhere | Keys::Known | Keys::Removed => key_of(rng.next_u64()),
            };
            let is_removed = matches!(keys, Keys::Removed) || rng.one_in(10);
            let length = match rng.below(60) {
                0 => rng.below(6_000),
                1..6 => rng.below(600),
                _ => rng.below(60),
            };
            let item = if is_removed { Item::Deleted } else { value(rng, length as usize) };
            batch.insert(key, item);
        }
        if rng.one_in(8) {
            let length = 1 + rng.below(9_000) as usize;
            let large = self.world.storage.write_large(&vec![7; length]).unwrap();
            batch.insert(key_of(rng.next_u64()), Item::Large(large));
        }
        batch
    }

    /// Absorbs and jobs, until none is outstanding.
    fn epoch(&mut self) {
        let kinds = [Keys::Anywhere, Keys::Ascending, Keys::Known, Keys::Removed, Keys::Wide];
        let keys = match self.rng.below(6) {
            5 => Keys::Narrow(self.rng.next_u64()),
            kind => kinds[kind as usize],
        };
        let mut known: Vec<Vec<u8>> = self.world.model.keys().cloned().collect();
        let batches: Vec<Model> = (0..30).map(|_| self.batch(keys, &known)).collect();
        let workers = self.world.workers;
        let (tree, workers) = (&self.world.tree, &workers);
        let mut all = Outstanding { tree, workers, done: Vec::new(), jobs: Vec::new() };
        for batch in batches {
            known.extend(batch.keys().cloned());
            let absorbed = self.world.try_absorb(&batch).unwrap();
            all.done.push((batch, absorbed));
            for _ in 0..self.rng.below(4) {
                all.step(self.rng.below(6), &mut self.rng);
            }
        }
        while !all.jobs.is_empty() {
            all.install(all.jobs.len() - 1);
        }
        let done = std::mem::take(&mut all.done);
        drop(all);
        done.into_iter().for_each(|(batch, absorbed)| self.world.note(&batch, absorbed));
    }

    fn leaked(&self) -> u64 {
        let owned = self.world.owned.iter();
        let owned: u64 = owned.map(|owned| u64::from(owned.extent.blocks)).sum();
        self.world.storage.stats().space.used_blocks - owned
    }

    fn live(options: SplinterConfig, count_max: u64, seed: u64) {
        let world = World::new(options, 1 + (seed % 3) as usize);
        let mut chaos = Self { rng: Rng::new(seed), world, count_max, next: 0 };
        let unused = chaos.leaked();
        for _ in 0..12 {
            chaos.epoch();
            if chaos.rng.one_in(3) {
                chaos.world.hold();
            }
            if chaos.world.held.len() > 2 {
                chaos.world.release(0);
            }
            chaos.world.check(&mut chaos.rng);
            if chaos.rng.one_in(3) {
                chaos.world.reopen();
                assert_eq!(chaos.leaked(), unused);
            }
            if chaos.rng.one_in(5) {
                chaos.world.maintain();
                chaos.world.check(&mut chaos.rng);
            }
        }
        chaos.world.reopen();
        assert_eq!(chaos.leaked(), unused);
    }
}

#[test]
fn jobs_in_any_order_lose_nothing() {
    let shapes = [
        (4, 4096, 60),
        (4, 1024, 30),
        (8, 4096, 40),
        (16, 4096, 20),
        (5, 16384, 100),
        (16, 1200, 8),
    ];
    for seed in 0..2 {
        for (fanout, branch_bytes, count_max) in shapes {
            let options = SplinterConfig { fanout, branch_bytes, ..tiny() };
            Chaos::live(options, count_max, seed);
        }
    }
}
