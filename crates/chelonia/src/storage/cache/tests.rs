//! The cache under pressure: few frames, many threads, drops and reclaims in the middle.

use super::*;
use crate::base::limits::{BLOCK_BYTES_U64, SLAB_BYTES};
use crate::memory::budget::Reclaimed;
use crate::memory::slab::OwnedSlab;
use crate::runtime::rng::Rng;
use crate::runtime::sync::AtomicBool;
use crate::storage::Storage;
use crate::storage::cache::state::{PLACE_BYTES, SLAB_STATE_BYTES};
use crate::storage::quota::UNLIMITED;

const SLAB: u64 = SLAB_BYTES as u64;

/// The fill byte of block `index` of the extent with `generation`.
fn content(generation: Generation, index: u32) -> u8 {
    u8::try_from((generation.0 * 31 + u64::from(index) * 7) % 251).unwrap()
}

fn assert_content(block: &[u8], generation: Generation, index: u32) {
    let expected = content(generation, index);
    assert_eq!(block.len(), BLOCK_BYTES);
    assert!(block[16..] == [expected; BLOCK_BYTES - 16], "a block of another place or time");
}

/// Writes an extent of `blocks` blocks and opens it.
fn write(storage: &Storage, blocks: u32) -> Arc<CachedExtent> {
    let allocation = storage.allocate(blocks, &UNLIMITED).unwrap();
    let mut bytes = vec![0; allocation.extent.bytes().try_into().unwrap()];
    for (block, index) in bytes.chunks_exact_mut(BLOCK_BYTES).zip(0..) {
        block.fill(content(allocation.generation, index));
    }
    storage.write_blocks(allocation.extent.start, allocation.generation, &mut bytes).unwrap();
    Arc::new(storage.cached(allocation.extent, allocation.generation, blocks))
}

/// A storage whose cache can have `slabs` slabs (plus a little for bookkeeping).
fn storage_with(slabs: u64) -> Arc<Storage> {
    let (storage, _) = Storage::testing(slabs * SLAB + (64 << 10));
    storage
}

/// The block in its frame if it is cached or can be, else a copy.
fn block<'g>(
    extent: &'g CachedExtent,
    index: u32,
    priority: Priority,
    guard: &'g Guard,
) -> CachedBlock<'g> {
    extent.cached(index, guard).unwrap_or_else(|| {
        let loaded = extent.load(index, priority).unwrap();
        extent.cached(index, guard).unwrap_or(loaded)
    })
}

/// The same of many, read together.
fn blocks<'g>(
    storage: &Storage,
    wanted: &[(&'g CachedExtent, u32)],
    priority: Priority,
    guard: &'g Guard,
) -> Vec<CachedBlock<'g>> {
    let loaded = storage.load_many(wanted, priority).unwrap();
    let frames = wanted.iter().map(|(extent, index)| extent.cached(*index, guard));
    frames.zip(loaded).map(|(frame, loaded)| frame.unwrap_or(loaded)).collect()
}

fn check(extent: &CachedExtent, index: u32) {
    let guard = extent.cache().epochs.pin();
    let block = block(extent, index, Priority::Data, &guard);
    assert_content(&block, extent.generation, index);
}

#[test]
fn a_block_is_read_once() {
    let storage = storage_with(4);
    let extent = write(&storage, 64);
    let guard = storage.epochs().pin();
    assert!(extent.cached(3, &guard).is_none());
    assert_content(&block(&extent, 3, Priority::Data, &guard), extent.generation, 3);
    assert_content(&extent.cached(3, &guard).unwrap(), extent.generation, 3);
    for _ in 0..100 {
        block(&extent, 3, Priority::Data, &guard);
    }
    assert_eq!(storage.stats().cache.misses, 1);
    assert_eq!(storage.stats().file.reads, 1);
    let error = extent.load(64, Priority::Data).err().unwrap();
    assert_eq!(error.kind(), crate::base::error::ErrorKind::Corrupt);
    assert!(extent.cached(64, &guard).is_none());
}

#[test]
fn damage_is_reported_and_not_cached() {
    let storage = storage_with(4);
    let extent = write(&storage, 8);
    // The same place under another generation is stale.
    let stale = storage.cached(extent.extent, Generation(extent.generation.0 + 1), 0);
    let guard = storage.epochs().pin();
    let error = stale.load(2, Priority::Data).err().unwrap();
    assert_eq!(error.offset(), Some(extent.extent.offset() + 2 * BLOCK_BYTES_U64));
    assert!(stale.cached(2, &guard).is_none());
    let wanted = [(&*extent, 1), (&stale, 2), (&*extent, 3)];
    assert!(storage.load_many(&wanted, Priority::Data).is_err());
    let stats = storage.stats().cache;
    assert_eq!(stats.free, stats.frames, "frames of failed loads are free again");
}

