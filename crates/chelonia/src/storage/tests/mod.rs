//! Tests of the complete storage: create, write, checkpoint, open; large values; failures.

mod crash;

use super::*;
use crate::base::ids::{BlockNo, KeyspaceId, Lsn, SeqNo};
use crate::base::limits::{BLOCK_BYTES, LARGE_VALUE_BYTES_MIN, SLAB_BYTES, VALUE_BYTES_MAX};
use crate::base::logs::{LogMark, LogPosition, PerLog};
use crate::base::stream::LargeRef;
use crate::memory::budget::Use;
use crate::runtime::rng::Rng;
use crate::storage::data_file::BlockWrite;
use crate::storage::data_file::catalog::CatalogEntry;
use crate::storage::io::fault::{Call, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::quota::UNLIMITED;

const MEMORY: u64 = 32 << 20;

fn catalog_with(root: &[u8]) -> Catalog {
    let entry = CatalogEntry {
        id: KeyspaceId(0),
        name: "default".to_owned(),
        engine: 1,
        options: vec![],
        root: root.to_vec(),
        absorbed: SeqNo(9),
    };
    Catalog { next_keyspace: 1, keyspaces: vec![entry] }
}

fn log(lsn: u64) -> LogMark {
    let begin = PerLog::one(LogPosition { lsn: Lsn(lsn), chain: 7 });
    LogMark { begin, durable: PerLog::one(Lsn(lsn + 1)), seqno: SeqNo(lsn) }
}

fn blocks_of(seed: u64, count: usize) -> Vec<u8> {
    let mut blocks = vec![0; count * BLOCK_BYTES];
    Rng::new(seed).fill(&mut blocks);
    blocks
}

/// The bytes of the data file of a directory in memory.
fn data_of(dir: &MemoryDirectory) -> Vec<u8> {
    dir.to_files().remove(DATA_FILE).unwrap()
}

#[test]
fn what_a_checkpoint_names_is_there_after_a_reopen() {
    let (storage, dir) = Storage::testing(MEMORY);
    let kept = storage.allocate(5, &UNLIMITED).unwrap();
    let mut blocks = blocks_of(1, 5);
    storage.write_blocks(kept.extent.start, kept.generation, &mut blocks).unwrap();
    let catalog = catalog_with(b"the root");
    let superblock = storage.checkpoint(&catalog, log(100)).unwrap();
    assert_eq!(superblock.opens, 1);
    assert_eq!(storage.verify_root().unwrap(), 3);
    drop(storage);
    for opens in 2..5 {
        let opened = Storage::open(&dir, &Budget::new(MEMORY), false).unwrap();
        assert_eq!((opened.superblock.opens, opened.superblock.log), (opens, log(100)));
        assert_eq!(opened.catalog, catalog);
        opened.storage.mark_used(kept.extent).unwrap();
        let mut again = vec![0; 5 * BLOCK_BYTES];
        opened.storage.read_blocks(kept.extent.start, kept.generation, &mut again).unwrap();
        assert_eq!(again, blocks);
        let other = opened.storage.allocate(5, &UNLIMITED).unwrap();
        assert_eq!(other.generation.0 >> 40, u64::from(opens));
        assert!(other.extent.start >= kept.extent.end() || other.extent.end() <= kept.extent.start);
    }
}

#[test]
fn generations_of_a_read_only_open_are_above_all_that_were_written() {
    let (storage, dir) = Storage::testing(MEMORY);
    let written = storage.allocate(5, &UNLIMITED).unwrap().generation;
    storage.checkpoint(&catalog_with(b"the root"), log(100)).unwrap();
    drop(storage);
    let reader = Storage::open(&dir, &Budget::new(MEMORY), true).unwrap();
    assert_eq!(reader.superblock.opens, 1);
    assert!(reader.storage.new_generation().unwrap() > written);
    let of = |opens| Space::new(3, 3, opens).newest_generation();
    assert!(of(OPENS_MAX + 1) > of(OPENS_MAX));
}

/// The number of ranges in each extent of [`scattered`]: together more than go through a ring at
/// once.
const RANGES: usize = 50;

/// Ranges of one to three blocks with gaps between them, from back to front, alternately in two new
/// extents: the extent, the first block, and the content of each.
fn scattered(storage: &Storage) -> Vec<(Allocation, BlockNo, Vec<u8>)> {
    let blocks = u32::try_from(4 * RANGES).unwrap();
    let places = [(); 2].map(|()| storage.allocate(blocks, &UNLIMITED).unwrap());
    let ranges = (0..2 * RANGES).rev().map(|at| {
        let place = places[at % 2];
        let first = BlockNo(place.extent.start.0 + 4 * (at / 2) as u64);
        (place, first, blocks_of(at as u64, 1 + at % 3))
    });
    ranges.collect()
}

fn writes_of(ranges: &mut [(Allocation, BlockNo, Vec<u8>)]) -> Vec<BlockWrite<'_>> {
    let writes = ranges.iter_mut().map(|(place, first, blocks)| BlockWrite {
        first: *first,
        generation: place.generation,
        blocks,
    });
    writes.collect()
}

