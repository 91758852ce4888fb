//! The test suite of every engine. The tests of an engine (`engines/turtle/tests/mod.rs`) implement
//! [`world::Tried`] for it and call:
//!
//! | function | content |
//! | --- | --- |
//! | [`life::live`] | long runs under changing loads, beside a model |
//! | [`hostile::battery`] | damaged and forged bytes, failing devices, little memory |
//! | [`jobs::live_beside_jobs`], [`jobs::fail_in_jobs`] | jobs beside absorbs; failing jobs |
//! | [`long_keys::live_with_long_keys`], [`long_keys::metadata_of_shared_keys`] | long keys |
//!
//! `world` has the model, and the duties of the database around an engine.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

pub mod hostile;
pub mod jobs;
pub mod life;
pub mod long_keys;
pub mod world;

use self::world::{Item, Model};
use crate::runtime::rng::Rng;

/// The key of a number.
pub fn key_of(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Half of the values have this behind their first bytes.
pub const COMMON: &[u8] =
    b"{\"kind\":\"measurement\",\"place\":\"observatory\",\"unit\":\"kelvin\"}";

/// A value of random bytes; half of them can be compressed.
pub fn value(rng: &mut Rng, length: usize) -> Item {
    const RANDOM_BYTES: usize = 8;
    let mut value = vec![0; length];
    rng.fill(&mut value);
    if length > RANDOM_BYTES && value[0].is_multiple_of(2) {
        value[RANDOM_BYTES..]
            .iter_mut()
            .zip(COMMON.iter().cycle())
            .for_each(|(to, byte)| *to = *byte);
    }
    Item::Value(value)
}

/// Updates of random keys.
pub fn uniform(rng: &mut Rng, count: usize) -> Model {
    (0..count).map(|_| (key_of(rng.next_u64()), value(rng, 92))).collect()
}
