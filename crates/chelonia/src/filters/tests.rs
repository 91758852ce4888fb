//! No false negatives, bounded false positives, and at most a wrong answer on invalid bytes.

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
