//! Databases whose log has no segment, because somebody else has all space of the device.

use crate::base::error::{Error, ErrorKind};
use crate::engine::EngineKind;
use crate::flush::background::LogProgress;
use crate::options::keyspace::Durability;
use crate::runtime::rng::Rng;
use crate::runtime::sync::{Arc, AtomicU64, Ordering};
use crate::storage::io::fault::{Call, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::tests::open;
use crate::{Database, Keyspace, KeyspaceOptions, Result, Snapshot};
use std::collections::BTreeMap;

/// The keyspaces.
const NAMES: [&str; 2] = ["one", "two"];

/// Values by keyspace and key.
type Model = BTreeMap<(usize, u64), Vec<u8>>;

/// A database on a device, and what it should hold.
struct Life {
    engine: EngineKind,
    memory: MemoryDirectory,
    plan: FaultPlan,
    database: Option<Database>,
    pin: Option<(Snapshot, Model)>,
    model: Model,
    progress: LogProgress,
    refused: u64,
    trace: Vec<String>,
}

impl Life {
    fn begin(engine: EngineKind) -> Self {
        let memory = MemoryDirectory::new();
        let database = open(Arc::new(memory.clone()));
        let life = Self {
            engine,
            memory,
            plan: FaultPlan::new(),
            database: Some(database),
            pin: None,
            model: Model::new(),
            progress: LogProgress::default(),
            refused: 0,
            trace: Vec::new(),
        };
        life.keyspace(0);
        life.keyspace(1);
        life
    }

    fn db(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    fn keyspace(&self, at: usize) -> Keyspace {
        self.db().keyspace(NAMES[at], KeyspaceOptions::new().engine(self.engine)).unwrap()
    }

    /// True if the call succeeded; it may lack space only.
    fn is_done<T>(&mut self, what: &str, result: &Result<T>) -> bool {
        let kind = result.as_ref().err().map(Error::kind);
        self.trace.push(format!("{what} {kind:?}"));
        assert!(matches!(kind, None | Some(ErrorKind::NoSpace)), "{:#?}", self.trace);
        self.refused += u64::from(kind.is_some());
        kind.is_none()
    }

    /// Ends the process and opens the database, first as a reader, on a device of `capacity`
    /// where nothing is freed if `is_punched` is false.
    fn reopen(&mut self, closes: bool, capacity: u64, is_punched: bool) {
        self.pin = None;
        if closes {
            let closed = self.database.take().unwrap().close();
            self.is_done("close", &closed);
            self.memory = MemoryDirectory::from_files(self.memory.to_files());
        } else {
            self.memory = MemoryDirectory::from_files(self.memory.to_files());
            self.database = None;
        }
        let copy = MemoryDirectory::from_files(self.memory.to_files());
        let builder = Database::builder("memory").memory(64 << 20).read_only(true);
        let reader = builder.internals(|internals| internals.directory = Some(Arc::new(copy)));
        self.database = Some(reader.open().unwrap());
        self.check();
        self.database = None;
        self.plan = FaultPlan::new();
        let faulty = FaultDirectory::new(Arc::new(self.memory.clone()), self.plan.clone()).unwrap();
        if !is_punched {
            self.plan.fail(Fault::sticky(Call::PunchHole, 0));
        }
        self.plan.set_capacity(Some(capacity));
        self.trace.push(format!("open with {capacity}"));
        self.database = Some(open(Arc::new(faulty)));
        self.plan.heal();
        self.progress = LogProgress::default();
        self.check();
    }

    fn check(&self) {
        for at in 0..2 {
            let found = self.keyspace(at).iter().map(Result::unwrap);
            let found: Vec<_> = found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            let there = self.model.iter().filter(|((space, _), _)| *space == at);
            let there: Vec<_> = there
                .map(|((_, key), value)| (key.to_be_bytes().to_vec(), value.clone()))
                .collect();
            assert!(found == there, "{} of {}: {:#?}", found.len(), there.len(), self.trace);
        }
        let Some((pin, model)) = &self.pin else { return };
        for (at, key) in (0..80).map(|number| (number % 2, number as u64 / 2)) {
            let found = pin.get(&self.keyspace(at), key.to_be_bytes()).unwrap();
            let found = found.map(|value| value.to_vec());
            assert!(found.as_ref() == model.get(&(at, key)), "{:#?}", self.trace);
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        if rng.one_in(2) {
            self.write(rng);
        } else {
            self.maintain(rng);
        }
        if rng.one_in(4) {
            self.check();
        }
    }

    fn write(&mut self, rng: &mut Rng) {
        let at = usize::try_from(rng.below(2)).unwrap();
        let levels = [Durability::Process, Durability::Sync, Durability::Memory];
        let level = levels[usize::try_from(rng.below(3)).unwrap()];
        let key = rng.below(40);
        let bytes = if rng.one_in(10) { 40_000 } else { usize::try_from(rng.below(3000)).unwrap() };
        let value = vec![u8::try_from(rng.below(255)).unwrap(); bytes];
        match rng.below(5) {
            0..2 => {
                let done = self.keyspace(at).insert_with(key.to_be_bytes(), &value, level);
                if self.is_done("insert", &done) {
                    self.model.insert((at, key), value);
                }
            }
            2..4 => {
                let done = self.keyspace(at).remove_with(key.to_be_bytes(), level);
                if self.is_done("remove", &done) {
                    self.model.remove(&(at, key));
                }
            }
            _ => {
                let mut batch = self.db().batch();
                batch.insert(&self.keyspace(0), key.to_be_bytes(), &value);
                batch.remove(&self.keyspace(1), key.to_be_bytes());
                let done = batch.commit_with(level);
                if self.is_done("batch", &done) {
                    self.model.insert((0, key), value);
                    self.model.remove(&(1, key));
                }
            }
        }
    }

    /// Everything besides writes, and a device that gets larger or full.
    fn maintain(&mut self, rng: &mut Rng) {
        let handle = Arc::clone(&self.db().handle);
        match rng.below(12) {
            0 => {
                let done = self.db().checkpoint();
                self.is_done("checkpoint", &done);
            }
            1 => assert!(self.db().verify().unwrap().is_clean(), "{:#?}", self.trace),
            2 => self.pin = Some((self.db().snapshot(), self.model.clone())),
            3 => self.pin = None,
            4 => self.drop_and_create(),
            5 => self.db().set_memory((32 + rng.below(64)) << 20).unwrap(),
            6 => {
                let done = handle.core().log_tick(&mut self.progress);
                self.is_done("tick", &done);
            }
            7 => {
                let done = handle.core().log.get().unwrap().prepare_next();
                self.is_done("prepare", &done);
            }
            8 => self.db().sync().unwrap(),
            9..11 => {
                let more = [0, 0, 8, 16, 64, 1024, 8192][usize::try_from(rng.below(7)).unwrap()];
                self.trace.push(format!("{more} K more"));
                self.plan.set_capacity(Some(self.plan.taken_bytes() + (more << 10)));
            }
            _ => {
                drop(handle);
                let capacity = if rng.one_in(3) { self.plan.taken_bytes() } else { 0 };
                self.reopen(rng.one_in(2), capacity, rng.one_in(2));
            }
        }
    }

    fn drop_and_create(&mut self) {
        let done = self.db().drop_keyspace(NAMES[1]);
        if self.is_done("drop", &done) {
            self.pin = None;
            self.model.retain(|(at, _), _| *at == 0);
            self.plan.set_capacity(Some(self.plan.taken_bytes() + (1 << 20)));
            self.keyspace(1);
        }
    }
}

#[test]
fn a_log_without_a_segment_loses_nothing_and_writes_go_on_when_there_is_space() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let engines = EngineKind::ALL.len() as u64;
        let mut life = Life::begin(EngineKind::ALL[usize::try_from(seed % engines).unwrap()]);
        life.trace.push(format!("seed {seed}"));
        life.plan.set_capacity(Some(1 << 30));
        (0..rng.below(60)).for_each(|_| life.step(&mut rng));
        for _ in 0..3 {
            life.reopen(false, 0, rng.one_in(2));
            (0..30).for_each(|_| life.step(&mut rng));
            life.plan.set_capacity(Some(life.plan.taken_bytes() + (16 << 20)));
            for at in 0..2 {
                let done = life.keyspace(at).insert(7_u64.to_be_bytes(), [5; 500]);
                assert!(life.is_done("insert with space", &done), "{:#?}", life.trace);
                life.model.insert((at, 7), vec![5; 500]);
            }
            life.check();
            life.pin = None;
            // The second one frees what the first one replaced.
            (0..2).for_each(|_| life.db().checkpoint().unwrap());
            life.check();
            assert!(life.db().verify().unwrap().is_clean(), "{:#?}", life.trace);
            assert_eq!(
                life.db().handle.core().unreachable_blocks().unwrap(),
                0,
                "{:#?}",
                life.trace
            );
        }
        refused += life.refused;
    }
    assert!(refused > 1_000, "{refused}");
}

/// Threads write while there is no space, and each goes on once there is some.
#[test]
fn threads_that_were_refused_go_on_without_a_reopen() {
    for engine in EngineKind::ALL {
        let memory = MemoryDirectory::new();
        let database = open(Arc::new(memory.clone()));
        let k = database.keyspace("k", KeyspaceOptions::new().engine(engine)).unwrap();
        (0..200_u64).for_each(|number| k.insert(number.to_be_bytes(), [1; 1000]).unwrap());
        let memory = MemoryDirectory::from_files(memory.to_files());
        drop((k, database));
        let plan = FaultPlan::new();
        let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
        plan.set_capacity(Some(0));
        let builder = Database::builder("memory").memory(64 << 20);
        let database = builder.internals(|internals| internals.directory = Some(Arc::new(faulty)));
        let database = database.open().unwrap();
        let k = database.keyspace("k", KeyspaceOptions::new().engine(engine)).unwrap();
        let refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (k, refused) = (&k, &refused);
                scope.spawn(move || {
                    for number in (0..200_u64).filter(|number| number % 4 == thread) {
                        let write = || match thread {
                            0 => k.remove(number.to_be_bytes()),
                            1 => k.insert_with(number.to_be_bytes(), [2; 900], Durability::Sync),
                            _ => k.insert(number.to_be_bytes(), [2; 900]),
                        };
                        while let Err(error) = write() {
                            assert_eq!(error.kind(), ErrorKind::NoSpace);
                            refused.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while refused.load(Ordering::Relaxed) < 100 {
                assert!(database.verify().unwrap().is_clean());
                let _ = database.checkpoint();
            }
            plan.set_capacity(Some(plan.taken_bytes() + (8 << 20)));
        });
        assert_eq!(k.iter().count(), 150);
        database.close().unwrap();
        let database = open(Arc::new(MemoryDirectory::from_files(memory.to_files())));
        let k = database.keyspace("k", KeyspaceOptions::new().engine(engine)).unwrap();
        assert!(k.iter().all(|entry| entry.unwrap().1.len() == 900));
        assert_eq!(k.iter().count(), 150);
        assert!(database.verify().unwrap().is_clean());
    }
}
