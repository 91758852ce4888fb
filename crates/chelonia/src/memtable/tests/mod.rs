//! The memtable against a model, on one thread and on many.

mod concurrency;
mod shapes;

use super::*;
use crate::base::error::ErrorKind;
use crate::base::ids::{Extent, Generation};
use crate::base::stream::{LargeRef, SortedStream, SortedUpdates};
use crate::runtime::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Pins with nothing visible yet, so nothing is unlinked.
pub struct KeepAll;

impl Pins for KeepAll {
    fn visible(&self) -> SeqNo {
        SeqNo::ZERO
    }

    fn any_in(&self, _: SeqNo, _: SeqNo) -> bool {
        false
    }
}

/// Pins with everything visible up to a seqno, and some snapshots held.
pub struct Held {
    pub visible: u64,
    pub snapshots: Vec<u64>,
}

impl Pins for Held {
    fn visible(&self) -> SeqNo {
        SeqNo(self.visible)
    }

    fn any_in(&self, from: SeqNo, to: SeqNo) -> bool {
        self.snapshots.iter().any(|held| (from.0..to.0).contains(held))
    }
}

/// An update that owns its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Owned {
    Put(Vec<u8>),
    Large(LargeRef),
    Delete,
}

impl Owned {
    pub fn update(&self) -> Update<'_> {
        match self {
            Owned::Put(value) => Update::Put(value),
            Owned::Large(large) => Update::PutLarge(*large),
            Owned::Delete => Update::Delete,
        }
    }

    fn random(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0 => Owned::Delete,
            1 => Owned::Large(large(rng.next_u64() >> 20)),
            _ => {
                let mut value = vec![0; usize::try_from(rng.below(40)).unwrap()];
                rng.fill(&mut value);
                Owned::Put(value)
            }
        }
    }
}

pub fn large(start: u64) -> LargeRef {
    LargeRef { extent: Extent::new(start, 9), generation: Generation(start ^ 7), bytes: 36_000 }
}

pub fn memtable() -> Arc<Memtable> {
    Memtable::new(Budget::new(512 << 20))
}

/// Every version of every key.
#[derive(Default)]
struct Model {
    versions: BTreeMap<Vec<u8>, BTreeMap<SeqNo, Owned>>,
}

impl Model {
    /// The newest version with `after < seqno <= upto` of each key.
    fn between(&self, after: SeqNo, upto: SeqNo) -> Vec<(&[u8], Update<'_>)> {
        let bounds = (Bound::Excluded(after), Bound::Included(upto));
        self.versions
            .iter()
            .filter(|_| after < upto)
            .filter_map(|(key, versions)| {
                let (_, update) = versions.range(bounds).next_back()?;
                Some((key.as_slice(), update.update()))
            })
            .collect()
    }

    fn get(&self, key: &[u8], at: SeqNo) -> Lookup<'_> {
        let newest = self.versions.get(key).and_then(|all| all.range(..=at).next_back());
        newest.map_or(Lookup::Absent, |(seqno, update)| Lookup::Found(update.update(), *seqno))
    }
}

/// Keys that share prefixes, are prefixes of each other, and spread at every depth.
fn random_key(rng: &mut Rng) -> Vec<u8> {
    let mut key = Vec::new();
    match rng.below(6) {
        0 => key.extend_from_slice(b"a common prefix beyond the node"),
        1 => key.extend_from_slice(b"a common prefix beyond the nodes, and more of it"),
        2 => key.extend_from_slice(b"short"),
        _ => {}
    }
    let wide = rng.one_in(2);
    for _ in 0..rng.below(6) {
        let byte = if wide {
            rng.below(256)
        } else {
            [0, 1, 97, 255][usize::try_from(rng.below(4)).unwrap()]
        };
        key.push(u8::try_from(byte).unwrap());
    }
    key
}

fn filled(seed: u64, inserts: u64) -> (Arc<Memtable>, Model) {
    let (table, mut model, mut rng) = (memtable(), Model::default(), Rng::new(seed));
    let mut seqnos: Vec<u64> = (1..=inserts).collect();
    // Slightly out of order, as commits arrive.
    for index in 0..seqnos.len() {
        let other = (index + usize::try_from(rng.below(20)).unwrap()).min(seqnos.len() - 1);
        seqnos.swap(index, other);
    }
    for seqno in seqnos {
        let (key, update) = (random_key(&mut rng), Owned::random(&mut rng));
        table.insert(&key, update.update(), SeqNo(seqno), &KeepAll);
        model.versions.entry(key).or_default().insert(SeqNo(seqno), update);
    }
    (table, model)
}