#[test]
fn scattered_writes_are_read_back() {
    let (storage, _) = Storage::testing(MEMORY);
    let mut ranges = scattered(&storage);
    let before = storage.stats().file;
    storage.write_many(&mut writes_of(&mut ranges)).unwrap();
    let after = storage.stats().file;
    let blocks: usize = ranges.iter().map(|(.., blocks)| blocks.len() / BLOCK_BYTES).sum();
    let written = |stats: DataFileStats| stats.blocks_written.iter().sum::<u64>();
    assert_eq!(after.writes - before.writes, ranges.len() as u64);
    assert_eq!(written(after) - written(before), blocks as u64);
    for (place, first, blocks) in &ranges {
        let mut again = vec![0; blocks.len()];
        storage.read_blocks(*first, place.generation, &mut again).unwrap();
        assert!(again == *blocks, "{first:?}");
    }
    storage.write_many(&mut []).unwrap();
    assert!(!storage.has_failed_write());
}

#[test]
fn a_failed_request_fails_its_batch_of_writes() {
    for after in [0, 1, RANGES as u64, 2 * RANGES as u64 - 1] {
        let (plan, memory) = (FaultPlan::new(), Arc::new(MemoryDirectory::new()));
        let dir = FaultDirectory::new(memory, plan.clone()).unwrap();
        let storage = Storage::create(&dir, &Budget::new(MEMORY), 1).unwrap().storage;
        let mut ranges = scattered(&storage);
        let before = storage.stats().file;
        plan.fail(Fault::once(Call::Write, after));
        let error = storage.write_many(&mut writes_of(&mut ranges)).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Io, Some(DATA_FILE)));
        assert!(storage.has_failed_write());
        assert_eq!((plan.failures(), storage.stats().file), (1, before));
    }
}

