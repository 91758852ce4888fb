//! Damage is detected; forged blocks with valid checksums give errors, never a panic or a hang.

use super::{Model, Owned, build, drain, get, large, options, storage, verify};
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::BlockNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::{BLOCK_BYTES, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::SortedStream;
use crate::filters::FilterKind;
use crate::run::block::{HEADS, SortedBlock, USED};
use crate::run::{RangesStream, Run, RunCursor, RunPart, RunRef, RunStream};
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::block::BlockKind;
use std::ops::{Bound, Range};

/// A run with every kind of block: long and short spans, two index levels, large values.
fn sample(storage: &Arc<Storage>) -> (Model, RunRef) {
    let mut rng = Rng::new(6);
    let mut model: Model = (0..700_u32)
        .map(|number| {
            let mut key = number.wrapping_mul(0x9e37_79b9).to_be_bytes().to_vec();
            key.resize(4 + super::below(&mut rng, 300), 1);
            let value = vec![9; super::below(&mut rng, 200)];
            (key, if rng.one_in(10) { Owned::Delete } else { Owned::Put(value) })
        })
        .collect();
    for byte in [3, 99, 200] {
        model.insert(vec![byte; 2], Owned::Put(vec![byte; 9000]));
        model.insert(vec![byte; 3], Owned::Large(large(&mut rng)));
        model.insert(vec![byte; 9000], Owned::Put(Vec::new()));
    }
    let reference = build(storage, &model, options(FilterKind::Quotient));
    assert!(reference.large_blocks > 0 && reference.index_levels > 0);
    (model, reference)
}

fn read(storage: &Storage, reference: &RunRef, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    let number = BlockNo(reference.extent.start.0 + u64::from(block));
    storage.read_blocks(number, reference.generation, &mut bytes).unwrap();
    bytes
}

/// Writes a block with a valid checksum.
fn forge(storage: &Storage, reference: &RunRef, block: u32, bytes: &[u8]) {
    let number = BlockNo(reference.extent.start.0 + u64::from(block));
    storage.write_blocks(number, reference.generation, &mut bytes.to_vec()).unwrap();
}

fn walk(stream: Result<impl SortedStream>) -> Result<u64> {
    let mut stream = stream?;
    let mut entries = 0;
    while stream.key().is_some() {
        let _ = stream.update();
        stream.advance()?;
        entries += 1;
        assert!(entries < 1 << 20, "a walk goes on for ever");
    }
    Ok(entries)
}

/// Reads the run in every way; all errors must be of kind `Corrupt` and name the data file.
fn read_all(storage: &Arc<Storage>, reference: RunRef, keys: &[Vec<u8>]) {
    let run = Run::open(storage, reference);
    let mut results = vec![walk(RunStream::new(&run, KeyRange::all())).map(drop)];
    for direction in [Direction::Ascending, Direction::Descending] {
        results.push(walk(RunCursor::new(&run, KeyRange::all(), direction)).map(drop));
        let middle = KeyRange::half_open(&keys[keys.len() / 4], Some(&keys[keys.len() / 2]));
        results.push(walk(RunCursor::new(&run, middle, direction)).map(drop));
    }
    for key in keys {
        results.push(get(&run, key, storage.key_hash(key)).map(drop));
    }
    results.push(run.large_refs(&mut |_| Ok(())));
    let mut report = super::Report::default();
    results.push(run.verify(&mut report));
    results.extend(report.findings.into_iter().map(Err));
    for error in results.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        assert_eq!(error.file(), Some("data"), "{error:?}");
    }
}

fn key_of(number: u32) -> Vec<u8> {
    number.wrapping_mul(0x9e37_79b9).to_be_bytes().to_vec()
}

fn some_keys(model: &Model) -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = model.keys().step_by(40).cloned().collect();
    keys.extend([Vec::new(), vec![255; 20], vec![3; 2], vec![3; 3], vec![3; 9000]]);
    keys.sort();
    keys
}

