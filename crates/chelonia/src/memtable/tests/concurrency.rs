//! Many threads on one memtable: every read is checked against its expected result.
//!
//! The history is fixed before it runs: write number `s` goes to key `key_of(s)` with a value made
//! of `s`. Threads take the numbers in order and finish in any. So the expected result of a reader
//! at seqno `at` is known, whatever the schedule.

use super::*;
use crate::runtime::sync::{AtomicU64, Mutex, Ordering};

const WRITES: u64 = if cfg!(miri) { 300 } else { 120_000 };
const WRITERS: u64 = 3;

/// The writes of a history, by key.
struct History {
    keys: Vec<Vec<u8>>,
    /// For each key, the numbers of its writes, ascending.
    writes: Vec<Vec<u64>>,
    key_of: Vec<usize>,
}

impl History {
    fn new(seed: u64, keys: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut distinct = BTreeSet::new();
        while (distinct.len() as u64) < keys {
            let mut key = random_key(&mut rng);
            key.extend_from_slice(
                &rng.next_u64().to_be_bytes()[..usize::try_from(rng.below(4)).unwrap()],
            );
            distinct.insert(key);
        }
        let keys: Vec<_> = distinct.into_iter().collect();
        let mut writes = vec![Vec::new(); keys.len()];
        // Number 0 is not a write.
        let mut key_of = vec![usize::MAX];
        for seqno in 1..=WRITES {
            // A few keys are written all the time.
            let bound = if rng.one_in(3) { 4 } else { keys.len() as u64 };
            let key = usize::try_from(rng.below(bound)).unwrap();
            writes[key].push(seqno);
            key_of.push(key);
        }
        Self { keys, writes, key_of }
    }

    /// The newest write of a key at or before `at`.
    fn newest(&self, key: usize, at: u64) -> Option<u64> {
        let writes = &self.writes[key];
        writes[..writes.partition_point(|seqno| *seqno <= at)].last().copied()
    }
}

/// Finished writes and held snapshots: the state that a database keeps.
struct World {
    next: AtomicU64,
    visible: AtomicU64,
    done: Mutex<BTreeSet<u64>>,
    snapshots: Mutex<Vec<u64>>,
}

impl World {
    fn new() -> Self {
        Self {
            next: AtomicU64::new(1),
            visible: AtomicU64::new(0),
            done: Mutex::new(BTreeSet::new()),
            snapshots: Mutex::new(Vec::new()),
        }
    }

    fn finish(&self, seqno: u64) {
        let mut done = self.done.lock();
        done.insert(seqno);
        let mut visible = self.visible.load(Ordering::Relaxed);
        while done.remove(&(visible + 1)) {
            visible += 1;
        }
        self.visible.store(visible, Ordering::Release);
    }

    fn hold(&self) -> u64 {
        let mut snapshots = self.snapshots.lock();
        let at = self.visible.load(Ordering::Acquire);
        snapshots.push(at);
        at
    }

    fn release(&self, at: u64) {
        let mut snapshots = self.snapshots.lock();
        let place = snapshots.iter().position(|held| *held == at).unwrap();
        snapshots.swap_remove(place);
    }

    fn over(&self) -> bool {
        self.visible.load(Ordering::Acquire) == WRITES
    }
}

impl Pins for World {
    fn visible(&self) -> SeqNo {
        SeqNo(self.visible.load(Ordering::Acquire))
    }

    fn any_in(&self, from: SeqNo, to: SeqNo) -> bool {
        self.snapshots.lock().iter().any(|held| (from.0..to.0).contains(held))
    }
}

fn value_of(seqno: u64) -> Vec<u8> {
    let mut value = vec![0; usize::try_from(seqno % 50).unwrap()];
    Rng::new(seqno).fill(&mut value);
    value
}

fn write(history: &History, world: &World, table: &Memtable) {
    loop {
        let seqno = world.next.fetch_add(1, Ordering::Relaxed);
        if seqno > WRITES {
            return;
        }
        let key = &history.keys[history.key_of[usize::try_from(seqno).unwrap()]];
        table.insert(key, Update::Put(&value_of(seqno)), SeqNo(seqno), world);
        world.finish(seqno);
    }
}

fn check_found(history: &History, key: usize, at: u64, found: Lookup<'_>) {
    match (found, history.newest(key, at)) {
        (Lookup::Absent, None) => {}
        (Lookup::Found(update, seqno), Some(expected)) => {
            assert_eq!(seqno, SeqNo(expected));
            assert!(update == Update::Put(&value_of(expected)), "the bytes of that write");
        }
        (found, expected) => panic!("at {at}: {found:?} instead of {expected:?}"),
    }
}

