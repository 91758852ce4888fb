//! The program `chelonia-fuzz`: libFuzzer over the decoders of files and over whole stores. What it
//! is given is changed by what it covered before, so that it gets further than chance does.
//!
//! The first byte of an input chooses the decoder; one number more than there are decoders is a
//! whole store, of which the rest of the input changes one block. Checksums are made right.
//!
//! Only in a build with the feature `libfuzzer`, which needs a C++ compiler; `docs/testing.md` says
//! how it is run. Seeds are written by `chelonia-torture seeds DIR`.

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
