//! Transactions of eight threads over all engines; the history of what they read and appended is
//! strictly serializable, by two checkers.
//!
//! Keys are in groups, each next to each other in one keyspace. A transaction reads keys, parts
//! of groups from either end, and appends to lists; threads move on to new groups, so that groups
//! are empty at first and inserts into them are phantoms of somebody's scan. Some of the appends
//! are updates of a single key, and some reads those of a snapshot. Now and then a transaction
//! pauses while another thread writes many keys, so that it has to read again what it compares.
//!
//! The interleaving of the threads does not follow from the unit.

mod checker;
mod history;

use crate::suite::support::{ENGINES, KEYSPACES, below, compression_of, engine_of, layout_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{MemoryDirectory, Rng};
use chelonia::{
    Database, EngineOptions, ErrorKind, Keyspace, KeyspaceOptions, Result, Transaction,
};
use history::{Op, Transaction as Done};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const THREADS: usize = 8;
const TRANSACTIONS: u64 = 600;
/// Keys of a group.
const GROUP: u32 = 8;
/// Transactions after which a new group is begun.
const GROUP_TRANSACTIONS: u64 = 80;
/// Groups in use at a time.
const GROUPS: u32 = 3;
/// Commits of long keys that a pausing transaction waits for: more than are remembered.
const PAUSE_COMMITS: u64 = 400;

/// See the head of the file.
pub struct Isolation;

struct World {
    database: Database,
    keyspaces: [Keyspace; ENGINES],
    filler: Keyspace,
    /// Gives each moment of the history its number, and each element.
    moments: AtomicU64,
    elements: AtomicU32,
    begun: AtomicU64,
    filled: AtomicU64,
    done: AtomicBool,
}

impl World {
    fn open(unit: Unit) -> Self {
        let database = Database::builder("memory")
            .memory(32 << 20)
            .threads(2)
            .log_layout(layout_of(unit.number))
            .internals(|internals| internals.directory = Some(Arc::new(MemoryDirectory::new())))
            .open()
            .unwrap();
        let keyspace = |place: usize| {
            let engine = engine_of(place as u64);
            let options = KeyspaceOptions::new()
                .engine(EngineOptions::tiny(engine, 4 << 10))
                .compression(compression_of(engine, unit.number))
                .checkpoint_distance(20_000);
            database.keyspace(KEYSPACES[place], options).unwrap()
        };
        Self {
            keyspaces: std::array::from_fn(keyspace),
            filler: database.keyspace("filler", KeyspaceOptions::new()).unwrap(),
            database,
            moments: AtomicU64::new(0),
            elements: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            done: AtomicBool::new(false),
        }
    }

    /// The keyspace of the group of a key.
    fn keyspace(&self, key: u32) -> &Keyspace {
        &self.keyspaces[(key / GROUP) as usize % ENGINES]
    }

    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    /// A key of one of the groups in use.
    fn key(&self, rng: &mut Rng) -> u32 {
        let group = self.begun.load(Ordering::Relaxed) / GROUP_TRANSACTIONS;
        (u32::try_from(group).unwrap() + below_u32(rng, GROUPS)) * GROUP + below_u32(rng, GROUP)
    }

    /// Runs the transactions of one thread; returns their history.
    fn run(&self, process: usize, mut rng: Rng) -> Vec<Done> {
        let mut history = Vec::new();
        for _ in 0..TRANSACTIONS {
            self.begun.fetch_add(1, Ordering::Relaxed);
            let mut ops = Vec::new();
            let begun = self.moment();
            let done = match rng.below(20) {
                0 => self.read_snapshot(&mut rng, &mut ops),
                1 | 2 => self.update(&mut rng, &mut ops),
                _ => self.transact(&mut rng, &mut ops),
            };
            let ended = self.moment();
            let is_committed = match done {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::Conflict => false,
                Err(error) => panic!("a transaction failed: {error}"),
            };
            history.push(Done { process, begun, ended, ops, is_committed });
        }
        history
    }

    fn read_snapshot(&self, rng: &mut Rng, ops: &mut Vec<Op>) -> Result<()> {
        let snapshot = self.database.snapshot();
        for _ in 0..=rng.below(3) {
            let key = self.key(rng);
            let list = list(snapshot.get(self.keyspace(key), key.to_be_bytes())?.as_deref());
            ops.push(Op::Read { key, list });
        }
        Ok(())
    }

    /// Appends to one key without a transaction.
    fn update(&self, rng: &mut Rng, ops: &mut Vec<Op>) -> Result<()> {
        let (key, element) = (self.key(rng), self.elements.fetch_add(1, Ordering::Relaxed));
        let append = |old: Option<&[u8]>| Some(appended(old, element));
        let old = self.keyspace(key).update(key.to_be_bytes(), append)?;
        ops.push(Op::Read { key, list: list(old.as_deref()) });
        ops.push(Op::Append { key, element });
        Ok(())
    }

    fn transact(&self, rng: &mut Rng, ops: &mut Vec<Op>) -> Result<()> {
        let mut transaction = self.database.transaction()?;
        let pauses = rng.below(150) == 0;
        for step in 0..=rng.below(4) {
            let key = self.key(rng);
            match rng.below(10) {
                0..4 => self.append(&mut transaction, key, ops)?,
                4..6 => {
                    let found = transaction.get(self.keyspace(key), key.to_be_bytes())?;
                    ops.push(Op::Read { key, list: list(found.as_deref()) });
                }
                6 => self.read_several(&transaction, rng, key, ops)?,
                7 => {
                    let savepoint = transaction.savepoint();
                    let before = ops.len();
                    self.append(&mut transaction, key, ops)?;
                    transaction.rollback_to(savepoint)?;
                    ops.retain({
                        let mut at = 0;
                        move |op| {
                            at += 1;
                            at <= before || matches!(op, Op::Read { .. })
                        }
                    });
                }
                _ => self.scan(&transaction, rng, key, ops)?,
            }
            if rng.below(2) == 0 {
                // Others run meanwhile, also where there are fewer processors than threads.
                std::thread::yield_now();
            }
            if pauses && step == 0 {
                let until = self.filled.load(Ordering::Relaxed) + PAUSE_COMMITS;
                while self.filled.load(Ordering::Relaxed) < until {
                    std::thread::yield_now();
                }
            }
        }
        transaction.commit()
    }

    fn append(&self, transaction: &mut Transaction, key: u32, ops: &mut Vec<Op>) -> Result<()> {
        let keyspace = self.keyspace(key);
        let old = transaction.get(keyspace, key.to_be_bytes())?;
        ops.push(Op::Read { key, list: list(old.as_deref()) });
        let element = self.elements.fetch_add(1, Ordering::Relaxed);
        transaction.insert(keyspace, key.to_be_bytes(), appended(old.as_deref(), element))?;
        ops.push(Op::Append { key, element });
        Ok(())
    }

    fn read_several(
        &self,
        transaction: &Transaction,
        rng: &mut Rng,
        key: u32,
        ops: &mut Vec<Op>,
    ) -> Result<()> {
        let first = key / GROUP * GROUP;
        let keys: Vec<u32> = (0..3).map(|_| first + below_u32(rng, GROUP)).collect();
        let bytes = keys.iter().map(|key| key.to_be_bytes());
        let found = transaction.multi_get(self.keyspace(key), bytes)?;
        for (key, found) in keys.into_iter().zip(found) {
            ops.push(Op::Read { key, list: list(found.as_deref()) });
        }
        Ok(())
    }

    /// Reads some of the entries of a group, from either end. Keys that it passes are read: those
    /// that are absent as empty lists.
    fn scan(
        &self,
        transaction: &Transaction,
        rng: &mut Rng,
        key: u32,
        ops: &mut Vec<Op>,
    ) -> Result<()> {
        let (first, end) = (key / GROUP * GROUP, (key / GROUP + 1) * GROUP);
        let range = first.to_be_bytes()..end.to_be_bytes();
        let mut entries = transaction.range(self.keyspace(key), range);
        let is_forward = rng.below(2) == 0;
        let mut unread = first..end;
        for _ in 0..=rng.below(u64::from(GROUP)) {
            let entry = if is_forward { entries.next() } else { entries.next_back() };
            let entry = entry.transpose()?;
            let found =
                entry.as_ref().map(|entry| u32::from_be_bytes(entry.0[..].try_into().unwrap()));
            loop {
                let passed = if is_forward { unread.next() } else { unread.next_back() };
                let Some(passed) = passed else { break };
                let value = entry.as_ref().filter(|_| found == Some(passed));
                let list = list(value.map(|(_, value)| &value[..]));
                ops.push(Op::Read { key: passed, list });
                if found == Some(passed) {
                    break;
                }
            }
            if entry.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Writes long keys that nobody reads.
    fn fill(&self) {
        for number in 0_u64.. {
            if self.done.load(Ordering::Relaxed) {
                return;
            }
            let key = [&[7; 1_000][..], &(number % 1_000).to_be_bytes()].concat();
            self.filler.insert(key, "").unwrap();
            self.filled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads all keys at the end.
    fn read_all(&self) -> Done {
        let begun = self.moment();
        let snapshot = self.database.snapshot();
        let mut ops = Vec::new();
        for keyspace in &self.keyspaces {
            for entry in snapshot.iter(keyspace) {
                let (key, value) = entry.unwrap();
                let key = u32::from_be_bytes(key[..].try_into().unwrap());
                ops.push(Op::Read { key, list: list(Some(&value)) });
            }
        }
        Done { process: THREADS, begun, ended: self.moment(), ops, is_committed: true }
    }
}

fn below_u32(rng: &mut Rng, bound: u32) -> u32 {
    u32::try_from(below(rng, bound as usize)).unwrap()
}

fn list(value: Option<&[u8]>) -> Vec<u32> {
    let elements = value.unwrap_or_default().as_chunks::<4>().0.iter();
    elements.map(|element| u32::from_le_bytes(*element)).collect()
}

fn appended(old: Option<&[u8]>, element: u32) -> Vec<u8> {
    [old.unwrap_or_default(), &element.to_le_bytes()].concat()
}

impl Test for Isolation {
    fn name(&self) -> &'static str {
        "isolation"
    }

    fn about(&self) -> &'static str {
        "transactions of eight threads: strictly serializable, by two checkers"
    }

    fn short_units(&self) -> u64 {
        8
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "operations", count: 5_000_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let world = World::open(unit);
        let mut rng = unit.rng();
        let mut history: Vec<Done> = std::thread::scope(|scope| {
            scope.spawn(|| world.fill());
            let threads: Vec<_> = (0..THREADS)
                .map(|process| {
                    let (world, rng) = (&world, Rng::new(rng.next_u64()));
                    scope.spawn(move || world.run(process, rng))
                })
                .collect();
            let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            world.done.store(true, Ordering::Relaxed);
            joined.into_iter().flat_map(|joined| joined.expect("a thread failed")).collect()
        });
        history.push(world.read_all());
        let own = checker::check(&history);
        let report = history::check_with_adya(&history);
        if own.is_err() || !history::is_clean(&report) {
            let types = report.anomaly_types;
            panic!("not strictly serializable: {}; adya: {types:?}", own.err().unwrap_or_default());
        }
        let mut tally = Tally::default();
        let count = |committed| history.iter().filter(move |one| one.is_committed == committed);
        tally.add("operations", count(true).map(|one| one.ops.len() as u64).sum());
        tally.add("transactions", count(true).count() as u64);
        tally.add("conflicts", count(false).count() as u64);
        tally
    }
}
