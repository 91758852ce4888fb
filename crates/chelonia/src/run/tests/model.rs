//! Every way to read a run agrees with an ordered map of the same entries.

use super::{
    Model, Owned, add_all, below, build, drain, expected, get, large, options, storage, verify,
};
use crate::base::checksum::KeyHash;
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::{KEY_BYTES_MAX, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::{LargeRef, SortedStream};
use crate::filters::FilterKind;
use crate::run::read::lookup::Located;
use crate::run::{FilterState, Run, RunBuilder, RunCursor, RunOptions, RunRef, RunStream};
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::cache::{CachedExtent, Priority};
use crate::storage::quota::UNLIMITED;
use std::ops::Bound;

/// Shape of the keys and values of a model.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// 8-byte random keys, small values.
    Random,
    /// Records of one size with a few others between, and many consecutive tombstones.
    Alike,
    /// A few bytes of alphabet 2, so that keys are prefixes of others; empty values.
    Dense,
    /// Long shared prefixes, tails of all lengths.
    Prefixed,
    /// Values of 0.3 to 3 KiB.
    Medium,
    /// Keys up to 64 KiB, values up to the largest inline one.
    Huge,
    /// Keys of 3 to 20 KiB that share long parts with neighbours: a deep index of long separators.
    LongSeparators,
    /// Everything.
    Mixed,
}

const SHAPES: [Shape; 8] = [
    Shape::Random,
    Shape::Alike,
    Shape::Dense,
    Shape::Prefixed,
    Shape::Medium,
    Shape::Huge,
    Shape::LongSeparators,
    Shape::Mixed,
];

