//! No false negatives, bounded false positives, and at most a wrong answer on invalid bytes.

use super::maplet::MapletSpec;
use super::sizing::spec_for;
use super::*;
use crate::runtime::rng::Rng;

const KINDS: [FilterKind; 2] = [FilterKind::Bloom, FilterKind::Quotient];

fn hashes(seed: u64, count: usize) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| rng.next_u64()).collect()
}

fn probe(spec: FilterSpec, blocks: &[u8], hash: u64) -> bool {
    let hash = KeyHash(hash);
    let block = spec.block_of(hash).unwrap() as usize;
    spec.may_contain(&blocks[block * BLOCK_BYTES..][..BLOCK_BYTES], hash)
}

fn built(kind: FilterKind, bits_per_key: u32, hashes: &[u64]) -> (FilterSpec, Vec<u8>) {
    let spec = spec_for(kind, bits_per_key, hashes.len() as u64);
    let mut blocks = Vec::new();
    spec.build(hashes, &mut blocks);
    assert_eq!(blocks.len(), spec.blocks() as usize * BLOCK_BYTES);
    (spec, blocks)
}

/// False positives per million.
fn false_positives(spec: FilterSpec, blocks: &[u8]) -> u64 {
    let count = 400_000;
    let found = hashes(999, count).iter().filter(|hash| probe(spec, blocks, **hash)).count();
    found as u64 * 1_000_000 / count as u64
}

#[test]
fn false_positives_stay_within_bounds() {
    let bounds = [
        (FilterKind::Bloom, 8, 30_000),
        (FilterKind::Bloom, 12, 5_500),
        (FilterKind::Bloom, 16, 1_400),
        (FilterKind::Quotient, 8, 55_000),
        (FilterKind::Quotient, 12, 5_500),
        (FilterKind::Quotient, 16, 700),
    ];
    for (kind, bits, bound) in bounds {
        for keys in [31_000, 100_000] {
            let present = hashes(keys as u64, keys);
            let (spec, blocks) = built(kind, bits, &present);
            assert!(present.iter().all(|hash| probe(spec, &blocks, *hash)), "{kind:?} {bits}");
            let rate = false_positives(spec, &blocks);
            assert!(rate <= bound, "{kind:?} {bits} bits, {keys} keys: {rate} ppm");
            // A filter is as large as it was asked to be, up to one block.
            let bytes = keys as u64 * u64::from(bits) / 8 * 4096 / 4032;
            assert!(blocks.len() as u64 <= bytes + BLOCK_BYTES as u64, "{kind:?} {bits}");
        }
    }
}

#[test]
fn no_key_is_denied_at_any_size() {
    for kind in KINDS {
        for bits in [1, 4, 5, 6, 7, 8, 10, 14, 20, 32, 100] {
            for keys in [0, 1, 2, 63, 500, 3000, 10_000] {
                let present = hashes(u64::from(bits) << 32 | keys as u64, keys);
                let (spec, blocks) = built(kind, bits, &present);
                let all = present.iter().all(|hash| probe(spec, &blocks, *hash));
                assert!(all, "{kind:?} {bits} bits, {keys} keys");
                if keys <= 1 {
                    assert!(false_positives(spec, &blocks) < 100);
                }
            }
        }
    }
}

#[test]
fn crowded_lines_deny_nobody() {
    for kind in KINDS {
        // All keys hash to the same line, or differ in the lowest bits only.
        let same_line: Vec<u64> = hashes(5, 5000).iter().map(|hash| hash & 0xffff_ffff).collect();
        let close: Vec<u64> = (0..5000).collect();
        let equal = vec![77; 5000];
        for present in [same_line, close, equal] {
            let (spec, blocks) = built(kind, 12, &present);
            assert!(present.iter().all(|hash| probe(spec, &blocks, *hash)));
        }
    }
}

#[test]
fn quotient_lines_overflow_rarely() {
    for bits in [8, 12, 16, 24] {
        let present = hashes(11, 200_000);
        let (_, blocks) = built(FilterKind::Quotient, bits, &present);
        let lines = blocks
            .chunks_exact(BLOCK_BYTES)
            .flat_map(|block| (0..LINES_PER_BLOCK).map(|index| *line(block, index).unwrap()));
        let (mut full, mut all) = (0, 0);
        for line in lines {
            all += 1;
            full += u32::from(line[LINE_BYTES - 1] >> 7);
        }
        assert!(full * 2000 <= all, "{bits} bits: {full} of {all}");
    }
}

/// A maplet of `keys` keys for each of `runs` runs, and their hashes.
fn built_maplet(runs: u8, keys: usize, bits: u32) -> (MapletSpec, Vec<u8>, Vec<Vec<u64>>) {
    let keys: Vec<Vec<u64>> = (0..runs).map(|run| hashes(u64::from(run), keys)).collect();
    let all: usize = keys.iter().map(Vec::len).sum();
    let spec = MapletSpec::for_runs(usize::from(runs), all as u64, bits);
    let mut blocks = Vec::new();
    let entries = (0..).zip(&keys).flat_map(|(run, keys)| keys.iter().map(move |key| (*key, run)));
    spec.build(entries, &mut blocks);
    assert_eq!(blocks.len() as u64, spec.bytes());
    (spec, blocks, keys)
}

fn runs_of(spec: MapletSpec, blocks: &[u8], hash: u64) -> u64 {
    let hash = KeyHash(hash);
    let block = spec.block_of(hash) as usize;
    spec.runs_of(&blocks[block * BLOCK_BYTES..][..BLOCK_BYTES], hash)
}

