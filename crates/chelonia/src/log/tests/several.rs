//! Several logs with one order: power failures and process crashes at any moment, gaps, damage.

use super::sim::SimDirectory;
use super::*;
use crate::base::codec::put_varint;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::SeqNo;
use crate::base::limits::BLOCK_BYTES;
use crate::base::logs::{LogMark, PerLog};
use crate::log::verify::ReadBack;
use crate::log::{FIRST_SEQNO_BYTES, Logs, Numbers, Replayed};
use crate::storage::io::memory::MemoryDirectory;
use std::collections::BTreeMap;

/// A record: its log, where it begins there, its seqnos and its payload.
#[derive(Clone, Debug)]
struct Written {
    log: usize,
    start: LogPosition,
    numbers: Numbers,
    bytes: Vec<u8>,
}

/// Several logs and their expected content.
struct World {
    sim: SimDirectory,
    dir: Arc<dyn Directory>,
    options: LogOptions,
    logs: Logs,
    /// Records in the order of their seqnos, after the trim position.
    written: Vec<Written>,
    /// A record that has its seqnos and is not in its log yet, as of a thread that was interrupted:
    /// its index in `written`.
    held: Option<usize>,
    /// Number of records that a power failure must preserve.
    durable: usize,
    mark: LogMark,
    next: SeqNo,
}

/// A record with these seqnos: it begins with the number of its entries.
fn numbered(numbers: Numbers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Numbers::front(numbers.first).to_vec();
    put_varint(&mut bytes, u64::from(numbers.count));
    bytes.extend(payload);
    bytes
}

impl World {
    fn new(options: LogOptions, count: usize) -> Self {
        let sim = SimDirectory::new();
        let dir: Arc<dyn Directory> = Arc::new(sim.clone());
        let (single, logs) = Logs::create(&dir, &options, count).unwrap();
        assert!(single.is_none());
        let (written, mark) = (Vec::new(), LogMark::new(count));
        let next = SeqNo(1);
        Self { sim, dir, options, logs, written, held: None, durable: 0, mark, next }
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(26) {
            0..13 => self.append(rng),
            13..15 => self.hold_one(rng),
            15..18 => self.sync(),
            18 => self.logs.seal_blocks().unwrap(),
            19..21 => self.logs.prepare_next().unwrap(),
            21..23 => self.sim.write_back(rng),
            23 => self.logs.release_idle(),
            24 => self.trim(rng),
            _ => {
                self.recover(None, rng);
            }
        }
    }

    /// Gives seqnos to a record of a log that no interrupted thread holds.
    fn place(&mut self, rng: &mut Rng) -> usize {
        let held = self.held.map(|index| self.written[index].log);
        let logs = self.mark.begin.len() as u64;
        let log = loop {
            let log = usize::try_from(rng.below(logs)).unwrap();
            if Some(log) != held {
                break log;
            }
        };
        let count = u32::try_from(1 + rng.below(3)).unwrap();
        let numbers = Numbers { first: self.next, count };
        self.next = numbers.last().next();
        let bytes = numbered(numbers, &payload(numbers.first.0, random_bytes(rng)));
        let start = self.logs.lock_tails()[log].as_ref().unwrap().position();
        self.written.push(Written { log, start, numbers, bytes });
        self.written.len() - 1
    }

    fn append(&mut self, rng: &mut Rng) {
        let index = self.place(rng);
        self.append_placed(index);
    }

    fn append_placed(&mut self, index: usize) {
        let Written { log, bytes, .. } = &self.written[index];
        let mut tails = self.logs.lock_tails();
        let tail = tails[*log].as_mut().unwrap();
        let hash = tail.payload_hash(bytes);
        tail.append(bytes, hash).unwrap();
    }

    fn hold_one(&mut self, rng: &mut Rng) {
        self.release();
        self.held = Some(self.place(rng));
    }

    /// Lets the interrupted thread go on.
    fn release(&mut self) {
        if let Some(index) = self.held.take() {
            self.append_placed(index);
        }
    }

    fn sync(&mut self) {
        // A sync waits until nobody appends.
        self.release();
        let last = SeqNo(self.next.0 - 1);
        self.logs.sync_several(last, || last, || Ok(())).unwrap();
        self.durable = self.written.len();
    }

    /// Trims durable records, as a checkpoint does: where replay begins in a log may lie before the
    /// first record that it needs.
    fn trim(&mut self, rng: &mut Rng) {
        self.release();
        let count = usize::try_from(rng.below(self.durable as u64 + 1)).unwrap();
        let Some(last) = count.checked_sub(1) else { return };
        self.mark.seqno = self.written[last].numbers.last();
        let ends: Vec<_> = {
            let tails = self.logs.lock_tails();
            tails.iter().map(|tail| tail.as_ref().unwrap().position()).collect()
        };
        for (log, end) in ends.iter().enumerate() {
            let of_log = |range: &[Written]| {
                let of_log = range.iter().filter(|written| written.log == log);
                of_log.map(|written| written.start).collect::<Vec<_>>()
            };
            let needed = of_log(&self.written[count..]).first().copied().unwrap_or(*end);
            let before = of_log(&self.written[..count]).last().copied();
            self.mark.begin[log] = before.filter(|_| rng.one_in(2)).unwrap_or(needed);
        }
        self.logs.trim(&self.mark.begin);
        self.written.drain(..count);
        self.durable -= count;
    }