fn filled(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

fn key(rng: &mut Rng, shape: Shape) -> Vec<u8> {
    match shape {
        Shape::Random | Shape::Medium => filled(rng, 8),
        Shape::Alike => {
            let len = if rng.one_in(60) { below(rng, 12) } else { 5 };
            filled(rng, len)
        }
        Shape::Dense => {
            let len = below(rng, 14);
            (0..len).map(|_| u8::try_from(rng.below(2)).unwrap() * 255).collect()
        }
        Shape::Prefixed => {
            let mut key = b"tenant/0000/".repeat(1 + below(rng, 40));
            let len = below(rng, 7);
            key.extend(filled(rng, len).iter().map(|byte| byte & 3));
            key
        }
        Shape::Huge => {
            let len = if rng.one_in(3) { KEY_BYTES_MAX - below(rng, 3) } else { below(rng, 9000) };
            let mut key = vec![u8::try_from(rng.below(3)).unwrap(); len];
            let tail = below(rng, 12).min(len);
            let random = filled(rng, tail);
            key[len - tail..].copy_from_slice(&random);
            key
        }
        Shape::LongSeparators => {
            let mut key = vec![u8::try_from(rng.below(200)).unwrap(); 3000 + below(rng, 3) * 8000];
            let tail = filled(rng, 3);
            key.extend(tail);
            key
        }
        Shape::Mixed => {
            let shape = SHAPES[below(rng, SHAPES.len() - 1)];
            key(rng, shape)
        }
    }
}

fn update(rng: &mut Rng, shape: Shape) -> Owned {
    if matches!(shape, Shape::Alike) {
        let len = if rng.one_in(60) { below(rng, 90) } else { 20 };
        return Owned::Put(filled(rng, len));
    }
    if rng.one_in(9) {
        return Owned::Delete;
    }
    if rng.one_in(9) {
        return Owned::Large(large(rng));
    }
    let len = match shape {
        Shape::Random | Shape::Alike | Shape::Prefixed => below(rng, 250),
        Shape::Dense => 0,
        Shape::Medium => 300 + below(rng, 2800),
        Shape::LongSeparators => below(rng, 10),
        Shape::Huge => [LARGE_VALUE_BYTES_MIN - 1, below(rng, 5000), 0][below(rng, 3)],
        Shape::Mixed => [below(rng, 100), below(rng, 5000), below(rng, 32_000)][below(rng, 3)],
    };
    Owned::Put(filled(rng, len))
}

fn model(seed: u64, shape: Shape, count: usize) -> Model {
    let mut rng = Rng::new(seed);
    let mut model: Model =
        (0..count).map(|_| (key(&mut rng, shape), update(&mut rng, shape))).collect();
    if matches!(shape, Shape::Alike) {
        model.range_mut(vec![40]..vec![90]).for_each(|(_, update)| *update = Owned::Delete);
    }
    model
}

fn counts(shape: Shape) -> [usize; 4] {
    match shape {
        Shape::Huge => [1, 2, 12, 60],
        Shape::LongSeparators => [1, 3, 40, 300],
        Shape::Mixed => [1, 2, 50, 300],
        Shape::Medium => [1, 7, 100, 900],
        Shape::Random | Shape::Alike | Shape::Dense | Shape::Prefixed => [1, 5, 400, 6000],
    }
}

/// A key of the model, close to one of it, or random.
fn probe_key(rng: &mut Rng, model: &Model, shape: Shape) -> Vec<u8> {
    let mut near = match model.keys().nth(below(rng, model.len())) {
        Some(near) if !rng.one_in(4) => near.clone(),
        _ => return key(rng, shape),
    };
    match rng.below(6) {
        0 => near.push(0),
        1 => {
            near.pop();
        }
        2 => {
            if let Some(last) = near.last_mut() {
                *last = last.wrapping_add(1);
            }
        }
        3 => {
            let cut = below(rng, near.len() + 1);
            near.truncate(cut);
        }
        _ => {}
    }
    near
}

fn probe_range(rng: &mut Rng, model: &Model, shape: Shape) -> KeyRange {
    let mut bound = || {
        let key = probe_key(rng, model, shape);
        match rng.below(5) {
            0 | 1 => Bound::Included(key),
            2 | 3 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        }
    };
    KeyRange { lower: bound(), upper: bound() }
}

fn check_lookups(run: &Run, storage: &Storage, model: &Model, shape: Shape, rng: &mut Rng) {
    for (key, update) in model {
        let hit = get(run, key, storage.key_hash(key)).unwrap();
        assert!(update.is_hit(&hit.unwrap()), "{shape:?}");
    }
    for _ in 0..300 {
        let key = probe_key(rng, model, shape);
        let hash = storage.key_hash(&key);
        let hit = get(run, &key, hash).unwrap();
        match (model.get(&key), hit) {
            (Some(update), Some(hit)) => assert!(update.is_hit(&hit)),
            (None, None) => {}
            (expected, found) => panic!("{shape:?}: {expected:?} {found:?}"),
        }
        assert_eq!(stepped(run, storage, &key, hash), get(run, &key, hash).unwrap());
    }
}

/// The lookup in steps, as a tree does it for many keys at once.
fn stepped(run: &Run, storage: &Storage, key: &[u8], hash: KeyHash) -> Option<crate::run::RunHit> {
    let guard = storage.epochs().pin();
    let maybe = match run.filter().state(hash, &guard) {
        FilterState::No => false,
        FilterState::Maybe => true,
        FilterState::Missing(block) => {
            let wanted = [(run.cached(), block)];
            let blocks = storage.load_many(&wanted, Priority::Filter).unwrap();
            run.filter().may_contain_in(hash, &blocks[0])
        }
    };
    if !maybe {
        return None;
    }
    for _ in 0..run.reference().index_levels {
        if let Located::Missing(span) = run.locate_cached(key, &guard).unwrap() {
            storage.load_many(&wanted(run, span), Priority::Index).unwrap();
        }
    }
    let span = match run.locate_cached(key, &guard).unwrap() {
        Located::Absent => return None,
        Located::Span(span) => span,
        Located::Missing(_) => run.locate(key).unwrap().unwrap(),
    };
    run.find_in(span, key).unwrap()
}

fn wanted(run: &Run, span: crate::run::reference::BlockSpan) -> Vec<(&CachedExtent, u32)> {
    (span.first..span.end()).map(|block| (run.cached(), block)).collect()
}

fn check_range(run: &Arc<Run>, model: &Model, range: &KeyRange) {
    let mut entries = expected(model, range);
    let mut stream = RunStream::new(run, range.clone()).unwrap();
    assert!(drain(&mut stream) == entries, "stream {range:?}");
    let mut cursor = RunCursor::new(run, range.clone(), Direction::Ascending).unwrap();
    assert!(drain(&mut cursor) == entries, "ascending {range:?}");
    entries.reverse();
    let mut cursor = RunCursor::new(run, range.clone(), Direction::Descending).unwrap();
    assert!(drain(&mut cursor) == entries, "descending {range:?}");
}

#[test]
fn runs_read_as_the_map_they_were_built_from() {
    let storage = storage();
    for (number, shape) in SHAPES.into_iter().enumerate() {
        for count in counts(shape) {
            for filter in [FilterKind::Bloom, FilterKind::Quotient] {
                let seed = (number * 1_000_000 + count) as u64;
                let model = model(seed, shape, count);
                let reference = build(&storage, &model, options(filter));
                let run = Run::open(&storage, reference);
                let mut rng = Rng::new(seed);
                assert_eq!(reference.entries, model.len() as u64);
                check_lookups(&run, &storage, &model, shape, &mut rng);
                check_range(&run, &model, &KeyRange::all());
                for _ in 0..40 {
                    check_range(&run, &model, &probe_range(&mut rng, &model, shape));
                }
                let report = verify(&run);
                assert!(report.findings.is_empty(), "{shape:?} {count}: {:?}", report.findings);
                assert_eq!(report.blocks, u64::from(reference.extent.blocks));
                assert_eq!(report.entries, reference.entries);
                drop(run);
                storage.free(reference.extent).unwrap();
            }
        }
    }
}

#[test]
fn references_count_what_the_run_holds() {
    let storage = storage();
    let model = model(4, Shape::Mixed, 200);
    let mut builder = RunBuilder::new(&storage, RunOptions::default());
    add_all(&mut builder, &model);
    assert_eq!(builder.first_key(), model.keys().next().map(Vec::as_slice));
    assert_eq!(builder.last_key(), model.keys().next_back().map(Vec::as_slice));
    let user_bytes = builder.user_bytes();
    let reference = builder.finish(&UNLIMITED).unwrap();
    assert!(builder.is_empty() && builder.last_key().is_none());
    let deletes = model.values().filter(|update| **update == Owned::Delete).count();
    assert_eq!(reference.tombstones, deletes as u64);
    assert_eq!(reference.user_bytes, user_bytes);
    let large = model.values().filter_map(|update| match update {
        Owned::Large(large) => Some(*large),
        _ => None,
    });
    assert_eq!(listed(&Run::open(&storage, reference), 0), large.collect::<Vec<_>>());
    let mut encoded = Vec::new();
    reference.encode(&mut encoded);
    let mut decoder = crate::base::codec::Decoder::new(&encoded, "run");
    assert_eq!(RunRef::decode(&mut decoder).unwrap(), reference);
}

/// The large values of a run, without the first `skipped`.
fn listed(run: &Run, skipped: u64) -> Vec<LargeRef> {
    let mut listed = Vec::new();
    let list = &mut |large| {
        listed.push(large);
        Ok(())
    };
    run.large_refs_from(skipped, &KeyRange::all(), list).unwrap();
    listed
}

#[test]
fn many_large_values_take_many_blocks_of_the_list() {
    let storage = storage();
    let mut rng = Rng::new(8);
    let values: Vec<_> = (0..3000).map(|_| large(&mut rng)).collect();
    let model: Model = (0..3000_u32)
        .zip(&values)
        .map(|(key, large)| (key.to_be_bytes().to_vec(), Owned::Large(*large)))
        .collect();
    let reference = build(&storage, &model, RunOptions::default());
    assert!(reference.large_blocks > 10);
    let run = Run::open(&storage, reference);
    for skipped in [0, 1, 1000, 2999, 3000] {
        assert!(listed(&run, skipped as u64) == values[skipped..], "{skipped} skipped");
    }
    let report = verify(&run);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_builder_is_used_again_and_owes_nothing() {
    let storage = storage();
    let used = storage.budget().used();
    {
        let mut builder = RunBuilder::new(&storage, RunOptions::default());
        for seed in 0..5 {
            let model = model(seed, Shape::Random, 3000);
            add_all(&mut builder, &model);
            if seed == 2 {
                builder.reset();
                continue;
            }
            let reference = builder.finish(&UNLIMITED).unwrap();
            let run = Run::open(&storage, reference);
            check_range(&run, &model, &KeyRange::all());
            drop(run);
            storage.free(reference.extent).unwrap();
        }
        assert!(builder.finish(&UNLIMITED).is_err());
    }
    let cached = storage.budget().used_by(crate::memory::budget::Use::Cache);
    assert_eq!(storage.budget().used_by(crate::memory::budget::Use::Work), 0);
    assert!(storage.budget().used() <= used + cached + 4096);
}

#[test]
fn keys_that_do_not_ascend_are_refused() {
    let storage = storage();
    let mut builder = RunBuilder::new(&storage, RunOptions::default());
    for key in [&b""[..], b"a", b"b"] {
        builder.add(key, crate::base::stream::Update::Delete).unwrap();
    }
    for key in [&b"b"[..], b"a", b""] {
        assert!(builder.add(key, crate::base::stream::Update::Delete).is_err());
    }
}

#[test]
fn estimates_follow_the_keys() {
    let storage = storage();
    let model = model(3, Shape::Random, 20_000);
    let run = Run::open(&storage, build(&storage, &model, RunOptions::default()));
    for part in 1..=8_u8 {
        let range = KeyRange::half_open(&[], Some(&[part * 16]));
        let share = run.share_in(&range).unwrap();
        let real = expected(&model, &range).len() as f64 / model.len() as f64;
        assert!((share - real).abs() < 0.01, "{share} {real}");
    }
}

#[test]
fn marks_divide_the_blocks_of_a_range() {
    let storage = storage();
    for (number, shape) in SHAPES.into_iter().enumerate() {
        for count in counts(shape) {
            let model = model(number as u64, shape, count);
            let run = Run::open(&storage, build(&storage, &model, RunOptions::default()));
            let keys: Vec<_> = model.keys().collect();
            let some = |part: usize| keys.get(keys.len() * part / 8).map(|key| key.as_slice());
            let lower = some(3).unwrap_or_default();
            for range in [KeyRange::all(), KeyRange::half_open(lower, some(6))] {
                for step in [1, 3, 16] {
                    check_marks(&run, &model, &range, step);
                }
            }
        }
    }
}

/// Each mark separates the entries of the blocks before it from those behind.
fn check_marks(run: &Run, model: &Model, range: &KeyRange, step: u32) {
    let blocks = run.blocks_in(range).unwrap();
    let mut marks = Vec::new();
    run.marks_in(range, step, &mut |key, first| marks.push((key.to_vec(), first))).unwrap();
    let mut last = blocks.start;
    for (key, first) in &marks {
        assert!(*first >= last + step && *first < blocks.end, "{first} after {last}");
        last = *first;
        assert_eq!(run.locate(key).unwrap().unwrap().first, *first);
        if let Some((before, _)) = model.range::<Vec<u8>, _>(..key).next_back() {
            // A value that overflows may end in the block of the mark.
            let span = run.locate(before).unwrap().unwrap();
            assert!(span.first < *first && span.end() <= *first + 1);
        }
    }
    // No block is left out: between two marks there is one span more than the step at most.
    let longest = marks.iter().map(|(_, first)| *first).chain([blocks.end]);
    let longest =
        longest.scan(blocks.start, |last, first| Some(first - std::mem::replace(last, first)));
    let most = step + crate::run::block::SPAN_BLOCKS_MAX;
    assert!(run.reference().index_levels == 0 || longest.max().unwrap() <= most);
}

#[test]
fn scans_begin_small_and_grow() {
    let storage = storage();
    let model = model(12, Shape::Random, 20_000);
    let run = Run::open(&storage, build(&storage, &model, RunOptions::default()));
    let read = || storage.stats().file;
    let start = read();
    let mut cursor = RunCursor::new(&run, KeyRange::all(), Direction::Ascending).unwrap();
    for _ in 0..10 {
        cursor.advance().unwrap();
    }
    let data = crate::storage::block::BlockKind::Data as usize;
    assert!(read().blocks_read[data] - start.blocks_read[data] <= 2);
    let whole = drain(&mut cursor);
    assert_eq!(whole.len(), model.len() - 10);
    let reads = read().reads - start.reads;
    assert!(reads <= 40, "{reads} reads for {} blocks", run.reference().data_blocks);
}

#[test]
fn cursors_that_move_on_give_every_range() {
    let storage = storage();
    for (number, shape) in SHAPES.into_iter().enumerate() {
        let count = counts(shape)[2];
        let model = model(number as u64, shape, count);
        let run = Run::open(&storage, build(&storage, &model, RunOptions::default()));
        let keys: Vec<_> = model.keys().collect();
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut rng = Rng::new(number as u64);
            let mut cuts: Vec<_> = (0..8).map(|_| keys[below(&mut rng, keys.len())]).collect();
            cuts.sort();
            let bounds = std::iter::once(&[][..]).chain(cuts.iter().map(|cut| cut.as_slice()));
            let ends = cuts.iter().map(|cut| Some(cut.as_slice())).chain([None]);
            let mut ranges: Vec<_> = bounds
                .zip(ends)
                .map(|(lower, upper)| Arc::new(KeyRange::half_open(lower, upper)))
                .collect();
            if direction == Direction::Descending {
                ranges.reverse();
            }
            let first = Arc::clone(&ranges[0]);
            let mut cursor = RunCursor::located(&run, first, direction, 2).unwrap();
            for range in ranges {
                cursor.move_on(Arc::clone(&range)).unwrap();
                RunCursor::start(std::slice::from_mut(&mut cursor)).unwrap();
                let mut entries = expected(&model, &range);
                if direction == Direction::Descending {
                    entries.reverse();
                }
                // Some ranges are left before their end.
                let all = entries.len();
                entries.truncate(if rng.below(3) == 0 { all / 2 } else { all });
                for entry in &entries {
                    assert_eq!(cursor.key(), Some(&entry.0[..]), "{shape:?} {direction:?}");
                    assert!(Owned::of(cursor.update()) == entry.1);
                    cursor.advance().unwrap();
                }
                assert_eq!(cursor.key().is_none(), entries.len() == all);
            }
        }
    }
}

#[test]
fn cursors_that_start_together_read_together_and_feed_the_cache() {
    let storage = storage();
    let model = model(12, Shape::Random, 2_000);
    let build = || Run::open(&storage, build(&storage, &model, RunOptions::default()));
    let runs = [build(), build(), build()];
    let range = Arc::new(KeyRange::all());
    let ascending = Direction::Ascending;
    let locate = |run| RunCursor::located(run, Arc::clone(&range), ascending, 4).unwrap();
    for reads in [3, 0] {
        let before = storage.stats().file.reads;
        let mut cursors: Vec<_> = runs.iter().map(locate).collect();
        RunCursor::start(&mut cursors).unwrap();
        assert_eq!(storage.stats().file.reads - before, reads);
        for cursor in cursors {
            assert_eq!(cursor.key(), model.keys().next().map(Vec::as_slice));
        }
    }
    let guard = storage.epochs().pin();
    assert!((0..4).all(|block| runs[1].cached().cached(block, &guard).is_some()));
}
