//! Histories: every verb that changes what is durable, on a directory that records each change, and
//! the states that a crash may leave.
//!
//! The rule of what may be seen after a crash. The verbs that change content (a commit, the making
//! and the dropping of a keyspace) are numbered in their order; state `i` is what the database
//! holds after `i` of them: which keyspaces there are, with which fixed options, and every entry.
//! After a crash the database is in one of these states, whole:
//!
//! - after a power cut not older than the last change that was made durable before it (by a `Sync`
//!   commit, `sync` or `checkpoint`, by making or dropping a keyspace, by a close or an open that
//!   returned);
//! - after the death of the process not older than the last change that returned;
//! - never newer than the last change that began.
//!
//! So a dropped keyspace is there with all that it held or not at all, and one that was made again
//! under the same name never shows what the one before held, nor its options. The checkpoint
//! distance is not part of a state, for it is durable with the next checkpoint: it is one of the
//! values that were set since the last checkpoint that returned, or the last one before it.

use crate::trials::support::{ModelSpace, engine_of};
use chelonia::internals::{CrashDirectory, Directory, Journal, Rng, tick};
use chelonia::{
    Batch, Database, DatabaseBuilder, Durability, FilterKind, KeyspaceOptions, Result, Snapshot,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The names that keyspaces are made under, again and again.
pub const NAMES: [&str; 3] = ["left", "right", "third"];

/// Keyspaces made one after the other differ in their options; so many are told apart.
const MAKES: u32 = 29;

/// Commits choose among so few keys that they overwrite each other.
const KEYS: u64 = 40;

/// One keyspace: by its options it is told from others of its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Space {
    pub made: u32,
    pub entries: Arc<ModelSpace>,
}

/// What a database holds.
pub type State = BTreeMap<String, Space>;

/// The checkpoint distance of each keyspace.
pub type Distances = BTreeMap<String, u64>;

/// The fixed options of the keyspace that was made as number `made`.
pub fn options_of(made: u32) -> KeyspaceOptions {
    let kind = if made.is_multiple_of(2) { FilterKind::Bloom } else { FilterKind::Quotient };
    let leaf_bytes = if made % 3 == 2 { 8 << 10 } else { 4 << 10 };
    let options = KeyspaceOptions::new().leaf_bytes(leaf_bytes).pivots_max(4);
    let engine = engine_of(u64::from(made / 2));
    options.engine(engine).filter(kind).filter_bits_per_key(4 + made % MAKES)
}

/// A write share so small that recovery has to drain what it replays.
pub const SHARE_MIN: u64 = 16 << 10;

/// Opens a stepped database of a tiny geometry.
pub fn open(directory: Arc<dyn Directory>, write_share: Option<u64>) -> Result<Database> {
    builder(directory, write_share).open()
}

/// The same, for reading only.
pub fn open_to_read(directory: Arc<dyn Directory>, write_share: Option<u64>) -> Result<Database> {
    builder(directory, write_share).read_only(true).open()
}

fn builder(directory: Arc<dyn Directory>, write_share: Option<u64>) -> DatabaseBuilder {
    Database::builder("crash").memory(64 << 20).internals(|internals| {
        internals.directory = Some(directory);
        internals.write_share = write_share;
        internals.stepped = true;
        internals.salt = Some(7);
        internals.log_segment_bytes = Some(16 << 10);
    })
}

/// Everything that a database holds, read entry by entry.
pub fn read(database: &Database) -> Result<(State, Distances)> {
    let (mut state, mut distances) = (State::new(), Distances::new());
    for name in database.keyspaces() {
        let keyspace = database.keyspace(&name, KeyspaceOptions::new())?;
        let mut entries = ModelSpace::new();
        for entry in keyspace.iter() {
            let (key, value) = entry?;
            entries.insert(key.to_vec(), value.to_vec());
        }
        // Options that differ from the stored ones are refused.
        let made = (0..MAKES).find(|made| database.keyspace(&name, options_of(*made)).is_ok());
        let made = made.unwrap_or_else(|| panic!("{name:?} has options that nobody chose"));
        distances.insert(name.clone(), keyspace.checkpoint_distance());
        state.insert(name, Space { made, entries: Arc::new(entries) });
    }
    Ok((state, distances))
}

