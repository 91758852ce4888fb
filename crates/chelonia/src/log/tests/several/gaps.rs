//! Writes that one of several logs lacks: what counts as durable, and what a salvage says.

use super::*;
use crate::storage::io::crash::{CrashDirectory, Survivors};
use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
use std::thread;

/// A record of one entry.
fn one(first: u64, payload: &[u8]) -> Vec<u8> {
    numbered(Numbers { first: SeqNo(first), count: 1 }, payload)
}

fn put(tail: &mut LogTail, bytes: &[u8]) -> crate::base::error::Result<LogPosition> {
    tail.make_space(bytes.len())?;
    let hash = tail.payload_hash(bytes);
    tail.append(bytes, hash)
}

/// The seqnos that a salvage takes, and the number of its findings. Those up to `durable` are known
/// to have been durable, whichever log says so.
fn salvaged(world: &World, files: BTreeMap<String, Vec<u8>>, durable: u64) -> (Vec<u64>, usize) {
    let memory = MemoryDirectory::from_files(files);
    let mut seqnos = Vec::new();
    let mut take = |record: ReadBack<'_>| {
        let seqno = record.numbers.unwrap().first.0;
        assert_eq!(record.is_durable, seqno <= durable, "write {seqno}");
        seqnos.push(seqno);
        Ok(())
    };
    let found = Logs::salvage(&memory, SALT, &world.mark, &mut take).unwrap();
    (seqnos, found.damage.len())
}

#[test]
fn no_log_counts_as_synced_before_all_are() {
    let plan = FaultPlan::new();
    let dir = FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan.clone()).unwrap();
    let dir: Arc<dyn Directory> = Arc::new(dir);
    let (_, logs) = Logs::create(&dir, &small(), 3).unwrap();
    let (before, count) = (logs.synced(), 3);
    for (number, tail) in (1..).zip(logs.lock_tails().iter_mut()) {
        let tail = tail.as_mut().unwrap();
        let bytes = numbered(Numbers { first: SeqNo(number), count: 1 }, b"new");
        let hash = tail.payload_hash(&bytes);
        tail.append(&bytes, hash).unwrap();
    }
    plan.fail(Fault::once(Call::Sync, count - 1));
    let last = SeqNo(count);
    assert!(logs.sync_several(last, || last, || Ok(())).is_err());
    // A root that is made now must not name the end of a log ahead of what another one lost.
    assert_eq!(logs.synced(), before);
}

/// A leader passes its check, and waits for the tail of a log that is stopped meanwhile, so that a
/// record which has its seqno is not in that log.
#[test]
fn records_behind_a_gap_do_not_count_as_synced() {
    let mut world = World::new(small(), 2);
    put(world.logs.lock_tails()[0].as_mut().unwrap(), &one(1, b"payload")).unwrap();
    let (sim, logs) = (world.sim.clone(), &world.logs);
    thread::scope(|scope| {
        let (mut first, mut second) = {
            let mut tails = logs.lock_tails().into_iter();
            (tails.next().unwrap(), tails.next().unwrap())
        };
        first.as_mut().unwrap().make_space(100).unwrap();
        put(second.as_mut().unwrap(), &one(3, b"payload")).unwrap();
        drop(second);
        let leader = scope.spawn(|| logs.sync_several(SeqNo::MAX, || SeqNo(3), || Ok(())));
        while !logs.is_syncing() {
            thread::yield_now();
        }
        sim.fail(super::super::sim::Call::Sync, 0);
        logs.first().prepare_next().unwrap_err();
        sim.heal();
        let refused = put(first.as_mut().unwrap(), &one(2, b"payload")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stopped);
        drop(first);
        assert_eq!(leader.join().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
    });
    // As a checkpoint does.
    world.mark.durable = world.logs.synced();
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(world.sim.files_now()));
    let found = replay(&dir, &world.options, &world.mark, LogMode::ReadWrite);
    assert_eq!(found.unwrap().0.len(), 1);
}

/// Log 1 is not known to be durable by its own blocks, but log 0 is, with later seqnos.
#[test]
fn a_salvage_reports_what_is_lost_of_a_log_that_another_one_shows_to_be_durable() {
    let mut world = in_turns(false);
    world.sync();
    world.logs.lock_tails()[0].as_mut().unwrap().seal_block().unwrap();
    world.sync();
    let mut files = world.sim.files_now();
    assert_eq!(salvaged(&world, files.clone(), 5), (vec![1, 2, 3, 4, 5, 6], 0));
    damage(&mut files, &world.written[1]);
    let (seqnos, findings) = salvaged(&world, files, 5);
    assert_eq!(seqnos, [1, 3, 5]);
    assert!(findings > 0, "a durable record is lost and not reported");
}

/// The gap is in log 1, the next record in log 2; those of log 0 behind it are known to be durable.
#[test]
fn a_salvage_takes_all_durable_records_of_all_logs() {
    let mut world = World::new(small(), 3);
    for number in 0..9_u64 {
        let numbers = Numbers { first: world.next, count: 1 };
        world.next = world.next.next();
        let bytes = numbered(numbers, &payload(number, 300));
        let log = usize::try_from(number % 3).unwrap();
        let start = world.logs.lock_tails()[log].as_ref().unwrap().position();
        world.written.push(Written { log, start, numbers, bytes });
        world.append_placed(world.written.len() - 1);
    }
    world.sync();
    world.logs.lock_tails()[0].as_mut().unwrap().seal_block().unwrap();
    world.sync();
    let mut files = world.sim.files_now();
    damage(&mut files, &world.written[1]);
    let (seqnos, findings) = salvaged(&world, files, 7);
    assert_eq!(seqnos, [1, 3, 4, 6, 7]);
    assert!(findings > 0);
}

/// The unwritten rest of a refused record is zeros, as it is on the device; its seqno is used again
/// in another log.
#[test]
fn a_refused_record_is_not_there_when_its_seqno_is_used_in_another_log() {
    for (refused_in, accepted_in) in [(1, 0), (0, 1)] {
        for after in 0..6 {
            let crash = CrashDirectory::new().without_mapping();
            let plan = FaultPlan::new();
            let dir = FaultDirectory::new(Arc::new(crash.clone()), plan.clone()).unwrap();
            let dir: Arc<dyn Directory> = Arc::new(dir);
            let (_, logs) = Logs::create(&dir, &small(), 2).unwrap();
            let put = |log: usize, first: u64, payload: &[u8]| {
                put(logs.lock_tails()[log].as_mut().unwrap(), &one(first, payload))
            };
            put(0, 1, b"one").unwrap();
            let fault = Fault::once(Call::RegionWrite, after).on("log-");
            plan.fail(fault.with(Failure::NoSpace));
            let Err(refused) = put(refused_in, 2, &[0; 6000]) else { continue };
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
            plan.heal();
            put(accepted_in, 2, b"accepted").unwrap();
            logs.sync_several(SeqNo(2), || SeqNo(2), || Ok(())).unwrap();
            let journal = crash.journal();
            let image = journal.image(journal.boundaries(), Survivors::All);
            let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image));
            let found = replay(&dir, &small(), &LogMark::new(2), LogMode::ReadOnly);
            let (records, _) = found.unwrap();
            assert_eq!(records.len(), 2, "refused in {refused_in} after {after} writes");
            assert_eq!(records[1], b"\x01accepted");
        }
    }
}
