//! A tree of long keys: beside a model, and small in memory.

use super::value;
use super::world::{Item, Model, Tried, World};
use crate::runtime::rng::Rng;

/// A new key, or one that extends a prefix of another, of bytes that are awkward to shorten.
fn some_key(rng: &mut Rng, keys: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let some = (!keys.is_empty()).then(|| keys[rng.below(keys.len() as u64) as usize].clone());
    let mut key = match (rng.below(4), some) {
        (0, Some(key)) => return key,
        (1 | 2, Some(key)) => key[..rng.below(key.len() as u64 + 1) as usize].to_vec(),
        _ => Vec::new(),
    };
    let most = if rng.below(4) == 0 { 3_000 } else { 100 };
    for _ in 0..rng.below(most) {
        key.push([0, 1, 0xfe, 0xff, b'p'][rng.below(5) as usize]);
    }
    keys.push(key.clone());
    key
}

/// Writes, overwrites and removes keys of all lengths, compares the tree with a map and verifies it
/// on the way.
pub fn live_with_long_keys<E: Tried>(options: E::Options, seed: u64)
where
    E::Options: Copy,
{
    let mut rng = Rng::new(seed);
    let mut world = World::<E>::new(options, 1 + (seed % 3) as usize);
    let mut keys = Vec::new();
    for round in 0..60 {
        let mut batch = Model::new();
        for _ in 0..1 + rng.below(60) {
            let item = if rng.below(4) == 0 { Item::Deleted } else { value(&mut rng, 40) };
            batch.insert(some_key(&mut rng, &mut keys), item);
        }
        world.absorb(batch);
        if rng.below(2) == 0 {
            world.maintain();
        }
        if round % 10 == 9 {
            world.check(&mut rng);
            world.reopen();
        }
    }
    world.check(&mut rng);
}

/// A tree whose keys share all but their last bytes; returns its metadata bytes.
pub fn metadata_of_shared_keys<E: Tried>(options: E::Options) -> u64 {
    let mut world = World::<E>::new(options, 1);
    let prefix = vec![b'p'; 60_000];
    let mut rng = Rng::new(9);
    for round in 0..8_u32 {
        let key = |number: u32| [&prefix[..], &number.to_be_bytes()].concat();
        world.absorb((0..60).map(|it| (key(it * 8 + round), value(&mut rng, 8))).collect());
    }
    world.maintain();
    world.reopen();
    world.check(&mut rng);
    world.storage.epochs().settle();
    world.storage.budget().used_by(crate::memory::budget::Use::Metadata)
}
