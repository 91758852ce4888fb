//! The program `chelonia-fuzz`: libFuzzer over the decoders of file contents and over complete
//! stores. Coverage guides how inputs change, so it reaches more than random changes.
//!
//! The first byte of an input selects the decoder; the number after the last decoder selects a
//! store, of which the rest of the input changes one block. Checksums are recomputed.
//!
//! Needs the feature `libfuzzer` and a C++ compiler; `docs/testing.md` describes how to run it.
//! `chelonia-torture seeds DIR` writes seeds.

#![no_main]

use chelonia::internals::forged;
use chelonia_torture::suite::fuzz_store;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    let decoders = forged::decoders();
    match decoders.get(usize::from(*choice)) {
        Some(decoder) => {
            let mut bytes = rest.to_vec();
            (decoder.seal)(&mut bytes);
            (decoder.decode)(&bytes);
        }
        None => fuzz_store(rest),
    }
});
