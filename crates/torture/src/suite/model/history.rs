//! A random history of all operations, compared with `BTreeMap`. It is determined by its seed,
//! whatever setting it runs under.

use super::setting::Setting;
use crate::suite::support::{KEYSPACES, ModelSpace, below, one_of};
use chelonia::internals::{
    MemoryDirectory, Rng, beside_next_job, take_beside_job, unreachable_blocks,
};
use chelonia::{
    Database, Durability, EngineKind, Key, Keyspace, LevelOptions, LiveOptions, Result, Snapshot,
    Value,
};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Beside a job, a checkpoint distance is sometimes this many times that of the setting.
const LONGER_TIMES: u64 = 8;

/// A snapshot and its expected content.
struct Held {
    snapshot: Snapshot,
    model: Model,
}

/// An iterator and the entries it must still return.
struct Walking {
    iter: chelonia::Iter,
    rest: std::collections::VecDeque<(Vec<u8>, Vec<u8>)>,
}

/// The expected content of a database.
type Model = BTreeMap<String, ModelSpace>;

/// A running history.
pub struct History {
    setting: Setting,
    directory: MemoryDirectory,
    database: Option<Database>,
    rng: Rng,
    model: Model,
    snapshots: Vec<Held>,
    iterators: Vec<Walking>,
    events: BTreeMap<&'static str, u64>,
    operations: u64,
    answers: u64,
}

impl History {
    /// An empty database.
    pub fn new(setting: Setting, seed: u64) -> Self {
        let directory = MemoryDirectory::new();
        let database = Some(setting.open(&directory, seed).unwrap());
        let model = KEYSPACES.iter().map(|name| ((*name).to_owned(), BTreeMap::new())).collect();
        Self {
            setting,
            directory,
            database,
            rng: Rng::new(seed),
            model,
            snapshots: Vec::new(),
            iterators: Vec::new(),
            events: BTreeMap::new(),
            operations: 0,
            answers: 0,
        }
    }

    fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    fn keyspace(&self, name: &str) -> Keyspace {
        self.database().keyspace(name, self.setting.options(name)).unwrap()
    }

    /// The number of operations so far.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// A hash of all answers so far.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// The counts of events in the trees.
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

