//! The small store that rots, and what an open, a read and `verify` may say of it then.
//!
//! Damage is to some blocks of one file. Allowed is:
//!
//! - that the open fails, with an error that names the file, and, in the data file, a block;
//! - that it succeeds, and then every answer is right or is an error that names such a block. Right
//!   is what the store held; after damage to the log, what it held after any number of commits that
//!   is not less than what was synced. If the damage took along all blocks that bear witness of
//!   what was synced, the log looks like one that ends there: then not less than the last
//!   checkpoint. Of a store that was closed the superblock says it: nothing may be missing;
//! - that `verify` finds such blocks, or nothing if every answer is right: then nothing refers to
//!   what is damaged.

use crate::suite::support::{ENGINES, engine_of};
use chelonia::internals::{Directory, MemoryDirectory, tick};
use chelonia::{
    Database, Durability, EngineOptions, Error, ErrorKind, Key, Keyspace, KeyspaceOptions, Result,
    Value,
};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The bytes of a block.
pub const BLOCK: usize = 4096;

/// The data file.
pub const DATA: &str = "data";

/// Where the header of a log file says which block of the log is its first.
const FIRST_BLOCK_AT: usize = 32;

/// Files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What the keyspaces hold, by name and key.
type State = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

const KEYSPACES: [&str; ENGINES] = ["left", "right"];

/// Keys of a `multi_get`: an error of one is one of all.
const TOGETHER: usize = 8;

/// A store on which everything of the format can be found: a tree of two levels, filters, an index,
/// a large value, tombstones, and a log of which a part is synced.
pub struct Store {
    /// Its files.
    pub files: Files,
    /// The data file as it was a few checkpoints before.
    pub stale: Vec<u8>,
    /// What it held at the last checkpoint, and after each commit since.
    states: Vec<State>,
    /// Which of them was synced.
    synced: usize,
    /// The blocks of the log that were written since, with what was synced in their headers. None
    /// of a store that was closed: the superblock bears witness.
    witnesses: Option<Vec<(String, usize)>>,
    /// The blocks of the data file with large values that only the log refers to.
    logged: Vec<usize>,
    /// The files of the log, in its order.
    segments: Vec<String>,
}

/// What became of damage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// The open failed and named it.
    Refused,
    /// A read or `verify` named it.
    Found,
    /// Nothing needs what was damaged, or it was behind the synced end of the log.
    Harmless,
}

/// Where damage was done.
#[derive(Clone, Debug)]
pub struct Damage {
    /// To this file.
    pub file: String,
    /// To these blocks of it.
    pub blocks: Vec<usize>,
}

fn open(directory: &MemoryDirectory) -> Result<Database> {
    let directory: Arc<dyn Directory> = Arc::new(directory.clone());
    let builder = Database::builder("rot").memory(32 << 20).internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.salt = Some(3);
        internals.log_segment_bytes = Some(16 << 10);
        internals.leave_log = true;
    });
    builder.open()
}

/// The options of a keyspace that is there: as stored.
fn options() -> KeyspaceOptions {
    KeyspaceOptions::new()
}

