//! Makes a dictionary: pieces that occur in many values of a sample.
//!
//! ```text
//!   count    for each sequence of six bytes: the values of the sample that have it
//!   choose   the sample is cut into as many parts as the dictionary has pieces; of each part the
//!            piece of 64 bytes whose sequences occur in most values, each sequence once
//!   lay out  the best pieces last: those are nearest to the value
//! ```
//!
//! This is the idea of COVER (Liao, Petri, Moffat, Wirth: Effective construction of relative
//! Lempel-Ziv dictionaries, 2016) with counts in a table of hashes.

use super::sample::Sample;
use crate::base::error::Result;
use crate::base::stream::{Codec, Dictionary, train_zstd};
use std::collections::VecDeque;

/// Bytes of a piece.
const PIECE_BYTES: usize = 64;

/// Bytes of a sequence. LZ4 finds matches of four bytes and more; longer ones save more.
const SEQUENCE_BYTES: usize = 6;

/// Sequences of a piece.
const SEQUENCES: usize = PIECE_BYTES - SEQUENCE_BYTES + 1;

/// Bits of the hashes of sequences.
const TABLE_BITS: u32 = 17;

/// The smallest sample that the library of zstd makes a dictionary of.
const TRAINING_BYTES_MIN: usize = 32 << 10;

/// Makes a dictionary of at most `bytes_max` bytes; it may be empty.
pub fn dictionary(codec: Codec, sample: &Sample, bytes_max: usize) -> Result<Dictionary> {
    match codec {
        Codec::Lz4 => Ok(Dictionary::lz4(pieces(sample, bytes_max))),
        Codec::Zstd => {
            let lengths: Vec<usize> = sample.values().map(|value| value.len()).collect();
            // The library adds tables of codes to the pieces; of a small sample they would not fit.
            let made = (sample.bytes().len() >= TRAINING_BYTES_MIN)
                .then(|| train_zstd(sample.bytes(), &lengths, bytes_max))
                .flatten()
                .unwrap_or_else(|| pieces(sample, bytes_max));
            Dictionary::new(codec, made).or_else(|_| Dictionary::new(codec, Vec::new()))
        }
    }
}

/// Heap memory that making a dictionary takes besides the sample, in bytes, about.
pub fn work_bytes(codec: Codec) -> usize {
    match codec {
        Codec::Lz4 => (2 + 4 + 1) << TABLE_BITS,
        // Counts of 2^20 sequences, twice, and half as many bytes for those of a piece.
        Codec::Zstd => (4 + 4 + 2) << 20,
    }
}

/// Pieces of at most `bytes_max` bytes together; there may be none.
fn pieces(sample: &Sample, bytes_max: usize) -> Vec<u8> {
    let bytes = sample.bytes();
    let mut counts = counts(sample);
    let parts = (bytes_max / PIECE_BYTES).max(1);
    let part_bytes = (bytes.len() / parts).max(PIECE_BYTES);
    let (mut pieces, mut left) = (Vec::new(), bytes_max);
    let mut in_piece = vec![0_u8; 1 << TABLE_BITS];
    // Several rounds, if pieces get shorter because their ends are in others.
    loop {
        let before = left;
        for start in (0..bytes.len()).step_by(part_bytes) {
            let part = start..(start + part_bytes).min(bytes.len());
            let Some((score, at)) = best_piece(bytes, part, &counts, &mut in_piece) else {
                continue;
            };
            let piece = trimmed(bytes, at, &counts);
            for place in sequences(piece.start, piece.end) {
                counts[hash(bytes, place)] = 0;
            }
            let piece = piece.start..piece.end.min(piece.start + left);
            left -= piece.len();
            pieces.push((score, piece));
            if left == 0 {
                break;
            }
        }
        if left == 0 || left == before {
            break;
        }
    }
    pieces.sort_by_key(|(score, _)| *score);
    pieces.into_iter().flat_map(|(_, piece)| bytes[piece].iter().copied()).collect()
}

/// The places of the sequences in these bytes.
fn sequences(start: usize, end: usize) -> std::ops::Range<usize> {
    start..(end + 1).saturating_sub(SEQUENCE_BYTES).max(start)
}

#[inline]
fn hash(bytes: &[u8], place: usize) -> usize {
    let mut sequence = [0; 8];
    sequence[..SEQUENCE_BYTES].copy_from_slice(&bytes[place..place + SEQUENCE_BYTES]);
    let mixed = u64::from_le_bytes(sequence).wrapping_mul(0x9e37_79b1_85eb_ca87);
    (mixed >> (64 - TABLE_BITS)) as usize
}