#[test]
fn forged_headers_give_errors() {
    let storage = storage();
    let (model, reference) = sample(&storage);
    let keys = some_keys(&model);
    let mut rng = Rng::new(17);
    for block in 0..reference.extent.blocks {
        let good = read(&storage, &reference, block);
        // Of the header, and where it speaks of overflows.
        for field in [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23] {
            let near = [good[field].wrapping_add(1), good[field] ^ 0x10, good[field] ^ 0x40];
            for value in [0, 1, 2, 255].into_iter().chain(near) {
                let mut bad = good.clone();
                bad[field] = value;
                if block % 9 == 0 || rng.one_in(12) {
                    forge(&storage, &reference, block, &bad);
                    read_all(&storage, reference, &keys);
                }
            }
        }
        forge(&storage, &reference, block, &good);
    }
    assert!(verify(&Run::open(&storage, reference)).findings.is_empty());
}

#[test]
fn forged_bodies_give_errors_or_answers() {
    let storage = storage();
    let (model, reference) = sample(&storage);
    let keys = some_keys(&model);
    let mut rng = Rng::new(18);
    for block in 0..reference.extent.blocks {
        let good = read(&storage, &reference, block);
        for round in 0..6 {
            let mut bad = good.clone();
            match round {
                0 => rng.fill(&mut bad[16..]),
                1 => bad[16..].fill(0),
                2 => bad[16..].fill(255),
                _ => {
                    for _ in 0..20 {
                        let place = 9 + super::below(&mut rng, 600);
                        bad[place] = u8::try_from(rng.below(256)).unwrap();
                    }
                }
            }
            forge(&storage, &reference, block, &bad);
            read_all(&storage, reference, &keys);
        }
        forge(&storage, &reference, block, &good);
    }
}

