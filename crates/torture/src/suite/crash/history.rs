//! Histories of operations on a directory that records each change, and the states that a crash
//! may leave.
//!
//! The operations that change content (a commit, the creation and the drop of a keyspace) are
//! numbered in order. State `i` is the content after `i` of them: the keyspaces with their fixed
//! options, and every entry. After a crash the database is in exactly one of these states:
//!
//! - after a power cut, not older than the last change made durable before it (by a `Sync` commit,
//!   `sync` or `checkpoint`, by the creation or drop of a keyspace, or by a close or an open that
//!   returned);
//! - after the death of the process, not older than the last change that returned;
//! - never newer than the last change that began.
//!
//! So a dropped keyspace is complete or absent, and a keyspace that reuses a name never shows the
//! entries or options of its predecessor. The dials (checkpoint distance, live options of engines)
//! are not part of a state, because only the next checkpoint or close makes them durable: a crash
//! may leave any value set since the last checkpoint or close that returned, or the value before
//! it.

use super::database::{
    MAKES, NAMES, SHAPES, SPACES, dials_of, dials_with, engine_options_of, first_options_of,
    has_levels, open, options_of, read,
};
use super::run::{Opening, REQUIRED_EVENTS, Run, Space, State, Turn};
use crate::suite::support::{below, one_of};
use chelonia::internals::{CrashDirectory, Rng, tick};
use chelonia::{
    Batch, Database, Durability, Keyspace, KeyspaceOptions, LevelOptions, LiveOptions, Snapshot,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Commits choose among few keys, so that they overwrite each other.
const KEYS: u64 = 40;

/// One commit in [`COLD_ONE_IN`] writes one of many more keys, which give trees their height.
const COLD_KEYS: u64 = 200;
const COLD_ONE_IN: u64 = 3;

/// An operation of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Insert(Durability),
    Remove(Durability),
    /// Inserts and removals over several keyspaces.
    Batch(Durability),
    /// A value in an extent of its own.
    Large(Durability),
    /// Creates a keyspace under an unused name, possibly that of a dropped one.
    Make,
    /// Drops a keyspace.
    Drop,
    /// Drops a keyspace and creates another one with its name.
    Remake,
    /// Changes the checkpoint distance of a keyspace.
    Dial,
    /// Changes the live options of the engine of a keyspace.
    Shape,
    Checkpoint,
    Sync,
    /// One interval of the log thread.
    Tick,
    /// Takes a snapshot, or releases the current one.
    Hold,
    /// Closes and reopens.
    Close,
    /// Drops all handles without a close, and reopens.
    LetGo,
    /// The process dies; the next one opens the content of the page cache.
    Die,
}

