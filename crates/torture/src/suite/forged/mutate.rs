//! Random modifications of bytes, as fuzzers make them.

use crate::suite::support::{below, one_of};
use chelonia::internals::Rng;

/// Numbers at the limits of arithmetic.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    u64::MAX / 2,
    u64::MAX - 1,
    u64::MAX,
];

/// Modifies `bytes` in a few places.
pub fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng, keeps_length: bool) {
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            bytes.push(0);
        }
        let at = place(bytes.len(), rng);
        match rng.below(if keeps_length { 7 } else { 10 }) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = one_of(rng, &[0, 1, 0x7f, 0x80, 0xff]),
            2 => bytes[at] = bytes[at].wrapping_add(one_of(rng, &[1, 0xff, 8, 0xf8])),
            3 | 4 => {
                let number = one_of(rng, &NUMBERS).to_le_bytes();
                let length = one_of(rng, &[2, 4, 8]).min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&number[..length]);
            }
            5 => {
                let (from, length) = (place(bytes.len(), rng), 1 + below(rng, 24));
                let length = length.min(bytes.len() - at).min(bytes.len() - from);
                bytes.copy_within(from..from + length, at);
            }
            6 => {
                let end = (at + 1 + below(rng, 16)).min(bytes.len());
                rng.fill(&mut bytes[at..end]);
            }
            7 => bytes.truncate(at),
            8 => {
                let end = (at + 1 + below(rng, 8)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let more: Vec<u8> =
                    (0..1 + rng.below(8)).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
                bytes.splice(at..at, more);
            }
        }
    }
}

/// A position below `length`, mostly near the beginning, where headers are.
fn place(length: usize, rng: &mut Rng) -> usize {
    let within = if rng.one_in(2) { length.min(64) } else { length };
    below(rng, within)
}
