//! Records whose writes fail with `NoSpace`, followed by power failures and process crashes at
//! every call: refused records are never replayed, and nothing else is lost.

use super::*;
use crate::base::error::ErrorKind;
use crate::storage::io::crash::{CrashDirectory, Survivors};
use crate::storage::io::fault::{Call, Failure, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use std::collections::BTreeMap;

/// An accepted record.
struct Accepted {
    payload: Vec<u8>,
    end: LogPosition,
    /// The boundaries when its append began and when it returned.
    during: (usize, usize),
}

/// Parameters of a recovery from a boundary on.
struct Begin {
    boundary: usize,
    from: LogPosition,
    /// Number of records before `from`.
    trimmed: usize,
    /// Number of durable records.
    durable: usize,
    synced: Lsn,
}

struct World {
    crash: CrashDirectory,
    plan: FaultPlan,
    options: LogOptions,
    tail: LogTail,
    log: Arc<Log>,
    accepted: Vec<Accepted>,
    begins: Vec<Begin>,
    refusals: u64,
    next: u64,
}

impl World {
    fn new(mapped: bool, options: LogOptions) -> Self {
        let crash = CrashDirectory::new();
        let crash = if mapped { crash } else { crash.without_mapping() };
        let plan = FaultPlan::new();
        let dir = FaultDirectory::new(Arc::new(crash.clone()), plan.clone()).unwrap();
        let dir: Arc<dyn Directory> = Arc::new(dir);
        let (tail, log) = create(&dir, &options);
        let (boundary, from, synced) = (crash.boundary(), LogPosition::START, Lsn(0));
        let begins = vec![Begin { boundary, from, trimmed: 0, durable: 0, synced }];
        let (accepted, refusals, next) = (Vec::new(), 0, 1);
        Self { crash, plan, options, tail, log, accepted, begins, refusals, next }
    }

    /// The log that a crash left as `image`, opened on a device without any space.
    fn without_segment(image: &BTreeMap<String, Vec<u8>>, options: LogOptions) -> Self {
        let crash = CrashDirectory::from_files(image);
        let plan = FaultPlan::new();
        let dir = FaultDirectory::new(Arc::new(crash.clone()), plan.clone()).unwrap();
        plan.set_capacity(Some(0));
        let dir: Arc<dyn Directory> = Arc::new(dir);
        let from = LogPosition::START;
        let recovered = recover(&dir, &options, from, Lsn(0), LogMode::ReadWrite);
        let (records, recovered) = recovered.unwrap();
        let (tail, log) = recovered.writer.unwrap();
        let accept = |(_, payload)| Accepted { payload, end: tail.position(), during: (0, 0) };
        let accepted: Vec<_> = records.into_iter().map(accept).collect();
        let durable = accepted.len();
        let begins = vec![Begin { boundary: 0, from, trimmed: 0, durable, synced: Lsn(0) }];
        let next = 1 << 32;
        Self { crash, plan, options, tail, log, accepted, begins, refusals: 0, next }
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(20) {
            0..13 => self.append(rng),
            13..15 => self.sync(rng.one_in(3)),
            15 if rng.one_in(2) => self.tail.leave_block(),
            15 => drop(self.tail.seal_block()),
            16..18 => drop(self.log.prepare_next()),
            18 => self.log.release_idle(),
            _ => self.sync(true),
        }
        self.plan.heal();
        assert!(self.log.check_running().is_ok());
    }

    /// Appends a record; at most one of its calls fails with `NoSpace`, or all from some call on.
    fn append(&mut self, rng: &mut Rng) {
        let calls = [Call::RegionWrite, Call::RegionWrite, Call::Write, Call::Allocate, Call::Sync];
        if rng.one_in(2) {
            let call = calls[usize::try_from(rng.below(5)).unwrap()];
            let after = rng.below(if call == Call::RegionWrite { 6 } else { 2 });
            let fault = if rng.one_in(3) { Fault::sticky } else { Fault::once };
            let half = if rng.one_in(2) { Failure::NoSpace } else { Failure::NoSpaceHalfDone };
            self.plan.fail(fault(call, after).on("log-").with(half));
        }
        let mut payload = payload(self.next, random_bytes(rng));
        // The missing half of a half-done write must not be zeros, as in new blocks.
        payload.extend([0xff; 2]);
        self.next += 1;
        let (began, before) = (self.crash.boundary(), self.tail.position());
        match append(&mut self.tail, &self.log, &payload) {
            Ok(end) => {
                let during = (began, self.crash.boundary());
                self.accepted.push(Accepted { payload, end, during });
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                assert_eq!(self.tail.position().chain, before.chain);
                self.refusals += 1;
            }
        }
    }

    /// Syncs; then recovery may begin after everything that is durable.
    fn sync(&mut self, trims: bool) {
        let (written, is_sparse) = (self.log.written(), !self.next.is_multiple_of(3));
        let tail = &mut self.tail;
        let leave = || {
            if is_sparse {
                tail.leave_block();
            }
            Ok(())
        };
        self.log.sync_through_after(written, leave).unwrap();
        let before = self.begins.last().unwrap();
        let (mut from, mut trimmed) = (before.from, before.trimmed);
        let durable = self.accepted.len();
        if trims {
            // A checkpoint may name either: the end of a record, or that of the tail.
            trimmed = durable;
            from = match self.accepted.last() {
                Some(last) if durable.is_multiple_of(2) => last.end,
                _ => self.tail.position(),
            };
        }
        let (boundary, synced) = (self.crash.boundary(), self.log.synced());
        self.begins.push(Begin { boundary, from, trimmed, durable, synced });
        if trims {
            self.log.trim(from);
        }
    }

    /// Recovers an image, writes one more record, and recovers again.
    fn check(&self, image: BTreeMap<String, Vec<u8>>, at: usize, dies: bool, what: &str) {
        let begin = self.begins.iter().rev().find(|begin| begin.boundary <= at).unwrap();
        let (from, durable) = (begin.from, begin.synced);
        let plan = FaultPlan::new();
        let memory = Arc::new(MemoryDirectory::from_files(image));
        let dir = FaultDirectory::new(memory, plan.clone()).unwrap();
        let dir: Arc<dyn Directory> = Arc::new(dir);
        let returned = self.accepted.iter().filter(|one| one.during.1 <= at).count();
        let most = self.accepted.iter().filter(|one| one.during.0 < at).count();
        let least = if dies { returned } else { begin.durable };
        let expect = |records: &[Vec<u8>]| {
            let count = begin.trimmed + records.len();
            assert!((least..=most).contains(&count), "{what}: {count} of {least} to {most}");
            let there = self.accepted[begin.trimmed..].iter().map(|one| &one.payload);
            assert!(there.zip(records).all(|(one, other)| one == other), "{what}");
        };
        let begin = |what: &str| {
            let recovered = recover(&dir, &self.options, from, durable, LogMode::ReadWrite);
            let (records, recovered) = recovered.unwrap_or_else(|error| panic!("{what}: {error}"));
            let records = payloads(records);
            expect(&records);
            (records, recovered.writer.unwrap())
        };
        // Somebody else has all space, and some of what a recovery gives back.
        for _ in 0..2 {
            plan.set_capacity(Some(plan.taken_bytes()));
            let _writer = begin(&format!("{what}, full"));
        }
        let (records, (mut tail, log)) = begin(what);
        if let Err(error) = append(&mut tail, &log, &[0xee; 40_000]) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}: {error}");
        }
        plan.set_capacity(None);
        append(&mut tail, &log, b"behind it").unwrap();
        log.sync_through(log.written()).unwrap();
        let again = recover(&dir, &self.options, from, log.synced(), LogMode::ReadOnly);
        let mut again = payloads(again.unwrap_or_else(|error| panic!("{what}: {error}")).0);
        again.retain(|payload| *payload != [0xee; 40_000]);
        assert_eq!(again.pop().unwrap(), b"behind it", "{what}");
        assert_eq!(again, records, "{what}");
    }
}

