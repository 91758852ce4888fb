//! The interface between the driver and the stores, and the list of all stores.
//!
//! A [`Store`] is an open database with one ordered map. Each thread of the driver works through a
//! [`Session`] of its own. Every value that is read is copied into a buffer of the caller, so that
//! all stores do the same for a read whatever their own interface lends.
//!
//! # Writes and commits
//!
//! A store with a log says `commit_every` = 1: each call of [`Session::insert`] and
//! [`Session::remove`] is a commit of its own, as durable as [`StoreOptions::durability`] says when
//! it returns, and visible to all. A store without one says 1,000: writes may wait in the session
//! until [`Session::commit`], which the driver calls after so many of them and at the end of a
//! phase; until then nobody, not even the session, need see them.
//!
//! # Adding a store
//!
//! 1. A file beside this one with a type for each of the two traits, under 200 lines, tuned as the
//!    guide of that store recommends, and a function `open` for its row in [`PEERS`].
//! 2. A feature in the manifest with its dependency, and a row in the table of dependencies.
//! 3. [`Facts::settings`] names everything that was set.

#[cfg(feature = "bf-tree")]
mod bf_tree;
mod chelonia;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "lmdb", feature = "redb"))]
mod waiting;
#[cfg(feature = "wiredtiger")]
mod wiredtiger;

use crate::failure::{Failure, Result};
use crate::kinds::Durability;
use crate::shape::Shape;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// How a database is made. It is always a new one.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// An empty directory.
    pub path: PathBuf,
    /// The name of the store: one adapter may have several engines.
    pub engine: String,
    /// All the memory that it may use, in bytes.
    pub memory: u64,
    /// The bytes of updates between two checkpoints, for stores with such a dial.
    pub checkpoint_distance: Option<u64>,
    /// The shape of levels and the bits of filters, if it is an engine of ours.
    pub shape: Shape,
    /// The failures that a write must survive once its call has returned.
    pub durability: Durability,
    /// Threads that will work at the same time.
    #[allow(dead_code, reason = "not every store asks, and each is behind a feature")]
    pub threads: u64,
    /// About the bytes of all keys and values.
    #[allow(dead_code, reason = "not every store asks, and each is behind a feature")]
    pub live_bytes: u64,
    /// The longest key that will be used, also by those that are not there.
    #[allow(dead_code, reason = "not every store asks, and each is behind a feature")]
    pub key_bytes_max: usize,
    /// The longest value.
    #[allow(dead_code, reason = "not every store asks, and each is behind a feature")]
    pub value_bytes_max: usize,
}

/// Properties of a store.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its version.
    pub version: String,
    /// Everything that was set: name and value.
    pub settings: Vec<(&'static str, String)>,
    /// Writes per commit: 1, or more for a store that has no log.
    pub commit_every: u32,
}

/// Counters of the store since it was opened. `None` if it has no such counter.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Bytes written to its log.
    pub log_bytes: Option<u64>,
    /// Bytes written elsewhere.
    pub data_bytes: Option<u64>,
    /// Bytes of its log on disk now.
    pub log_disk_bytes: Option<u64>,
    /// Levels that it has now, besides those that come in as they are written.
    pub levels: Option<u64>,
    /// How long writes were held back for the sake of background work, all threads together.
    pub delayed: Option<Duration>,
    /// Events that it counts, by name.
    pub events: Vec<(&'static str, u64)>,
}

/// The result of a settle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Nothing is left to do in the background.
    Done,
    /// Something still was when the time was over.
    TimeOver,
}

/// An open database.
pub trait Store: Sync {
    /// Its properties.
    fn facts(&self) -> Facts;

    /// A session for the calling thread.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Returns when all writes so far are where they stay: memtables written out, no background
    /// work due, and for stores with checkpoints, a checkpoint durable. No session is open.
    fn settle(&self, limit: Duration) -> Result<Settled>;

    /// Sets the checkpoint distance; false if the store has none.
    fn set_checkpoint_distance(&self, bytes: u64) -> Result<bool> {
        let _ = bytes;
        Ok(false)
    }

    /// Its counters.
    fn counters(&self) -> Result<Counters> {
        Ok(Counters::default())
    }

    /// Closes it.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One thread's way into a store.
pub trait Session {
    /// Sets `key` to `value`.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes `key`.
    fn remove(&mut self, key: &[u8]) -> Result<()>;

    /// Makes the writes since the last commit visible and as durable as was asked. Only called if
    /// [`Facts::commit_every`] is more than 1.
    fn commit(&mut self) -> Result<()> {
        Ok(())
    }

    /// Puts the value of `key` into `value`, which is empty; false if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Adds the first `count` entries from key `from` on, in key order, to `entries`, which is
    /// empty.
    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()>;

    /// Adds the values of `keys` in the order asked to `answers`, which is empty. A store that has
    /// no such call gets them one by one.
    fn multi_get(&mut self, keys: &[Vec<u8>], answers: &mut Answers) -> Result<()> {
        let mut value = Vec::new();
        for key in keys {
            value.clear();
            let found = self.get(key, &mut value)?;
            answers.push(found.then_some(&value));
        }
        Ok(())
    }
}

/// Entries that were read, copied one after the other into one buffer.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    /// Where each key ends, and each value.
    ends: Vec<(usize, usize)>,
}

