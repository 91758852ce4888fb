//! One worker thread: runs the operations of a stream in a session, measures each, and checks
//! everything that it reads.
//!
//! The time of an operation is that of the calls of the store, including copies of the values read;
//! making and checking keys and values is not included. `queue.rs` has the operations of queues.

mod queue;

use crate::driver::clock;
use crate::driver::latency::{Kind, Latencies};
use crate::driver::versions::{State, Versions};
use crate::failure::{Failure, Result};
use crate::stores::{Answers, Entries, Session};
use crate::workload::keys::Keys;
use crate::workload::stream::{Operation, multi_get_records};
use crate::workload::values::{Values, Version};
use queue::Queue;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// State shared by all threads of a run.
#[derive(Debug)]
pub struct Shared {
    /// The key of each record.
    pub keys: Keys,
    /// The value of each record and version.
    pub values: Values,
    /// Which version each record has.
    pub versions: Versions,
    /// Records loaded.
    pub records: u64,
    /// Records that there is room for.
    pub capacity: u64,
    /// How many records each thread has inserted. Thread `t` of `n` inserts `t`, `t + n`, ...
    pub inserted: Vec<AtomicU64>,
    /// The greatest key of a record that was loaded.
    pub last_key: Vec<u8>,
}

impl Shared {
    /// The memory that all this takes.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = self.versions.memory_bytes() + self.keys.memory_bytes();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The threads.
    pub fn threads(&self) -> u64 {
        u64::try_from(self.inserted.len()).unwrap_or(u64::MAX)
    }

    /// The record that `thread` inserts as number `number`.
    fn record_of(&self, thread: u64, number: u64) -> u64 {
        number * self.threads() + thread
    }
}

/// When an operation began and ended, and how many operations it counts as.
struct Timed {
    kind: Kind,
    start: Instant,
    end: Instant,
    operations: u64,
}

impl Timed {
    fn now(kind: Kind, start: Instant) -> Self {
        Self { kind, start, end: clock::now(), operations: 1 }
    }
}

/// The counts of a thread.
#[derive(Debug, Default)]
pub struct Tally {
    /// How long operations took.
    pub latencies: Latencies,
    /// Operations.
    pub operations: u64,
    /// Bytes of keys and values written.
    pub user_bytes: u64,
}

/// The place of a thread among the others.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Which one it is.
    pub thread: u64,
    /// Writes per commit of the store.
    pub commit_every: u32,
}

/// A thread's session and buffers.
pub struct Worker<'a> {
    shared: &'a Shared,
    session: Box<dyn Session + 'a>,
    place: Place,
    /// Writes since the last commit, of a store without a log.
    pending: u32,
    /// Records inserted by this thread; others may read those in [`Shared::inserted`].
    inserted: u64,
    queue: Queue,
    committed_queue: Queue,
    key: Vec<u8>,
    value: Vec<u8>,
    entries: Entries,
    answers: Answers,
    chosen: Vec<u64>,
    chosen_keys: Vec<Vec<u8>>,
    states: Vec<State>,
    /// The counts.
    pub tally: Tally,
}

