//! The pipeline over a log in a vector and entries that record what happens to them.

use super::*;
use crate::base::error::ErrorKind;
use crate::base::logs::PerLog;
use crate::log::{FIRST_SEQNO_BYTES, Numbers};
use crate::state::core::CommitTotals;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A log in memory, which may fail its next append.
#[derive(Default)]
struct MemoryTail {
    records: Vec<Vec<u8>>,
    bytes: u64,
    failure: Option<ErrorKind>,
    is_full: bool,
    /// An append may fail for lack of space although it was made.
    writes_anew: bool,
}

impl Tail for MemoryTail {
    fn position(&self) -> LogPosition {
        LogPosition { lsn: Lsn(self.bytes), chain: 0 }
    }

    fn append(&mut self, record: &[u8], hash: u64) -> Result<LogPosition> {
        if let Some(kind) = self.failure.take() {
            return Err(Error::new(kind, "the test wants it"));
        }
        assert_eq!(hash, record.len() as u64);
        self.records.push(record.to_vec());
        self.bytes += record.len() as u64;
        Ok(self.position())
    }

    fn hash(&self, record: &[u8]) -> u64 {
        record.len() as u64
    }

    fn make_space(&mut self, _: usize) -> Result<()> {
        if self.is_full { Err(Error::new(ErrorKind::NoSpace, "the test wants it")) } else { Ok(()) }
    }

    fn is_space_sure(&self) -> bool {
        !self.writes_anew
    }

    fn stop(&self, error: Error) -> Error {
        error.not_transient()
    }
}

/// Some entries; what happened to them, in order.
struct Recorded {
    count: usize,
    /// The log that it goes to.
    log: usize,
    record: Vec<u8>,
    refusal: Option<ErrorKind>,
    panics: bool,
    steps: Vec<&'static str>,
    /// The start of the record, the first and the last seqno.
    place: Option<(LogPosition, SeqNo, SeqNo)>,
}

impl Recorded {
    fn new(count: usize) -> Self {
        // It begins with the number of entries, after space for the first seqno.
        let mut record = vec![7; 10 * count];
        record[FIRST_SEQNO_BYTES] = u8::try_from(count).unwrap();
        let (refusal, panics, steps, place) = (None, false, Vec::new(), None);
        Self { count, log: 0, record, refusal, panics, steps, place }
    }
}

impl Entries for Recorded {
    fn count(&self) -> usize {
        self.count
    }

    fn bytes(&self) -> u64 {
        3 * self.count as u64
    }

    fn record(&self) -> (&[u8], u64) {
        (&self.record, self.record.len() as u64)
    }

    fn numbered(&mut self, first: SeqNo) -> &[u8] {
        self.steps.push("numbered");
        self.record.splice(..FIRST_SEQNO_BYTES, Numbers::front(first));
        &self.record
    }

    fn prepare(&mut self) -> Result<()> {
        self.steps.push("prepare");
        self.refusal.map_or(Ok(()), |kind| Err(Error::new(kind, "the test wants it")))
    }

    fn placed(&mut self, place: Place<'_>) {
        self.steps.push("placed");
        let starts = place.starts.positions();
        self.place = Some((starts[self.log], place.first, place.last));
    }

    fn apply(&mut self) {
        self.steps.push("apply");
        assert!(!self.panics, "the test wants it");
    }
}

/// Logs of a pipeline whose threads have logs of their own.
const LOGS: usize = 3;

/// Everything that a pipeline works on.
struct World {
    order: Mutex<CommitState<MemoryTail>>,
    own: [Mutex<Option<MemoryTail>>; LOGS],
    visibility: Visibility<64>,
    health: Health,
}

impl World {
    fn new() -> Self {
        let order = CommitState {
            next_seqno: SeqNo(5),
            next_ticket: 0,
            totals: CommitTotals::default(),
            tail: Some(MemoryTail::default()),
            opened_ends: PerLog::default(),
            starts: PerLog::all(LogPosition::START, LOGS),
        };
        let health = Health::new(None).unwrap();
        let own = std::array::from_fn(|_| Mutex::new(Some(MemoryTail::default())));
        Self { order: Mutex::new(order), own, visibility: Visibility::new(SeqNo(4)), health }
    }

    /// Commits to the log of the entries.
    fn commit_to_own(&self, entries: &mut Recorded) -> Result<SeqNo> {
        let Self { order, own, visibility, health } = self;
        let number = entries.log;
        Pipeline { order, visibility, health }.commit_to((number, own[number].lock()), entries)
    }

