//! Hundreds of keyspaces, snapshots and iterators, batches at the limit, and key-only reads,
//! compared with an ordered map.
//!
//! A snapshot shares the maps of the model that it can see, and a write copies the map of its
//! keyspace; so the expected content of every snapshot is known, however many there are. Between
//! operations the database is closed, or its process dies and it is opened from its files. Memory
//! counted in the budget stays within it at all times.
//!
//! A unit is stepped: it is fully determined by its number.

use crate::suite::support::{ModelSpace, below, engine_of, one_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{MemoryDirectory, Rng};
use chelonia::limits::{BATCH_ENTRY_BYTES, LARGE_VALUE_BYTES_MIN, MEMORY_BYTES_MIN};
use chelonia::{Batch, Database, ErrorKind, Iter, Keyspace, KeyspaceOptions, Snapshot};
use std::sync::Arc;

/// Keys of each keyspace.
const KEYS: u64 = 40;

/// Operations of a unit.
const VERBS: u64 = 3_000;

/// The largest number of pins held; the oldest are dropped first.
const PINS_MAX: usize = 600;

/// The test `crowd`.
pub struct Crowd;

/// The content of all keyspaces, by their number.
type Model = Vec<Arc<ModelSpace>>;

/// A snapshot and its expected content, with the handles of its time. Through these it reads a
/// keyspace dropped since as it was; a newer keyspace of the same name is empty to it.
struct Held {
    snapshot: Snapshot,
    keyspaces: Arc<Vec<Keyspace>>,
    model: Model,
}

/// An iterator in the middle of a keyspace, and the entries it must still return.
struct Standing {
    iterator: Iter,
    rest: std::vec::IntoIter<(Vec<u8>, Vec<u8>)>,
}

struct World {
    rng: Rng,
    memory: MemoryDirectory,
    write_share: Option<u64>,
    database: Database,
    keyspaces: Arc<Vec<Keyspace>>,
    model: Model,
    held: Vec<Held>,
    standing: Vec<Standing>,
    tally: Tally,
}

fn open(memory: &MemoryDirectory, write_share: Option<u64>) -> Database {
    let builder = Database::builder("crowd").memory(MEMORY_BYTES_MIN).internals(|internals| {
        internals.directory = Some(Arc::new(memory.clone()));
        internals.stepped = true;
        internals.salt = Some(11);
        internals.write_share = write_share;
        internals.leave_log = write_share.is_none();
    });
    builder.open().unwrap()
}

fn keyspace(database: &Database, number: usize) -> Keyspace {
    let options = KeyspaceOptions::new().engine(engine_of(number as u64));
    database.keyspace(&format!("keyspace {number}"), options).unwrap()
}

impl World {
    fn new(unit: Unit) -> Self {
        let mut rng = unit.rng();
        let memory = MemoryDirectory::new();
        let write_share = one_of(&mut rng, &[None, Some(64 << 10), Some(1 << 20)]);
        let database = open(&memory, write_share);
        let count = one_of(&mut rng, &[1, 4, 30, 100, 300]);
        let keyspaces = Arc::new((0..count).map(|number| keyspace(&database, number)).collect());
        let empty = Arc::new(ModelSpace::new());
        let model = vec![empty; count];
        let (held, standing, tally) = (Vec::new(), Vec::new(), Tally::default());
        Self { rng, memory, write_share, database, keyspaces, model, held, standing, tally }
    }

    fn any(&mut self) -> usize {
        below(&mut self.rng, self.keyspaces.len())
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.rng.below(KEYS);
        let mut key = number.to_be_bytes()[7..].to_vec();
        key.resize(1 + usize::try_from(number * 3).unwrap(), 7);
        key
    }

    fn value(&mut self) -> Vec<u8> {
        let large = LARGE_VALUE_BYTES_MIN;
        let bytes = match self.rng.below(400) {
            0 => one_of(&mut self.rng, &[large - 1, large, large + 1, 3 * large]),
            _ => below(&mut self.rng, 300),
        };
        let mut value = vec![0; bytes];
        let filled = bytes.min(16);
        self.rng.fill(&mut value[..filled]);
        value
    }

    /// The map of a keyspace, to be changed; snapshots retain the old one.
    fn change(&mut self, number: usize) -> &mut ModelSpace {
        Arc::make_mut(&mut self.model[number])
    }

    fn write(&mut self) {
        let (number, key) = (self.any(), self.key());
        if self.rng.one_in(4) {
            self.keyspaces[number].remove(&key).unwrap();
            self.change(number).remove(&key);
        } else {
            let value = self.value();
            self.keyspaces[number].insert(&key, &value).unwrap();
            self.change(number).insert(key, value);
        }
        self.tally.add("writes", 1);
    }

    /// Commits a batch over several keyspaces whose size is the limit, or one byte more.
    fn fill_a_batch(&mut self) {
        let mut batch = self.database.batch();
        let mut changes = Vec::new();
        let is_over = self.rng.one_in(3);
        let end = Batch::limit() + usize::from(is_over);
        while batch.size() < end {
            let (number, key) = (self.any(), self.key());
            let overhead = key.len() + BATCH_ENTRY_BYTES;
            let left = end - batch.size();
            // The rest must be 0, or large enough for one more entry with any key.
            let most = LARGE_VALUE_BYTES_MIN - 1 + overhead;
            let bytes = if left <= most { left } else { most.min(left - 1_000) };
            let value = vec![self.rng.next_u64().to_le_bytes()[0]; bytes - overhead];
            batch.insert(&self.keyspaces[number], &key, &value);
            changes.push((number, key, value));
        }
        assert_eq!(batch.size(), end);
        let committed = batch.commit();
        if is_over {
            assert_eq!(committed.unwrap_err().kind(), ErrorKind::InvalidArgument);
            assert_eq!(
                (batch.len(), batch.size()),
                (changes.len(), end),
                "a refused batch changed"
            );
        } else {
            committed.unwrap();
            for (number, key, value) in changes {
                self.change(number).insert(key, value);
            }
            self.tally.add("batches at the limit", 1);
        }
    }

    fn pin(&mut self) {
        if self.rng.one_in(4) {
            let number = self.any();
            let place = below(&mut self.rng, self.model[number].len());
            let iterator = self.keyspaces[number].iter();
            let all = self.model[number].iter().map(|(key, value)| (key.clone(), value.clone()));
            let rest = all.collect::<Vec<_>>().into_iter();
            self.standing.push(Standing { iterator, rest });
            self.go_on(self.standing.len() - 1, place);
        } else {
            let snapshot = self.database.snapshot();
            let (keyspaces, model) = (Arc::clone(&self.keyspaces), self.model.clone());
            self.held.push(Held { snapshot, keyspaces, model });
            self.tally.add("snapshots", 1);
        }
        while self.held.len() + self.standing.len() > PINS_MAX {
            let place = below(&mut self.rng, self.held.len());
            self.held.swap_remove(place);
        }
    }

    /// Opens thousands of iterators on one keyspace and advances each from both ends. Their
    /// read-ahead stays within its share of the budget, and each continues at its position.
    fn stand_in_numbers(&mut self) {
        let number = self.any();
        self.database.checkpoint().unwrap();
        let keys: Vec<_> = self.model[number].keys().collect();
        if keys.len() < 4 {
            return;
        }
        let keyspace = &self.keyspaces[number];
        let mut iterators: Vec<_> = (0..2_000).map(|_| keyspace.iter().keys()).collect();
        for step in 0..2 {
            for iterator in &mut iterators {
                let (first, last) = (iterator.next().unwrap(), iterator.next_back().unwrap());
                assert_eq!(first.unwrap()[..], keys[step][..]);
                assert_eq!(last.unwrap()[..], keys[keys.len() - 1 - step][..]);
            }
        }
        let memory = self.database.stats().memory;
        let limit = memory.budget_bytes / 4 + (2 << 20);
        assert!(memory.work_bytes <= limit, "read-ahead exceeds its share: {memory:?}");
        self.tally.add("iterators in numbers", 1);
    }

    /// Advances an iterator by `count` entries, and drops it at its end.
    fn go_on(&mut self, place: usize, count: usize) {
        let standing = &mut self.standing[place];
        for _ in 0..count {
            let entry = standing.iterator.next().map(Result::unwrap);
            let entry = entry.map(|(key, value)| (key.to_vec(), value.to_vec()));
            let is_over = entry.is_none();
            assert!(entry == standing.rest.next(), "an iterator shows another point in time");
            if is_over {
                self.standing.swap_remove(place);
                return;
            }
        }
    }

    /// Reads a keyspace, in its newest state or in a snapshot: keys only, and entries.
    fn check(&mut self) {
        let number = self.any();
        let key = self.key();
        let place = below(&mut self.rng, self.held.len() + 1);
        let keyspace = &self.keyspaces[number];
        let Some(held) = self.held.get(place) else {
            let model = &self.model[number];
            let size = model.get(&key).map(|value| value.len() as u64);
            assert_eq!(keyspace.size_of(&key).unwrap(), size);
            assert_eq!(keyspace.contains_key(&key).unwrap(), size.is_some());
            assert_eq!(keyspace.len().unwrap(), model.len() as u64);
            assert_eq!(keyspace.is_empty().unwrap(), model.is_empty());
            assert!(keyspace.iter().keys().map(Result::unwrap).eq(model.keys().cloned()));
            let values = keyspace.multi_get(model.keys()).unwrap();
            assert!(
                values.iter().flatten().map(|value| value.to_vec()).eq(model.values().cloned())
            );
            self.tally.add("reads of the newest", 1);
            return;
        };
        let (snapshot, keyspace) = (&held.snapshot, &held.keyspaces[number]);
        let model = &held.model[number];
        let size = model.get(&key).map(|value| value.len() as u64);
        assert_eq!(snapshot.size_of(keyspace, &key).unwrap(), size);
        assert_eq!(snapshot.len(keyspace).unwrap(), model.len() as u64);
        let backward = snapshot.iter(keyspace).rev().map(Result::unwrap);
        let backward = backward.map(|(key, value)| (key.to_vec(), value.to_vec()));
        let entries = model.iter().rev().map(|(key, value)| (key.clone(), value.clone()));
        assert!(backward.eq(entries), "a snapshot shows another point in time");
        self.tally.add("reads of snapshots", 1);
    }

    /// Reopens the database: after a close, or from the files after the death of the process.
    fn reopen(&mut self) {
        self.held.clear();
        self.standing.clear();
        self.keyspaces = Arc::default();
        let died = self.rng.one_in(2);
        let files = died.then(|| self.memory.to_files());
        let database = std::mem::replace(&mut self.database, open(&MemoryDirectory::new(), None));
        database.close().unwrap();
        if let Some(files) = files {
            self.memory = MemoryDirectory::from_files(files);
        }
        self.database = open(&self.memory, self.write_share);
        let count = self.model.len();
        let again = (0..count).map(|number| keyspace(&self.database, number));
        self.keyspaces = Arc::new(again.collect());
        self.tally.add("reopens", 1);
    }

    fn drop_and_make_again(&mut self) {
        let number = self.any();
        self.database.drop_keyspace(&format!("keyspace {number}")).unwrap();
        Arc::make_mut(&mut self.keyspaces)[number] = keyspace(&self.database, number);
        self.model[number] = Arc::new(ModelSpace::new());
    }

    /// Runs one random operation.
    fn act(&mut self) {
        match self.rng.below(1_000) {
            0 => self.reopen(),
            1 => self.fill_a_batch(),
            2..=3 => self.drop_and_make_again(),
            4 => self.stand_in_numbers(),
            5..=8 => self.database.checkpoint().unwrap(),
            9..=300 => self.pin(),
            301..=420 => self.check(),
            421..=480 if !self.standing.is_empty() => {
                let place = below(&mut self.rng, self.standing.len());
                let count = below(&mut self.rng, 10);
                self.go_on(place, count);
            }
            _ => self.write(),
        }
    }
}

impl Test for Crowd {
    fn name(&self) -> &'static str {
        "crowd"
    }

    fn about(&self) -> &'static str {
        "hundreds of keyspaces and snapshots, batches at the limit, key-only reads, \
         against an ordered map, within the memory budget"
    }

    fn short_units(&self) -> u64 {
        8
    }

    fn targets(&self) -> &'static [Target] {
        &[
            Target { what: "reads of snapshots", count: 50_000 },
            Target { what: "batches at the limit", count: 300 },
        ]
    }

    fn run(&self, unit: Unit) -> Tally {
        let mut world = World::new(unit);
        for verb in 0..VERBS {
            world.act();
            if verb % 100 == 0 {
                let memory = world.database.stats().memory;
                let limit = memory.budget_bytes + memory.budget_bytes / 20;
                assert!(memory.used_bytes <= limit, "over the budget: {memory:?}");
            }
        }
        // At the end all pins show the right content, and nothing remains of them.
        (0..200).for_each(|_| world.check());
        world.held.clear();
        world.standing.clear();
        world.database.checkpoint().unwrap();
        assert!(world.database.verify().unwrap().is_clean());
        assert_eq!(world.database.stats().disk.retained_bytes, 0);
        world.tally
    }
}
