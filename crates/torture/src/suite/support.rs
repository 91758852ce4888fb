//! Shared by several tests: models, engines, random choices.

use chelonia::internals::Rng;
use chelonia::{Compression, EngineKind, LogLayout};
use std::collections::BTreeMap;

/// The expected content of a keyspace.
pub type ModelSpace = BTreeMap<Vec<u8>, Vec<u8>>;

/// The number of engines.
pub const ENGINES: usize = EngineKind::ALL.len();

/// The engine of keyspace number `number`: every test uses all engines side by side.
pub fn engine_of(number: u64) -> EngineKind {
    let all = EngineKind::ALL;
    all[usize::try_from(number % all.len() as u64).unwrap()]
}

/// The compression of a keyspace with this engine that `number` distinguishes.
pub fn compression_of(engine: EngineKind, number: u64) -> Compression {
    match engine {
        EngineKind::Turtle | EngineKind::Splinter if number.is_multiple_of(4) => Compression::Fast,
        EngineKind::Turtle | EngineKind::Splinter if number.is_multiple_of(2) => Compression::Small,
        EngineKind::Autumn if number.is_multiple_of(4) => Compression::Small,
        EngineKind::Autumn if number.is_multiple_of(2) => Compression::Fast,
        _ => Compression::None,
    }
}

/// Kinds of units of tests in which engines are also alone: each engine alone, and all engines in
/// one database.
pub const KINDS: u64 = ENGINES as u64 + 1;

/// The engines of the keyspaces of unit number `unit`, in turn: one, in one unit of [`KINDS`] all.
pub fn engines_of(unit: u64) -> Vec<EngineKind> {
    match unit % KINDS {
        number if number < ENGINES as u64 => vec![engine_of(number)],
        _ => EngineKind::ALL.to_vec(),
    }
}

/// The names of a keyspace of each engine, for tests that have one of each.
pub const KEYSPACES: [&str; ENGINES] = ["left", "right", "middle", "fourth", "fifth"];

/// The layouts of the log.
pub const LAYOUTS: [LogLayout; 3] =
    [LogLayout::Shared, LogLayout::PerThread { logs: 3 }, LogLayout::Sparse];

/// The layout of the log of a database that `number` distinguishes.
pub fn layout_of(number: u64) -> LogLayout {
    LAYOUTS[usize::try_from(number % LAYOUTS.len() as u64).unwrap()]
}

/// A number below `bound`, as an index.
pub fn below(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound.max(1) as u64)).unwrap()
}

/// One of `all`.
pub fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[below(rng, all.len())]
}
