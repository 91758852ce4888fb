//! Tests of the record cache: hits, evictions, refused records, and concurrent readers.

use super::*;
use crate::base::limits::SLAB_BYTES;
use crate::runtime::rng::Rng;

const SALT: u64 = 11;
const SLAB: u64 = SLAB_BYTES as u64;

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

fn low_byte(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

/// A cache limited to this many slabs, and a keyspace whose newest version is 1.
fn cache_of(slabs: u64) -> (Arc<Budget>, Arc<RecordCache>, CacheEpoch) {
    let budget = Budget::new(slabs * SLAB);
    let cache = RecordCache::new(&budget, &Epochs::new().unwrap(), SALT);
    (budget, cache, CacheEpoch::new(KeyspaceId(3), 1))
}

fn name<'a>(of: &'a CacheEpoch, key: &'a [u8]) -> Name<'a> {
    Name { of, key, hash: KeyHash::new(key, SALT) }
}

fn get(cache: &RecordCache, of: &CacheEpoch, key: &[u8]) -> Option<Vec<u8>> {
    cache.get(name(of, key), &cache.epochs.pin()).map(<[u8]>::to_vec)
}

fn fill(cache: &RecordCache, of: &CacheEpoch, version: u64, key: &[u8], value: &[u8]) {
    cache.fill(name(of, key), version, value, &cache.epochs.pin());
}

/// Drops everything retired so far.
fn settle(cache: &RecordCache) {
    cache.epochs.collect();
}

/// Waits until the condition holds.
fn eventually(cache: &RecordCache, done: impl Fn() -> bool) {
    assert!((0..1_000_000).any(|_| {
        settle(cache);
        std::thread::yield_now();
        done()
    }));
}

/// Updates in key order.
struct Batch(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl SortedUpdates for Batch {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn key(&self, index: usize) -> &[u8] {
        &self.0[index].0
    }

    fn update(&self, index: usize) -> Update<'_> {
        self.0[index].1.as_deref().map_or(Update::Delete, Update::Put)
    }

    fn bytes_before(&self, _index: usize) -> u64 {
        0
    }

    fn lower_bound(&self, _key: &[u8]) -> usize {
        0
    }

    fn prefetch(&self, _index: usize) {}

    fn prefetch_rest(&self, _index: usize) {}
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

#[test]
fn what_was_filled_is_found_by_its_keyspace_only() {
    let (_, cache, of) = cache_of(8);
    assert_eq!(get(&cache, &of, b"a"), None);
    fill(&cache, &of, 1, b"a", b"one");
    fill(&cache, &of, 1, b"", b"");
    fill(&cache, &of, 1, b"a", b"not taken: the first one stays");
    assert_eq!(get(&cache, &of, b"a").as_deref(), Some(&b"one"[..]));
    assert_eq!(get(&cache, &of, b"").as_deref(), Some(&b""[..]));
    assert_eq!(get(&cache, &of, b"b"), None);
    assert_eq!(get(&cache, &CacheEpoch::new(KeyspaceId(4), 1), b"a"), None);
    let large = vec![7; RECORD_BYTES_MAX];
    fill(&cache, &of, 1, b"large", &large);
    assert_eq!(get(&cache, &of, b"large"), None);
    fill(&cache, &of, 1, b"large", &large[..RECORD_BYTES_MAX - 64]);
    assert!(get(&cache, &of, b"large").is_some());
    assert_eq!(cache.stats().records, 3);
}

#[test]
fn records_belong_to_the_newest_version() {
    let (_, cache, of) = cache_of(8);
    for word in [&b"changed"[..], b"deleted", b"grown", b"same"] {
        fill(&cache, &of, 1, word, b"old");
    }
    let batch = Batch(vec![
        (b"changed".to_vec(), Some(b"new".to_vec())),
        (b"deleted".to_vec(), None),
        (b"grown".to_vec(), Some(vec![1; RECORD_BYTES_MAX])),
        (b"not here".to_vec(), Some(b"x".to_vec())),
    ]);
    cache.refresh(&of, 2, &[batch]);
    assert_eq!(get(&cache, &of, b"changed").as_deref(), Some(&b"new"[..]));
    assert_eq!(get(&cache, &of, b"same").as_deref(), Some(&b"old"[..]));
    for gone in [&b"deleted"[..], b"grown", b"not here"] {
        assert_eq!(get(&cache, &of, gone), None);
    }
    let guard = cache.epochs.pin();
    assert!(cache.get_of_version(name(&of, b"same"), 1, &guard).is_none());
    assert!(cache.get_of_version(name(&of, b"same"), 2, &guard).is_some());
    drop(guard);
    // A reader of the previous version is late.
    fill(&cache, &of, 1, b"deleted", b"old");
    assert_eq!(get(&cache, &of, b"deleted"), None);
    fill(&cache, &of, 2, b"deleted", b"newer");
    assert!(get(&cache, &of, b"deleted").is_some());
    cache.refresh::<Batch>(&of, 3, &[]);
    assert_eq!(get(&cache, &of, b"changed").as_deref(), Some(&b"new"[..]));
    let batches = [Some(b"first".to_vec()), Some(b"last".to_vec())]
        .map(|value| Batch(vec![(b"same".to_vec(), value)]));
    cache.refresh(&of, 4, &batches);
    assert_eq!(get(&cache, &of, b"same").as_deref(), Some(&b"last"[..]));
}

/// Waits until released slabs are freed.
fn wait_for_slabs(cache: &RecordCache) {
    let left = || cache.writer.lock().leaving - cache.gone.load(Ordering::Relaxed);
    while left() > 1 {
        cache.epochs.collect();
        std::thread::yield_now();
    }
}

#[test]
fn what_is_used_stays_when_the_rest_goes() {
    let (budget, cache, of) = cache_of(16);
    let value = [9; 120];
    let hot = |number: u64| number < 2_000;
    for number in 0..150_000 {
        fill(&cache, &of, 1, &key(number), &value);
        if number >= 2_000 {
            // Each hot key is used once while a third of the cache is filled.
            let used = key(number % 2_000);
            if get(&cache, &of, &used).is_none() {
                fill(&cache, &of, 1, &used, &value);
            }
        }
        assert!(budget.used() <= budget.limit());
        wait_for_slabs(&cache);
    }
    let stats = cache.stats();
    let there = (0..2_000).filter(|number| get(&cache, &of, &key(*number)).is_some()).count();
    assert!(there > 1_800, "{there} of the hot ones");
    assert!(stats.records > 12_000 && stats.records < 32_000, "{stats:?}");
    assert!(stats.evictions > 100_000, "{stats:?}");
    let cold = (100_000..130_000).filter(|number| !hot(*number));
    let left = cold.filter(|number| get(&cache, &of, &key(*number)).is_some()).count();
    assert!(left < 6_000, "{left} of the cold ones");
}

#[test]
fn memory_goes_back_to_whoever_asks() {
    let (budget, cache, of) = cache_of(16);
    for number in 0..20_000 {
        fill(&cache, &of, 1, &key(number), &[1; 100]);
    }
    let before = budget.used_by(Use::Records);
    assert!(before > 8 * SLAB);
    let taken: Vec<_> = (0..15)
        .map(|_| {
            settle(&cache);
            budget.take_slab_forced(Use::Memtable)
        })
        .collect();
    // A thread of another test may hold a guard while it is not scheduled.
    eventually(&cache, || budget.used() <= budget.limit() + SLAB && cache.stats().records == 0);
    fill(&cache, &of, 1, b"again", b"no room");
    assert_eq!(get(&cache, &of, b"again"), None);
    drop(taken);
    fill(&cache, &of, 1, b"again", b"room");
    fill(&cache, &of, 1, b"again", b"room");
    assert!(get(&cache, &of, b"again").is_some());
}

#[test]
fn the_table_of_a_cache_that_was_emptied_takes_no_memory() {
    let (budget, cache, of) = cache_of(64);
    let empty = budget.used_by(Use::Records);
    let mut version = 1;
    for _ in 0..3 {
        let keys = || (0..30_000).map(key);
        for key in keys() {
            fill(&cache, &of, version, &key, &[1; 50]);
        }
        assert!(cache.stats().records > 20_000);
        version += 1;
        let deleted = Batch(keys().map(|key| (key.to_vec(), None)).collect());
        cache.refresh(&of, version, &[deleted]);
        assert_eq!(cache.stats().records, 0);
        let slabs = (budget.used_by(Use::Records) - empty) % SLAB;
        assert_eq!(slabs, 0, "something besides slabs is left");
    }
}

#[test]
fn random_histories_agree_with_a_model_that_may_forget() {
    let mut rng = Rng::new(5);
    let (_, cache, of) = cache_of(10);
    let mut truth = std::collections::BTreeMap::new();
    let mut version = 1;
    for round in 0..300_u64 {
        for _ in 0..500 {
            let key = key(rng.below(20_000)).to_vec();
            match get(&cache, &of, &key) {
                Some(value) => assert_eq!(Some(&value), truth.get(&key)),
                None => {
                    if let Some(value) = truth.get(&key) {
                        fill(&cache, &of, version, &key, value);
                    }
                }
            }
        }
        let mut changed = std::collections::BTreeMap::new();
        for _ in 0..rng.below(400) {
            let value = vec![low_byte(round); index(rng.below(300))];
            let update = (rng.below(5) > 0).then_some(value);
            changed.insert(key(rng.below(20_000)).to_vec(), update);
        }
        for (key, update) in &changed {
            match update {
                Some(value) => truth.insert(key.clone(), value.clone()),
                None => truth.remove(key),
            };
        }
        version += 1;
        cache.refresh(&of, version, &[Batch(changed.into_iter().collect())]);
        if rng.below(20) == 0 {
            let _ = cache.reclaim_slab();
        }
    }
    assert!(cache.stats().refreshed > 1_000 && cache.stats().evictions > 1_000);
}

#[test]
fn readers_see_whole_records_while_everything_moves() {
    let (_, cache, of) = cache_of(8);
    let stop = AtomicBool::new(false);
    // A value is its key's number and a version, repeated; versions of a key only grow.
    let value = |number: u64, version: u64| -> Vec<u8> {
        [number.to_le_bytes(), version.to_le_bytes()].concat().repeat(1 + index(number % 9))
    };
    let check = |number: u64, bytes: &[u8]| {
        let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert_eq!(bytes, value(number, version));
        version
    };
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (cache, of, stop, value) = (&cache, &of, &stop, &value);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let mut newest = vec![0; 5_000];
                while !stop.load(Ordering::Relaxed) {
                    let number = rng.below(5_000);
                    let guard = cache.epochs.pin();
                    // As readers do: load the version before reading in it.
                    let version = of.version.load(Ordering::Acquire);
                    match cache.get(name(of, &key(number)), &guard) {
                        Some(bytes) => {
                            let seen = check(number, bytes);
                            assert!(seen >= newest[index(number)]);
                            newest[index(number)] = seen;
                        }
                        None => {
                            let bytes = value(number, version);
                            cache.fill(name(of, &key(number)), version, &bytes, &guard);
                        }
                    }
                }
            });
        }
        for version in 2..400 {
            let batch =
                (0..5_000).map(|number| (key(number).to_vec(), Some(value(number, version))));
            cache.refresh(&of, version, &[Batch(batch.collect())]);
            let _ = cache.reclaim_slab();
        }
        stop.store(true, Ordering::Relaxed);
    });
}
