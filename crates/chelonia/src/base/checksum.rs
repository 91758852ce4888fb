//! The two hash functions of the store, both XXH3-64 with a seed.
//!
//! A *checksum* verifies that the bytes are those written at this place and time; its seed binds
//! the identity of the place. A *key hash* feeds the filters; its seed is the database's salt, so
//! that nobody can prepare keys that collide in every database.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The checksum of `bytes` under the identity `seed`.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Mixes numbers that identify a place (salt, generation, block number) into one seed.
#[inline]
#[must_use]
pub fn identity(parts: [u64; 3]) -> u64 {
    // Finalizer of SplitMix64 after each part: every part changes every bit.
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for part in parts {
        seed = (seed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        seed ^= seed >> 31;
    }
    seed
}

/// The hash of a key under a database's salt: computed once per lookup, shared by all filters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The hash of `key` under `salt`.
    #[inline]
    #[must_use]
    pub fn new(key: &[u8], salt: u64) -> Self {
        Self(xxh3_64_with_seed(key, salt))
    }
}
