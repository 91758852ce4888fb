//! The small store that is damaged, and the permitted results of an open, of reads and of `verify`.
//!
//! Some blocks of one file are damaged. Permitted is:
//!
//! - the open fails, with an error that names the file and, in the data file, a damaged block;
//! - the open succeeds, and every answer is right or an error that names such a block. *Right* is
//!   the content of the store; after damage to the log, the content after any number of commits
//!   that includes the synced ones. If the damage includes all blocks that record what was synced,
//!   the log looks like one that ends there: then the last checkpoint must be included. After a
//!   close the superblock records it: nothing may be missing;
//! - `verify` finds such blocks; it may find nothing only if every answer is right, because then
//!   nothing refers to the damaged blocks.

use crate::suite::support::{KEYSPACES, compression_of, engine_of, layout_of};
use chelonia::internals::{Directory, MemoryDirectory, tick};
use chelonia::{
    Database, Durability, EngineKind, EngineOptions, Error, ErrorKind, Key, Keyspace,
    KeyspaceOptions, LogLayout, Result, Value,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// The bytes of a block.
pub const BLOCK: usize = 4096;

/// The data file.
pub const DATA: &str = "data";

/// The offset in the header of a log segment of the number of its first block.
const FIRST_BLOCK_AT: usize = 32;

/// Files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The content of the keyspaces, by name and key.
type State = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

/// Keys of a `multi_get`: an error of one fails the call.
const TOGETHER: usize = 8;

/// A store with every structure of the format: a tree of two levels, filters, an index, a large
/// value, tombstones, and a partly synced log.
pub struct Store {
    /// The files.
    pub files: Files,
    /// The data file a few checkpoints before.
    pub stale: Vec<u8>,
    /// The content at the last checkpoint, and after each commit since.
    states: Vec<State>,
    /// The index of the last synced state.
    synced: usize,
    /// The log blocks written since, whose headers record what was synced. `None` for a closed
    /// store: the superblock records it.
    witnesses: Option<Vec<(String, usize)>>,
    /// The blocks of the data file with large values that only the log refers to.
    logged: Vec<usize>,
    /// The segments of the log, in order.
    segments: Vec<String>,
    /// Blocks of the data file with pages and deltas of `bminus`.
    homes: BTreeSet<usize>,
}

/// The block of a log file that has no records: its header.
const SEGMENT_HEADER_BLOCK: usize = 0;

/// The result of damage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// The open failed and named it.
    Refused,
    /// A read or `verify` named it.
    Found,
    /// The damaged blocks are unused, or after the synced end of the log.
    Harmless,
}

/// The place of damage.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The damaged blocks.
    pub blocks: Vec<usize>,
}

fn open(directory: &MemoryDirectory, layout: LogLayout) -> Result<Database> {
    let directory: Arc<dyn Directory> = Arc::new(directory.clone());
    let builder =
        Database::builder("rot").memory(32 << 20).log_layout(layout).internals(|internals| {
            internals.directory = Some(directory);
            internals.stepped = true;
            internals.salt = Some(3);
            internals.log_segment_bytes = Some(16 << 10);
            internals.leave_log = true;
        });
    builder.open()
}

/// The options of an existing keyspace: as stored.
fn options() -> KeyspaceOptions {
    KeyspaceOptions::new()
}