    /// Counts an operation and hashes its answer.
    fn answered(&mut self, bytes: Option<&[u8]>) {
        self.operations += 1;
        let length = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
        let word = bytes.and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word));
        let mixed = (self.answers ^ length).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        self.answers = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    }

    /// Counts a scan and hashes its entries.
    fn answered_all(&mut self, found: &[(Key, Value)]) {
        found.iter().for_each(|(key, value)| {
            self.answered(Some(key));
            self.answered(Some(value));
        });
        self.answered(None);
    }

    fn below(&mut self, bound: usize) -> usize {
        below(&mut self.rng, bound)
    }

    /// Mostly one of a few hundred keys, so that overwrites and deletes hit existing keys; some
    /// share long prefixes, some are empty or long.
    fn key(&mut self) -> Vec<u8> {
        let number = self.below(700);
        match self.below(20) {
            0 => Vec::new(),
            1 => vec![b'x'; self.below(300)],
            2..5 => format!("{:0>60}/{number}", "shared").into_bytes(),
            5..8 => vec![0xff; self.below(4)],
            8 => {
                let mut key = vec![b'l'; 5_000];
                key.push(number.to_le_bytes()[0]);
                key
            }
            _ => (number as u64).to_be_bytes()[6..].to_vec(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let length = match self.below(60) {
            0 => self.below(20_000),
            1 => 32_768 + self.below(40_000),
            2..6 => 0,
            // Of medium size, so that they overflow their block.
            6..10 => 500 + self.below(4_000),
            _ => self.below(200),
        };
        let mut value = vec![0; length];
        self.rng.fill(&mut value);
        value
    }

    fn space(&mut self) -> &'static str {
        KEYSPACES[self.below(KEYSPACES.len())]
    }

    /// Runs one operation.
    pub fn step(&mut self) -> Result<()> {
        match self.below(100) {
            0..45 => self.insert()?,
            45..57 => self.remove()?,
            57..62 => self.batch()?,
            62 => self.write_beside_a_job()?,
            63..72 => self.check_gets()?,
            72..80 => self.check_range()?,
            80..83 => self.take_snapshot(),
            83..86 => self.check_snapshot()?,
            86 => self.reshape()?,
            87..89 => self.start_iterator(),
            89..94 => self.walk()?,
            94 => self.database().checkpoint()?,
            95 => self.database().sync()?,
            96 => self.turn_dial()?,
            97 => self.delete_stretch()?,
            98 => self.reopen()?,
            _ => self.ascending_stretch()?,
        }
        Ok(())
    }

    fn insert(&mut self) -> Result<()> {
        let (space, key, value) = (self.space(), self.key(), self.value());
        self.put(space, key, value)
    }

    fn put(&mut self, space: &str, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        self.keyspace(space).insert(&key, &value)?;
        self.model.get_mut(space).unwrap().insert(key, value);
        self.operations += 1;
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        let (space, key) = (self.space(), self.key());
        self.delete(space, &key)
    }

    fn delete(&mut self, space: &str, key: &[u8]) -> Result<()> {
        self.keyspace(space).remove(key)?;
        self.model.get_mut(space).unwrap().remove(key);
        self.operations += 1;
        Ok(())
    }

    fn batch(&mut self) -> Result<()> {
        self.operations += 1;
        let mut batch = self.database().batch();
        for _ in 0..=self.below(40) {
            let (space, key) = (self.space(), self.key());
            let keyspace = self.keyspace(space);
            if self.below(3) == 0 {
                batch.remove(&keyspace, &key);
                self.model.get_mut(space).unwrap().remove(&key);
            } else {
                let value = self.value();
                batch.insert(&keyspace, &key, &value);
                self.model.get_mut(space).unwrap().insert(key, value);
            }
        }
        let levels = [Durability::Memory, Durability::Process, Durability::Sync];
        batch.commit_with(levels[self.below(3)])
    }

    /// Writes until a job is under way, and some other keys while it is: memtables are flushed
    /// between its run and its install. Sometimes distances are longer meanwhile, and a
    /// checkpoint flushes small memtables.
    fn write_beside_a_job(&mut self) -> Result<()> {
        let mut beside = BTreeMap::new();
        for _ in 0..self.below(60) {
            let place = (self.space(), self.key());
            let value = (self.below(3) > 0).then(|| self.value());
            beside.insert(place, value);
        }
        let writes = (0..80).map(|_| (self.space(), self.key(), self.value()));
        let mut writes: Vec<_> = writes.collect();
        writes.retain(|(space, key, _)| !beside.contains_key(&(*space, key.clone())));
        let distances = KEYSPACES.map(|name| self.keyspace(name).checkpoint_distance());
        let longer = (self.below(2) == 0).then_some(self.setting.distance * LONGER_TIMES);
        let every = (self.below(2) == 0).then_some(1 + self.below(8));
        let act = {
            let opened = |name: &&'static str| (*name, self.keyspace(name));
            let keyspaces: BTreeMap<_, _> = KEYSPACES.iter().map(opened).collect();
            let (beside, database) = (beside.clone(), self.database().clone());
            move || {
                if let Some(distance) = longer {
                    for keyspace in keyspaces.values() {
                        keyspace.set_checkpoint_distance(distance).unwrap();
                    }
                }
                for (count, ((space, key), value)) in (1..).zip(beside) {
                    match value {
                        Some(value) => keyspaces[space].insert(&key, &value),
                        None => keyspaces[space].remove(&key),
                    }
                    .unwrap();
                    if every.is_some_and(|every| count % every == 0) {
                        database.checkpoint().unwrap();
                    }
                }
                if longer.is_some() {
                    database.checkpoint().unwrap();
                }
            }
        };
        let mut act: Option<Box<dyn FnOnce() + Send>> = Some(Box::new(act));
        if self.setting.is_stepped()
            && let Some(act) = act.take()
        {
            beside_next_job(self.database(), act);
        }
        for (space, key, value) in writes {
            self.put(space, key, value)?;
        }
        if let Some(act) = act.or_else(|| take_beside_job(self.database())) {
            act();
        }
        for (name, distance) in KEYSPACES.into_iter().zip(distances) {
            self.keyspace(name).set_checkpoint_distance(distance)?;
        }
        for ((space, key), value) in beside {
            let model = self.model.get_mut(space).unwrap();
            match value {
                Some(value) => _ = model.insert(key, value),
                None => _ = model.remove(&key),
            }
        }
        Ok(())
    }

    fn delete_stretch(&mut self) -> Result<()> {
        let space = self.space();
        let (from, count) = (self.key(), self.below(400));
        let stretch = self.model[space].range(from..).take(count);
        let keys: Vec<_> = stretch.map(|(key, _)| key.clone()).collect();
        keys.iter().try_for_each(|key| self.delete(space, key))
    }

    fn ascending_stretch(&mut self) -> Result<()> {
        let space = self.space();
        let base = self.rng.next_u64() >> 8;
        for number in 0..self.below(300) as u64 {
            let key = (base + number).to_be_bytes().to_vec();
            let value = self.value();
            self.put(space, key, value)?;
        }
        Ok(())
    }

    fn check_gets(&mut self) -> Result<()> {
        let space = self.space();
        let keyspace = self.keyspace(space);
        let keys: Vec<_> = (0..self.below(30)).map(|_| self.key()).collect();
        let together = keyspace.multi_get(&keys)?;
        for (key, found) in keys.iter().zip(together) {
            let expected = self.model[space].get(key);
            assert_eq!(found.as_deref(), expected.map(Vec::as_slice));
            assert_eq!(keyspace.get(key)?.as_deref(), expected.map(Vec::as_slice));
            assert_eq!(keyspace.contains_key(key)?, expected.is_some());
            let bytes = expected.map(|value| value.len() as u64);
            assert_eq!(keyspace.size_of(key)?, bytes);
            self.answered(found.as_deref());
        }
        let own =
            |pair: Option<(Key, Value)>| pair.map(|(key, value)| (key.to_vec(), value.to_vec()));
        let (first, last) = (own(keyspace.first_key_value()?), own(keyspace.last_key_value()?));
        let model = &self.model[space];
        assert_eq!(first, model.first_key_value().map(|(k, v)| (k.clone(), v.clone())));
        assert_eq!(last, model.last_key_value().map(|(k, v)| (k.clone(), v.clone())));
        Ok(())
    }

    fn bounds(&mut self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let (mut low, mut high) = (self.key(), self.key());
        if low > high {
            std::mem::swap(&mut low, &mut high);
        }
        let bound = |kind, key| match kind {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        (bound(self.below(3), low), bound(self.below(3), high))
    }

    fn check_range(&mut self) -> Result<()> {
        let space = self.space();
        let keyspace = self.keyspace(space);
        let bounds = self.bounds();
        let expected = within(&self.model[space], &bounds);
        let found: Vec<_> = keyspace.range(bounds.clone()).collect::<Result<_>>()?;
        assert_same(&found, &expected);
        let keys: Vec<_> = keyspace.range(bounds.clone()).keys().collect::<Result<_>>()?;
        assert!(keys.iter().eq(expected.iter().map(|(key, _)| key)), "keys without values");
        let mut backward: Vec<_> = keyspace.range(bounds).rev().collect::<Result<_>>()?;
        backward.reverse();
        assert_same(&backward, &expected);
        self.answered_all(&backward);
        let prefix = self.key().into_iter().take(2).collect::<Vec<_>>();
        let found: Vec<_> = keyspace.prefix(&prefix).collect::<Result<_>>()?;
        let model = self.model[space].iter().filter(|(key, _)| key.starts_with(&prefix));
        let expected: Vec<_> = model.map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_same(&found, &expected);
        self.answered_all(&found);
        Ok(())
    }

    fn take_snapshot(&mut self) {
        if self.snapshots.len() >= 6 {
            let victim = self.below(self.snapshots.len());
            self.snapshots.swap_remove(victim);
        }
        let snapshot = self.database().snapshot();
        self.snapshots.push(Held { snapshot, model: self.model.clone() });
    }

    fn check_snapshot(&mut self) -> Result<()> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let (space, key) = (self.space(), self.key());
        let index = self.below(self.snapshots.len());
        let scan_all = self.below(4) == 0;
        let held = &self.snapshots[index];
        let keyspace = self.keyspace(space);
        let expected = held.model[space].get(&key).map(Vec::as_slice);
        let found = held.snapshot.get(&keyspace, &key)?;
        assert_eq!(found.as_deref(), expected);
        let mut all = Vec::new();
        if scan_all {
            let count = held.model[space].len() as u64;
            assert_eq!(held.snapshot.len(&keyspace)?, count);
            assert_eq!(held.snapshot.is_empty(&keyspace)?, count == 0);
            all = held.snapshot.iter(&keyspace).collect::<Result<_>>()?;
            assert_same(&all, &within(&held.model[space], &(Bound::Unbounded, Bound::Unbounded)));
        }
        self.answered(found.as_deref());
        self.answered_all(&all);
        Ok(())
    }

    fn start_iterator(&mut self) {
        let space = self.space();
        let iter = self.keyspace(space).iter();
        let all = (Bound::Unbounded, Bound::Unbounded);
        let rest = within(&self.model[space], &all).into();
        if self.iterators.len() >= 4 {
            self.iterators.remove(0);
        }
        self.iterators.push(Walking { iter, rest });
    }

    fn walk(&mut self) -> Result<()> {
        if self.iterators.is_empty() {
            return Ok(());
        }
        let index = self.below(self.iterators.len());
        for _ in 0..self.below(60) {
            let forward = self.below(2) == 0;
            let walking = &mut self.iterators[index];
            let (found, expected) = if forward {
                (walking.iter.next(), walking.rest.pop_front())
            } else {
                (walking.iter.next_back(), walking.rest.pop_back())
            };
            let found = found.transpose()?.map(|(key, value)| (key.to_vec(), value.to_vec()));
            assert_eq!(found, expected);
            self.answered(found.as_ref().map(|(key, _)| key.as_slice()));
        }
        Ok(())
    }

    fn turn_dial(&mut self) -> Result<()> {
        let space = self.space();
        let bytes = 1 + self.rng.below(4 * self.setting.distance);
        self.keyspace(space).set_checkpoint_distance(bytes)
    }

    /// Changes the live options of the engine, if it has any.
    fn reshape(&mut self) -> Result<()> {
        let space = self.space();
        let shape = LevelOptions::new()
            .size_ratio(one_of(&mut self.rng, &[2, 3, 8]))
            .scaling_percent(one_of(&mut self.rng, &[40, 80, 100]))
            .dynamic_sizes(self.rng.one_in(2))
            .allocate_filters_by_level(self.rng.one_in(2));
        let leaf_space = LiveOptions::SpacePercent(one_of(&mut self.rng, &[110, 160, 300]));
        match self.setting.engine(space) {
            EngineKind::Autumn => self.keyspace(space).set_live_options(shape),
            EngineKind::Splinter => self.keyspace(space).set_live_options(leaf_space),
            _ => Ok(()),
        }
    }

    /// Closes, or drops everything in memory like the death of the process, and reopens.
    fn reopen(&mut self) -> Result<()> {
        self.snapshots.clear();
        self.iterators.clear();
        let cleanly = self.below(2) == 0;
        self.count_events();
        let database = self.database.take().unwrap();
        if cleanly {
            database.close()?;
        } else {
            // A copy of the files; the old handle may still change its own.
            self.directory = MemoryDirectory::from_files(self.directory.to_files());
            drop(database);
        }
        self.database = Some(self.setting.open(&self.directory, 0)?);
        self.operations += 1;
        self.check_everything()
    }

    /// Compares everything with the model, and looks for leaked space.
    pub fn check_everything(&mut self) -> Result<()> {
        self.snapshots.clear();
        self.iterators.clear();
        let report = self.database().verify()?;
        assert!(report.is_clean(), "{:?}", report.findings);
        for space in KEYSPACES {
            let found: Vec<_> = self.keyspace(space).iter().collect::<Result<_>>()?;
            assert_same(&found, &within(&self.model[space], &(Bound::Unbounded, Bound::Unbounded)));
            self.answered_all(&found);
        }
        // After a checkpoint without pins, exactly the blocks that the roots refer to are in use.
        self.database().checkpoint()?;
        assert_eq!(unreachable_blocks(self.database())?, 0, "leaked blocks");
        Ok(())
    }
}

fn within(
    space: &ModelSpace,
    bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let inside = |key: &Vec<u8>| std::ops::RangeBounds::contains(bounds, key);
    let entries = space.iter().filter(|(key, _)| inside(key));
    entries.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[track_caller]
fn assert_same(found: &[(Key, Value)], expected: &[(Vec<u8>, Vec<u8>)]) {
    let differs =
        found.iter().zip(expected).position(|((key, value), (model_key, model_value))| {
            key != model_key || value != model_value
        });
    assert!(
        differs.is_none() && found.len() == expected.len(),
        "{} entries instead of {}, the first different one at {differs:?}",
        found.len(),
        expected.len(),
    );
}