#[test]
fn what_was_refused_is_never_replayed_and_nothing_else_is_lost() {
    let mut refusals = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let sizes = [(8 << 10, 8 << 10), (8 << 10, 32 << 10), (16 << 10, 256 << 10)];
        let (first, max) = sizes[usize::try_from(seed % 3).unwrap()];
        let mut world = World::new(rng.one_in(2), options(first, max));
        let first = world.crash.boundary();
        (0..25).for_each(|_| world.step(&mut rng));
        refusals += world.refusals;
        let journal = world.crash.journal();
        for boundary in first..=journal.boundaries() {
            let what = format!("seed {seed}, {boundary} ({})", journal.describe(boundary));
            world.check(journal.image_process_death(boundary), boundary, true, &what);
            let some = Survivors::Subset(rng.next_u64());
            for survivors in [Survivors::None, Survivors::All, some] {
                let what = format!("{what} with {survivors:?}");
                world.check(journal.image(boundary, survivors), boundary, false, &what);
            }
        }
    }
    assert!(refusals > 50, "{refusals}");
}

#[test]
fn a_log_without_a_segment_goes_on_in_the_first_one_that_it_finds_space_for() {
    let mut refusals = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let sizes = [(8 << 10, 8 << 10), (8 << 10, 32 << 10), (16 << 10, 256 << 10)];
        let (first, max) = sizes[usize::try_from(seed % 3).unwrap()];
        let mut before = World::new(rng.one_in(2), options(first, max));
        (0..rng.below(12)).for_each(|_| before.step(&mut rng));
        let at = before.crash.boundary();
        let image = match rng.below(3) {
            0 => before.crash.journal().image_process_death(at),
            _ => before.crash.journal().image(at, Survivors::Subset(rng.next_u64())),
        };
        if before.begins.last().unwrap().trimmed > 0 {
            continue;
        }
        let mut world = World::without_segment(&image, options(first, max));
        for step in 0..25 {
            if step == 8 {
                world.plan.set_capacity(Some(world.plan.taken_bytes() + (rng.below(64) << 10)));
            } else if step == 16 {
                world.plan.set_capacity(None);
            }
            world.step(&mut rng);
        }
        refusals += world.refusals;
        let journal = world.crash.journal();
        for boundary in 1..=journal.boundaries() {
            let what = format!("seed {seed}, {boundary} ({})", journal.describe(boundary));
            world.check(journal.image_process_death(boundary), boundary, true, &what);
            let some = Survivors::Subset(rng.next_u64());
            for survivors in [Survivors::None, Survivors::All, some] {
                let what = format!("{what} with {survivors:?}");
                world.check(journal.image(boundary, survivors), boundary, false, &what);
            }
        }
    }
    assert!(refusals > 50, "{refusals}");
}

#[test]
fn a_record_refused_behind_a_block_that_was_left_hides_nothing() {
    let mut world = World::new(false, small());
    append(&mut world.tail, &world.log, b"one").unwrap();
    // As a sync of a sparse log does.
    let leave = || {
        world.tail.leave_block();
        Ok(())
    };
    world.log.sync_through_after(world.log.written(), leave).unwrap();
    world.plan.fail(Fault::once(Call::RegionWrite, 0).on("log-").with(Failure::NoSpace));
    let refused = append(&mut world.tail, &world.log, b"refused").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    world.plan.heal();
    for payload in [b"two".as_slice(), b"three"] {
        append(&mut world.tail, &world.log, payload).unwrap();
        world.log.sync_through(world.log.written()).unwrap();
    }
    let journal = world.crash.journal();
    let image = journal.image(journal.boundaries(), Survivors::All);
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(image));
    for durable in [Lsn(0), world.log.synced()] {
        let found = recover(&dir, &world.options, LogPosition::START, durable, LogMode::ReadOnly);
        assert_eq!(payloads(found.unwrap().0), [&b"one"[..], b"two", b"three"]);
    }
}