    /// Continues with `image`, or, without one, with the current files (a process crash). Returns
    /// how many records were found.
    fn recover(&mut self, image: Option<&BTreeMap<String, Vec<u8>>>, rng: &mut Rng) -> usize {
        let appended = self.held.take().unwrap_or(self.written.len());
        let at_least = if image.is_some() { self.durable } else { appended };
        if let Some(files) = image {
            self.sim = SimDirectory::from_files(files);
            self.dir = Arc::new(self.sim.clone());
        }
        // The superblock may know how far the logs are durable.
        if rng.one_in(3) {
            self.mark.durable = self.logs.synced();
        }
        let (records, starts, writer) =
            replay_from(&self.dir, &self.options, &self.mark, LogMode::ReadWrite).unwrap();
        assert!(records.len() >= at_least, "{} of {at_least} records", records.len());
        assert!(records.len() <= appended, "{} of {appended} records", records.len());
        for (found, written) in records.iter().zip(&self.written) {
            assert!(*found == written.bytes[FIRST_SEQNO_BYTES..]);
        }
        self.written.truncate(records.len());
        // Replayed records are durable now.
        self.durable = records.len();
        self.next = self.written.last().map_or(self.mark.seqno, |last| last.numbers.last()).next();
        self.logs = writer.unwrap();
        if rng.one_in(2) && !starts.is_empty() {
            self.begin_at(usize::try_from(rng.below(starts.len() as u64)).unwrap(), &starts);
        }
        records.len()
    }

    /// Lets later recoveries begin where replay met the record `first`, as a checkpoint does that
    /// covers those before.
    fn begin_at(&mut self, first: usize, starts: &[PerLog<LogPosition>]) {
        self.mark.begin = starts[first];
        self.mark.seqno = SeqNo(self.written[first].numbers.first.0 - 1);
        self.mark.durable = self.logs.synced();
        self.logs.trim(&self.mark.begin);
        self.written.drain(..first);
        self.durable -= first;
    }

    fn crash(&mut self, rng: &mut Rng) {
        let image = self.sim.crash_image(rng);
        // A read-only recovery gives the same records.
        let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image.clone()));
        let read = replay(&dir, &self.options, &self.mark, LogMode::ReadOnly).unwrap().0.len();
        assert_eq!(self.recover(Some(&image), rng), read);
    }
}

type Payloads = Vec<Vec<u8>>;

/// Recovers, and collects the replayed payloads.
fn replay(
    dir: &Arc<dyn Directory>,
    options: &LogOptions,
    mark: &LogMark,
    mode: LogMode,
) -> Result<(Payloads, Option<Logs>)> {
    replay_from(dir, options, mark, mode).map(|(records, _, logs)| (records, logs))
}

/// The same, with where a replay of each record and those after it begins.
fn replay_from(
    dir: &Arc<dyn Directory>,
    options: &LogOptions,
    mark: &LogMark,
    mode: LogMode,
) -> Result<(Payloads, Vec<PerLog<LogPosition>>, Option<Logs>)> {
    let (mut records, mut starts) = (Vec::new(), Vec::new());
    let recovered = Logs::recover(dir, options, mark, mode, &mut |record: Replayed<'_>| {
        records.push(record.payload.to_vec());
        starts.push(record.starts.positions());
        Ok(Replay::Continue)
    })?;
    Ok((records, starts, recovered.writer.map(|(_, logs)| logs)))
}

#[test]
fn power_cuts_and_crashes_leave_a_prefix_over_all_logs_with_everything_synced() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let sizes = [(8 << 10, 8 << 10), (8 << 10, 128 << 10), (16 << 10, 1 << 20)];
        let (first, max) = sizes[usize::try_from(seed % 3).unwrap()];
        let count = [2, 3, 16][usize::try_from(seed / 3 % 3).unwrap()];
        let mut world = World::new(options(first, max), count);
        for _ in 0..5 {
            for _ in 0..rng.below(80) {
                world.step(&mut rng);
            }
            world.crash(&mut rng);
            // Sometimes once more before anything is written.
            while rng.one_in(3) {
                world.crash(&mut rng);
            }
        }
        let stats = world.logs.stats();
        assert!(stats.segments_live < 100 * count, "seed {seed}: {stats:?}");
    }
}

/// Two logs with the seqnos 1 to 6 in turns, all of them synced if so wanted.
fn in_turns(is_synced: bool) -> World {
    let mut world = World::new(small(), 2);
    let mut rng = Rng::new(9);
    for number in 0..6 {
        let numbers = Numbers { first: world.next, count: 1 };
        world.next = world.next.next();
        let bytes = numbered(numbers, &payload(number, 300));
        let log = usize::try_from(number % 2).unwrap();
        let start = world.logs.lock_tails()[log].as_ref().unwrap().position();
        world.written.push(Written { log, start, numbers, bytes });
        world.append_placed(world.written.len() - 1);
    }
    if is_synced {
        world.sync();
        // As an idle database does: the next blocks say how far the logs are durable.
        world.logs.seal_blocks().unwrap();
    }
    world.sim.write_back(&mut rng);
    world
}