impl Store {
    /// Two stores, created once: the process of one died; the other, with several logs, was closed.
    pub fn all() -> &'static [Store; 2] {
        static STORES: OnceLock<[Store; 2]> = OnceLock::new();
        STORES.get_or_init(|| [false, true].map(|is_closed| Self::make(is_closed).unwrap()))
    }

    fn make(is_closed: bool) -> Result<Store> {
        let directory = MemoryDirectory::new();
        let database = open(&directory, layout_of(is_closed.into()))?;
        for (number, name) in (0..).zip(KEYSPACES) {
            let engine = EngineOptions::tiny(engine_of(number), 8 << 10);
            let options = options().engine(engine).checkpoint_distance(3_000);
            let compression = compression_of(engine_of(number), is_closed.into());
            database.keyspace(name, options.compression(compression))?;
        }
        let (mut state, mut stale) = (State::new(), Vec::new());
        for number in 0..900_u64 {
            let name = KEYSPACES[usize::try_from((number % 12).saturating_sub(2) / 2).unwrap()];
            change(&database, &mut state, name, number, Durability::Process)?;
            if number == 500 {
                database.checkpoint()?;
                stale = directory.to_files()[DATA].clone();
            }
        }
        database.checkpoint()?;
        for name in KEYSPACES {
            database.keyspace(name, options())?.set_checkpoint_distance(1 << 20)?;
        }
        let (mut states, at_checkpoint) = (vec![state.clone()], directory.to_files());
        for number in 900..930 {
            change(&database, &mut state, "left", number, Durability::Process)?;
            states.push(state.clone());
        }
        let before = directory.to_files();
        change(&database, &mut state, "right", 930, Durability::Sync)?;
        states.push(state.clone());
        let (synced, at_sync) = (states.len() - 1, directory.to_files());
        // Later blocks of the log record what is synced, so damage is distinguished from a torn
        // tail.
        tick(&database)?;
        for number in 931..950 {
            change(&database, &mut state, "left", number, Durability::Process)?;
            states.push(state.clone());
        }
        let mut written = changed_blocks(&at_checkpoint, &directory.to_files());
        written.retain(|(name, _)| name == DATA);
        let logged: Vec<usize> = written.into_iter().map(|(_, block)| block).collect();
        assert!(!logged.is_empty(), "no large value is only in the log");
        if is_closed {
            let synced = states.len() - 1;
            database.close()?;
            let files = directory.to_files();
            let segments = segments(&files);
            let (witnesses, homes) = (None, homes(&files));
            return Ok(Store { files, stale, states, synced, witnesses, logged, segments, homes });
        }
        let files = directory.to_files();
        // The block of the synced commit is completed later and does not record the sync, nor does
        // the header of a segment that was prepared later.
        let finished = changed_log_blocks(&before, &at_sync);
        let mut witnesses = changed_log_blocks(&at_sync, &files);
        witnesses.retain(|block| !finished.contains(block) && block.1 != SEGMENT_HEADER_BLOCK);
        assert!(!witnesses.is_empty(), "no block records what was synced");
        let (witnesses, segments) = (Some(witnesses), segments(&files));
        let homes = homes(&files);
        Ok(Store { files, stale, states, synced, witnesses, logged, segments, homes })
    }

    /// Whether all blocks that record what was synced are damaged.
    fn takes_witnesses(&self, damage: &Damage) -> bool {
        let takes =
            |(file, block): &(String, usize)| *file == damage.file && damage.blocks.contains(block);
        self.witnesses.as_ref().is_some_and(|witnesses| witnesses.iter().all(takes))
    }

    /// Every block of every file, in order.
    pub fn blocks(&self) -> Vec<(&str, usize)> {
        let mut all = Vec::new();
        for (name, bytes) in &self.files {
            all.extend((0..bytes.len().div_ceil(BLOCK)).map(|block| (name.as_str(), block)));
        }
        all
    }

    /// Opens `files`, in which only `damage` differs, and checks all answers: single gets and
    /// forward scans, or batched gets and backward scans.
    pub fn check(&self, files: Files, damage: &Damage, backward: bool) -> Outcome {
        let directory = MemoryDirectory::from_files(files);
        let database = match open(&directory, LogLayout::Shared) {
            Ok(database) => database,
            Err(error) => {
                self.check_named(damage, &error);
                return Outcome::Refused;
            }
        };
        // The last keys identify the state.
        let possible: Vec<&State> = match damage.file.as_str() {
            DATA => self.states.last().into_iter().collect(),
            _ if self.takes_witnesses(damage) => self.states.iter().collect(),
            _ => self.states[self.synced..].iter().collect(),
        };
        let is_home = |block| self.homes.contains(block);
        let loses_pages = damage.file == DATA && damage.blocks.iter().any(is_home);
        let (outcome, missed) = (Outcome::Harmless, false);
        let mut look = Look { store: self, damage, possible, outcome, loses_pages, missed };
        for name in KEYSPACES {
            match database.keyspace(name, options()) {
                Ok(keyspace) => look.read(name, &keyspace, backward),
                Err(error) => look.said(&error),
            }
        }
        let findings = database.verify().unwrap().findings;
        findings.iter().for_each(|error| look.said(error));
        assert!(
            (look.outcome != Outcome::Found && !look.missed) || !findings.is_empty(),
            "{damage:?}: a read met it, and `verify` does not"
        );
        look.outcome
    }

    /// Fails if `error` does not name `damage`.
    fn check_named(&self, damage: &Damage, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage:?}: {error}");
        let is_data = damage.file == DATA;
        let Some(file) = error.file() else {
            // A segment with a damaged header is not recognized as a part of the log.
            assert!(!is_data && damage.blocks.contains(&0), "{damage:?}: {error}");
            return;
        };
        let offset = error.offset().unwrap_or_else(|| panic!("{damage:?}: no offset: {error}"));
        let block = usize::try_from(offset).unwrap() / BLOCK;
        let is_named = if file == damage.file {
            // A record of the log is named by its start, which may be blocks before.
            let is_at_or_before = damage.blocks.iter().any(|damaged| block <= *damaged);
            damage.blocks.contains(&block) || (!is_data && is_at_or_before)
        } else if is_data {
            // A large value that only the log refers to may be named by its record.
            file.starts_with("log-") && damage.blocks.iter().any(|one| self.logged.contains(one))
        } else {
            // A missing part of the log is named by the place before it.
            self.is_before(file, &damage.file)
        };
        assert!(is_named, "{damage:?}: {error}");
    }

    /// Whether segment `file` precedes segment `other` in the log.
    fn is_before(&self, file: &str, other: &str) -> bool {
        let place = |name: &str| self.segments.iter().position(|one| one == name);
        place(file) < place(other) && place(file).is_some()
    }
}

