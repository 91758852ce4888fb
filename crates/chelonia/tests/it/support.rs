//! What several test modules need: tiny databases in memory, models, seeds.

use chelonia::internals::{MemoryDirectory, Rng};
use chelonia::{Database, Keyspace, KeyspaceOptions, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a keyspace should hold.
pub type ModelSpace = BTreeMap<Vec<u8>, Vec<u8>>;
/// What a database should hold.
pub type Model = BTreeMap<String, ModelSpace>;

/// The smallest tree there is: leaves of one block, four pivots.
pub fn tiny_options() -> KeyspaceOptions {
    KeyspaceOptions::new().leaf_bytes(4 << 10).pivots_max(4).checkpoint_distance(2_000)
}

/// A database in memory whose background work is done by the committing thread, so that a seed
/// repeats a run.
pub struct Store {
    directory: MemoryDirectory,
    database: Option<Database>,
    events: BTreeMap<&'static str, u64>,
}

impl Store {
    /// An empty one.
    pub fn tiny(salt: u64) -> Self {
        let directory = MemoryDirectory::new();
        let database = Some(open_tiny(&directory, salt).unwrap());
        Self { directory, database, events: BTreeMap::new() }
    }

    pub fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    pub fn keyspace(&self, name: &str) -> Keyspace {
        self.database().keyspace(name, tiny_options_of(name)).unwrap()
    }

    /// Closes, or just drops what is in memory as the death of the process does, and opens again.
    pub fn reopen(&mut self, cleanly: bool) -> Result<()> {
        self.count_events();
        let database = self.database.take().unwrap();
        if cleanly {
            database.close()?;
        } else {
            // The files as they are now; the old handle may do what it likes with the old ones.
            let files = self.directory.to_files();
            self.directory = MemoryDirectory::from_files(files);
            drop(database);
        }
        self.database = Some(open_tiny(&self.directory, 0)?);
        Ok(())
    }

    /// After a checkpoint with nothing held, exactly what the roots refer to is in use.
    pub fn check_space(&self) {
        self.database().checkpoint().unwrap();
        let leaked = chelonia::internals::unreachable_blocks(self.database()).unwrap();
        assert_eq!(leaked, 0, "blocks that nobody refers to");
    }

    /// How often each thing happened to a tree since the start.
    pub fn events(mut self) -> BTreeMap<&'static str, u64> {
        self.count_events();
        self.events
    }

    fn count_events(&mut self) {
        for keyspace in self.database().stats().keyspaces {
            for (event, count) in keyspace.engine_stats.events {
                *self.events.entry(event).or_insert(0) += count;
            }
        }
    }
}

/// One keyspace has Bloom filters, the other quotient filters.
pub fn tiny_options_of(name: &str) -> KeyspaceOptions {
    let kind = match name {
        "right" => chelonia::FilterKind::Quotient,
        _ => chelonia::FilterKind::Bloom,
    };
    tiny_options_once(name).filter(kind)
}

/// The dial is only set when the keyspace is made: later it is as it was turned.
fn tiny_options_once(_name: &str) -> KeyspaceOptions {
    KeyspaceOptions::new().leaf_bytes(4 << 10).pivots_max(4)
}

/// Opens a stepped database over `directory`.
pub fn open_tiny(directory: &MemoryDirectory, salt: u64) -> Result<Database> {
    let directory = Arc::new(directory.clone());
    let builder = Database::builder("memory").memory(64 << 20).internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.salt = Some(salt);
        internals.log_segment_bytes = Some(32 << 10);
    });
    let database = builder.open()?;
    let keyspace = database.keyspace("left", tiny_options_of("left"))?;
    keyspace.set_checkpoint_distance(2_000)?;
    let keyspace = database.keyspace("right", tiny_options_of("right"))?;
    keyspace.set_checkpoint_distance(3_000)?;
    Ok(database)
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

/// Holds a seed to be printed on failure.
pub fn hex_seed(seed: u64) -> SeedGuard {
    SeedGuard(seed)
}

/// A seed that no run had before.
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
    Rng::new(seed).next_u64()
}