    /// Changes the tail of a log.
    fn with_own(&self, number: usize, change: impl FnOnce(&mut MemoryTail)) {
        change(self.own[number].lock().as_mut().unwrap());
    }

    /// The seqnos in the records of a log, in order.
    fn numbers_in(&self, number: usize) -> Vec<Numbers> {
        let own = self.own[number].lock();
        let records = own.as_ref().unwrap().records.iter();
        records.map(|record| Numbers::split(record).unwrap().0).collect()
    }

    fn commit(&self, entries: &mut Recorded) -> Result<Lsn> {
        let Self { order, visibility, health, .. } = self;
        Pipeline { order, visibility, health }.commit(entries)
    }

    /// The next seqno, the next ticket and the number of records.
    fn numbers(&self) -> (u64, u64, usize) {
        let order = self.order.lock();
        let records = order.tail.as_ref().map_or(0, |tail| tail.records.len());
        (order.next_seqno.0, order.next_ticket, records)
    }

    fn fail_next(&self, kind: ErrorKind) {
        self.order.lock().tail.as_mut().unwrap().failure = Some(kind);
    }
}

#[test]
fn a_commit_goes_through_its_steps_in_order_and_is_visible_at_the_end() {
    let world = World::new();
    let mut entries = Recorded::new(3);
    assert_eq!(world.commit(&mut entries).unwrap(), Lsn(30));
    assert_eq!(entries.steps, ["prepare", "placed", "apply"]);
    assert_eq!(entries.place, Some((LogPosition::START, SeqNo(5), SeqNo(7))));
    assert_eq!((world.visibility.visible(), world.numbers()), (SeqNo(7), (8, 1, 1)));
    let totals = world.order.lock().totals;
    assert_eq!((totals.commits, totals.entries, totals.user_bytes), (1, 3, 9));
}

#[test]
fn seqnos_are_consecutive_in_the_order_of_the_log_whoever_commits() {
    const THREADS: usize = 4;
    const COMMITS: usize = 300;
    let world = World::new();
    let places = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, places) = (&world, &places);
            scope.spawn(move || {
                for number in 0..COMMITS {
                    let mut entries = Recorded::new(1 + (thread + number) % 3);
                    world.commit(&mut entries).unwrap();
                    let place = entries.place.unwrap();
                    // Acknowledged means visible.
                    assert!(world.visibility.visible() >= place.2);
                    places.lock().push(place);
                }
            });
        }
    });
    let mut places = places.into_inner();
    places.sort_by_key(|(start, ..)| start.lsn);
    let mut next = SeqNo(5);
    for (_, first, last) in &places {
        assert_eq!(*first, next);
        next = last.next();
    }
    assert_eq!(places.len(), THREADS * COMMITS);
    assert_eq!(world.numbers(), (next.0, places.len() as u64, places.len()));
}

