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

use crate::trials::support::engine_of;
use chelonia::internals::{Directory, MemoryDirectory, tick};
use chelonia::{Database, Durability, Error, ErrorKind, KeyspaceOptions, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The bytes of a block.
pub const BLOCK: usize = 4096;

/// The data file.
pub const DATA: &str = "data";

/// Files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What the keyspaces hold, by name and key.
type State = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

const KEYSPACES: [&str; 2] = ["left", "right"];

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

impl Damage {
    /// Fails if `error` speaks of something else.
    fn check_named(&self, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{self:?}: {error}");
        if self.file != DATA && error.file().is_none() {
            // The file that is missing where its header is damaged cannot be named.
            assert!(self.blocks.contains(&0), "{self:?}: {error}");
            return;
        }
        let file = error.file().unwrap_or_default();
        // Where a part of the log is gone, the place before it is named; where a large value is
        // that only the log refers to, so is the record that does.
        let is_log = file.starts_with("log-");
        assert!(file == self.file || is_log, "{self:?}: {error}");
        if is_log {
            return;
        }
        let offset = error.offset().unwrap_or_else(|| panic!("{self:?}: no offset: {error}"));
        let block = usize::try_from(offset).unwrap() / BLOCK;
        // A record of the log is named by its beginning, which may be blocks before.
        let is_named = self.file != DATA || self.blocks.contains(&block);
        assert!(is_named, "{self:?}: {error}");
    }
}

fn open(directory: &MemoryDirectory) -> Result<Database> {
    let directory: Arc<dyn Directory> = Arc::new(directory.clone());
    let builder = Database::builder("rot").memory(32 << 20).internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.salt = Some(3);
        internals.log_segment_bytes = Some(16 << 10);
    });
    builder.open()
}

fn options() -> KeyspaceOptions {
    KeyspaceOptions::new().leaf_bytes(8 << 10).pivots_max(4)
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
            let engine = engine_of(number);
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
        let mut states = vec![state.clone()];
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
        if is_closed {
            let synced = states.len() - 1;
            database.close()?;
            let files = directory.to_files();
            return Ok(Store { files, stale, states, synced, witnesses: None });
        }
        let files = directory.to_files();
        // The block of the synced commit is finished later and says nothing of it.
        let finished = changed_log_blocks(&before, &at_sync);
        let mut witnesses = changed_log_blocks(&at_sync, &files);
        witnesses.retain(|block| !finished.contains(block));
        assert!(!witnesses.is_empty(), "nothing bears witness");
        Ok(Store { files, stale, states, synced, witnesses: Some(witnesses) })
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

    /// Opens `files`, which differ from the store's by `damage` only, and checks all that it says.
    pub fn check(&self, files: Files, damage: &Damage) -> Outcome {
        let directory = MemoryDirectory::from_files(files);
        let database = match open(&directory) {
            Ok(database) => database,
            Err(error) => {
                damage.check_named(&error);
                return Outcome::Refused;
            }
        };
        let mut outcome = Outcome::Harmless;
        let mut said = |error: &Error| {
            damage.check_named(error);
            outcome = Outcome::Found;
        };
        // Which of the states it is can be told by its last keys.
        let mut possible: Vec<&State> = match damage.file.as_str() {
            DATA => self.states.last().into_iter().collect(),
            _ if self.takes_witnesses(damage) => self.states.iter().collect(),
            _ => self.states[self.synced..].iter().collect(),
        };
        let newest = self.states.last().unwrap();
        for name in KEYSPACES {
            let keyspace = match database.keyspace(name, options()) {
                Ok(keyspace) => keyspace,
                Err(error) => {
                    said(&error);
                    continue;
                }
            };
            for (key, _) in
                newest.range((name, Vec::new())..).take_while(|((of, _), _)| *of == name)
            {
                match keyspace.get(&key.1) {
                    Ok(found) => {
                        possible
                            .retain(|state| state.get(key).map(Vec::as_slice) == found.as_deref());
                        assert!(!possible.is_empty(), "{damage:?}: a wrong answer for {key:?}");
                    }
                    Err(error) => said(&error),
                }
            }
            let mut whole = true;
            let mut scanned = BTreeMap::new();
            for entry in keyspace.iter() {
                match entry {
                    Ok((key, value)) => drop(scanned.insert((name, key.to_vec()), value.to_vec())),
                    Err(error) => {
                        said(&error);
                        whole = false;
                    }
                }
            }
            possible.retain(|state| {
                let of = state.range((name, Vec::new())..).take_while(|((of, _), _)| *of == name);
                if whole {
                    of.eq(scanned.iter())
                } else {
                    scanned.iter().all(|(key, value)| state.get(key) == Some(value))
                }
            });
            assert!(!possible.is_empty(), "{damage:?}: a scan of {name} shows what never was");
        }
        let findings = database.verify().unwrap().findings;
        findings.iter().for_each(said);
        assert!(
            outcome != Outcome::Found || !findings.is_empty(),
            "{damage:?}: a read met it, and `verify` does not"
        );
        outcome
    }
}

/// The blocks of the log in which two states of the files differ.
fn changed_log_blocks(before: &Files, after: &Files) -> Vec<(String, usize)> {
    let mut changed = Vec::new();
    for (name, bytes) in after.iter().filter(|(name, _)| name.starts_with("log-")) {
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