/// The error of a merge's stream over `range`, which must name a block from `blocks`.
fn refused(storage: &Arc<Storage>, reference: RunRef, range: KeyRange, blocks: Range<u32>) {
    let run = Run::open(storage, reference);
    let error = walk(RunStream::new(&run, range)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let offset = |block| (reference.extent.start.0 + u64::from(block)) * BLOCK_BYTES as u64;
    let within = offset(blocks.start)..offset(blocks.end);
    assert!(within.contains(&error.offset().unwrap()), "{error}: not within {within:?}");
}

#[test]
fn merges_get_nothing_that_is_out_of_order() {
    let storage = storage();
    let model: Model =
        (0..600_u32).map(|number| (key_of(number), Owned::Put(vec![1; 60]))).collect();
    let reference = build(&storage, &model, options(FilterKind::Quotient));
    let all = KeyRange::all;
    for block in [0, 3, reference.data_blocks - 1] {
        let good = read(&storage, &reference, block);
        let count = SortedBlock::parse(&good, BlockKind::Data).unwrap().layout().count();
        // The heads of two entries that are not neighbours, and of all.
        let mut bad = good.clone();
        (0..4).for_each(|byte| bad.swap(HEADS + 4 + byte, HEADS + 4 * (count - 2) + byte));
        forge(&storage, &reference, block, &bad);
        refused(&storage, reference, all(), block..block + 1);
        let mut bad = good.clone();
        bad[HEADS..HEADS + 4 * count].fill(7);
        forge(&storage, &reference, block, &bad);
        refused(&storage, reference, all(), block..block + 1);
        forge(&storage, &reference, block, &good);
    }
    // Complete blocks exchanged.
    let (one, other) = (read(&storage, &reference, 2), read(&storage, &reference, 4));
    forge(&storage, &reference, 2, &other);
    forge(&storage, &reference, 4, &one);
    refused(&storage, reference, all(), 2..5);
    let middle = SortedBlock::parse(&one, BlockKind::Data).unwrap();
    let first = [middle.prefix(), &middle.head(0).to_be_bytes()].concat();
    // The keys that the index promises in block 2 are missing.
    refused(&storage, reference, KeyRange::half_open(&first, None), 2..5);
    forge(&storage, &reference, 2, &one);
    forge(&storage, &reference, 4, &other);
    assert_eq!(walk(RunStream::new(&Run::open(&storage, reference), all())).unwrap(), 600);
}

#[test]
fn what_a_merge_cannot_read_is_no_end() {
    let storage = storage();
    let entries = |range: Range<u32>| -> Model {
        range.map(|number| (key_of(number), Owned::Put(vec![1; 200]))).collect()
    };
    // Runs of several pieces: the damage is met midway.
    let runs = [0..3_000, 3_000..6_000].map(|range| {
        Run::open(&storage, build(&storage, &entries(range), options(FilterKind::Bloom)))
    });
    let stream =
        || RangesStream::new(runs.iter().map(|it| (Arc::clone(it), KeyRange::all())).collect());
    assert_eq!(walk(stream()).unwrap(), 6_000);
    let reference = *runs[0].reference();
    for block in [1, 70, reference.data_blocks - 1] {
        let good = read(&storage, &reference, block);
        let mut bad = good.clone();
        bad[HEADS..HEADS + 8].fill(7);
        forge(&storage, &reference, block, &bad);
        assert_eq!(walk(stream()).unwrap_err().kind(), ErrorKind::Corrupt, "block {block}");
        forge(&storage, &reference, block, &good);
    }
    assert_eq!(walk(stream()).unwrap(), 6_000);
}

#[test]
fn merges_get_no_value_that_is_too_large_for_a_run() {
    let storage = storage();
    let most = LARGE_VALUE_BYTES_MIN - 1;
    let model = Model::from([(b"key".to_vec(), Owned::Put(vec![1; most]))]);
    let reference = build(&storage, &model, options(FilterKind::Quotient));
    let stream = || walk(RunStream::new(&Run::open(&storage, reference), KeyRange::all()));
    assert_eq!(stream().unwrap(), 1);
    let last = reference.data_blocks - 1;
    // The head records one byte less for its last block than there is.
    let mut head = read(&storage, &reference, 0);
    let used = u16::from_le_bytes([head[USED], head[USED + 1]]);
    head[USED..USED + 2].copy_from_slice(&(used + 1).to_le_bytes());
    forge(&storage, &reference, 0, &head);
    assert!(last > 0 && stream().unwrap_err().kind() == ErrorKind::Corrupt);
}

#[test]
fn verify_finds_whatever_a_forger_changes() {
    let storage = storage();
    let (_, reference) = sample(&storage);
    let mut rng = Rng::new(19);
    let mut unseen = 0;
    for round in 0..800 {
        let block = u32::try_from(rng.below(reference.filter_start().into())).unwrap();
        let good = read(&storage, &reference, block);
        let end = match SortedBlock::parse(&good, BlockKind::Data)
            .or_else(|_| SortedBlock::parse(&good, BlockKind::Index))
        {
            Ok(sorted) => sorted.layout().end(),
            Err(_) => continue,
        };
        let place = 9 + super::below(&mut rng, end - 9);
        let mut bad = good.clone();
        bad[place] ^= 1 << (round % 8);
        forge(&storage, &reference, block, &bad);
        unseen += usize::from(verify(&Run::open(&storage, reference)).findings.is_empty());
        forge(&storage, &reference, block, &good);
    }
    // The rest is the content of values, which only the checksum protects.
    assert!(unseen < 500, "{unseen}");
}

#[test]
fn a_damaged_overflow_hides_its_value_alone() {
    let storage = storage();
    let mut rng = Rng::new(29);
    let model: Model = (0..200)
        .map(|number| (key_of(number), Owned::Put(vec![7; 5_000 + super::below(&mut rng, 9_000)])))
        .collect();
    let reference = build(&storage, &model, options(FilterKind::Quotient));
    let kinds: Vec<u8> =
        (0..reference.data_blocks).map(|block| read(&storage, &reference, block)[8]).collect();
    let overflows = |block: u32| kinds[block as usize] == BlockKind::DataOverflow as u8;
    let block = (50..reference.data_blocks).find(|block| overflows(*block)).unwrap();
    let mut good = read(&storage, &reference, block);
    let number = BlockNo(reference.extent.start.0 + u64::from(block));
    let stale = crate::base::ids::Generation(reference.generation.0 + 1);
    storage.write_blocks(number, stale, &mut good).unwrap();
    let run = Run::open(&storage, reference);
    let lost = |key: &&Vec<u8>| get(&run, key, storage.key_hash(key)).is_err();
    let lost: Vec<_> = model.keys().filter(lost).collect();
    assert_eq!(lost.len(), 1);
    let report = verify(&run);
    assert_eq!((report.findings.len(), report.entries), (1, 199));
    // A scan gives everything before it, in either direction; salvage everything else.
    for direction in [Direction::Ascending, Direction::Descending] {
        let before = match direction {
            Direction::Ascending => model.range(..lost[0].clone()).count(),
            Direction::Descending => model.range(lost[0].clone()..).count() - 1,
        };
        let mut cursor = RunCursor::new(&run, KeyRange::all(), direction).unwrap();
        let mut given = 0;
        while cursor.key().is_some() {
            given += 1;
            if cursor.advance().is_err() {
                break;
            }
        }
        assert_eq!(given, before, "{direction:?}");
    }
    // A scan that begins behind the value does not end as if nothing came after it.
    let after = KeyRange { lower: Bound::Excluded(lost[0].clone()), upper: Bound::Unbounded };
    let resumed = walk(RunCursor::new(&run, after, Direction::Ascending));
    assert_eq!(resumed.unwrap_err().offset(), Some(number.0 * BLOCK_BYTES as u64));
    let (mut entries, mut gaps) = (0, Vec::new());
    run.salvage(&KeyRange::all(), &mut |part| {
        match part {
            RunPart::Entry(..) => entries += 1,
            RunPart::Gap(gap, error) => gaps.push((gap, error)),
        }
        Ok(())
    })
    .unwrap();
    assert_eq!((entries, gaps.len()), (199, 1));
    assert!(gaps[0].0.contains(lost[0]));
    assert_eq!(gaps[0].1.offset(), Some(number.0 * BLOCK_BYTES as u64));
}

#[test]
fn each_damaged_block_is_one_finding() {
    let storage = storage();
    let mut rng = Rng::new(31);
    let mut value = |most: u64| vec![7; usize::try_from(rng.below(most)).unwrap()];
    let model: Model = (0..120)
        .map(|number| {
            (key_of(number), Owned::Put(value([100, 4_000, 14_000][number as usize % 3])))
        })
        .collect();
    let reference = build(&storage, &model, options(FilterKind::Quotient));
    for block in 0..reference.extent.blocks {
        let good = read(&storage, &reference, block);
        let number = BlockNo(reference.extent.start.0 + u64::from(block));
        let stale = crate::base::ids::Generation(reference.generation.0 + 1);
        storage.write_blocks(number, stale, &mut good.clone()).unwrap();
        let findings = verify(&Run::open(&storage, reference)).findings;
        let named = findings.iter().map(|error| error.offset().unwrap() / BLOCK_BYTES as u64);
        assert_eq!(named.collect::<Vec<_>>(), [number.0], "{findings:?}");
        forge(&storage, &reference, block, &good);
    }
}

#[test]
fn every_flipped_bit_of_a_block_is_an_error() {
    let (storage, dir) = Storage::testing(32 << 20);
    let (_, reference) = sample(&storage);
    let file = crate::storage::io::Directory::open(
        &dir,
        "data",
        crate::storage::io::OpenMode::Write,
        crate::storage::io::Access::Direct,
    )
    .unwrap();
    let mut rng = Rng::new(23);
    for _ in 0..600 {
        let offset = reference.extent.offset() + rng.below(reference.extent.bytes());
        let mut byte = [0];
        file.read_at(&mut byte, offset).unwrap();
        file.write_at(&[byte[0] ^ 1 << rng.below(8)], offset).unwrap();
        let run = Run::open(&storage, reference);
        let findings = verify(&run).findings;
        let block = offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let named = findings.iter().any(|error| error.offset() == Some(block));
        assert!(named, "{offset}: {findings:?}");
        file.write_at(&byte, offset).unwrap();
    }
    assert!(verify(&Run::open(&storage, reference)).findings.is_empty());
}

#[test]
fn a_damaged_block_hides_nothing_else() {
    let storage = storage();
    let (model, reference) = sample(&storage);
    let run = Run::open(&storage, reference);
    let whole = drain(&mut RunStream::new(&run, KeyRange::all()).unwrap());
    assert_eq!(whole.len(), model.len());
    let mut good = read(&storage, &reference, 2);
    let number = BlockNo(reference.extent.start.0 + 2);
    let generation = crate::base::ids::Generation(reference.generation.0 + 1);
    // Sealed for another use of the location: a stale block.
    storage.write_blocks(number, generation, &mut good).unwrap();
    let run = Run::open(&storage, reference);
    let mut lost = 0;
    for (key, update) in &model {
        match get(&run, key, storage.key_hash(key)) {
            Ok(hit) => assert!(update.is_hit(&hit.unwrap())),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                lost += 1;
            }
        }
    }
    assert!(lost > 0 && lost < 200, "{lost}");
    assert!(walk(RunStream::new(&run, KeyRange::all())).is_err());
}
