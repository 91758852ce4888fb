//! Shared by several test modules: small trees, seeds.

use chelonia::internals::Rng;
use chelonia::{EngineKind, EngineOptions, KeyspaceOptions};

/// The checkpoint distance of [`tiny_options`], in bytes.
pub const TINY_DISTANCE: u64 = 2_000;

/// The smallest tree: leaves of one block, four pivots.
pub fn tiny_options() -> KeyspaceOptions {
    let engine = EngineOptions::tiny(EngineKind::Turtle, 4 << 10);
    KeyspaceOptions::new().engine(engine).checkpoint_distance(TINY_DISTANCE)
}

/// Prints the seed if the test fails.
pub struct SeedGuard(u64);

impl Drop for SeedGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the seed was {:#x}", self.0);
        }
    }
}

/// Prints this seed on failure.
pub fn hex_seed(seed: u64) -> SeedGuard {
    SeedGuard(seed)
}

/// A random seed.
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
    Rng::new(seed).next_u64()
}