impl Entries {
    /// Forgets all entries.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds one.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    /// Keys and values in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(key_end, end)| {
            let entry = (&self.bytes[start..*key_end], &self.bytes[*key_end..*end]);
            start = *end;
            entry
        })
    }
}

/// Values that were asked for together, copied one after the other into one buffer.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    bytes: Vec<u8>,
    values: Vec<Option<Range<usize>>>,
}

impl Answers {
    /// Forgets all answers.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.values.clear();
    }

    /// Adds one: a value, or that there is none.
    pub fn push(&mut self, value: Option<impl AsRef<[u8]>>) {
        let start = self.bytes.len();
        self.values.push(value.map(|value| {
            self.bytes.extend_from_slice(value.as_ref());
            start..self.bytes.len()
        }));
    }

    /// The answers in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        self.values.iter().map(|range| range.clone().map(|range| &self.bytes[range]))
    }
}

/// Opens a store.
pub type Open = fn(&StoreOptions) -> Result<Box<dyn Store>>;

/// A store that this program knows.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The name in options and results.
    pub name: &'static str,
    /// Opens it; `None` if it is not in this build.
    pub open: Option<Open>,
    /// The package that must be installed to build it, if any.
    pub package: Option<&'static str>,
    /// It reads through the page cache, so that only a memory cgroup can bound its memory.
    pub uses_page_cache: bool,
}

/// The way into a store, if its feature is on.
macro_rules! built {
    ($feature:literal, $module:ident) => {{
        #[cfg(feature = $feature)]
        {
            Some($module::open as Open)
        }
        #[cfg(not(feature = $feature))]
        {
            None
        }
    }};
}

/// The stores of others, each behind the feature of its name.
const PEERS: [Kind; 6] = [
    Kind {
        name: "rocksdb",
        open: built!("rocksdb", rocksdb),
        package: Some("librocksdb-dev"),
        uses_page_cache: false,
    },
    Kind {
        name: "wiredtiger",
        open: built!("wiredtiger", wiredtiger),
        package: Some("libwiredtiger-dev"),
        uses_page_cache: false,
    },
    Kind { name: "lmdb", open: built!("lmdb", lmdb), package: None, uses_page_cache: true },
    Kind { name: "fjall", open: built!("fjall", fjall), package: None, uses_page_cache: true },
    Kind { name: "redb", open: built!("redb", redb), package: None, uses_page_cache: true },
    Kind {
        name: "bf-tree",
        open: built!("bf-tree", bf_tree),
        package: None,
        uses_page_cache: false,
    },
];

/// RocksDB with compressed blocks.
const COMPRESSED_PEERS: [Kind; 2] =
    [Kind { name: "rocksdb-lz4", ..PEERS[0] }, Kind { name: "rocksdb-zstd", ..PEERS[0] }];

/// A size for a library that counts in the machine's words.
#[allow(dead_code, reason = "not every store asks, and each is behind a feature")]
fn bytes_of(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Failure::usage("--memory: too much for this machine"))
}

/// The bytes of the files in `folder` whose names are such; `None` if it can't be read.
#[cfg(any(feature = "rocksdb", feature = "wiredtiger"))]
fn files_bytes(folder: &std::path::Path, is_such: impl Fn(&[u8]) -> bool) -> Option<u64> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let such = entries.filter(|entry| is_such(entry.file_name().as_encoded_bytes()));
    // One that was just removed has none.
    Some(such.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).sum())
}

/// All stores: every engine of ours, then those of others.
pub fn all() -> Vec<Kind> {
    chelonia::kinds().chain(PEERS).collect()
}

/// Stores that compress, beside the same ones that do not. Figures have only the latter.
pub fn compressed() -> impl Iterator<Item = Kind> {
    chelonia::compressed().chain(COMPRESSED_PEERS)
}

/// The store of a name.
pub fn find(name: &str) -> Option<Kind> {
    all().into_iter().chain(compressed()).find(|kind| kind.name == name)
}

/// The name without the compression.
pub fn base_of(name: &str) -> &str {
    let is_compressed = compressed().any(|kind| kind.name == name);
    name.rsplit_once('-').filter(|_| is_compressed).map_or(name, |(base, _)| base)
}

/// All names of stores that figures show.
pub fn names() -> Vec<&'static str> {
    all().into_iter().map(|kind| kind.name).collect()
}

impl Kind {
    /// Opens it, if this build can.
    pub fn open(&self, options: &StoreOptions) -> Result<Box<dyn Store>> {
        self.check_built()?;
        match self.open {
            Some(open) => open(options),
            None => Err(Failure::usage(format!("{} is not in this build", self.name))),
        }
    }

    /// Fails with what to do if it is not in this build.
    pub fn check_built(&self) -> Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        let needs = self.package.map_or(String::new(), |package| {
            format!(", after installing the system package {package}")
        });
        Err(Failure::usage(format!(
            "{} is not in this build: build with `--features {}`{needs}",
            self.name,
            base_of(self.name)
        )))
    }
}