/// What a history is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Insert(Durability),
    Remove(Durability),
    /// Inserts and removals over several keyspaces.
    Batch(Durability),
    /// A value in an extent of its own.
    Large(Durability),
    /// Makes a keyspace under a name that is free, maybe because one was dropped.
    Make,
    /// Drops a keyspace.
    Drop,
    /// Drops a keyspace and makes another one under its name.
    Remake,
    /// Turns the checkpoint distance of a keyspace.
    Dial,
    Checkpoint,
    Sync,
    /// What the log thread does at an interval.
    Tick,
    /// Holds a snapshot, or lets go of the one that is held.
    Hold,
    /// Closes and opens.
    Close,
    /// Lets go of all handles without a close, and opens.
    LetGo,
    /// The process dies; the next one opens what is in the page cache.
    Die,
}

/// What happened to checkpoint distances.
enum Turn {
    /// This was set, or found set, for the keyspace of this name and number.
    Set(String, u32, u64),
    /// Whatever was set is durable.
    Stored,
}

/// A history as it was recorded.
pub struct Run {
    pub journal: Journal,
    /// What it was opened with.
    pub write_share: Option<u64>,
    /// `states[i]` is the content after `i` changes.
    pub states: Vec<State>,
    /// For each change, the boundary when it began and the one when it returned.
    changes: Vec<(usize, usize)>,
    /// From this boundary on, so many changes survive a power cut.
    durable: Vec<(usize, usize)>,
    /// In their order, each with the boundary when it happened.
    turns: Vec<(usize, Turn)>,
}

impl Run {
    /// How many changes must at least have survived a cut at `boundary`, and how many may have.
    pub fn bounds(&self, boundary: usize, process_death: bool) -> (usize, usize) {
        let begun = self.changes.iter().filter(|(began, _)| *began < boundary).count();
        let returned = self.changes.iter().filter(|(_, ended)| *ended <= boundary).count();
        let durable = self.durable.iter().filter(|(since, _)| *since <= boundary);
        let durable = durable.map(|(_, changes)| *changes).max().unwrap_or(0);
        (if process_death { returned } else { durable }, begun)
    }

    /// The checkpoint distances that a keyspace may have after a cut at `boundary`.
    pub fn distances(&self, boundary: usize, of: &str, number: u32) -> Vec<u64> {
        let mut possible = Vec::new();
        for (_, turn) in self.turns.iter().take_while(|(when, _)| *when <= boundary) {
            match turn {
                Turn::Set(name, made, bytes) if name == of && *made == number => {
                    possible.push(*bytes);
                }
                Turn::Set(..) => {}
                Turn::Stored => drop(possible.drain(..possible.len().saturating_sub(1))),
            }
        }
        possible
    }
}

/// A history in the making.
pub struct History {
    directory: CrashDirectory,
    database: Option<Database>,
    held: Option<Snapshot>,
    rng: Rng,
    state: State,
    /// The number of the next keyspace.
    next_made: u32,
    run: Run,
}

impl History {
    /// Begins with the files of `directory`, which hold `state` if they are a database.
    pub fn begin(
        directory: CrashDirectory,
        write_share: Option<u64>,
        (state, next_made): (State, u32),
        seed: u64,
    ) -> Self {
        let run = Run {
            journal: directory.journal(),
            write_share,
            states: vec![state.clone()],
            changes: Vec::new(),
            durable: Vec::new(),
            turns: Vec::new(),
        };
        let (database, held, rng) = (None, None, Rng::new(seed));
        let mut history = Self { directory, database, held, rng, state, next_made, run };
        history.open();
        history
    }

    /// The present boundary.
    pub fn boundary(&self) -> usize {
        self.directory.boundary()
    }

