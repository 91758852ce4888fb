//! Long runs under changing loads, checked continuously.

use super::world::{Item, Model, Tried, World};
use super::{key_of, value};
use crate::runtime::rng::Rng;
use std::collections::BTreeMap;

/// The updates of an absorb.
#[derive(Clone, Copy, Debug)]
enum Load {
    Uniform,
    Narrow,
    Sequential,
    Deletes,
    Overwrites,
    Tiny,
    /// Deletes everything in a range.
    Clear,
}

const LOADS: [Load; 7] = [
    Load::Uniform,
    Load::Narrow,
    Load::Sequential,
    Load::Deletes,
    Load::Overwrites,
    Load::Tiny,
    Load::Clear,
];

/// Parameters of a run: the options of the engine, and the sizes of batches and values.
#[derive(Clone, Copy)]
pub struct Plan<O> {
    /// Options of the engine.
    pub options: O,
    /// Number of absorbs.
    pub rounds: u64,
    /// Maximum updates of one absorb.
    pub batch_max: u64,
    /// Maximum size of most values, in bytes.
    pub value_max: u64,
    /// Threads of absorbs and maintenance.
    pub threads: usize,
}

fn some_value<O>(plan: &Plan<O>, rng: &mut Rng) -> Item {
    let length = match rng.below(60) {
        0 => 0,
        1 => rng.below(6000),
        2..8 => rng.below(600),
        _ => rng.below(plan.value_max),
    };
    value(rng, length as usize)
}

fn existing(model: &Model, rng: &mut Rng) -> Option<Vec<u8>> {
    let probe = key_of(rng.next_u64());
    let next = model.range(probe..).next().or_else(|| model.iter().next());
    next.map(|(key, _)| key.clone())
}

fn batch<E: Tried>(
    world: &World<E>,
    plan: &Plan<E::Options>,
    load: Load,
    next: &mut u64,
    rng: &mut Rng,
) -> Model {
    let mut batch = Model::new();
    let count = match load {
        Load::Tiny => 1 + rng.below(3),
        _ => 1 + rng.below(plan.batch_max),
    };
    let base = rng.next_u64();
    if matches!(load, Load::Clear) {
        let range = world.model.range(key_of(base)..).take(count as usize);
        return range.map(|(key, _)| (key.clone(), Item::Deleted)).collect();
    }
    for _ in 0..count {
        let key = match load {
            Load::Uniform | Load::Tiny | Load::Clear => Some(key_of(rng.next_u64())),
            Load::Narrow => Some(key_of(base.wrapping_add(rng.below(1 << 20)))),
            Load::Sequential => {
                *next += 1;
                Some(key_of((1 << 63) + *next))
            }
            Load::Deletes if rng.one_in(8) => Some(key_of(rng.next_u64())),
            Load::Deletes | Load::Overwrites => existing(&world.model, rng),
        };
        let Some(key) = key else { continue };
        let delete = matches!(load, Load::Deletes) || rng.one_in(50);
        let item = if delete { Item::Deleted } else { some_value(plan, rng) };
        batch.insert(key, item);
    }
    if rng.one_in(6) {
        let large = world.storage.write_large(&vec![7; 1 + rng.below(9000) as usize]).unwrap();
        batch.insert(key_of(rng.next_u64()), Item::Large(large));
    }
    batch
}

/// Runs it with continuous checks; returns event counts.
pub fn live<E: Tried>(
    plan: &Plan<E::Options>,
    seed: u64,
    events: &mut BTreeMap<&'static str, u64>,
) -> World<E> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(plan.options, plan.threads);
    world.compresses = seed % 2 == 1;
    let (mut next, mut load) = (0, Load::Uniform);
    let mut gather = |world: &World<E>| {
        for (name, count) in world.tree.stats().events {
            *events.entry(name).or_default() += count;
        }
    };
    for round in 1..=plan.rounds {
        if rng.one_in(7) {
            load = LOADS[rng.below(LOADS.len() as u64) as usize];
        }
        let batch = batch(&world, plan, load, &mut next, &mut rng);
        if !batch.is_empty() {
            world.absorb(batch);
        }
        if rng.one_in(8) {
            world.maintain();
        }
        if rng.one_in(10) {
            world.hold();
        }
        if world.held.len() > 3 {
            world.release(rng.below(3) as usize);
        }
        if rng.one_in(40) {
            gather(&world);
            world.reopen();
        }
        if round % 16 == 0 || round == plan.rounds {
            world.check(&mut rng);
        }
    }
    gather(&world);
    world
}