/// Reads single keys at the newest visible seqno without holding it, until all writes are done.
fn read_newest(history: &History, world: &World, table: &Memtable, seed: u64) -> u64 {
    let (mut rng, mut pruned) = (Rng::new(seed), 0);
    while !world.over() {
        let bound = if rng.one_in(2) { 4 } else { history.keys.len() as u64 };
        let key = usize::try_from(rng.below(bound)).unwrap();
        loop {
            let at = world.visible().0;
            let found = table.get(&history.keys[key], SeqNo(at));
            if found != Lookup::Pruned {
                check_found(history, key, at, found);
                break;
            }
            // Only a write that has become visible since may have unlinked the requested version.
            assert!(world.visible().0 > at);
            pruned += 1;
        }
    }
    pruned
}

/// Holds snapshots and scans them in both directions, some of it twice, until all writes are done.
fn read_snapshots(history: &History, world: &World, table: &Arc<Memtable>, seed: u64) {
    let mut rng = Rng::new(seed);
    while !world.over() {
        let at = world.hold();
        let first = usize::try_from(rng.below(history.keys.len() as u64)).unwrap();
        let last = (first + 1 + usize::try_from(rng.below(300)).unwrap()).min(history.keys.len());
        let range =
            KeyRange::half_open(&history.keys[first], history.keys.get(last).map(Vec::as_slice));
        let mut expected: Vec<_> =
            (first..last).filter(|key| history.newest(*key, at).is_some()).collect();
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut cursor = table.cursor(range.clone(), direction, SeqNo(at)).unwrap();
            for key in &expected {
                assert!(cursor.key() == Some(history.keys[*key].as_slice()), "the key in turn");
                let newest = history.newest(*key, at).unwrap();
                assert!(cursor.update() == Update::Put(&value_of(newest)));
                cursor.advance().unwrap();
            }
            assert!(cursor.key().is_none());
            expected.reverse();
        }
        for key in 0..4 {
            check_found(history, key, at, table.get(&history.keys[key], SeqNo(at)));
        }
        world.release(at);
    }
}

#[test]
fn readers_find_what_they_must_while_writers_write() {
    for (seed, keys) in [(1, if cfg!(miri) { 40 } else { 30_000 }), (2, 500)] {
        let (history, world, table) =
            (History::new(seed, keys.min(2000)), World::new(), memtable());
        let (history, world) = (&history, &world);
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| write(history, world, &table));
            }
            scope.spawn(|| read_newest(history, world, &table, seed + 10));
            scope.spawn(|| read_snapshots(history, world, &table, seed + 20));
        });
        for key in 0..history.keys.len() {
            let found = table.get(&history.keys[key], SeqNo::MAX);
            check_found(history, key, WRITES, found);
        }
        let written = history.writes.iter().filter(|writes| !writes.is_empty()).count();
        assert_eq!(table.len_estimate(), written as u64);
        assert_eq!(table.sorted(&[]).batches[0].len(), written);
    }
}

#[test]
fn writers_that_meet_in_the_same_nodes_lose_nothing() {
    const THREADS: u64 = 4;
    let each: u64 = if cfg!(miri) { 60 } else { 20_000 };
    for round in 0..if cfg!(miri) { 1 } else { 5_u64 } {
        let table = memtable();
        let key = |number: u64| {
            // Consecutive writes are neighbours in the tree, whichever thread writes them; every
            // path is long enough to be compressed, split and grown.
            let spread = number.wrapping_mul(0x9e37_79b9 + 2 * round);
            let mut key = spread.to_be_bytes()[4..].to_vec();
            key.splice(2..2, b"the same for all of them".iter().copied());
            key
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (table, key) = (&table, &key);
                scope.spawn(move || {
                    for number in (0..each).map(|number| number * THREADS + thread) {
                        let value = number.to_le_bytes();
                        table.insert(
                            &key(number),
                            Update::Put(&value),
                            SeqNo(number + 1),
                            &KeepAll,
                        );
                        let at = SeqNo(number + 1);
                        let found = table.get(&key(number), at);
                        assert_eq!(found, Lookup::Found(Update::Put(&value), at));
                    }
                });
            }
        });
        let distinct: BTreeMap<_, _> = (0..each * THREADS).map(|n| (key(n), n)).collect();
        assert_eq!(table.len_estimate(), distinct.len() as u64);
        let batch = &table.sorted(&[]).batches[0];
        assert_eq!(batch.len(), distinct.len());
        for (rank, (key, number)) in distinct.iter().enumerate() {
            assert!(batch.key(rank) == key);
            assert!(batch.update(rank) == Update::Put(&number.to_le_bytes()));
        }
    }
}