    /// The files as they are, the state, and the number of the next keyspace: where other histories
    /// begin.
    pub fn files(&self) -> (BTreeMap<String, Vec<u8>>, State, u32) {
        let journal = self.directory.journal();
        (journal.image_process_death(self.boundary()), self.state.clone(), self.next_made)
    }

    /// Ends it.
    pub fn end(self) -> Run {
        let journal = self.directory.journal();
        Run { journal, ..self.run }
    }

    /// Does `verb`; false if it cannot be done now.
    pub fn apply(&mut self, verb: Verb) -> bool {
        match verb {
            Verb::Insert(level) => return self.commit(level, 1, Self::put),
            Verb::Remove(level) => return self.commit(level, 1, Self::remove),
            Verb::Large(level) => return self.commit(level, 1, Self::put_large),
            Verb::Batch(level) => {
                let entries = 2 + self.rng.below(8);
                return self.commit(level, entries, Self::put_or_remove);
            }
            Verb::Make => return self.make(),
            Verb::Drop => return self.drop_one().is_some(),
            Verb::Remake => return self.remake(),
            Verb::Dial => return self.dial(),
            Verb::Checkpoint => {
                self.database().checkpoint().unwrap();
                self.all_is_durable();
                self.turned(Turn::Stored);
            }
            Verb::Sync => {
                self.database().sync().unwrap();
                self.all_is_durable();
            }
            Verb::Tick => {
                tick(self.database()).unwrap();
                self.all_is_durable();
            }
            Verb::Hold => {
                let fresh = self.held.is_none().then(|| self.database().snapshot());
                self.held = fresh;
            }
            Verb::Close | Verb::LetGo | Verb::Die => self.reopen(verb),
        }
        true
    }

    fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    /// The rest of the run must keep everything so far, even if the power is cut.
    fn all_is_durable(&mut self) {
        self.run.durable.push((self.boundary(), self.run.changes.len()));
    }

    fn turned(&mut self, turn: Turn) {
        let when = self.boundary();
        self.run.turns.push((when, turn));
    }

    /// A change that began at `began` returned.
    fn changed(&mut self, began: usize) {
        self.run.states.push(self.state.clone());
        self.run.changes.push((began, self.boundary()));
    }

    /// One of the keyspaces that there are.
    fn some_name(&mut self) -> Option<String> {
        let count = self.state.len() as u64;
        let index = usize::try_from(self.rng.below(count.max(1))).unwrap();
        self.state.keys().nth(index).cloned()
    }

    fn commit(
        &mut self,
        level: Durability,
        entries: u64,
        entry: fn(&mut Self, &mut Batch, &str),
    ) -> bool {
        let began = self.boundary();
        let mut batch = self.database().batch();
        for _ in 0..entries {
            let Some(name) = self.some_name() else { return false };
            entry(self, &mut batch, &name);
        }
        batch.commit_with(level).unwrap();
        self.changed(began);
        if level == Durability::Sync {
            self.all_is_durable();
        }
        true
    }

    fn key(&mut self) -> Vec<u8> {
        self.rng.below(KEYS).to_string().into_bytes()
    }

    fn put_bytes(&mut self, batch: &mut Batch, name: &str, bytes: u64) {
        let keyspace = self.database().keyspace(name, KeyspaceOptions::new()).unwrap();
        let mut value = vec![0; usize::try_from(bytes).unwrap()];
        self.rng.fill(&mut value);
        let key = self.key();
        batch.insert(&keyspace, &key, &value);
        let space = self.state.get_mut(name).unwrap();
        Arc::make_mut(&mut space.entries).insert(key, value);
    }

    fn put(&mut self, batch: &mut Batch, name: &str) {
        // Some records fill several blocks of the log.
        let bytes = if self.rng.one_in(20) { 9_000 } else { 300 };
        let bytes = self.rng.below(bytes);
        self.put_bytes(batch, name, bytes);
    }