#[test]
fn who_writes_a_block_anew_gets_none_that_rotted_in_memory() {
    let storage = storage_with(4);
    let extent = write(&storage, 2);
    let guard = storage.epochs().pin();
    extent.insert(1, &[9; BLOCK_BYTES], Priority::Data, &guard);
    check(&extent, 0);
    assert!(extent.cached(0, &guard).is_some() && extent.cached(1, &guard).is_some());
    assert_content(&extent.peek(0, &guard).unwrap(), extent.generation, 0);
    assert!(extent.peek(1, &guard).is_none());
}

#[test]
fn many_are_loaded_together_in_order() {
    for slabs in [0, 1, 4] {
        let storage = storage_with(slabs);
        let (one, two) = (write(&storage, 50), write(&storage, 80));
        let guard = storage.epochs().pin();
        block(&one, 7, Priority::Data, &guard);
        let mut wanted: Vec<(&CachedExtent, u32)> = (0..80).map(|index| (&*two, index)).collect();
        wanted.extend([(&*one, 7), (&*one, 8), (&*one, 8)]);
        let before = storage.stats().file.reads;
        let blocks = blocks(&storage, &wanted, Priority::Index, &guard);
        // A block requested twice is read once, also if the cache can't keep it.
        assert!(storage.stats().file.reads - before < wanted.len() as u64);
        assert_eq!(blocks.len(), wanted.len());
        for (block, (extent, index)) in blocks.iter().zip(&wanted) {
            assert_content(block, extent.generation, *index);
        }
    }
}

#[test]
fn blocks_of_another_storage_are_refused() {
    let (mine, other) = (storage_with(1), storage_with(1));
    let extent = write(&other, 1);
    assert!(mine.load_many(&[(&*extent, 0)], Priority::Data).is_err());
    // A block of one cache is not returned under a guard of another.
    extent.load(0, Priority::Data).unwrap();
    let show = |guard: &Guard| drop(extent.cached(0, guard));
    show(&other.epochs().pin());
    let refused = std::panic::AssertUnwindSafe(|| show(&mine.epochs().pin()));
    assert!(std::panic::catch_unwind(refused).is_err());
}

#[test]
fn everything_is_readable_however_small_the_cache() {
    for slabs in [0, 1, 2] {
        let storage = storage_with(slabs);
        let extents: Vec<_> = (0..4).map(|_| write(&storage, 100)).collect();
        let mut rng = Rng::new(slabs);
        for _ in 0..4_000 {
            let extent = &extents[usize::try_from(rng.below(4)).unwrap()];
            check(extent, u32::try_from(rng.below(100)).unwrap());
        }
        let stats = storage.stats().cache;
        assert_eq!(stats.frames, slabs * 64);
        assert!(slabs > 0 || stats.uncached_reads == stats.misses);
        // Other tests pin epochs meanwhile, so sometimes no frame is free in time.
        assert!(slabs == 0 || stats.cached > 0);
        assert!(storage.budget().used() <= storage.budget().limit());
    }
}

#[test]
fn indexes_survive_a_scan_of_data() {
    let storage = storage_with(2);
    let (index, data) = (write(&storage, 8), write(&storage, 1_000));
    for number in 0..8 {
        let guard = storage.epochs().pin();
        block(&index, number, Priority::Index, &guard);
    }
    for number in 0..1_000 {
        let guard = storage.epochs().pin();
        block(&data, number, Priority::Scan, &guard);
        if number % 100 == 0 {
            for number in 0..8 {
                let _ = index.cached(number, &guard);
            }
        }
    }
    let guard = storage.epochs().pin();
    assert!((0..8).all(|block| index.cached(block, &guard).is_some()));
}

/// Repeats until `done`: other threads pin epochs meanwhile, which delays the end of limbo.
fn eventually(epochs: &Epochs, mut done: impl FnMut() -> bool) {
    assert!((0..1_000_000).any(|_| {
        // Advances the epoch, and runs deferred functions.
        epochs.pin().flush();
        std::thread::yield_now();
        done()
    }));
}

#[test]
fn slabs_go_to_writes_and_come_back() {
    let storage = storage_with(4);
    let extent = write(&storage, 300);
    (0..300).for_each(|index| check(&extent, index));
    let budget = storage.budget();
    assert_eq!(budget.used_by(Use::Cache), 4 * SLAB);
    let mut memtable: Vec<OwnedSlab> = Vec::new();
    for given in 1..=4 {
        let left = (4 - given) * SLAB;
        eventually(storage.epochs(), || {
            budget.used_by(Use::Cache) <= left || storage.cache.reclaim_slab() == Reclaimed::Now
        });
        eventually(storage.epochs(), || budget.used_by(Use::Cache) <= left);
        memtable.push(budget.take_slab_forced(Use::Memtable));
    }
    assert!(budget.used() <= budget.limit());
    assert_eq!(storage.stats().cache.frames, 0);
    (0..300).for_each(|index| check(&extent, index));
    drop(memtable);
    (0..300).for_each(|index| check(&extent, index));
    assert_eq!(budget.used_by(Use::Cache), 4 * SLAB);
}

