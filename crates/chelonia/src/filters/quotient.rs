//! The quotient filter: a short remainder of each key, in one of two lines.
//!
//! The vector quotient filter of Pandey et al. (SIGMOD 2021), built once instead of grown, and with
//! remainders of any length: a line is a small quotient filter of its own, in 512 bits:
//!
//! ```text
//! bit 0              buckets + slots          buckets + slots * (1 + remainder_bits)      511
//!     | 0 0 1 0 1 1 .. | remainder 0 | remainder 1 | ...                          | ...   | full |
//!
//!     the first part says for every bucket, in order: a 0 for each of its remainders, then a 1;
//!     the remainders stand in the same order. Unused slots are zeros after the last 1.
//! ```
//!
//! Bit `b` of a line is bit `b % 8` of byte `b / 8`. A hash gives a first line, a second line in
//! the same block, a bucket and a remainder; a key goes to the emptier of its lines (the first, if
//! equal). If both are full, the first one's `full` bit is set and it answers "maybe" from then on.

use super::{LINES_PER_BLOCK, line, line_mut, line_of, low_half, scale, sizing};
use crate::base::checksum::KeyHash;
use crate::kernels::bloom::{LINE_BYTES, Line};

const WORDS: usize = LINE_BYTES / 8;

/// The bit that marks an overflowed line.
const FULL_BIT: u32 = sizing::QUOTIENT_BITS;

/// The shape of a filter's lines.
#[derive(Clone, Copy)]
pub struct Shape {
    slots: u32,
    remainder_bits: u32,
    buckets: u32,
}

impl Shape {
    #[inline]
    pub fn new(slots: u8, remainder_bits: u8) -> Self {
        let buckets = sizing::quotient_buckets(slots, remainder_bits);
        Self { slots: slots.into(), remainder_bits: remainder_bits.into(), buckets }
    }

    /// Start of remainder `index`.
    #[inline]
    fn remainder_at(self, index: u32) -> u32 {
        self.buckets + self.slots + index * self.remainder_bits
    }
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

/// A line as words that bits are read from and written to.
struct Bits([u64; WORDS]);

impl Bits {
    #[inline]
    fn load(line: &Line) -> Self {
        let (words, _) = line.as_chunks::<8>();
        Self(std::array::from_fn(|index| u64::from_le_bytes(words[index])))
    }

    fn store(&self, line: &mut Line) {
        let (words, _) = line.as_chunks_mut::<8>();
        for (to, from) in words.iter_mut().zip(self.0) {
            *to = from.to_le_bytes();
        }
    }

    #[inline]
    fn word(&self, bit: u32) -> u64 {
        self.0.get(bit as usize / 64).copied().unwrap_or(0)
    }

    #[inline]
    fn is_set(&self, bit: u32) -> bool {
        self.word(bit) >> (bit % 64) & 1 == 1
    }

    /// `count` bits (at most 32) from `bit` on.
    #[inline]
    fn read(&self, bit: u32, count: u32) -> u32 {
        let low = self.word(bit) >> (bit % 64);
        // Shifted twice: a shift by 64 is not defined.
        let high = self.word(bit + 64) << 1 << (63 - bit % 64);
        low_half((low | high) & ((1 << count) - 1))
    }

    fn write(&mut self, bit: u32, count: u32, value: u32) {
        for offset in 0..count {
            let place = bit + offset;
            if let Some(word) = self.0.get_mut(place as usize / 64) {
                *word |= u64::from(value >> offset & 1) << (place % 64);
            }
        }
    }

    /// The position of the one with `rank` ones before it; `None` if there are not that many.
    #[inline]
    fn select(&self, mut rank: u32) -> Option<u32> {
        for (start, word) in (0..).step_by(64).zip(&self.0) {
            let ones = word.count_ones();
            if rank < ones {
                return Some(start + select_in_word(*word, rank));
            }
            rank -= ones;
        }
        None
    }
}

/// The position of the one in `word` with `rank` ones before it, which must exist.
#[inline]
fn select_in_word(word: u64, mut rank: u32) -> u32 {
    let mut shift = 0;
    let mut width = 32;
    // Narrows down by halves, quarters ...: is the one in the lower part?
    while width > 0 {
        let part = word >> shift & ((1 << width) - 1);
        let ones = part.count_ones();
        if rank >= ones {
            rank -= ones;
            shift += width;
        }
        width /= 2;
    }
    shift
}

/// True if `line` has `remainder` in `bucket`, or is full.
#[inline]
fn line_may_contain(line: &Line, shape: Shape, bucket: u32, remainder: u32) -> bool {
    let bits = Bits::load(line);
    if bits.is_set(FULL_BIT) {
        return true;
    }
    let start = match bucket.checked_sub(1) {
        None => 0,
        Some(before) => match bits.select(before) {
            Some(one) => one + 1,
            None => return true,
        },
    };
    // Zeros from `start` on are remainders of this bucket; `start - bucket` remainders precede
    // them.
    let mut at = start;
    while at < shape.buckets + shape.slots && !bits.is_set(at) {
        let index = at - bucket;
        if bits.read(shape.remainder_at(index), shape.remainder_bits) == remainder {
            return true;
        }
        at += 1;
    }
    false
}

pub fn may_contain(blocks: u32, shape: Shape, block: &[u8], hash: KeyHash) -> bool {
    let place = place(hash, blocks, shape);
    [place.first, place.second].into_iter().any(|index| match line(block, index) {
        Some(line) => line_may_contain(line, shape, place.bucket, place.remainder),
        None => true,
    })
}

/// Future content of a line: bucket and remainder in one number that sorts in their order.
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
        let mut bits = Bits([0; WORDS]);
        let mut entries = self.entries.iter().peekable();
        let mut index = 0;
        for bucket in 0..shape.buckets {
            let remainder_mask = (1 << shape.remainder_bits) - 1;
            while let Some(entry) =
                entries.next_if(|entry| *entry >> shape.remainder_bits == bucket)
            {
                let at = shape.remainder_at(index);
                bits.write(at, shape.remainder_bits, *entry & remainder_mask);
                index += 1;
            }
            bits.write(bucket + index, 1, 1);
        }
        if self.full {
            bits.write(FULL_BIT, 1, 1);
        }
        bits.store(line);
    }
}

pub fn build(blocks: u32, shape: Shape, hashes: &[u64], out: &mut [u8]) {
    let lines = blocks * LINES_PER_BLOCK;
    let mut drafts: Vec<Draft> = (0..lines)
        .map(|_| Draft { entries: Vec::with_capacity(shape.slots as usize), full: false })
        .collect();
    for hash in hashes {
        let hash = KeyHash(*hash);
        let block_start = line_of(hash, blocks) / LINES_PER_BLOCK * LINES_PER_BLOCK;
        let place = place(hash, blocks, shape);
        let entry = place.bucket << shape.remainder_bits | place.remainder;
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