impl Store {
    /// Two stores, made once: one whose process died, and one that was closed.
    pub fn all() -> &'static [Store; 2] {
        static STORES: OnceLock<[Store; 2]> = OnceLock::new();
        STORES.get_or_init(|| [false, true].map(|is_closed| Self::make(is_closed).unwrap()))
    }

    fn make(is_closed: bool) -> Result<Store> {
        let directory = MemoryDirectory::new();
        let database = open(&directory)?;
        for (number, name) in (0..).zip(KEYSPACES) {
            let engine = EngineOptions::tiny(engine_of(number), 8 << 10);
            database.keyspace(name, options().engine(engine).checkpoint_distance(3_000))?;
        }
        let (mut state, mut stale) = (State::new(), Vec::new());
        for number in 0..900_u64 {
            let name = KEYSPACES[usize::try_from(number % 7 / 5).unwrap()];
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
        // The log bears witness of what is synced: damage before is told from a torn end.
        tick(&database)?;
        for number in 931..950 {
            change(&database, &mut state, "left", number, Durability::Process)?;
            states.push(state.clone());
        }
        let mut written = changed_blocks(&at_checkpoint, &directory.to_files());
        written.retain(|(name, _)| name == DATA);
        let logged: Vec<usize> = written.into_iter().map(|(_, block)| block).collect();
        assert!(!logged.is_empty(), "no large value is in the log only");
        if is_closed {
            let synced = states.len() - 1;
            database.close()?;
            let files = directory.to_files();
            let segments = segments(&files);
            return Ok(Store { files, stale, states, synced, witnesses: None, logged, segments });
        }
        let files = directory.to_files();
        // The block of the synced commit is finished later and says nothing of it.
        let finished = changed_log_blocks(&before, &at_sync);
        let mut witnesses = changed_log_blocks(&at_sync, &files);
        witnesses.retain(|block| !finished.contains(block));
        assert!(!witnesses.is_empty(), "nothing bears witness");
        let (witnesses, segments) = (Some(witnesses), segments(&files));
        Ok(Store { files, stale, states, synced, witnesses, logged, segments })
    }

    /// Whether the damage is to all blocks that say what was synced.
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

    /// Opens `files`, which differ from the store's by `damage` only, and checks all that it says:
    /// keys one by one and scans forward, or several keys together and scans backward.
    pub fn check(&self, files: Files, damage: &Damage, backward: bool) -> Outcome {
        let directory = MemoryDirectory::from_files(files);
        let database = match open(&directory) {
            Ok(database) => database,
            Err(error) => {
                self.check_named(damage, &error);
                return Outcome::Refused;
            }
        };
        // Which of the states it is can be told by its last keys.
        let possible: Vec<&State> = match damage.file.as_str() {
            DATA => self.states.last().into_iter().collect(),
            _ if self.takes_witnesses(damage) => self.states.iter().collect(),
            _ => self.states[self.synced..].iter().collect(),
        };
        let mut look = Look { store: self, damage, possible, outcome: Outcome::Harmless };
        for name in KEYSPACES {
            match database.keyspace(name, options()) {
                Ok(keyspace) => look.read(name, &keyspace, backward),
                Err(error) => look.said(&error),
            }
        }
        let findings = database.verify().unwrap().findings;
        findings.iter().for_each(|error| look.said(error));
        assert!(
            look.outcome != Outcome::Found || !findings.is_empty(),
            "{damage:?}: a read met it, and `verify` does not"
        );
        look.outcome
    }

    /// Fails if `error` speaks of something else than `damage`.
    fn check_named(&self, damage: &Damage, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage:?}: {error}");
        let is_data = damage.file == DATA;
        let Some(file) = error.file() else {
            // The file that is missing where its header is damaged cannot be named.
            assert!(!is_data && damage.blocks.contains(&0), "{damage:?}: {error}");
            return;
        };
        let offset = error.offset().unwrap_or_else(|| panic!("{damage:?}: no offset: {error}"));
        let block = usize::try_from(offset).unwrap() / BLOCK;
        let is_named = if file == damage.file {
            // A record of the log is named by its beginning, which may be blocks before.
            let is_at_or_before = damage.blocks.iter().any(|damaged| block <= *damaged);
            damage.blocks.contains(&block) || (!is_data && is_at_or_before)
        } else if is_data {
            // Where a large value is damaged that only the log refers to, the record that does.
            file.starts_with("log-") && damage.blocks.iter().any(|one| self.logged.contains(one))
        } else {
            // Where a part of the log is gone, the place before it.
            self.is_before(file, &damage.file)
        };
        assert!(is_named, "{damage:?}: {error}");
    }

    /// Whether the log goes from one of its files on to the other, now or later.
    fn is_before(&self, file: &str, other: &str) -> bool {
        let place = |name: &str| self.segments.iter().position(|one| one == name);
        place(file) < place(other) && place(file).is_some()
    }
}

/// What is read of a store that rots, against what it may show.
struct Look<'a> {
    store: &'a Store,
    damage: &'a Damage,
    /// The states that everything read until now agrees with.
    possible: Vec<&'a State>,
    outcome: Outcome,
}

impl Look<'_> {
    fn said(&mut self, error: &Error) {
        self.store.check_named(self.damage, error);
        self.outcome = Outcome::Found;
    }

    /// Reads everything: one by one and forward, or several together and backward.
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
        self.possible.retain(|state| state.get(key).map(Vec::as_slice) == found);
        assert!(!self.possible.is_empty(), "{:?}: a wrong answer for {key:?}", self.damage);
    }

    fn scan(&mut self, name: &'static str, entries: impl Iterator<Item = Result<(Key, Value)>>) {
        let (mut whole, mut scanned) = (true, State::new());
        for entry in entries {
            match entry {
                Ok((key, value)) => drop(scanned.insert((name, key.to_vec()), value.to_vec())),
                Err(error) => {
                    self.said(&error);
                    whole = false;
                }
            }
        }
        self.possible.retain(|state| {
            if whole {
                of(state, name).eq(scanned.iter())
            } else {
                scanned.iter().all(|(key, value)| state.get(key) == Some(value))
            }
        });
        let damage = self.damage;
        assert!(!self.possible.is_empty(), "{damage:?}: a scan of {name} shows what never was");
    }
}

/// What a state has of one keyspace.
fn of<'s>(
    state: &'s State,
    name: &'static str,
) -> impl Iterator<Item = (&'s (&'static str, Vec<u8>), &'s Vec<u8>)> {
    state.range((name, Vec::new())..).take_while(move |((of, _), _)| *of == name)
}

/// The files of the log in its order: that of the first block that each has of it, which its header
/// says (`crates/chelonia/src/log/format.rs`).
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

/// The blocks of the log in which two states of the files differ.
fn changed_log_blocks(before: &Files, after: &Files) -> Vec<(String, usize)> {
    let mut changed = changed_blocks(before, after);
    changed.retain(|(name, _)| name.starts_with("log-"));
    changed
}

/// The blocks of all files in which two states of the files differ.
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
    let length = if number.is_multiple_of(230) { 40_000 } else { number % 150 };
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
