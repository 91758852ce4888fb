//! Every decoder of file contents by itself, with forged input: modified contents of a real store
//! with valid checksums. None may panic.

use super::mutate::mutate;
use super::stores::Sample;
use crate::suite::support::below;
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::forged;
use std::path::Path;

/// Inputs of a unit, for each decoder.
const INPUTS: u64 = 20_000;

/// A unit is some inputs for each decoder.
pub struct Decoders;

impl Test for Decoders {
    fn name(&self) -> &'static str {
        "decoders"
    }

    fn about(&self) -> &'static str {
        "gives forged input to every decoder of file contents"
    }

    fn short_units(&self) -> u64 {
        3
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "inputs decoded", count: 5_000_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let mut rng = unit.rng();
        let sample = Sample::get();
        let mut tally = Tally::default();
        for decoder in forged::decoders() {
            let seeds = sample.seeds_of(decoder.name);
            for _ in 0..INPUTS {
                let mut bytes = seeds[below(&mut rng, seeds.len())].clone();
                let keeps_length = rng.one_in(2);
                mutate(&mut bytes, &mut rng, keeps_length);
                (decoder.seal)(&mut bytes);
                (decoder.decode)(&bytes);
            }
            tally.add("inputs decoded", INPUTS);
        }
        tally
    }
}

/// Writes valid inputs of each decoder to `directory`, as seeds for `chelonia-fuzz`.
///
/// # Errors
/// Errors of writing files.
pub fn write_seeds(directory: &Path) -> std::io::Result<()> {
    const OF_EACH: usize = 3;
    for (number, decoder) in (0_u8..).zip(forged::decoders()) {
        let seeds = Sample::get().seeds_of(decoder.name);
        for (index, seed) in seeds.iter().take(OF_EACH).enumerate() {
            let name = format!("{}-{index}", decoder.name.replace(' ', "-"));
            std::fs::write(directory.join(name), [&[number][..], seed].concat())?;
        }
    }
    // A store: the number of a block, a position in it, and the new bytes.
    std::fs::write(directory.join("store-0"), [0xff, 3, 0, 20, 0, 0x80, 0x80, 1])
}
