//! The pipeline over a log in a vector and entries that record what happens to them.

use super::*;
use crate::base::error::ErrorKind;
use crate::state::core::CommitTotals;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A log in memory, which may fail its next append.
#[derive(Default)]
struct MemoryTail {
    records: Vec<Vec<u8>>,
    bytes: u64,
    failure: Option<ErrorKind>,
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
}

/// Some entries; what happened to them, in order.
struct Recorded {
    count: usize,
    record: Vec<u8>,
    refusal: Option<ErrorKind>,
    panics: bool,
    steps: Vec<&'static str>,
    place: Option<Place>,
}

impl Recorded {
    fn new(count: usize) -> Self {
        let record = vec![7; 10 * count];
        Self { count, record, refusal: None, panics: false, steps: Vec::new(), place: None }
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

    fn prepare(&mut self) -> Result<()> {
        self.steps.push("prepare");
        self.refusal.map_or(Ok(()), |kind| Err(Error::new(kind, "the test wants it")))
    }

    fn placed(&mut self, place: Place) {
        self.steps.push("placed");
        self.place = Some(place);
    }

    fn apply(&mut self) {
        self.steps.push("apply");
        assert!(!self.panics, "the test wants it");
    }
}

/// Everything that a pipeline works on.
struct World {
    order: Mutex<CommitState<MemoryTail>>,
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
            opened_end: Lsn(0),
        };
        let health = Health::new(None).unwrap();
        Self { order: Mutex::new(order), visibility: Visibility::new(SeqNo(4)), health }
    }

    fn commit(&self, entries: &mut Recorded) -> Result<Lsn> {
        let Self { order, visibility, health } = self;
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
    let start = LogPosition { lsn: Lsn(0), chain: 0 };
    assert_eq!(entries.place, Some(Place { start, first: SeqNo(5), last: SeqNo(7) }));
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
                    assert!(world.visibility.visible() >= place.last);
                    places.lock().push(place);
                }
            });
        }
    });
    let mut places = places.into_inner();
    places.sort_by_key(|place| place.start.lsn);
    let mut next = SeqNo(5);
    for place in &places {
        assert_eq!(place.first, next);
        next = place.last.next();
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