/// Flips a byte in the record `index`.
fn damage(files: &mut BTreeMap<String, Vec<u8>>, written: &Written) {
    let name = if written.log == 0 { "log-0000" } else { "log-01-0000" };
    let at = BLOCK_BYTES + usize::try_from(written.start.lsn.0).unwrap() + 200;
    files.get_mut(name).unwrap()[at] ^= 1;
}

#[test]
fn what_is_cut_behind_a_gap_stays_cut_when_its_seqnos_are_used_again() {
    let world = in_turns(false);
    let mut files = world.sim.files_now();
    // Seqno 4 is torn; 5 and 6 are intact, in either log.
    damage(&mut files, &world.written[3]);
    let memory = MemoryDirectory::from_files(files);
    let mut taken = 0;
    let mut take = |_: ReadBack<'_>| {
        taken += 1;
        Ok(())
    };
    Logs::salvage(&memory, SALT, &world.mark, &mut take).unwrap();
    assert_eq!(taken, 3, "a salvage ends at the gap too");
    let dir: Arc<dyn Directory> = Arc::new(memory);
    let (records, logs) = replay(&dir, &world.options, &world.mark, LogMode::ReadWrite).unwrap();
    assert_eq!(records.len(), 3);
    {
        let logs = logs.unwrap();
        let bytes = numbered(Numbers { first: SeqNo(4), count: 1 }, b"anew");
        let mut tails = logs.lock_tails();
        let tail = tails[0].as_mut().unwrap();
        let hash = tail.payload_hash(&bytes);
        tail.append(&bytes, hash).unwrap();
    }
    let (records, _) = replay(&dir, &world.options, &world.mark, LogMode::ReadOnly).unwrap();
    assert_eq!((records.len(), &records[3][..]), (4, &b"\x01anew"[..]));
}

#[test]
fn a_salvage_ends_all_logs_at_a_record_that_is_refused() {
    let world = in_turns(false);
    let memory = MemoryDirectory::from_files(world.sim.files_now());
    let mut calls = 0;
    // As of a record whose large value the crash lost.
    let mut take = |_: ReadBack<'_>| {
        calls += 1;
        if calls == 3 { Err(Error::corrupt("the test wants it")) } else { Ok(()) }
    };
    Logs::salvage(&memory, SALT, &world.mark, &mut take).unwrap();
    assert_eq!(calls, 3, "later records of other logs were taken");
}

#[test]
fn damage_of_a_synced_record_is_no_torn_end_in_whichever_log_it_is() {
    let world = in_turns(true);
    for index in 0..world.written.len() {
        let mut files = world.sim.files_now();
        damage(&mut files, &world.written[index]);
        let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(files));
        let found = replay(&dir, &world.options, &world.mark, LogMode::ReadWrite);
        let error = found.err().expect("durable records are missing");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{index}: {error}");
    }
}

#[test]
fn a_log_of_another_number_is_not_taken_for_one() {
    let world = in_turns(true);
    let mut files = world.sim.files_now();
    let other = files["log-01-0000"].clone();
    files.insert("log-0000".to_owned(), other);
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(files));
    let found = replay(&dir, &world.options, &world.mark, LogMode::ReadOnly);
    assert_eq!(found.err().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn verification_reads_every_log_and_salvage_takes_records_in_their_order() {
    let world = in_turns(true);
    let mut files = world.sim.files_now();
    damage(&mut files, &world.written[1]);
    let dir = MemoryDirectory::from_files(files);
    let mut seqnos = Vec::new();
    let mut check = |record: ReadBack<'_>| {
        assert!(record.seqnos_known && record.is_durable);
        seqnos.push(record.numbers.unwrap().first.0);
        Ok(())
    };
    let begin = &world.mark.begin;
    let found = Logs::verify(&dir, SALT, begin, &world.logs.written(), &mut check).unwrap();
    assert_eq!(found.damage.len(), 1, "{:?}", found.damage);
    assert_eq!(found.damage[0].file(), Some("log-01-0000"));
    // Nothing in the damaged block can be read behind the damage.
    assert_eq!(std::mem::take(&mut seqnos), [1, 3, 5]);
    let mark = LogMark { durable: world.logs.synced(), ..world.mark };
    let mut check = |record: ReadBack<'_>| {
        seqnos.push(record.numbers.unwrap().first.0);
        Ok(())
    };
    Logs::salvage(&dir, SALT, &mark, &mut check).unwrap();
    assert_eq!(std::mem::take(&mut seqnos), [1, 3, 5]);
    let dir = MemoryDirectory::from_files(world.sim.files_now());
    let mut check = |record: ReadBack<'_>| {
        seqnos.push(record.numbers.unwrap().first.0);
        Ok(())
    };
    Logs::salvage(&dir, SALT, &mark, &mut check).unwrap();
    assert_eq!(seqnos, [1, 2, 3, 4, 5, 6]);
}

mod gaps;
