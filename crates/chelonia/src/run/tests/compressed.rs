//! Runs with compressed values.

use super::{Model, Owned, add_all, below, drain, expected, get, storage, verify};
use crate::base::error::ErrorKind;
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::{BLOCK_BYTES, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::{Codec, Dictionary, NewValues, SortedStream, Update};
use crate::run::read::RunPart;
use crate::run::{Run, RunBuilder, RunCursor, RunOptions, RunStream};
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::io::{Access, Directory, OpenMode};
use crate::storage::quota::UNLIMITED;

const COMMON: &[u8] =
    b"{\"name\":\"of a thing that has a long name\",\"place\":\"elsewhere\",\"id\":";

fn dictionary() -> Dictionary {
    Dictionary::lz4(COMMON.to_vec())
}

/// Values that get smaller and others, of all sizes.
fn model(rng: &mut Rng, count: usize) -> Model {
    let update = |rng: &mut Rng| match rng.below(8) {
        0 => Owned::Delete,
        1 => {
            let mut noise = vec![0; below(rng, 900)];
            rng.fill(&mut noise);
            Owned::Put(noise)
        }
        kind => {
            let mut value = COMMON.to_vec();
            value.extend(rng.next_u64().to_string().bytes());
            let times = below(rng, if kind == 2 { 30_000 } else { 300 });
            value.extend(std::iter::repeat_n(rng.next_u64().to_le_bytes(), times / 8).flatten());
            Owned::Put(value)
        }
    };
    (0..count).map(|_| (rng.next_u64().to_be_bytes().to_vec(), update(rng))).collect()
}

fn built(storage: &Arc<Storage>, model: &Model, values: NewValues<'_>) -> Arc<Run> {
    let mut builder = RunBuilder::new(storage, RunOptions::default());
    builder.set_values(values);
    add_all(&mut builder, model);
    Run::open(storage, builder.finish(&UNLIMITED).unwrap())
}

/// The run that a merge of this one alone makes.
fn merged(storage: &Arc<Storage>, run: &Arc<Run>, values: NewValues<'_>) -> Arc<Run> {
    let mut builder = RunBuilder::new(storage, RunOptions::default());
    builder.set_values(values);
    let mut stream = RunStream::new(run, KeyRange::all()).unwrap();
    while let Some(key) = stream.key() {
        let key = key.to_vec();
        builder.add(&key, stream.update()).unwrap();
        stream.advance().unwrap();
    }
    Run::open(storage, builder.finish(&UNLIMITED).unwrap())
}

fn check(storage: &Storage, run: &Arc<Run>, model: &Model) {
    let report = verify(run);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.blocks, u64::from(run.reference().extent.blocks));
    let totals = run.reference().totals();
    let bytes = model.iter().map(|(key, owned)| key.len() + owned.borrow().inline_bytes());
    assert_eq!(totals.bytes, bytes.sum::<usize>() as u64, "bytes before compression");
    for (key, owned) in model {
        let hit = get(run, key, storage.key_hash(key)).unwrap().unwrap();
        assert!(owned.is_hit(&hit));
    }
    let all = KeyRange::all();
    let mut entries = expected(model, &all);
    let stream = &mut RunStream::new(run, KeyRange::all()).unwrap();
    assert_eq!(drain(stream), entries);
    let cursor = &mut RunCursor::new(run, KeyRange::all(), Direction::Ascending).unwrap();
    assert_eq!(drain(cursor), entries);
    entries.reverse();
    let cursor = &mut RunCursor::new(run, KeyRange::all(), Direction::Descending).unwrap();
    assert_eq!(drain(cursor), entries);
}

#[test]
fn runs_with_and_without_compression_have_the_same_entries() {
    let storage = storage();
    let mut rng = Rng::new(1);
    let (one, other) = (dictionary(), Dictionary::new(Codec::Zstd, COMMON.to_vec()).unwrap());
    let model = model(&mut rng, 3000);
    let plain = built(&storage, &model, NewValues::Plain);
    let small = built(&storage, &model, NewValues::Compressed(Some(&one)));
    assert_eq!(plain.reference().dictionary, None);
    assert_eq!(small.reference().dictionary, Some(one.id()));
    assert!(3 * small.reference().data_blocks < 2 * plain.reference().data_blocks);
    let kept = merged(&storage, &small, NewValues::Compressed(Some(&one)));
    assert_eq!(kept.reference().data_blocks, small.reference().data_blocks);
    let adopted = merged(&storage, &small, NewValues::Compressed(None));
    assert_eq!(adopted.reference().dictionary, Some(one.id()));
    let anew = merged(&storage, &small, NewValues::Compressed(Some(&other)));
    assert_eq!(anew.reference().dictionary, Some(other.id()));
    let plain_again = merged(&storage, &anew, NewValues::Plain);
    assert_eq!(plain_again.reference().data_blocks, plain.reference().data_blocks);
    assert_eq!(plain_again.reference().dictionary, None);
    let first = merged(&storage, &plain, NewValues::Compressed(Some(&one)));
    assert_eq!(first.reference().data_blocks, small.reference().data_blocks);
    for run in [plain, small, kept, adopted, anew, plain_again, first] {
        check(&storage, &run, &model);
    }
}