#[test]
fn a_held_guard_delays_a_slab_and_keeps_its_blocks() {
    let storage = storage_with(1);
    let extent = write(&storage, 64);
    let guard = storage.epochs().pin();
    let blocks: Vec<_> =
        (0..64).map(|index| block(&extent, index, Priority::Data, &guard)).collect();
    for _ in 0..10 {
        assert_eq!(storage.cache.reclaim_slab(), Reclaimed::Soon);
    }
    // Beyond the limit, because a reader holds the slab; reads continue without it.
    let forced = storage.budget().take_slab_forced(Use::Memtable);
    for (block, index) in blocks.iter().zip(0..) {
        assert_content(block, extent.generation, index);
        check(&extent, index);
    }
    drop(blocks);
    drop(guard);
    eventually(storage.epochs(), || storage.trim_memory());
    assert_eq!(storage.budget().used_by(Use::Cache), 0);
    drop(forced);
}

#[test]
fn a_lower_limit_shrinks_the_cache() {
    let storage = storage_with(6);
    let extent = write(&storage, 400);
    (0..400).for_each(|index| check(&extent, index));
    storage.budget().set_limit(2 * SLAB + (64 << 10));
    eventually(storage.epochs(), || storage.trim_memory());
    // Temporarily less, if pins of other tests let several places leave together.
    assert!(storage.budget().used_by(Use::Cache) <= 2 * SLAB);
    (0..400).for_each(|index| check(&extent, index));
    assert_eq!(storage.budget().used_by(Use::Cache), 2 * SLAB);
}

#[test]
fn a_cache_that_was_large_costs_little_and_works_as_a_small_one() {
    let storage = storage_with(200);
    let extent = write(&storage, 8_000);
    (0..8_000).for_each(|index| check(&extent, index));
    assert!(storage.cache.charge.lock().bytes() > 100 * SLAB_STATE_BYTES);
    storage.budget().set_limit(4 * SLAB + (256 << 10));
    eventually(storage.epochs(), || storage.trim_memory());
    let places = 200;
    assert!(storage.cache.charge.lock().bytes() <= places * PLACE_BYTES + 4 * SLAB_STATE_BYTES);
    // The clock finds the few places with a slab among those without.
    let evicted = || storage.stats().cache.evictions;
    let before = evicted();
    eventually(storage.epochs(), || {
        (0..2_000).for_each(|index| check(&extent, index));
        evicted() > before + 1_500
    });
}

#[test]
fn dropped_extents_give_their_frames_to_others() {
    let storage = storage_with(1);
    for _ in 0..50 {
        let extent = write(&storage, 40);
        (0..40).for_each(|index| check(&extent, index));
        let place = extent.extent;
        drop(extent);
        storage.free(place).unwrap();
    }
    let stats = storage.stats().cache;
    assert_eq!((stats.cached, stats.frames), (0, 64));
    assert_eq!(storage.budget().used_by(Use::Cache), SLAB);
}

#[test]
fn readers_always_see_the_block_they_asked_for() {
    let storage = storage_with(3);
    let stop = AtomicBool::new(false);
    let shared: Mutex<Vec<Arc<CachedExtent>>> =
        Mutex::new((0..6).map(|_| write(&storage, 60)).collect());
    let pick = |rng: &mut Rng| {
        let extents = shared.lock();
        let index = usize::try_from(rng.below(extents.len() as u64)).unwrap();
        Arc::clone(&extents[index])
    };
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (storage, stop, pick) = (&storage, &stop, &pick);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    let (one, two) = (pick(&mut rng), pick(&mut rng));
                    let guard = storage.epochs().pin();
                    let mut wanted = Vec::new();
                    for _ in 0..rng.below(20) {
                        let index = u32::try_from(rng.below(60)).unwrap();
                        wanted.push((if rng.one_in(2) { &*one } else { &*two }, index));
                    }
                    let single = block(&one, 5, Priority::Index, &guard);
                    let many = blocks(storage, &wanted, Priority::Data, &guard);
                    for _ in 0..3 {
                        assert_content(&single, one.generation, 5);
                        for (block, (extent, index)) in many.iter().zip(&wanted) {
                            assert_content(block, extent.generation, *index);
                        }
                    }
                }
            });
        }
        // Meanwhile extents are replaced at the same place in the file, and slabs come and go.
        let mut rng = Rng::new(99);
        for round in 0..150 {
            let index = usize::try_from(rng.below(6)).unwrap();
            let fresh = write(&storage, 60);
            let old = std::mem::replace(&mut shared.lock()[index], fresh);
            let place = old.extent;
            let mut old = Some(old);
            while let Some(extent) = old.take() {
                // Reuse waits for the last reader, as the database does for versions.
                match Arc::try_unwrap(extent) {
                    Ok(last) => drop(last),
                    Err(extent) => old = Some(extent),
                }
                std::thread::yield_now();
            }
            storage.free(place).unwrap();
            if round % 3 == 0 {
                drop(storage.budget().take_slab_forced(Use::Memtable));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = storage.stats().cache;
    assert!(stats.evictions > 0 && stats.slabs_given_back > 0);
    drop(shared);
    let budget = Arc::clone(storage.budget());
    let epochs = Arc::clone(storage.epochs());
    drop(storage);
    eventually(&epochs, || budget.used() == 0);
}