#[test]
fn a_maplet_names_every_run_of_a_key_and_few_others() {
    // Runs, bits per entry, and false runs per million keys that no run has.
    for (runs, bits, bound) in [(1, 12, 5_500), (6, 16, 5_000), (6, 20, 900), (64, 24, 3_000)] {
        for each in [0, 1, 100, 20_000] {
            let (spec, blocks, keys) = built_maplet(runs, each, bits);
            for (run, keys) in keys.iter().enumerate() {
                let named = |key: &u64| runs_of(spec, &blocks, *key) >> run & 1 == 1;
                assert!(keys.iter().all(named), "run {run} of {runs}, {each} keys, {bits} bits");
            }
            if each == 20_000 {
                let known = u64::MAX >> (64 - runs);
                let absent = hashes(999, 200_000);
                let wrong = absent.iter().map(|key| runs_of(spec, &blocks, *key) & known);
                let wrong: u32 = wrong.map(u64::count_ones).sum();
                let rate = u64::from(wrong) * 1_000_000 / absent.len() as u64;
                assert!(rate <= bound, "{runs} runs, {bits} bits: {rate} per million");
            }
        }
    }
}

#[test]
fn a_maplet_knows_the_runs_of_keys_in_many_and_fails_safe_when_crowded() {
    let keys = hashes(7, 3_000);
    let runs_of_key = |place: usize| 1 + place % 8;
    let entries: Vec<(u64, u8)> = (0..keys.len())
        .flat_map(|place| (0..8).take(runs_of_key(place)).map(move |run| (place, run)))
        .map(|(place, run)| (keys[place], run))
        .collect();
    let mut blocks = Vec::new();
    for bits in [4, 20] {
        let spec = MapletSpec::for_runs(8, entries.len() as u64, bits);
        // Twice: an entry that is present already takes no room.
        spec.build(entries.iter().chain(&entries).copied(), &mut blocks);
        let mut exact = 0;
        for (place, key) in keys.iter().enumerate() {
            let (named, own) = (runs_of(spec, &blocks, *key), (1 << runs_of_key(place)) - 1);
            assert_eq!(named & own, own, "{bits} bits");
            exact += usize::from(named & 0xff == own);
        }
        assert!(bits == 4 || exact > keys.len() * 9 / 10, "{exact}");
    }
    // All in one line.
    let spec = MapletSpec::for_runs(2, 10_000, 16);
    spec.build((0..10_000).map(|key| (key & 0xffff, 1)), &mut blocks);
    assert!((0..10_000).all(|key| runs_of(spec, &blocks, key & 0xffff) >> 1 & 1 == 1));
}

#[test]
fn specs_of_maplets_come_back_and_impossible_ones_do_not() {
    for runs in [0, 1, 2, 3, 8, 64, 1000] {
        for entries in [0, 1, 1_000_000, u64::MAX] {
            let spec = MapletSpec::for_runs(runs, entries, 16);
            let mut encoded = Vec::new();
            spec.encode(&mut encoded);
            let mut decoder = Decoder::new(&encoded, "maplet");
            assert_eq!(MapletSpec::decode(&mut decoder).unwrap(), spec);
            assert!(decoder.finish().is_ok());
        }
    }
    for bad in [
        &[0, 20, 8, 3][..],
        &[1, 0, 8, 3],
        &[1, 20, 0, 3],
        &[1, 20, 8, 7],
        &[1, 50, 8, 3],
        &[1, 20],
    ] {
        assert!(MapletSpec::decode(&mut Decoder::new(bad, "maplet")).is_err(), "{bad:?}");
    }
    let mut rng = Rng::new(22);
    let mut block = vec![0; BLOCK_BYTES];
    for round in 0..200 {
        rng.fill(&mut block);
        let spec =
            MapletSpec::for_runs(1 + round % 64, 100, 4 + u32::try_from(round % 28).unwrap());
        for _ in 0..100 {
            let _ = spec.runs_of(&block[..BLOCK_BYTES - round * 10], KeyHash(rng.next_u64()));
        }
    }
}

#[test]
fn specs_come_back_and_impossible_ones_do_not() {
    for kind in KINDS {
        for bits in [0, 4, 8, 12, 32] {
            for keys in [0, 1, 1000, 1_000_000, u64::MAX] {
                let spec = spec_for(kind, bits, keys);
                let mut encoded = Vec::new();
                spec.encode(&mut encoded);
                let mut decoder = Decoder::new(&encoded, "filter");
                assert_eq!(FilterSpec::decode(&mut decoder).unwrap(), spec);
                assert!(decoder.finish().is_ok());
            }
        }
    }
    for bad in [
        &[1, 0, 6][..],
        &[1, 1, 0],
        &[1, 1, 17],
        &[2, 1, 0, 8],
        &[2, 1, 48, 0],
        &[2, 1, 48, 17],
        &[2, 1, 255, 2],
        &[3, 1, 6],
        &[1],
    ] {
        assert!(FilterSpec::decode(&mut Decoder::new(bad, "filter")).is_err(), "{bad:?}");
    }
}

#[test]
fn garbage_gets_an_answer() {
    let mut rng = Rng::new(21);
    for round in 0_u8..=255 {
        let mut block = vec![0; BLOCK_BYTES - usize::from(round % 3) * 2000];
        rng.fill(&mut block);
        let bytes = [1 + round % 2, 1, round, u8::try_from(rng.below(17)).unwrap()];
        let Ok(spec) = FilterSpec::decode(&mut Decoder::new(&bytes, "filter")) else { continue };
        for _ in 0..200 {
            let _ = spec.may_contain(&block, KeyHash(rng.next_u64()));
        }
    }
}