/// For each hash the number of values that have a sequence with it; 0 for those of one value.
fn counts(sample: &Sample) -> Vec<u16> {
    let mut counts = vec![0_u16; 1 << TABLE_BITS];
    let mut last = vec![0_u32; 1 << TABLE_BITS];
    for (number, value) in (1..).zip(sample.values()) {
        for place in sequences(value.start, value.end) {
            let hash = hash(sample.bytes(), place);
            if last[hash] != number {
                last[hash] = number;
                counts[hash] = counts[hash].saturating_add(1);
            }
        }
    }
    counts.iter_mut().filter(|count| **count == 1).for_each(|count| *count = 0);
    counts
}

/// The place of the piece in `part` whose sequences have the highest sum of counts, with that sum.
fn best_piece(
    bytes: &[u8],
    part: std::ops::Range<usize>,
    counts: &[u16],
    in_piece: &mut [u8],
) -> Option<(u64, usize)> {
    let mut best = None;
    let mut score = 0;
    let mut open: VecDeque<usize> = VecDeque::with_capacity(SEQUENCES + 1);
    for place in sequences(part.start, part.end) {
        let entering = hash(bytes, place);
        open.push_back(entering);
        in_piece[entering] += 1;
        if in_piece[entering] == 1 {
            score += u64::from(counts[entering]);
        }
        if open.len() > SEQUENCES
            && let Some(leaving) = open.pop_front()
        {
            in_piece[leaving] -= 1;
            if in_piece[leaving] == 0 {
                score -= u64::from(counts[leaving]);
            }
        }
        if open.len() == SEQUENCES && best.is_none_or(|(most, _)| score > most) {
            best = Some((score, place + 1 - SEQUENCES));
        }
    }
    open.into_iter().for_each(|hash| in_piece[hash] = 0);
    best.filter(|(score, _)| *score > 0)
}

/// The piece at `at` without the ends that no other value has, or that are in another piece.
fn trimmed(bytes: &[u8], at: usize, counts: &[u16]) -> std::ops::Range<usize> {
    let all = sequences(at, at + PIECE_BYTES);
    let is_common = |place: &usize| counts[hash(bytes, *place)] > 0;
    let first = all.clone().find(is_common).unwrap_or(at);
    let last = all.rev().find(is_common).unwrap_or(first);
    first..last + SEQUENCE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    /// Values of the same form with different content.
    fn sample_of(rng: &mut Rng, count: usize) -> Sample {
        let mut sample = Sample::default();
        for _ in 0..count {
            let (id, name) = (rng.next_u64(), rng.next_u64());
            let value = format!(r#"{{"identifier":{id},"hostname":"node-{name:x}.example.org"}}"#);
            sample.push(value.as_bytes());
        }
        sample
    }

    #[test]
    fn a_dictionary_has_what_values_share() {
        let mut rng = Rng::new(1);
        let sample = sample_of(&mut rng, 500);
        let made = pieces(&sample, 4080);
        assert!(made.len() <= 4080);
        let has = |wanted: &[u8]| made.windows(wanted.len()).any(|bytes| bytes == wanted);
        assert!(has(b".example.org\"}"), "{}", String::from_utf8_lossy(&made));
        assert!(has(b"\"identifier\":"));
        let (with, without) = (Dictionary::lz4(made), Dictionary::lz4(Vec::new()));
        let other = sample_of(&mut rng, 500);
        let took = other.permille(&with);
        assert!(took < 700 && took < other.permille(&without), "{took}");
    }

    #[test]
    fn samples_of_any_shape_make_a_dictionary() {
        let mut rng = Rng::new(2);
        let mut noise = vec![0; 10_000];
        rng.fill(&mut noise);
        let mut shapes: Vec<Vec<Vec<u8>>> = vec![Vec::new(), vec![Vec::new(); 3]];
        shapes.extend([1, 5, 6, 7, 63, 64, 65, 4000].map(|bytes| vec![vec![b'a'; bytes]; 3]));
        shapes.extend([1, 7, 64, 500].map(|size| noise.chunks(size).map(<[u8]>::to_vec).collect()));
        for shape in shapes {
            let mut sample = Sample::default();
            shape.iter().for_each(|value| sample.push(value));
            for bytes_max in [0, 1, 63, 64, 65, 4080] {
                assert!(pieces(&sample, bytes_max).len() <= bytes_max);
            }
        }
    }
}