#[test]
fn a_refusal_changes_nothing_and_the_commit_can_be_repeated() {
    let world = World::new();
    let mut entries = Recorded::new(2);
    entries.refusal = Some(ErrorKind::NotFound);
    assert_eq!(world.commit(&mut entries).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!((world.numbers(), &entries.steps[..]), ((5, 0, 0), &["prepare"][..]));
    entries.refusal = None;
    world.fail_next(ErrorKind::NoSpace);
    assert_eq!(world.commit(&mut entries).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!((world.numbers(), entries.place), ((5, 0, 0), None));
    world.health.check_write().unwrap();
    world.commit(&mut entries).unwrap();
    assert_eq!((world.visibility.visible(), world.numbers()), (SeqNo(6), (7, 1, 1)));
}

#[test]
fn a_log_that_fails_stops_all_writes() {
    let world = World::new();
    world.fail_next(ErrorKind::Io);
    let mut entries = Recorded::new(1);
    assert_eq!(world.commit(&mut entries).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(world.health.check_write().unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!((world.numbers(), entries.place), ((5, 0, 0), None));
}

#[test]
fn after_a_panic_between_the_log_and_the_end_later_commits_fail_instead_of_waiting() {
    let world = World::new();
    let mut aborted = Recorded::new(1);
    aborted.panics = true;
    assert!(catch_unwind(AssertUnwindSafe(|| world.commit(&mut aborted))).is_err());
    assert_eq!(world.health.check_write().unwrap_err().kind(), ErrorKind::Stopped);
    // A commit that passed the check before.
    let later = world.commit(&mut Recorded::new(1));
    assert_eq!(later.unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(world.visibility.visible(), SeqNo(4));
}

#[test]
fn a_closed_database_takes_no_commit() {
    let world = World::new();
    world.order.lock().tail = None;
    let mut entries = Recorded::new(1);
    assert_eq!(world.commit(&mut entries).unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!((world.numbers(), entries.place), ((5, 0, 0), None));
}

#[test]
fn seqnos_ascend_in_each_log_and_leave_no_gap_over_all_of_them() {
    const THREADS: usize = 6;
    const COMMITS: usize = 200;
    let world = World::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let world = &world;
            scope.spawn(move || {
                for number in 0..COMMITS {
                    let mut entries = Recorded::new(2 + (thread + number) % 3);
                    entries.log = thread % LOGS;
                    let last = world.commit_to_own(&mut entries).unwrap();
                    assert!(world.visibility.visible() >= last);
                    let (_, first, placed_last) = entries.place.unwrap();
                    assert_eq!((placed_last, entries.count as u64), (last, last.0 - first.0 + 1));
                }
            });
        }
    });
    let mut all = Vec::new();
    for number in 0..LOGS {
        let numbers = world.numbers_in(number);
        assert!(numbers.is_sorted_by_key(|numbers| numbers.first), "log {number}");
        all.extend(numbers);
    }
    all.sort_by_key(|numbers| numbers.first);
    let mut next = SeqNo(5);
    for numbers in &all {
        assert_eq!(numbers.first, next);
        next = numbers.last().next();
    }
    assert_eq!(all.len(), THREADS * COMMITS);
    assert_eq!(world.numbers(), (next.0, all.len() as u64, 0));
}

#[test]
fn where_a_reader_begins_is_never_after_a_record_with_a_later_seqno() {
    let world = World::new();
    let commit = |log| {
        let mut entries = Recorded::new(2);
        entries.log = log;
        world.commit_to_own(&mut entries).unwrap();
        world.order.lock().starts.map(|start| start.lsn.0)
    };
    assert_eq!(commit(1)[..], [0, 0, 0]);
    assert_eq!(commit(1)[..], [0, 20, 0]);
    assert_eq!(commit(2)[..], [0, 20, 0]);
    assert_eq!(commit(0)[..], [0, 20, 0]);
    assert_eq!(commit(2)[..], [0, 20, 20]);
}

#[test]
fn a_lack_of_space_takes_no_seqno_wherever_it_is_found() {
    let world = World::new();
    let mut entries = Recorded::new(2);
    world.with_own(0, |tail| tail.is_full = true);
    assert_eq!(world.commit_to_own(&mut entries).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(entries.steps.is_empty());
    world.with_own(0, |tail| {
        (tail.is_full, tail.writes_anew) = (false, true);
        tail.failure = Some(ErrorKind::NoSpace);
    });
    assert_eq!(world.commit_to_own(&mut entries).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!((world.numbers(), &entries.steps[..]), ((5, 0, 0), &["prepare", "numbered"][..]));
    entries.steps.clear();
    world.commit_to_own(&mut entries).unwrap();
    assert_eq!(entries.steps, ["prepare", "numbered", "placed", "apply"]);
    world.with_own(0, |tail| tail.writes_anew = false);
    entries.steps.clear();
    world.commit_to_own(&mut entries).unwrap();
    assert_eq!(entries.steps, ["prepare", "placed", "numbered", "apply"]);
    assert_eq!(world.numbers_in(0).iter().map(|one| one.first.0).collect::<Vec<_>>(), [5, 7]);
}

#[test]
fn a_record_that_does_not_follow_its_seqno_stops_all_writes() {
    let world = World::new();
    // Even a lack of space, which cannot happen where space is sure.
    world.with_own(1, |tail| tail.failure = Some(ErrorKind::NoSpace));
    let mut entries = Recorded::new(2);
    entries.log = 1;
    assert!(!world.commit_to_own(&mut entries).unwrap_err().is_transient());
    assert_eq!(world.health.check_write().unwrap_err().kind(), ErrorKind::Stopped);
    let later = world.commit_to_own(&mut Recorded::new(2));
    assert_eq!(later.unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(world.visibility.visible(), SeqNo(4));
}