/// The reads of a damaged store, and the states they agree with.
struct Look<'a> {
    store: &'a Store,
    damage: &'a Damage,
    /// The states that agree with everything read so far.
    possible: Vec<&'a State>,
    outcome: Outcome,
    /// Pages of `bminus` may be as if the device had lost their last write. Then a read shows the
    /// image before, and only `verify` notices that, without knowing where (`docs/durability.md`).
    loses_pages: bool,
    /// A read has shown such an image.
    missed: bool,
}

impl Look<'_> {
    fn said(&mut self, error: &Error) {
        if !self.loses_pages || !error.to_string().contains("a write is lost") {
            self.store.check_named(self.damage, error);
        }
        self.outcome = Outcome::Found;
    }

    /// Whether a read of keyspace `name` may show an older state.
    fn may_miss(&self, name: &str) -> bool {
        self.loses_pages && engine_of_keyspace(name) == EngineKind::Bminus
    }

    /// Reads everything: singly and forward, or batched and backward.
    fn read(&mut self, name: &'static str, keyspace: &Keyspace, backward: bool) {
        let newest = self.store.states.last().unwrap();
        let keys: Vec<&(&str, Vec<u8>)> = of(newest, name).map(|(key, _)| key).collect();
        if backward {
            for keys in keys.chunks(TOGETHER) {
                match keyspace.multi_get(keys.iter().map(|key| &key.1)) {
                    Ok(found) => {
                        let both = keys.iter().zip(&found);
                        both.for_each(|(key, found)| self.shows(key, found.as_deref()));
                    }
                    Err(error) => self.said(&error),
                }
            }
            return self.scan(name, keyspace.iter().rev());
        }
        for key in keys {
            match keyspace.get(&key.1) {
                Ok(found) => self.shows(key, found.as_deref()),
                Err(error) => self.said(&error),
            }
        }
        self.scan(name, keyspace.iter());
    }

    fn shows(&mut self, key: &(&'static str, Vec<u8>), found: Option<&[u8]>) {
        let agrees = |state: &&State| state.get(key).map(Vec::as_slice) == found;
        if self.may_miss(key.0) && !self.possible.iter().any(agrees) {
            self.missed = true;
            return;
        }
        self.possible.retain(agrees);
        assert!(!self.possible.is_empty(), "{:?}: a wrong answer for {key:?}", self.damage);
    }

    fn scan(&mut self, name: &'static str, entries: impl Iterator<Item = Result<(Key, Value)>>) {
        let (mut complete, mut scanned) = (true, State::new());
        for entry in entries {
            match entry {
                Ok((key, value)) => drop(scanned.insert((name, key.to_vec()), value.to_vec())),
                Err(error) => {
                    self.said(&error);
                    complete = false;
                }
            }
        }
        let agrees = |state: &&State| {
            if complete {
                of(state, name).eq(scanned.iter())
            } else {
                scanned.iter().all(|(key, value)| state.get(key) == Some(value))
            }
        };
        if self.may_miss(name) && !self.possible.iter().any(agrees) {
            self.missed = true;
            return;
        }
        self.possible.retain(agrees);
        let damage = self.damage;
        assert!(
            !self.possible.is_empty(),
            "{damage:?}: a scan of {name} shows a state that never existed"
        );
    }
}