impl<'a> Worker<'a> {
    /// A thread that has done nothing yet in this phase.
    pub fn new(shared: &'a Shared, session: Box<dyn Session + 'a>, place: Place) -> Self {
        let inserted = shared.inserted[index(place.thread)].load(Ordering::Acquire);
        Self {
            shared,
            session,
            place,
            pending: 0,
            inserted,
            queue: Queue::default(),
            committed_queue: Queue::default(),
            key: Vec::new(),
            value: Vec::new(),
            entries: Entries::default(),
            answers: Answers::default(),
            chosen: Vec::new(),
            chosen_keys: Vec::new(),
            states: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Does `operation`; if a start was intended, the time since then counts. Gives the number of
    /// operations that it counts as.
    pub fn execute(&mut self, operation: Operation, intended: Option<Instant>) -> Result<u64> {
        let timed = match operation {
            Operation::InsertNext => self.insert_next(),
            Operation::Update(record) => self.update(record),
            Operation::Get(record) => self.get(record),
            Operation::GetLatest { thread, age } => self.get_latest(thread, age),
            Operation::GetAbsent(record) => self.get_absent(record),
            Operation::ReadModifyWrite(record) => self.read_modify_write(record),
            Operation::Scan { record, length } => self.scan(record, length),
            Operation::MultiGet(seed) => self.multi_get(seed),
            Operation::QueuePush => self.queue_push(),
            Operation::QueueScan => self.queue_scan(),
            Operation::QueuePop => self.queue_pop(),
        }?;
        let start = intended.unwrap_or(timed.start);
        self.tally.latencies.record(timed.kind, timed.end.saturating_duration_since(start));
        self.tally.operations += timed.operations;
        Ok(timed.operations)
    }

    /// Commits what waits in the session.
    pub fn commit(&mut self) -> Result<()> {
        if self.pending > 0 {
            self.session.commit()?;
            self.pending = 0;
        }
        self.publish();
        Ok(())
    }

    /// True if a write is visible once its call returned.
    fn is_exact(&self) -> bool {
        self.place.commit_every == 1
    }

    /// Lets all threads read the writes of this one.
    fn publish(&mut self) {
        let inserted = &self.shared.inserted[index(self.place.thread)];
        inserted.store(self.inserted, Ordering::Release);
        self.committed_queue = self.queue;
    }

    /// Counts a write of the key and value at hand, and commits if it is time to.
    fn written(&mut self, value_bytes: usize) -> Result<()> {
        let bytes = self.key.len() + value_bytes;
        self.tally.user_bytes += u64::try_from(bytes).unwrap_or(0);
        if self.is_exact() {
            return Ok(());
        }
        self.pending += 1;
        if self.pending < self.place.commit_every {
            return Ok(());
        }
        self.pending = 0;
        self.session.commit()
    }

    /// Inserts the key and value at hand.
    fn put(&mut self, kind: Kind) -> Result<Timed> {
        let start = clock::now();
        self.session.insert(&self.key, &self.value)?;
        self.written(self.value.len())?;
        Ok(Timed::now(kind, start))
    }

    /// After a write of this thread's own: all may read it, if it is committed.
    fn publish_if_committed(&mut self) {
        if self.pending == 0 {
            self.publish();
        }
    }

    fn insert_next(&mut self) -> Result<Timed> {
        let record = self.shared.record_of(self.place.thread, self.inserted);
        if record >= self.shared.capacity {
            return Err(Failure::failed("insert", "more inserts than were planned for"));
        }
        self.shared.keys.write(record, &mut self.key);
        self.shared.values.write(record, 0, &mut self.value);
        let timed = self.put(Kind::Insert)?;
        self.inserted += 1;
        self.publish_if_committed();
        Ok(timed)
    }

    fn update(&mut self, record: u64) -> Result<Timed> {
        self.shared.keys.write(record, &mut self.key);
        let version = self.shared.versions.begin(record, self.place.thread);
        self.shared.values.write(record, version, &mut self.value);
        let timed = self.put(Kind::Update);
        // Also after an error: nobody is to wait for ever.
        self.shared.versions.finish(record, version, self.place.thread);
        timed
    }

    fn get(&mut self, record: u64) -> Result<Timed> {
        self.shared.keys.write(record, &mut self.key);
        let before = self.shared.versions.state(record);
        let timed = self.read()?.ok_or_else(|| missing("get", record))?;
        let after = self.shared.versions.state(record);
        let time = timed.end.saturating_duration_since(timed.start);
        self.check(record, &self.value, |seen| before.permits(after, time, seen))?;
        Ok(timed)
    }

    /// Reads the key at hand into the value at hand; `None` if it is not there.
    fn read(&mut self) -> Result<Option<Timed>> {
        self.value.clear();
        let start = clock::now();
        let found = self.session.get(&self.key, &mut self.value)?;
        let timed = Timed::now(Kind::Get, start);
        Ok(found.then_some(timed))
    }

    fn get_latest(&mut self, thread: u64, age: u64) -> Result<Timed> {
        let inserted = self.shared.inserted[index(thread)].load(Ordering::Acquire);
        let number = inserted.saturating_sub(1 + age);
        self.get(self.shared.record_of(thread, number))
    }

    fn get_absent(&mut self, record: u64) -> Result<Timed> {
        self.shared.keys.write_absent(record, &mut self.key);
        self.value.clear();
        let start = clock::now();
        let found = self.session.get(&self.key, &mut self.value)?;
        let timed = Timed::now(Kind::Get, start);
        if found {
            return Err(Failure::wrong("get: a value for a key that was never written"));
        }
        Ok(timed)
    }

    fn read_modify_write(&mut self, record: u64) -> Result<Timed> {
        self.shared.keys.write(record, &mut self.key);
        let version = self.shared.versions.begin(record, self.place.thread);
        let timed = self.modify(record, version);
        self.shared.versions.finish(record, version, self.place.thread);
        timed
    }

    /// Nobody else writes the record, so what is read is exactly the version before.
    fn modify(&mut self, record: u64, version: Version) -> Result<Timed> {
        let before = self.shared.versions.state(record).version();
        let start = clock::now();
        self.read()?.ok_or_else(|| missing("read-modify-write", record))?;
        self.check(record, &self.value, |seen| seen == before)?;
        self.shared.values.write(record, version, &mut self.value);
        self.put(Kind::Rmw)?;
        Ok(Timed::now(Kind::Rmw, start))
    }

    /// Fails unless `value` is one of `record`, of a version that may be seen.
    fn check(
        &self,
        record: u64,
        value: &[u8],
        permits: impl FnOnce(Version) -> bool,
    ) -> Result<()> {
        let wrong = |what: &str| Err(Failure::wrong(format!("record {record}: {what}")));
        match self.shared.values.read(value) {
            None => wrong("the value is damaged"),
            Some((other, _)) if other != record => wrong("the value of another record"),
            // Writes that wait in a session are seen late.
            Some((_, seen)) if self.is_exact() && !permits(seen) => {
                wrong(&format!("version {seen}, which is not the newest"))
            }
            Some(_) => Ok(()),
        }
    }

    fn scan(&mut self, record: u64, length: u64) -> Result<Timed> {
        self.shared.keys.write(record, &mut self.key);
        let quiet = self.shared.versions.quiet();
        let before = self.shared.versions.state(record);
        let timed = self.scan_from_key(length)?;
        let after = self.shared.versions.state(record);
        let time = timed.end.saturating_duration_since(timed.start);
        self.check_scan(record, length, |seen| before.permits(after, time, seen))?;
        self.check_newest(quiet)?;
        Ok(timed)
    }

    /// Scans `length` entries from the key at hand.
    fn scan_from_key(&mut self, length: u64) -> Result<Timed> {
        self.entries.clear();
        let start = clock::now();
        self.session.scan(&self.key, index(length), &mut self.entries)?;
        Ok(Timed::now(Kind::Scan, start))
    }

    /// Fails unless the entries are those of records, in key order, from `record` on, as many as
    /// were asked for or up to the last there is. Where the next record has the next key, none is
    /// left out.
    fn check_scan(
        &mut self,
        record: u64,
        length: u64,
        permits: impl FnOnce(Version) -> bool,
    ) -> Result<()> {
        let entries = std::mem::take(&mut self.entries);
        let mut key = Vec::new();
        let mut last: &[u8] = &[];
        let mut permits = Some(permits);
        for (next, (index, (found, value))) in (record..).zip(entries.iter().enumerate()) {
            let (owner, seen) =
                self.shared.values.read(value).ok_or_else(|| {
                    Failure::wrong(format!("scan from {record}: a damaged value"))
                })?;
            self.shared.keys.write(owner, &mut key);
            if key != found {
                return Err(Failure::wrong(format!("scan: key and value of {owner} do not fit")));
            }
            if index > 0 && found <= last {
                return Err(Failure::wrong(format!("scan from {record}: not in key order")));
            }
            if (index == 0 || self.shared.keys.are_sequential()) && owner != next {
                return Err(Failure::wrong(format!("scan from {record}: {next} is not there")));
            }
            if index == 0 && self.is_exact() && !permits.take().is_some_and(|may| may(seen)) {
                return Err(Failure::wrong(format!("scan: record {record} is an old one")));
            }
            last = found;
        }
        let is_end = last >= self.shared.last_key.as_slice();
        if entries.len() < index(length) && !is_end {
            return Err(Failure::wrong(format!("scan from {record}: it ended too early")));
        }
        self.entries = entries;
        Ok(())
    }

    /// Fails if an entry of the scan is an old one: one of them, as each costs a look at a random
    /// place in memory. Nothing is known if an update was in flight since `quiet` was asked.
    fn check_newest(&self, quiet: Option<u64>) -> Result<()> {
        let count = self.entries.len().max(1);
        let chosen = usize::try_from(self.tally.operations).unwrap_or(0) % count;
        let entry = self.entries.iter().nth(chosen);
        let Some((record, seen)) = entry.and_then(|(_, value)| self.shared.values.read(value))
        else {
            return Ok(());
        };
        let newest = self.shared.versions.state(record).version();
        if quiet.is_none() || quiet != self.shared.versions.quiet() {
            return Ok(());
        }
        if self.is_exact() && seen != newest {
            return Err(Failure::wrong(format!("scan: record {record} is an old one")));
        }
        Ok(())
    }

    fn multi_get(&mut self, seed: u64) -> Result<Timed> {
        multi_get_records(seed, self.shared.records, &mut self.chosen);
        self.chosen_keys.resize_with(self.chosen.len(), Vec::new);
        self.states.clear();
        for (record, key) in self.chosen.iter().zip(&mut self.chosen_keys) {
            self.shared.keys.write(*record, key);
            self.states.push(self.shared.versions.state(*record));
        }
        self.answers.clear();
        let start = clock::now();
        self.session.multi_get(&self.chosen_keys, &mut self.answers)?;
        let mut timed = Timed::now(Kind::MultiGet, start);
        timed.operations = u64::try_from(self.chosen.len()).unwrap_or(0);
        if self.answers.iter().len() != self.chosen.len() {
            return Err(Failure::wrong("multi_get: not as many answers as keys"));
        }
        let time: Duration = timed.end.saturating_duration_since(timed.start);
        for ((record, before), value) in
            self.chosen.iter().zip(&self.states).zip(self.answers.iter())
        {
            let value = value.ok_or_else(|| missing("multi_get", *record))?;
            let after = self.shared.versions.state(*record);
            self.check(*record, value, |seen| before.permits(after, time, seen))?;
        }
        Ok(timed)
    }
}

fn missing(what: &str, record: u64) -> Failure {
    Failure::wrong(format!("{what}: record {record} is not there"))
}

/// A number that is known to be small.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