    fn put_large(&mut self, batch: &mut Batch, name: &str) {
        let bytes = 33_000 + self.rng.below(8_000);
        self.put_bytes(batch, name, bytes);
    }

    fn remove(&mut self, batch: &mut Batch, name: &str) {
        // Mostly a key that is there.
        let mut keys = self.state[name].entries.keys();
        let there = keys.nth(usize::try_from(self.rng.below(KEYS / 4)).unwrap());
        let key = there.cloned().unwrap_or_else(|| self.key());
        let keyspace = self.database().keyspace(name, KeyspaceOptions::new()).unwrap();
        batch.remove(&keyspace, &key);
        let space = self.state.get_mut(name).unwrap();
        Arc::make_mut(&mut space.entries).remove(&key);
    }

    fn put_or_remove(&mut self, batch: &mut Batch, name: &str) {
        match self.rng.below(12) {
            0..3 => self.remove(batch, name),
            3 => self.put_large(batch, name),
            _ => self.put(batch, name),
        }
    }

    fn make(&mut self) -> bool {
        let free: Vec<&str> =
            NAMES.into_iter().filter(|name| !self.state.contains_key(*name)).collect();
        if free.is_empty() {
            return false;
        }
        let index = usize::try_from(self.rng.below(free.len() as u64)).unwrap();
        self.make_as(free[index]);
        true
    }

    fn make_as(&mut self, name: &str) {
        let began = self.boundary();
        let made = self.next_made % MAKES;
        self.next_made += 1;
        let distance = 1_500 + u64::from(self.next_made);
        self.turned(Turn::Set(name.to_owned(), made, distance));
        let options = options_of(made).checkpoint_distance(distance);
        let keyspace = self.database().keyspace(name, options).unwrap();
        assert!(keyspace.iter().next().is_none(), "a new keyspace is empty");
        self.state.insert(name.to_owned(), Space { made, entries: Arc::default() });
        self.changed(began);
        self.all_is_durable();
        self.turned(Turn::Stored);
    }

    fn drop_one(&mut self) -> Option<String> {
        let name = self.some_name()?;
        let began = self.boundary();
        self.database().drop_keyspace(&name).unwrap();
        self.state.remove(&name);
        self.changed(began);
        self.all_is_durable();
        self.turned(Turn::Stored);
        Some(name)
    }

    fn remake(&mut self) -> bool {
        let Some(name) = self.drop_one() else { return false };
        self.make_as(&name);
        true
    }

    fn dial(&mut self) -> bool {
        let Some(name) = self.some_name() else { return false };
        // So that the next commit is drained, or the next few are not.
        let bytes = [1, 400, 1_500, 6_000][usize::try_from(self.rng.below(4)).unwrap()];
        let keyspace = self.database().keyspace(&name, KeyspaceOptions::new()).unwrap();
        keyspace.set_checkpoint_distance(bytes).unwrap();
        let made = self.state[&name].made;
        self.turned(Turn::Set(name, made, bytes));
        true
    }

    fn reopen(&mut self, verb: Verb) {
        self.held = None;
        let database = self.database.take().unwrap();
        match verb {
            Verb::Close => {
                database.close().unwrap();
                self.all_is_durable();
            }
            Verb::LetGo => {
                drop(database);
                self.all_is_durable();
            }
            _ => self.directory = self.directory.after_process_death(),
        }
        self.open();
    }

    /// Opens, and finds everything as it was.
    fn open(&mut self) {
        let before = self.boundary();
        let database = open(Arc::new(self.directory.clone()), self.run.write_share).unwrap();
        let (found, distances) = read(&database).unwrap();
        assert!(found == self.state, "not as it was left");
        self.database = Some(database);
        self.all_is_durable();
        for (name, bytes) in distances {
            let made = found[&name].made;
            let possible = self.run.distances(before, &name, made);
            assert!(possible.is_empty() || possible.contains(&bytes), "{name:?}: {bytes}");
            self.run.turns.push((before, Turn::Set(name, made, bytes)));
        }
        self.turned(Turn::Stored);
    }
}
