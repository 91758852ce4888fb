//! Wrong blocks and sectors of a small store.

use super::store::{BLOCK, DATA, Damage, Outcome, Store};
use crate::suite::support::below;
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::Rng;

/// Cases of a unit.
const CASES: usize = 100;

/// The unit that a device writes atomically.
const SECTOR: usize = 512;

/// A unit is some cases of every kind.
pub struct Blocks;

impl Test for Blocks {
    fn name(&self) -> &'static str {
        "rot-blocks"
    }

    fn about(&self) -> &'static str {
        "zeroes, scrambles, swaps, misdirects and ages blocks and sectors of a small store"
    }

    fn short_units(&self) -> u64 {
        10
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "blocks damaged", count: 100_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let mut rng = unit.rng();
        let mut tally = Tally::default();
        for _ in 0..CASES {
            let store = &Store::all()[below(&mut rng, 2)];
            let mut files = store.files.clone();
            let names: Vec<String> = files.keys().cloned().collect();
            // Mostly the data file, which has more structures.
            let name = if rng.one_in(4) { &names[below(&mut rng, names.len())] } else { DATA };
            let bytes = files.get_mut(name).unwrap();
            let before = bytes.clone();
            let kind = damage(bytes, &store.stale, name == DATA, &mut rng);
            let changed = |block: &usize| {
                let end = before.len().min((block + 1) * BLOCK);
                before[block * BLOCK..end] != bytes[block * BLOCK..end]
            };
            let blocks: Vec<usize> = (0..before.len().div_ceil(BLOCK)).filter(changed).collect();
            let damage = Damage { file: name.to_owned(), blocks };
            let outcome = store.check(files, &damage, rng.one_in(2));
            if !damage.blocks.is_empty() {
                tally.add("blocks damaged", damage.blocks.len() as u64);
                tally.add(kind, 1);
                tally.add("harmless", u64::from(outcome == Outcome::Harmless));
            }
        }
        tally
    }
}

/// Damages some blocks, and returns the kind of damage.
fn damage(bytes: &mut [u8], stale: &[u8], is_data: bool, rng: &mut Rng) -> &'static str {
    let blocks = bytes.len() / BLOCK;
    let range = |block: usize| block * BLOCK..(block + 1) * BLOCK;
    let one = below(rng, blocks);
    // Neighbours mostly belong to one structure and were written together: only their positions
    // differ.
    let other = match rng.below(4) {
        0 | 1 => (one + 1).min(blocks - 1),
        2 => (one + 2).min(blocks - 1),
        _ => below(rng, blocks),
    };
    let sector = below(rng, bytes.len() / SECTOR) * SECTOR;
    match rng.below(7) {
        0 => {
            bytes[range(one)].fill(0);
            "zeroed blocks"
        }
        1 => {
            bytes[sector..sector + SECTOR].fill(0);
            "zeroed sectors"
        }
        2 => {
            rng.fill(&mut bytes[sector..sector + SECTOR]);
            "scrambled sectors"
        }
        3 => {
            let content = bytes[range(one)].to_vec();
            bytes.copy_within(range(other), one * BLOCK);
            bytes[range(other)].copy_from_slice(&content);
            "swapped blocks"
        }
        4 => {
            bytes.copy_within(range(one), other * BLOCK);
            "misdirected writes"
        }
        5 if is_data && range(one).end <= stale.len() => {
            bytes[range(one)].copy_from_slice(&stale[range(one)]);
            "lost writes"
        }
        _ => {
            let end = (sector + SECTOR * (1 + below(rng, 16))).min(bytes.len());
            rng.fill(&mut bytes[sector..end]);
            "scrambled ranges"
        }
    }
}