#[test]
fn a_batch_with_an_invalid_range_writes_nothing() {
    let (storage, dir) = Storage::testing(MEMORY);
    let place = storage.allocate(2, &UNLIMITED).unwrap();
    let before = data_of(&dir);
    for (first, bytes) in [(0, BLOCK_BYTES), (1, BLOCK_BYTES), (5, 100), (5, 0)] {
        let (mut valid, mut invalid) = (blocks_of(1, 1), vec![0; bytes]);
        let generation = place.generation;
        let mut writes = [
            BlockWrite { first: place.extent.start, generation, blocks: &mut valid },
            BlockWrite { first: BlockNo(first), generation, blocks: &mut invalid },
        ];
        let error = storage.write_many(&mut writes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
    assert_eq!(data_of(&dir), before);
    assert!(!storage.has_failed_write());
}

#[test]
fn memory_goes_back_when_the_storage_is_dropped() {
    let budget = Budget::new(MEMORY);
    let opened = Storage::create(&MemoryDirectory::new(), &budget, 1).unwrap();
    let storage = opened.storage;
    let run = storage.allocate(100, &UNLIMITED).unwrap();
    let mut blocks = blocks_of(3, 100);
    storage.write_blocks(run.extent.start, run.generation, &mut blocks).unwrap();
    let cached = storage.cached(run.extent, run.generation, 0);
    {
        for index in 0..100 {
            cached.load(index, Priority::Data).unwrap();
        }
    }
    assert_eq!(budget.used_by(Use::Cache), 2 * SLAB_BYTES as u64);
    assert!(budget.used_by(Use::Metadata) >= 400);
    let reference = storage.write_large(&blocks).unwrap();
    assert_eq!(storage.read_large(&reference).unwrap(), blocks);
    drop((cached, storage));
    assert_eq!(budget.used(), 0);
}

#[test]
fn large_values_come_back() {
    let (storage, _) = Storage::testing(MEMORY);
    let payload = crate::storage::block::BLOCK_PAYLOAD_BYTES;
    let piece = payload * 64;
    for bytes in [1, payload, LARGE_VALUE_BYTES_MIN, piece - 1, piece, piece + 1, 1 << 20] {
        let value = &blocks_of(bytes as u64, bytes.div_ceil(BLOCK_BYTES))[..bytes];
        let reference = storage.write_large(value).unwrap();
        assert_eq!(reference.extent.blocks as usize, bytes.div_ceil(payload));
        assert_eq!(storage.read_large(&reference).unwrap(), value);
        assert_eq!(storage.verify_large(&reference).unwrap(), u64::from(reference.extent.blocks));
    }
    assert_eq!(storage.budget().used_by(Use::Work), 0);
    for value in [vec![], vec![0; VALUE_BYTES_MAX + 1]] {
        let error = storage.write_large(&value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn nothing_of_recycled_memory_reaches_the_device() {
    let (storage, dir) = Storage::testing(MEMORY);
    let mut slab = storage.budget().take_slab(Use::Memtable).unwrap();
    slab.bytes_mut().fill(0xaa);
    drop(slab);
    storage.write_large(&vec![1; 40_000]).unwrap();
    let stray = data_of(&dir).windows(16).any(|bytes| bytes == [0xaa; 16]);
    assert!(!stray);
}

#[test]
fn the_largest_value_comes_back_in_bounded_memory() {
    let (storage, _) = Storage::testing(MEMORY);
    let mut value = vec![0; VALUE_BYTES_MAX];
    Rng::new(4).fill(&mut value);
    let reference = storage.write_large(&value).unwrap();
    let read = storage.read_large(&reference).unwrap();
    assert!(read.as_slice() == value.as_slice());
    // One slab of work, recycled.
    assert_eq!(storage.budget().held(), storage.budget().used() + SLAB_BYTES as u64);
}

#[test]
fn damaged_or_lying_references_are_corruption() {
    let (storage, dir) = Storage::testing(MEMORY);
    let value = blocks_of(5, 30);
    let good = storage.write_large(&value).unwrap();
    let catalog = storage.checkpoint(&Catalog::default(), log(1)).unwrap().catalog.unwrap();
    let lies = [
        LargeRef { bytes: good.bytes + 4080, ..good },
        LargeRef { bytes: 0, ..good },
        LargeRef { bytes: u32::MAX, ..good },
        LargeRef { extent: Extent::new(good.extent.start.0 + 1, good.extent.blocks), ..good },
        LargeRef { extent: Extent::new(1 << 40, good.extent.blocks), ..good },
        LargeRef { extent: Extent::new(u64::MAX, good.extent.blocks), ..good },
        LargeRef { generation: Generation(1 << 39), ..good },
        // Valid blocks of another kind.
        LargeRef { extent: catalog.extent, generation: catalog.generation, bytes: 7 },
    ];
    for lie in lies {
        let error = storage.read_large(&lie).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(DATA_FILE)), "{lie:?}");
        assert!(storage.verify_large(&lie).is_err());
    }
    // A flipped bit in any block is detected, and located.
    let mut files = dir.to_files();
    for block in 0..u64::from(good.extent.blocks) {
        let place = good.extent.offset() + block * BLOCK_BYTES_U64;
        files.get_mut(DATA_FILE).unwrap()[usize::try_from(place).unwrap() + 999] ^= 4;
        let dir = MemoryDirectory::from_files(files.clone());
        let opened = Storage::open(&dir, &Budget::new(MEMORY), true).unwrap();
        let error = opened.storage.read_large(&good).unwrap_err();
        assert_eq!(error.offset(), Some(place));
        files.get_mut(DATA_FILE).unwrap()[usize::try_from(place).unwrap() + 999] ^= 4;
    }
}

#[test]
fn old_catalogs_are_freed_and_the_newest_one_counts() {
    let (storage, dir) = Storage::testing(MEMORY);
    for round in 0..40_u8 {
        storage.checkpoint(&catalog_with(&[round; 9_000]), log(u64::from(round))).unwrap();
    }
    // Three blocks a catalog: the newest, and the place of the next.
    assert_eq!(storage.stats().space.used_blocks, 2 + 3 + 3);
    assert!(data_of(&dir).len() <= 64 << 10);
    let marked = storage.mark_log(log(1_000)).unwrap();
    assert_eq!(marked.catalog.map(|catalog| catalog.extent), storage.catalog_extent());
    let opened = Storage::open(&dir, &Budget::new(MEMORY), true).unwrap();
    assert_eq!(opened.catalog, catalog_with(&[39; 9_000]));
    assert_eq!(opened.superblock.log, log(1_000));
}

#[test]
fn read_only_means_that_nothing_is_written() {
    let (storage, dir) = Storage::testing(MEMORY);
    storage.checkpoint(&catalog_with(b"x"), log(1)).unwrap();
    drop(storage);
    let before = dir.to_files();
    let opened = Storage::open(&dir, &Budget::new(MEMORY), true).unwrap();
    let storage = opened.storage;
    let read_only = |result: Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnly);
    };
    read_only(storage.allocate(1, &UNLIMITED).map(|_| ()));
    read_only(storage.free(Extent::new(2, 1)));
    read_only(storage.give_back(0).map(drop));
    read_only(storage.write_blocks(BlockNo(2), Generation(1), &mut [0; BLOCK_BYTES]));
    let (first, generation) = (BlockNo(2), Generation(1));
    let blocks = &mut [0; BLOCK_BYTES];
    read_only(storage.write_many(&mut [BlockWrite { first, generation, blocks }]));
    read_only(storage.checkpoint(&Catalog::default(), log(2)).map(|_| ()));
    read_only(storage.mark_log(log(2)).map(|_| ()));
    read_only(storage.write_large(&[0; 50_000]).map(|_| ()));
    storage.verify_root().unwrap();
    assert_eq!(dir.to_files(), before);
}

#[test]
fn create_and_open_name_the_fault() {
    let budget = Budget::new(MEMORY);
    let dir = MemoryDirectory::new();
    let kind = |result: Result<Opened>| result.err().map(|error| error.kind());
    assert_eq!(kind(Storage::open(&dir, &budget, false)), Some(ErrorKind::NotFound));
    drop(Storage::create(&dir, &budget, 1).unwrap());
    assert_eq!(kind(Storage::create(&dir, &budget, 1)), Some(ErrorKind::InvalidArgument));
    // An interrupted creation is not a database and does not prevent one.
    for unfinished in [vec![], vec![0; 8192]] {
        let dir = MemoryDirectory::from_files([(DATA_FILE.to_owned(), unfinished)].into());
        assert_eq!(kind(Storage::open(&dir, &budget, false)), Some(ErrorKind::NotFound));
        drop(Storage::create(&dir, &budget, 1).unwrap());
        drop(Storage::open(&dir, &budget, false).unwrap());
    }
    // Foreign files are not changed.
    let foreign: std::collections::BTreeMap<_, _> =
        [(DATA_FILE.to_owned(), vec![b'#'; 20_000])].into();
    let dir = MemoryDirectory::from_files(foreign.clone());
    assert_eq!(kind(Storage::open(&dir, &budget, false)), Some(ErrorKind::InvalidArgument));
    assert_eq!(kind(Storage::create(&dir, &budget, 1)), Some(ErrorKind::InvalidArgument));
    assert_eq!(dir.to_files(), foreign);
}

#[test]
fn an_open_repairs_the_copies_before_anything_is_allocated() {
    let (storage, dir) = Storage::testing(MEMORY);
    storage.checkpoint(&catalog_with(b"x"), log(1)).unwrap();
    drop(storage);
    for copy in 0..2 {
        let mut files = dir.to_files();
        files.get_mut(DATA_FILE).unwrap()[copy * BLOCK_BYTES + 40] ^= 1;
        let dir = MemoryDirectory::from_files(files);
        let read_only = Storage::open(&dir, &Budget::new(MEMORY), true).unwrap();
        assert!(read_only.storage.verify_root().is_err());
        let opened = Storage::open(&dir, &Budget::new(MEMORY), false).unwrap();
        opened.storage.verify_root().unwrap();
        assert_eq!(opened.catalog, catalog_with(b"x"));
    }
}

#[test]
fn a_damaged_catalog_stops_the_open_and_nothing_is_written() {
    let (storage, dir) = Storage::testing(MEMORY);
    let superblock = storage.checkpoint(&catalog_with(b"x"), log(1)).unwrap();
    drop(storage);
    let place = superblock.catalog.unwrap().extent.offset();
    let mut files = dir.to_files();
    files.get_mut(DATA_FILE).unwrap()[usize::try_from(place).unwrap() + 30] ^= 1;
    let dir = MemoryDirectory::from_files(files.clone());
    let error = Storage::open(&dir, &Budget::new(MEMORY), false).err().unwrap();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(place)));
    assert_eq!(dir.to_files(), files);
}