/// A history that is being recorded.
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
    /// Begins with the files of `directory`, whose content is `state` if they are a database.
    pub fn begin(
        directory: CrashDirectory,
        opening: Opening,
        (state, next_made): (State, u32),
        seed: u64,
    ) -> Self {
        let run = Run {
            journal: directory.journal(),
            opening,
            states: vec![state.clone()],
            changes: Vec::new(),
            durable: Vec::new(),
            turns: Vec::new(),
            events: BTreeMap::new(),
        };
        let (database, held, rng) = (None, None, Rng::new(seed));
        let mut history = Self { directory, database, held, rng, state, next_made, run };
        history.open();
        history
    }

    /// The current boundary.
    pub fn boundary(&self) -> usize {
        self.directory.boundary()
    }

    /// The current files, the state, and the number of the next keyspace: the start of other
    /// histories.
    pub fn files(&self) -> (BTreeMap<String, Vec<u8>>, State, u32) {
        let journal = self.directory.journal();
        (journal.image_process_death(self.boundary()), self.state.clone(), self.next_made)
    }

    /// Ends the recording.
    pub fn end(mut self) -> Run {
        self.count_events();
        let journal = self.directory.journal();
        Run { journal, ..self.run }
    }

    /// Applies `verb`; false if it is not applicable now.
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
            Verb::Shape => return self.shape(),
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

    /// The open database.
    pub fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    /// The events of the trees since the database was opened, by the names of [`REQUIRED_EVENTS`].
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let trees = self.database.as_ref().map_or(Vec::new(), |one| one.stats().keyspaces);
        REQUIRED_EVENTS.iter().map(move |required| {
            let of = trees.iter().filter(|tree| tree.engine == required.engine);
            let all = of.flat_map(|tree| &tree.engine_stats.events);
            (
                required.called,
                all.filter(|(event, _)| *event == required.event).map(|(_, n)| n).sum(),
            )
        })
    }

    /// How often the event with this name in the tally has happened.
    pub fn event(&self, called: &str) -> u64 {
        self.events().find(|(name, _)| *name == called).map_or(0, |(_, count)| count)
    }

    fn count_events(&mut self) {
        for (called, count) in self.events() {
            *self.run.events.entry(called).or_default() += count;
        }
    }

    /// From now on everything so far must survive a power cut.
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

    /// A random existing keyspace.
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
        if self.rng.one_in(COLD_ONE_IN) {
            return self.cold_key();
        }
        self.rng.below(KEYS).to_string().into_bytes()
    }

    fn cold_key(&mut self) -> Vec<u8> {
        format!("cold {:03}", self.rng.below(COLD_KEYS)).into_bytes()
    }

    fn put_bytes(&mut self, batch: &mut Batch, name: &str, key: Vec<u8>, bytes: u64) {
        let keyspace = self.database().keyspace(name, KeyspaceOptions::new()).unwrap();
        let mut value = vec![0; usize::try_from(bytes).unwrap()];
        self.rng.fill(&mut value);
        batch.insert(&keyspace, &key, &value);
        let space = self.state.get_mut(name).unwrap();
        Arc::make_mut(&mut space.entries).insert(key, value);
    }

    /// Writes `keys` of the rarely written keys, in every keyspace, in one commit.
    pub fn put_cold(&mut self, keys: u32) {
        let began = self.boundary();
        let mut batch = self.database().batch();
        for name in self.state.keys().cloned().collect::<Vec<_>>() {
            for _ in 0..keys {
                let (key, bytes) = (self.cold_key(), 200 + self.rng.below(200));
                self.put_bytes(&mut batch, &name, key, bytes);
            }
        }
        batch.commit_with(Durability::Process).unwrap();
        self.changed(began);
    }

    fn put(&mut self, batch: &mut Batch, name: &str) {
        // Some records fill several blocks of the log.
        let bytes = if self.rng.one_in(20) { 9_000 } else { 300 };
        let (bytes, key) = (self.rng.below(bytes), self.key());
        self.put_bytes(batch, name, key, bytes);
    }

    fn put_large(&mut self, batch: &mut Batch, name: &str) {
        let (bytes, key) = (33_000 + self.rng.below(8_000), self.key());
        self.put_bytes(batch, name, key, bytes);
    }

    fn remove(&mut self, batch: &mut Batch, name: &str) {
        // Mostly an existing key.
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
        let engine = first_options_of(made);
        self.turned(Turn::Set(name.to_owned(), made, dials_with(distance, engine)));
        let options = options_of(made).engine(engine).checkpoint_distance(distance);
        let keyspace = self.database().keyspace(name, options).unwrap();
        assert!(keyspace.iter().next().is_none(), "a new keyspace is not empty");
        self.state.insert(name.to_owned(), Space { made, entries: Arc::default() });
        self.changed(began);
        self.all_is_durable();
        self.turned(Turn::Stored);
    }

    fn drop_one(&mut self) -> Option<String> {
        let name = self.some_name()?;
        self.drop_as(&name);
        Some(name)
    }

    /// Drops the keyspace of this name.
    pub fn drop_as(&mut self, name: &str) {
        let began = self.boundary();
        self.database().drop_keyspace(name).unwrap();
        self.state.remove(name);
        self.changed(began);
        self.all_is_durable();
        self.turned(Turn::Stored);
    }

    fn remake(&mut self) -> bool {
        let Some(name) = self.drop_one() else { return false };
        self.make_as(&name);
        true
    }

    fn dial(&mut self) -> bool {
        let Some(name) = self.some_name() else { return false };
        // The next commit triggers a flush, or the next few do not.
        let bytes = [1, 400, 1_500, 6_000][usize::try_from(self.rng.below(4)).unwrap()];
        let keyspace = self.database().keyspace(&name, KeyspaceOptions::new()).unwrap();
        keyspace.set_checkpoint_distance(bytes).unwrap();
        self.dialed(name, &keyspace);
        true
    }

    fn shape(&mut self) -> bool {
        let has_live = |made: u32| first_options_of(made) != engine_options_of(made);
        let all = self.state.iter().map(|(name, space)| (name.clone(), space.made));
        let some: Vec<_> = all.filter(|(_, made)| has_live(*made)).collect();
        if some.is_empty() {
            return false;
        }
        let (name, made) = some[below(&mut self.rng, some.len())].clone();
        let live = match has_levels(made) {
            true => one_of(&mut self.rng, &SHAPES).into(),
            false => LiveOptions::SpacePercent(one_of(&mut self.rng, &SPACES)),
        };
        self.set_live(name, live);
        true
    }

    /// Gives the levels of all keyspaces this shape.
    pub fn shape_all(&mut self, levels: LevelOptions) {
        for name in self.with_levels() {
            self.set_live(name, levels.into());
        }
    }

    fn set_live(&mut self, name: String, options: LiveOptions) {
        let keyspace = self.database().keyspace(&name, KeyspaceOptions::new()).unwrap();
        keyspace.set_live_options(options).unwrap();
        self.dialed(name, &keyspace);
    }

    /// The keyspaces that have levels.
    fn with_levels(&self) -> Vec<String> {
        let names = self.state.iter().filter(|(_, space)| has_levels(space.made));
        names.map(|(name, _)| name.clone()).collect()
    }

    fn dialed(&mut self, name: String, keyspace: &Keyspace) {
        let made = self.state[&name].made;
        self.turned(Turn::Set(name, made, dials_of(keyspace)));
    }

    fn reopen(&mut self, verb: Verb) {
        self.held = None;
        self.count_events();
        let database = self.database.take().unwrap();
        match verb {
            Verb::Close => {
                database.close().unwrap();
                self.all_is_durable();
                self.turned(Turn::Stored);
            }
            Verb::LetGo => {
                drop(database);
                self.all_is_durable();
                self.turned(Turn::Stored);
            }
            _ => self.directory = self.directory.after_process_death(),
        }
        self.open();
    }

    /// Opens the database, and compares its content and live options with the recorded ones.
    fn open(&mut self) {
        let before = self.boundary();
        let database = open(Arc::new(self.directory.clone()), self.run.opening).unwrap();
        let (found, all_dials) = read(&database).unwrap();
        assert!(found == self.state, "the reopened database has another content");
        self.database = Some(database);
        self.all_is_durable();
        for (name, dials) in all_dials {
            let made = found[&name].made;
            let possible = self.run.dials(before, &name, made);
            assert!(possible.is_empty() || possible.contains(&dials), "{name:?}: {dials:?}");
            self.run.turns.push((before, Turn::Set(name, made, dials)));
        }
        self.turned(Turn::Stored);
    }
}
