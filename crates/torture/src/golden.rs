//! Golden stores: databases in a released format, which every later version must open.
//!
//! ```text
//!   crates/torture/tests/golden/format-1/
//!     closed/            everything in the data file; two keyspaces of engine turtle
//!     crashed/           with a log to replay, as after the death of the process
//!     both-closed/       the same, one keyspace of engine autumn
//!     both-crashed/
//!     splinter-closed/   the same, one keyspace of engine splinter
//!     splinter-crashed/
//!     treeline-closed/   the same, one keyspace of engine treeline
//!     treeline-crashed/
//!     bminus-closed/     the same, one keyspace of engine bminus
//!     bminus-crashed/
//! ```
//!
//! [`make`] writes such stores, once per format, for `chelonia-torture golden DIR`; the tests of
//! this crate open a copy of each with [`check`]. `entries` defines the content: keys and values of
//! all kinds, two keyspaces with different filters, tombstones, large values, and trees of several
//! levels with buffers.

use chelonia::{
    AutumnOptions, BminusOptions, Compression, Database, Durability, FilterKind, Keyspace,
    KeyspaceOptions, Result, SplinterOptions, TreelineOptions, TurtleOptions,
};
use std::collections::BTreeMap;
use std::path::Path;

/// The names of the stores of a format.
pub const STORES: [&str; 14] = [
    "closed",
    "crashed",
    "both-closed",
    "both-crashed",
    "splinter-closed",
    "splinter-crashed",
    "compressed-closed",
    "compressed-crashed",
    "small-closed",
    "small-crashed",
    "treeline-closed",
    "treeline-crashed",
    "bminus-closed",
    "bminus-crashed",
];

/// Changes; the last ones are only in the log of the crashed store.
const CHANGES: u64 = 1_500;

/// Changes after the last checkpoint.
const LOGGED: u64 = 60;

/// The content of a keyspace.
type Space = BTreeMap<Vec<u8>, Vec<u8>>;

/// The keyspaces of the store called `name`.
fn keyspaces(database: &Database, name: &str) -> Result<[Keyspace; 2]> {
    let options = |filter| {
        let options = KeyspaceOptions::new().engine(TurtleOptions::new().leaf_bytes(4 << 10));
        options.filter(filter).filter_bits_per_key(10)
    };
    let bloom = options(FilterKind::Bloom);
    let bloom = if name.starts_with("both") {
        bloom.engine(AutumnOptions::new().table_bytes(4 << 10))
    } else if name.starts_with("splinter") {
        bloom.engine(SplinterOptions::new().branch_bytes(4 << 10).fanout(4))
    } else if name.starts_with("treeline") {
        bloom.engine(TreelineOptions::new().group_pages(4))
    } else if name.starts_with("bminus") {
        bloom.engine(BminusOptions::new().delta_bytes(1 << 10))
    } else if name.starts_with("compressed") {
        bloom.compression(Compression::Fast)
    } else if name.starts_with("small") {
        bloom.compression(Compression::Small)
    } else {
        bloom
    };
    let quotient = options(FilterKind::Quotient);
    Ok([database.keyspace("bloom", bloom)?, database.keyspace("quotient", quotient)?])
}

/// Whether the process that made the store called `name` died.
fn has_crashed(name: &str) -> bool {
    name.ends_with("crashed")
}

/// Change number `number`: the keyspace, the key and the value.
fn change(number: u64) -> (usize, Vec<u8>, Option<Vec<u8>>) {
    let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let mut key = (place % 700).to_be_bytes()[5..].to_vec();
    if place.is_multiple_of(11) {
        key = [vec![b'p'; 300], key].concat();
    }
    if number == 17 {
        key.clear();
    }
    let length = match number % 500 {
        499 => 33_000,
        250 => 5_000,
        _ => number % 90,
    };
    let filled = || (0..length).map(|at| (at ^ number).to_le_bytes()[0]).collect();
    (usize::from(number % 5 > 3), key, (number % 7 != 3).then(filled))
}

/// The content of the store called `name`, by keyspace.
fn entries(name: &str) -> [Space; 2] {
    let mut spaces = [Space::new(), Space::new()];
    let changes = if has_crashed(name) { CHANGES } else { CHANGES - LOGGED };
    for number in 0..changes {
        let (space, key, value) = change(number);
        match value {
            Some(value) => drop(spaces[space].insert(key, value)),
            None => drop(spaces[space].remove(&key)),
        }
    }
    spaces
}

fn apply(keyspaces: &[Keyspace; 2], number: u64) -> Result<()> {
    let (space, key, value) = change(number);
    match value {
        Some(value) => keyspaces[space].insert(key, value),
        None => keyspaces[space].remove(key),
    }
}

/// Makes the stores in `directory`, which must exist.
///
/// # Errors
/// As the store.
pub fn make(directory: &Path) -> Result<()> {
    STORES.iter().try_for_each(|name| make_one(&directory.join(name), name))
}

fn make_one(path: &Path, name: &str) -> Result<()> {
    let database = Database::builder(path).memory(32 << 20).open()?;
    let spaces = keyspaces(&database, name)?;
    for keyspace in &spaces {
        keyspace.set_checkpoint_distance(6_000)?;
    }
    for number in 0..CHANGES - LOGGED {
        apply(&spaces, number)?;
    }
    database.checkpoint()?;
    database.close()?;
    if has_crashed(name) {
        // Ends like a killed process: without a close and without destructors.
        let database = Database::builder(path).memory(32 << 20).open()?;
        let spaces = keyspaces(&database, name)?;
        for number in CHANGES - LOGGED..CHANGES {
            apply(&spaces, number)?;
        }
        database.sync()?;
        std::mem::forget((database, spaces));
    }
    Ok(())
}

/// Opens the store called `name` at `path`, for reading and then for writing. Panics if its content
/// differs, if `verify` finds damage, or if it cannot be written.
///
/// # Errors
/// As the store.
pub fn check(path: &Path, name: &str) -> Result<()> {
    for read_only in [true, false] {
        let builder = Database::builder(path).memory(32 << 20).create(false);
        let database = builder.read_only(read_only).open()?;
        for (keyspace, expected) in keyspaces(&database, name)?.iter().zip(entries(name)) {
            let found = keyspace
                .iter()
                .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())));
            assert!(found.collect::<Result<Space>>()? == expected, "{name}: {}", keyspace.name());
            for (key, value) in &expected {
                assert!(keyspace.get(key)?.as_deref() == Some(value), "{name}: a get");
            }
            assert!(keyspace.get("absent")?.is_none());
            if !read_only {
                keyspace.insert_with("new", "entry", Durability::Sync)?;
            }
        }
        let report = database.verify()?;
        assert!(report.is_clean(), "{name}: {:?}", report.findings);
        database.close()?;
    }
    let database = Database::builder(path).memory(32 << 20).open()?;
    for keyspace in keyspaces(&database, name)? {
        assert!(keyspace.get("new")?.is_some());
    }
    database.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_stores_have_the_expected_content() {
        let directory = tempfile::tempdir().unwrap();
        make(directory.path()).unwrap();
        // This process left the crashed store and still has its lock; a copy has none.
        for name in STORES {
            let (from, to) = (directory.path().join(name), directory.path().join("copy"));
            std::fs::create_dir(&to).unwrap();
            for entry in std::fs::read_dir(from).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
            check(&to, name).unwrap();
            std::fs::remove_dir_all(to).unwrap();
        }
    }
}
