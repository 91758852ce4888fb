//! Quotient lines: a short remainder of each key, in one of two lines; and the quotient filter.
//!
//! The vector quotient filter of Pandey et al. (SIGMOD 2021), built once instead of grown, and with
//! remainders of any length: a line is a small quotient filter of its own, in 512 bits:
//! ([`crate::kernels::quotient`] shows its bits).
//!
//! A hash gives a first line, a second line in the same block, a bucket and a remainder; a key goes
//! to the emptier of its lines (the first, if equal). If both are full, the first one's `full` bit
//! is set and it answers "maybe" from then on, for every value.

use super::{LINES_PER_BLOCK, line, line_mut, line_of, low_half, scale, sizing};
use crate::base::checksum::KeyHash;
use crate::kernels::bloom::Line;
use crate::kernels::quotient::{self as kernel, Shape};

/// The shape with `slots` entries of this many bits; `value_bits` is 0 for a filter.
#[inline]
pub fn shape(slots: u8, remainder_bits: u8, value_bits: u8) -> Shape {
    let buckets = sizing::quotient_buckets(slots, remainder_bits + value_bits);
    let [slots, remainder_bits, value_bits] = [slots, remainder_bits, value_bits].map(u32::from);
    Shape { buckets, slots, remainder_bits, value_bits }
}

/// The lines, bucket and remainder of a key.
struct Place {
    /// Lines of the block.
    first: u32,
    second: u32,
    bucket: u32,
    remainder: u32,
}

#[inline]
fn place(hash: KeyHash, blocks: u32, shape: Shape) -> Place {
    let first = line_of(hash, blocks) % LINES_PER_BLOCK;
    // Bits that depend on all of the hash, so that the second line is independent of the rest.
    let mixed = hash.0.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 48;
    let distance = 1 + scale(mixed, u64::from(LINES_PER_BLOCK - 1), 16);
    Place {
        first,
        second: (first + distance) % LINES_PER_BLOCK,
        bucket: scale((hash.0 >> 16) & 0xffff, u64::from(shape.buckets), 16),
        remainder: low_half(hash.0 & ((1 << shape.remainder_bits) - 1)),
    }
}

/// The set of values that the key of `hash` may have; all values where that is not known. A filter
/// knows one value, 0.
#[inline]
pub fn values(blocks: u32, shape: Shape, block: &[u8], hash: KeyHash) -> u64 {
    let place = place(hash, blocks, shape);
    match [place.first, place.second].map(|index| line(block, index)) {
        [Some(first), Some(second)] => {
            kernel::values([first, second], shape, place.bucket, place.remainder)
        }
        _ => u64::MAX,
    }
}

/// Sets the bits of `value`, `count` at most, from `bit` on.
fn write(line: &mut Line, bit: u32, count: u32, value: u32) {
    for offset in 0..count {
        let place = bit + offset;
        if let Some(byte) = line.get_mut(place as usize / 8) {
            *byte |= u8::from(value >> offset & 1 == 1) << (place % 8);
        }
    }
}

/// Future content of a line: bucket, remainder and value in one number that sorts in their order.
struct Draft {
    entries: Vec<u32>,
    full: bool,
}

impl Draft {
    /// True if the entry fits, or is present already.
    fn put(&mut self, entry: u32, slots: u32) -> bool {
        if self.entries.contains(&entry) {
            return true;
        }
        let room = self.entries.len() < slots as usize;
        if room {
            self.entries.push(entry);
        }
        room
    }

    fn encode(&mut self, shape: Shape, line: &mut Line) {
        self.entries.sort_unstable();
        line.fill(0);
        let mut entries = self.entries.iter().peekable();
        let mut index = 0;
        for bucket in 0..shape.buckets {
            let mask = (1 << shape.entry_bits()) - 1;
            while let Some(entry) = entries.next_if(|entry| *entry >> shape.entry_bits() == bucket)
            {
                write(line, shape.entry_at(index), shape.entry_bits(), *entry & mask);
                index += 1;
            }
            write(line, bucket + index, 1, 1);
        }
        if self.full {
            write(line, kernel::FULL_BIT, 1, 1);
        }
    }
}

/// Builds lines from hashes and their values into `out`, which is zero.
pub fn build(
    blocks: u32,
    shape: Shape,
    entries: impl IntoIterator<Item = (u64, u8)>,
    out: &mut [u8],
) {
    let lines = blocks * LINES_PER_BLOCK;
    let mut drafts: Vec<Draft> = (0..lines)
        .map(|_| Draft { entries: Vec::with_capacity(shape.slots as usize), full: false })
        .collect();
    for (hash, value) in entries {
        let hash = KeyHash(hash);
        let block_start = line_of(hash, blocks) / LINES_PER_BLOCK * LINES_PER_BLOCK;
        let place = place(hash, blocks, shape);
        let entry = place.bucket << shape.remainder_bits | place.remainder;
        let entry = entry << shape.value_bits | u32::from(value);
        let first = (block_start + place.first) as usize;
        let second = (block_start + place.second) as usize;
        let (emptier, other) = if drafts[second].entries.len() < drafts[first].entries.len() {
            (second, first)
        } else {
            (first, second)
        };
        let placed =
            drafts[emptier].put(entry, shape.slots) || drafts[other].put(entry, shape.slots);
        if !placed {
            drafts[first].full = true;
        }
    }
    for (index, draft) in (0..lines).zip(&mut drafts) {
        if let Some(line) = line_mut(out, index) {
            draft.encode(shape, line);
        }
    }
}