fn all_of(mut cursor: MemtableCursor) -> Vec<(Vec<u8>, Owned)> {
    let mut all = Vec::new();
    while let Some(key) = cursor.key() {
        let update = match cursor.update() {
            Update::Put(value) => Owned::Put(value.to_vec()),
            Update::PutLarge(large) => Owned::Large(large),
            Update::Delete => Owned::Delete,
            Update::PutCompressed(_) => unreachable!("memtables compress nothing"),
        };
        all.push((key.to_vec(), update));
        cursor.advance().unwrap();
    }
    all
}

fn random_bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(random_key(rng)),
        _ => Bound::Excluded(random_key(rng)),
    }
}

const SEEDS: u64 = if cfg!(miri) { 1 } else { 12 };
const INSERTS: u64 = if cfg!(miri) { 400 } else { 6000 };

#[test]
fn gets_agree_with_the_model_at_every_seqno() {
    for seed in 0..SEEDS {
        let (table, model) = filled(seed, INSERTS);
        let mut rng = Rng::new(!seed);
        assert_eq!(table.len_estimate(), model.versions.len() as u64);
        for key in model.versions.keys() {
            for at in [SeqNo(rng.below(INSERTS)), SeqNo::MAX] {
                assert_eq!(table.get(key, at), model.get(key, at));
            }
        }
        for _ in 0..INSERTS / 2 {
            let (key, at) = (random_key(&mut rng), SeqNo(rng.below(INSERTS)));
            assert_eq!(table.get(&key, at), model.get(&key, at));
        }
    }
}

#[test]
fn cursors_agree_with_the_model_both_ways_within_any_bounds() {
    for seed in 0..SEEDS {
        let (table, model) = filled(seed, INSERTS);
        let mut rng = Rng::new(seed + 100);
        for round in 0..60 {
            let mut range =
                KeyRange { lower: random_bound(&mut rng), upper: random_bound(&mut rng) };
            if round == 0 {
                range = KeyRange::all();
            }
            let at = if rng.one_in(2) { SeqNo::MAX } else { SeqNo(rng.below(INSERTS)) };
            let mut expected = model.between(SeqNo::ZERO, at);
            expected.retain(|(key, _)| range.contains(key));
            for direction in [Direction::Ascending, Direction::Descending] {
                let found = all_of(table.cursor(range.clone(), direction, at).unwrap());
                let found: Vec<_> =
                    found.iter().map(|(key, update)| (key.as_slice(), update.update())).collect();
                assert!(found == expected, "seed {seed} round {round} {direction:?} {range:?}");
                expected.reverse();
            }
        }
    }
}