#[test]
fn values_that_do_not_get_smaller_stay_as_they_are_and_are_seldom_tried() {
    let storage = storage();
    let mut rng = Rng::new(2);
    let mut model = Model::new();
    for number in 0..2000_u64 {
        let mut noise = vec![0; 300];
        rng.fill(&mut noise);
        // Common values among random ones are found again.
        let value = if number >= 1500 { COMMON.repeat(4) } else { noise };
        model.insert(number.to_be_bytes().to_vec(), Owned::Put(value));
    }
    let dictionary = dictionary();
    let plain = built(&storage, &model, NewValues::Plain);
    let run = built(&storage, &model, NewValues::Compressed(Some(&dictionary)));
    check(&storage, &run, &model);
    assert!(run.reference().data_blocks * 5 < plain.reference().data_blocks * 4);
    model.retain(|key, _| key.as_slice() < &1500_u64.to_be_bytes()[..]);
    let run = built(&storage, &model, NewValues::Compressed(Some(&dictionary)));
    assert_eq!(run.reference().dictionary, None, "nothing was compressed");
    check(&storage, &run, &model);
}

#[test]
fn a_damaged_dictionary_is_an_error_and_loses_only_compressed_values() {
    let (storage, dir) = Storage::testing(64 << 20);
    let mut rng = Rng::new(3);
    let model = model(&mut rng, 400);
    let dictionary = dictionary();
    let reference = *built(&storage, &model, NewValues::Compressed(Some(&dictionary))).reference();
    let number = reference.extent.start.0 + u64::from(reference.dictionary_start());
    let file = dir.open("data", OpenMode::Write, Access::Direct).unwrap();
    let (mut byte, place) = ([0], number * BLOCK_BYTES as u64 + 100);
    file.read_at(&mut byte, place).unwrap();
    file.write_at(&[byte[0] ^ 1], place).unwrap();
    let run = Run::open(&storage, reference);
    let report = verify(&run);
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].offset(), Some(number * BLOCK_BYTES as u64));
    assert!(RunStream::new(&run, KeyRange::all()).is_err());
    let (mut kept, mut gaps) = (Model::new(), Vec::new());
    let mut take = |part: RunPart<'_>| {
        match part {
            RunPart::Entry(key, update) => {
                kept.insert(key.to_vec(), Owned::of(update));
            }
            RunPart::Gap(range, error) => gaps.push((range, error)),
        }
        Ok(())
    };
    run.salvage(&KeyRange::all(), &mut take).unwrap();
    for (key, owned) in &model {
        let is_lost = gaps.iter().any(|(range, _)| range.contains(key));
        assert!(is_lost != kept.contains_key(key), "each key is there, or in a gap");
        let found = get(&run, key, storage.key_hash(key));
        match kept.get(key) {
            Some(kept) => assert!(kept == owned && owned.is_hit(&found.unwrap().unwrap())),
            None => assert_eq!(found.unwrap_err().kind(), ErrorKind::Corrupt),
        }
    }
    let compressible =
        |owned: &&Owned| matches!(owned, Owned::Put(value) if value.starts_with(COMMON));
    assert!(kept.len() + model.values().filter(compressible).count() >= model.len());
    // Another run with this dictionary was read: the damage does not matter any more.
    let other = built(&storage, &model, NewValues::Compressed(Some(&dictionary)));
    assert!(other.dictionary().is_ok());
    check_reads(&storage, &Run::open(&storage, reference), &model);
}

fn check_reads(storage: &Storage, run: &Arc<Run>, model: &Model) {
    for (key, owned) in model {
        assert!(owned.is_hit(&get(run, key, storage.key_hash(key)).unwrap().unwrap()));
    }
}

#[test]
fn the_largest_values_are_compressed() {
    let storage = storage();
    let dictionary = dictionary();
    let value =
        Owned::Put(COMMON.iter().copied().cycle().take(LARGE_VALUE_BYTES_MIN - 1).collect());
    let model: Model = (0..50_u64).map(|n| (n.to_be_bytes().to_vec(), value.clone())).collect();
    let run = built(&storage, &model, NewValues::Compressed(Some(&dictionary)));
    assert!(run.reference().data_blocks < 10);
    check(&storage, &run, &model);
    let stream = RunStream::new(&run, KeyRange::all()).unwrap();
    assert!(matches!(stream.update(), Update::PutCompressed(_)));
}