/// The blocks of the data file that have pages and deltas of `bminus`, by their kinds
/// (`crates/chelonia/src/storage/block.rs`).
fn homes(files: &Files) -> BTreeSet<usize> {
    let blocks = files[DATA].chunks(BLOCK).enumerate();
    blocks.filter(|(_, block)| matches!(block[8], 9 | 10)).map(|(number, _)| number).collect()
}

fn engine_of_keyspace(name: &str) -> EngineKind {
    let place = KEYSPACES.iter().position(|one| *one == name).unwrap();
    engine_of(place as u64)
}

/// The part of a state that belongs to one keyspace.
fn of<'s>(
    state: &'s State,
    name: &'static str,
) -> impl Iterator<Item = (&'s (&'static str, Vec<u8>), &'s Vec<u8>)> {
    state.range((name, Vec::new())..).take_while(move |((of, _), _)| *of == name)
}

/// The segments of the log in order, by the number of the first block in their headers
/// (`crates/chelonia/src/log/format.rs`).
fn segments(files: &Files) -> Vec<String> {
    let first_block = |bytes: &Vec<u8>| {
        let number: [u8; 8] = bytes[FIRST_BLOCK_AT..FIRST_BLOCK_AT + 8].try_into().unwrap();
        u64::from_le_bytes(number)
    };
    let logs = files.iter().filter(|(name, _)| name.starts_with("log-"));
    let mut logs: Vec<(u64, String)> =
        logs.map(|(name, bytes)| (first_block(bytes), name.clone())).collect();
    logs.sort_unstable();
    logs.into_iter().map(|(_, name)| name).collect()
}

/// The blocks of the log that differ between two states of the files.
fn changed_log_blocks(before: &Files, after: &Files) -> Vec<(String, usize)> {
    let mut changed = changed_blocks(before, after);
    changed.retain(|(name, _)| name.starts_with("log-"));
    changed
}

/// The blocks of all files that differ between two states of the files.
fn changed_blocks(before: &Files, after: &Files) -> Vec<(String, usize)> {
    let mut changed = Vec::new();
    for (name, bytes) in after {
        let old: Vec<&[u8]> =
            before.get(name).map_or(Vec::new(), |old| old.chunks(BLOCK).collect());
        let blocks = bytes.chunks(BLOCK).enumerate();
        let differs = blocks.filter(|(index, block)| old.get(*index) != Some(block));
        changed.extend(differs.map(|(index, _)| (name.clone(), index)));
    }
    changed
}

/// Changes a few keys as commit `number` does.
fn change(
    database: &Database,
    state: &mut State,
    name: &'static str,
    number: u64,
    level: Durability,
) -> Result<()> {
    let keyspace = database.keyspace(name, options())?;
    let mut batch = database.batch();
    let key = (number.wrapping_mul(0x9e37_79b9) % 400).to_be_bytes()[6..].to_vec();
    let other = (number % 61).to_be_bytes()[6..].to_vec();
    let length = match number {
        _ if number.is_multiple_of(230) => 40_000,
        _ if number.is_multiple_of(31) => 3_000 + number % 3_000,
        _ => number % 150,
    };
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + usize::try_from(length).unwrap(), 0xa5);
    batch.insert(&keyspace, &key, &value);
    state.insert((name, key.clone()), value);
    if other != key && number.is_multiple_of(5) {
        batch.remove(&keyspace, &other);
        state.remove(&(name, other));
    }
    batch.commit_with(level)
}