fn check_batch(batch: &SortedBatch, expected: &[(&[u8], Update<'_>)], rng: &mut Rng) {
    assert_eq!(batch.len(), expected.len());
    let mut bytes = 0;
    for (rank, (key, update)) in expected.iter().enumerate() {
        assert_eq!((batch.key(rank), batch.update(rank)), (*key, *update));
        assert_eq!(batch.bytes_before(rank), bytes);
        assert_eq!(batch.lower_bound(key), rank);
        bytes += (key.len() + update.inline_bytes()) as u64;
    }
    assert_eq!(batch.bytes_before(expected.len()), bytes);
    for _ in 0..200 {
        let key = random_key(rng);
        let rank = expected.partition_point(|(other, _)| *other < key.as_slice());
        assert_eq!(batch.lower_bound(&key), rank);
    }
    batch.prefetch(expected.len());
}

#[test]
fn sorted_parts_give_each_interval_its_newest_and_account_for_every_large_value() {
    for seed in 0..SEEDS {
        let (table, model) = filled(seed, INSERTS);
        let mut rng = Rng::new(seed + 200);
        let mut cuts: Vec<_> = (0..rng.below(5)).map(|_| SeqNo(rng.below(INSERTS))).collect();
        cuts.sort_unstable();
        let sorted = table.sorted(&cuts);
        let mut batches = sorted.batches.iter().peekable();
        let mut larges = sorted.superseded.clone();
        let mut after = SeqNo::ZERO;
        for upto in cuts.iter().copied().chain([SeqNo::MAX]) {
            let expected = model.between(after, upto);
            after = upto;
            let Some(batch) = batches.next_if(|batch| batch.upto() == upto) else {
                assert!(expected.is_empty(), "seed {seed}: an interval with writes has a batch");
                continue;
            };
            assert!(!expected.is_empty());
            check_batch(batch, &expected, &mut rng);
            let updates = (0..batch.len()).map(|rank| batch.update(rank));
            larges.extend(updates.filter_map(|update| match update {
                Update::PutLarge(large) => Some(large),
                _ => None,
            }));
        }
        assert!(batches.next().is_none());
        let updates = model.versions.values().flat_map(BTreeMap::values);
        let mut expected: Vec<_> = updates
            .filter_map(|update| if let Owned::Large(large) = update { Some(*large) } else { None })
            .collect();
        expected.sort_unstable();
        larges.sort_unstable();
        assert!(larges == expected, "each large value is in one batch or superseded");
    }
}

#[test]
fn batches_and_cursors_outlive_the_memtable_and_memory_comes_back() {
    let budget = Budget::new(64 << 20);
    let table = Memtable::new(Arc::clone(&budget));
    assert!(table.len_estimate() == 0 && table.bytes() == 0);
    assert_eq!(table.get(b"", SeqNo::MAX), Lookup::Absent);
    assert!(
        table.cursor(KeyRange::all(), Direction::Ascending, SeqNo::MAX).unwrap().key().is_none()
    );
    assert!(table.sorted(&[]).batches.is_empty());
    table.insert(b"", Update::Put(b"nothing"), SeqNo(1), &KeepAll);
    table.insert(b"k", Update::PutLarge(large(4)), SeqNo(2), &KeepAll);
    table.insert(b"k", Update::Delete, SeqNo(3), &KeepAll);
    assert_eq!(table.bytes(), crate::base::limits::BLOCK_BYTES as u64);
    assert_eq!(table.len_estimate(), 2);
    let sorted = table.sorted(&[SeqNo(2)]);
    let mut cursor = table.cursor(KeyRange::all(), Direction::Descending, SeqNo(2)).unwrap();
    drop(table);
    assert_eq!(sorted.batches[0].update(1), Update::PutLarge(large(4)));
    assert_eq!((sorted.batches[1].key(0), sorted.batches[1].len()), (&b"k"[..], 1));
    let move_to_thread = std::thread::scope(|scope| {
        scope
            .spawn(move || {
                assert_eq!(cursor.update(), Update::PutLarge(large(4)));
                cursor.advance().unwrap();
                cursor.key() == Some(b"")
            })
            .join()
    });
    assert!(move_to_thread.unwrap());
    drop(sorted);
    assert_eq!(budget.used(), 0);
}

#[test]
fn hundreds_of_cuts_cost_what_their_entries_need() {
    let budget = Budget::new(64 << 20);
    let table = Memtable::new(Arc::clone(&budget));
    let cuts: Vec<_> = (1..=400).map(|cut| SeqNo(100 * cut)).collect();
    for seqno in 0..20_000_u64 {
        let key = format!("{:05}", seqno * 7919 % 1_000);
        table.insert(key.as_bytes(), Update::Put(b"value"), SeqNo(seqno + 1), &KeepAll);
    }
    let before = budget.used();
    let sorted = table.sorted(&cuts);
    // The cuts after the last write have no batch.
    assert_eq!(sorted.batches.len(), 200);
    assert!(sorted.batches.iter().all(|batch| batch.len() == 100));
    let taken = budget.used() - before;
    assert!((160_000..1_000_000).contains(&taken), "{taken} bytes for 20,000 addresses");
    drop(sorted);
    assert_eq!(budget.used(), before);
}

#[test]
fn arrays_grow_from_the_heap_to_slabs() {
    let budget = Budget::new(64 << 20);
    let table = Memtable::new(Arc::clone(&budget));
    for number in 0..70_000_u64 {
        let key = number.to_be_bytes();
        table.insert(&key, Update::Put(b"v"), SeqNo(number + 1), &KeepAll);
    }
    let before = budget.used();
    for (upto, slabs) in [(16_384, 0), (16_385, 1), (32_769, 2), (70_000, 3)] {
        let sorted = table.sorted(&[SeqNo(upto)]);
        let batch = &sorted.batches[0];
        assert_eq!(batch.len() as u64, upto);
        assert!((0..upto).zip(0..).all(|(key, rank)| batch.key(rank) == key.to_be_bytes()));
        if upto == 70_000 {
            let taken = (budget.used() - before) / crate::base::limits::SLAB_BYTES as u64;
            assert_eq!(taken, slabs);
        }
    }
}

#[test]
fn versions_that_nobody_needs_are_unlinked_and_readers_notice() {
    let table = memtable();
    let put = |seqno, pins: &Held| table.insert(b"k", Update::Put(b"v"), SeqNo(seqno), pins);
    let found = |at| match table.get(b"k", SeqNo(at)) {
        Lookup::Found(_, seqno) => Some(seqno.0),
        Lookup::Absent => Some(0),
        Lookup::Pruned => None,
    };
    let pins = |visible, snapshots: &[u64]| Held { visible, snapshots: snapshots.to_vec() };
    put(10, &pins(0, &[]));
    put(20, &pins(10, &[]));
    // 20 is not visible yet, so 10 is still the visible version.
    assert_eq!([5, 15, 25].map(found), [Some(0), Some(10), Some(20)]);
    // A snapshot at 15 needs 10; only latest readers need 20 and 30.
    put(30, &pins(20, &[15]));
    put(40, &pins(30, &[15]));
    assert_eq!([5, 15].map(found), [Some(0), Some(10)]);
    assert_eq!([25, 35, 45].map(found), [None, Some(30), Some(40)]);
    put(50, &pins(40, &[15]));
    assert_eq!([15, 25, 35, 45, 55].map(found), [Some(10), None, None, Some(40), Some(50)]);
    // The snapshot is released; one before all versions must still see that the key was absent.
    put(60, &pins(50, &[3]));
    assert_eq!([3, 10, 15, 45, 55, 65].map(found), [Some(0), None, None, None, Some(50), Some(60)]);
    let mut cursor = table.cursor(KeyRange::all(), Direction::Ascending, SeqNo(3)).unwrap();
    assert!(cursor.key().is_none());
    cursor.advance().unwrap();
    // No pin holds 15: a cursor must not show the key as absent.
    for direction in [Direction::Ascending, Direction::Descending] {
        let refused = table.cursor(KeyRange::all(), direction, SeqNo(15));
        assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Internal));
    }
    let batches = table.sorted(&[SeqNo(3)]).batches;
    let all: Vec<_> = batches.iter().map(|batch| (batch.upto(), batch.len())).collect();
    assert_eq!(all, [(SeqNo::MAX, 1)]);
}

