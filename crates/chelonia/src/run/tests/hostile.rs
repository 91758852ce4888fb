//! Damage is found; forged blocks with right checksums give errors, never a panic or a hang.

use super::{Model, Owned, build, drain, get, large, options, storage, verify};
use crate::base::epoch;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::BlockNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::BLOCK_BYTES;
use crate::base::rng::Rng;
use crate::base::stream::SortedStream;
use crate::base::sync::Arc;
use crate::filters::FilterKind;
use crate::run::block::SortedBlock;
use crate::run::{Run, RunCursor, RunRef, RunStream};
use crate::storage::Storage;
use crate::storage::block::BlockKind;

/// A run with every sort of block: long and short spans, two index levels, large values.
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

/// Writes a block with a right checksum.
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
    let guard = epoch::pin();
    let mut results = vec![walk(RunStream::new(&run, KeyRange::all())).map(drop)];
    for direction in [Direction::Ascending, Direction::Descending] {
        results.push(walk(RunCursor::new(&run, KeyRange::all(), direction)).map(drop));
        let middle = KeyRange::half_open(&keys[keys.len() / 4], Some(&keys[keys.len() / 2]));
        results.push(walk(RunCursor::new(&run, middle, direction)).map(drop));
    }
    for key in keys {
        results.push(get(&run, key, storage.key_hash(key), &guard).map(drop));
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
        for field in [8, 9, 10, 11, 12, 13, 14, 15] {
            for value in [0, 1, 2, 255, good[field].wrapping_add(1), good[field] ^ 0x10] {
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
    // What is left is the content of values, which only the checksum protects.
    assert!(unseen < 500, "{unseen}");
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
    // Sealed for another use of the place: a stale block.
    storage.write_blocks(number, generation, &mut good).unwrap();
    let run = Run::open(&storage, reference);
    let guard = epoch::pin();
    let mut lost = 0;
    for (key, update) in &model {
        match get(&run, key, storage.key_hash(key), &guard) {
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