#[test]
fn writes_that_would_hit_the_superblocks_or_no_block_are_refused() {
    let (storage, _) = Storage::testing(MEMORY);
    for (first, bytes) in [(0, BLOCK_BYTES), (1, BLOCK_BYTES), (5, 100), (5, 0)] {
        let error = storage.write_blocks(BlockNo(first), Generation(1), &mut vec![0; bytes]);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Internal);
    }
    let error = storage.read_blocks(BlockNo(u64::MAX), Generation(1), &mut [0; BLOCK_BYTES]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn blocks_are_counted_by_kind() {
    let (storage, _) = Storage::testing(MEMORY);
    storage.write_large(&vec![1; 40_000]).unwrap();
    storage.checkpoint(&catalog_with(b"x"), log(1)).unwrap();
    let stats = storage.stats();
    assert_eq!(stats.file.blocks_written[block::BlockKind::LargeValue as usize], 10);
    assert_eq!(stats.file.blocks_written[block::BlockKind::Catalog as usize], 1);
    assert_eq!(stats.space.used_blocks, 2 + 10 + 1);
    assert_eq!(stats.space.used_blocks + stats.space.free_blocks, stats.space.file_blocks);
    assert_eq!(stats.allocated_bytes, stats.space.file_blocks * BLOCK_BYTES_U64);
}

#[test]
fn after_a_failed_sync_none_succeeds_and_reads_go_on() {
    let (plan, memory) = (FaultPlan::new(), Arc::new(MemoryDirectory::new()));
    let dir = FaultDirectory::new(memory, plan.clone()).unwrap();
    let storage = Storage::create(&dir, &Budget::new(MEMORY), 1).unwrap().storage;
    let place = storage.allocate(1, &UNLIMITED).unwrap();
    let mut blocks = blocks_of(1, 1);
    storage.write_blocks(place.extent.start, place.generation, &mut blocks).unwrap();
    // The system reports a failure once: the next sync of the file would report success.
    plan.fail(Fault::once(Call::Sync, 0));
    assert_eq!(storage.sync().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(storage.sync().unwrap_err().kind(), ErrorKind::Stopped);
    let failed = storage.checkpoint(&catalog_with(b"root"), log(1)).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Stopped);
    assert_eq!(storage.mark_log(log(1)).unwrap_err().kind(), ErrorKind::Stopped);
    storage.read_blocks(place.extent.start, place.generation, &mut blocks).unwrap();
}

#[test]
fn nothing_is_written_once_it_is_closed() {
    let (storage, dir) = Storage::testing(MEMORY);
    let place = storage.allocate(2, &UNLIMITED).unwrap();
    let mut blocks = blocks_of(1, 2);
    storage.write_blocks(place.extent.start, place.generation, &mut blocks).unwrap();
    storage.close();
    let before = data_of(&dir);
    let stopped = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Stopped);
    let mut other = blocks_of(2, 2);
    stopped(storage.write_blocks(place.extent.start, place.generation, &mut other));
    let (first, generation) = (place.extent.start, place.generation);
    stopped(storage.write_many(&mut [BlockWrite { first, generation, blocks: &mut other }]));
    stopped(storage.allocate(1, &UNLIMITED).map(drop));
    stopped(storage.give_back(0).map(drop));
    stopped(storage.checkpoint(&catalog_with(b"root"), log(1)).map(drop));
    stopped(storage.sync());
    storage.read_blocks(place.extent.start, place.generation, &mut blocks).unwrap();
    assert_eq!(data_of(&dir), before);
}