#[test]
fn unlinked_large_values_are_handed_back() {
    let table = memtable();
    for seqno in 1..=20 {
        let pins = Held { visible: seqno - 1, snapshots: vec![7] };
        table.insert(b"k", Update::PutLarge(large(seqno)), SeqNo(seqno), &pins);
    }
    let sorted = table.sorted(&[SeqNo(7)]);
    let starts: BTreeSet<_> = sorted.superseded.iter().map(|lost| lost.extent.start.0).collect();
    assert_eq!(starts, (1..=19).filter(|seqno| *seqno != 7).collect());
    assert_eq!(sorted.superseded.len(), 18);
    assert_eq!(sorted.batches[0].update(0), Update::PutLarge(large(7)));
    assert_eq!(sorted.batches[1].update(0), Update::PutLarge(large(20)));
}

#[test]
fn of_equal_seqnos_the_later_insert_counts() {
    let table = memtable();
    for value in [b"a", b"b", b"c"] {
        table.insert(b"k", Update::Put(value), SeqNo(4), &Held { visible: 9, snapshots: vec![] });
    }
    assert_eq!(table.get(b"k", SeqNo(4)), Lookup::Found(Update::Put(b"c"), SeqNo(4)));
    assert_eq!(table.get(b"k", SeqNo(3)), Lookup::Absent);
}
