//! Every byte of two small stores is flipped, one at a time.

use super::store::{BLOCK, DATA, Damage, Outcome, Store};
use crate::test::{Tally, Target, Test, Unit};
use std::collections::BTreeSet;

/// A unit is a block, and the bit that is flipped in each of its bytes.
pub struct Flips;

impl Test for Flips {
    fn name(&self) -> &'static str {
        "rot-flips"
    }

    fn about(&self) -> &'static str {
        "flips a bit of every byte of a small store: reported with file and offset"
    }

    fn short_units(&self) -> u64 {
        5
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "bytes flipped", count: 200_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let stores = Store::all().iter();
        let blocks: Vec<(&Store, &str, usize)> = stores
            .flat_map(|store| store.blocks().into_iter().map(move |(file, at)| (store, file, at)))
            .collect();
        // Neighbouring units are far apart, and every block comes once before any comes twice.
        let number = usize::try_from(unit.number).unwrap();
        let (store, file, block) = blocks[(number * 37) % blocks.len()];
        let bit = (number / blocks.len()) % 8;
        let damage = Damage { file: file.to_owned(), blocks: vec![block] };
        let bytes = store.files[file].len().min((block + 1) * BLOCK) - block * BLOCK;
        let mut outcomes = BTreeSet::new();
        let mut tally = Tally::default();
        for within in 0..bytes {
            let mut files = store.files.clone();
            files.get_mut(file).unwrap()[block * BLOCK + within] ^= 1 << bit;
            let outcome = store.check(files, &damage, (within + bit) % 2 == 1);
            tally.add("bytes flipped", 1);
            tally.add(
                match outcome {
                    Outcome::Refused => "refused by the open",
                    Outcome::Found => "found by reads or verify",
                    Outcome::Harmless => "harmless",
                },
                1,
            );
            outcomes.insert(outcome);
        }
        // A used block is covered by its checksum to the last byte.
        let is_one = !outcomes.contains(&Outcome::Harmless) || outcomes.len() == 1;
        assert!(file != DATA || is_one, "{damage:?}: found in some bytes only, {outcomes:?}");
        tally
    }
}
