//! One line of a quotient filter or a maplet: 64 bytes, some entries of it per bucket.
//!
//! ```text
//! bit 0              buckets + slots        buckets + slots * (1 + entry_bits)        511
//!     | 0 0 1 0 1 1 .. | entry 0 | entry 1 | ...                         | ...      | full |
//!
//!     the first part says for every bucket, in order: a 0 for each of its entries, then a 1;
//!     the entries stand in the same order. Unused slots are zeros after the last 1.
//!
//! entry    | value | remainder |           value: the lower bits, none in a filter
//! ```
//!
//! Bit `b` of a line is bit `b % 8` of byte `b / 8`. To find a bucket the ones before it are
//! counted, so the instruction that counts bits matters most.

use super::bloom::Line;

/// Bits of buckets, slots and entries: all but the one that marks a full line.
pub const BITS: u32 = 511;

/// The bit that marks a line with more entries than slots: it may have everything.
pub const FULL_BIT: u32 = BITS;

/// Most bits of an entry.
pub const ENTRY_BITS_MAX: u32 = 24;

/// The shape of lines.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of buckets.
    pub buckets: u32,
    /// Most entries.
    pub slots: u32,
    /// Bits of a remainder.
    pub remainder_bits: u32,
    /// Bits of a value: 0 in a filter.
    pub value_bits: u32,
}

impl Shape {
    /// Bits of an entry.
    #[inline]
    #[must_use]
    pub fn entry_bits(self) -> u32 {
        self.remainder_bits + self.value_bits
    }

    /// Start of entry `index`.
    #[inline]
    #[must_use]
    pub fn entry_at(self, index: u32) -> u32 {
        self.buckets + self.slots + index * self.entry_bits()
    }
}

/// The set of values that `lines` have with `remainder` in `bucket`; all values if one is full.
#[inline]
#[must_use]
pub fn values(lines: [&Line; 2], shape: Shape, bucket: u32, remainder: u32) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(values) = x86::values(lines, shape, bucket, remainder) {
        return values;
    }
    values_plain(lines, shape, bucket, remainder)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![expect(unsafe_code, reason = "an island: instruction sets chosen at run time")]

    use super::{Line, Shape, values_plain};

    /// [`values_plain`] with instructions that count bits and shift by a register, if the processor
    /// has them.
    #[inline]
    pub fn values(lines: [&Line; 2], shape: Shape, bucket: u32, remainder: u32) -> Option<u64> {
        if !is_x86_feature_detected!("popcnt") || !is_x86_feature_detected!("bmi2") {
            return None;
        }
        // SAFETY: the processor has both.
        Some(unsafe { values_counting(lines, shape, bucket, remainder) })
    }

    /// # Safety
    /// The processor must have POPCNT and BMI2.
    #[target_feature(enable = "popcnt,bmi2")]
    unsafe fn values_counting(lines: [&Line; 2], shape: Shape, bucket: u32, remainder: u32) -> u64 {
        values_plain(lines, shape, bucket, remainder)
    }
}

/// The version for any processor.
#[expect(clippy::inline_always, reason = "else the wrapper's instructions are not used in it")]
#[inline(always)]
fn values_plain(lines: [&Line; 2], shape: Shape, bucket: u32, remainder: u32) -> u64 {
    values_in(lines[0], shape, bucket, remainder) | values_in(lines[1], shape, bucket, remainder)
}

#[expect(clippy::inline_always, reason = "as `values_plain`")]
#[inline(always)]
fn values_in(line: &Line, shape: Shape, bucket: u32, remainder: u32) -> u64 {
    if line[FULL_BIT as usize / 8] >> (FULL_BIT % 8) == 1 {
        return u64::MAX;
    }
    let end = shape.buckets + shape.slots;
    let start = match bucket.checked_sub(1) {
        None => 0,
        Some(before) => match select(line, end, before) {
            Some(one) => one + 1,
            None => return u64::MAX,
        },
    };
    // Zeros from `start` on are entries of this bucket; `start - bucket` entries precede them.
    let mut values = 0;
    let mut at = start;
    while at < end {
        let (word, known) = read(line, at);
        let zeros = word.trailing_zeros().min(known).min(end - at);
        for place in at..at + zeros {
            let (entry, _) = read(line, shape.entry_at(place - bucket));
            let entry = entry & ((1 << shape.entry_bits()) - 1);
            if entry >> shape.value_bits == u64::from(remainder) {
                values |= 1 << (entry & ((1 << shape.value_bits) - 1));
            }
        }
        at += zeros;
        if zeros < known {
            break;
        }
    }
    values
}

/// The bits from `bit` on, and how many of them are known: at least [`ENTRY_BITS_MAX`], or all
/// until the end of the line.
#[inline(always)]
fn read(line: &Line, bit: u32) -> (u64, u32) {
    const LAST: u32 = 56;
    let byte = (bit / 8).min(LAST);
    let shift = (bit - 8 * byte).min(63);
    let word = line[byte as usize..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    (word >> shift, 64 - shift)
}

/// The position of the one with `rank` ones before it within the first `end` bits, rounded up to
/// words; `None` if there are not that many.
#[inline(always)]
fn select(line: &Line, end: u32, mut rank: u32) -> Option<u32> {
    let (words, _) = line.as_chunks::<8>();
    let (mut found, mut start) = (0, 0);
    let mut is_found = false;
    for (place, word) in (0..end).step_by(64).zip(words) {
        let word = u64::from_le_bytes(*word);
        let ones = word.count_ones();
        // No branch: where the one is differs from line to line.
        let is_here = !is_found && rank < ones;
        found = if is_here { word } else { found };
        start = if is_here { place } else { start };
        is_found |= is_here;
        rank -= if is_found { 0 } else { ones };
    }
    is_found.then(|| start + select_in_word(found, rank))
}

/// The position of the one in `word` with `rank` ones before it, which must exist.
#[inline(always)]
fn select_in_word(word: u64, mut rank: u32) -> u32 {
    const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
    // The number of ones in each byte, and in it and all bytes below it, side by side [Vigna 2008].
    let pairs = word - (word >> 1 & 0x5555_5555_5555_5555);
    let fours = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let bytes = (fours + (fours >> 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    let sums = bytes.wrapping_mul(EACH_BYTE);
    // The bytes whose sum is at most `rank`: the one is above them. No sum has an eighth bit.
    let passed = ((u64::from(rank) * EACH_BYTE) | (EACH_BYTE << 7)) - sums;
    let passed = passed & (EACH_BYTE << 7);
    let mut shift = 8 * passed.count_ones().min(7);
    rank = rank.wrapping_sub(u32::from((sums << 8 >> shift).to_le_bytes()[0]));
    // Narrows the byte down by halves: is the one in the lower part?
    for width in [4, 2, 1] {
        let ones = (word >> shift & ((1 << width) - 1)).count_ones();
        let is_above = rank >= ones;
        rank = rank.wrapping_sub(if is_above { ones } else { 0 });
        shift += if is_above { width } else { 0 };
    }
    shift
}

#[cfg(test)]
mod tests {
    use super::super::bloom::LINE_BYTES;
    use super::*;
    use crate::runtime::rng::Rng;

    #[test]
    fn ones_are_found_by_rank() {
        let mut rng = Rng::new(3);
        for round in 0..2_000 {
            let word = rng.next_u64() & rng.next_u64() >> (round % 60) | 1 << (round % 64);
            let ones = (0..64).filter(|bit| word >> bit & 1 == 1);
            for (rank, bit) in (0..).zip(ones) {
                assert_eq!(select_in_word(word, rank), bit, "{word:#x}, {rank}");
            }
        }
        assert_eq!(select_in_word(u64::MAX, 63), 63);
    }

    #[test]
    fn every_version_answers_as_a_walk_over_the_bits_does() {
        let mut rng = Rng::new(4);
        for round in 0..3_000_u32 {
            let (remainder_bits, value_bits) = (1 + round % 16, round % 7);
            let slots = 1 + round % 60;
            let taken = slots * (1 + remainder_bits + value_bits);
            let Some(buckets @ 1..) = BITS.checked_sub(taken) else { continue };
            let shape = Shape { buckets, slots, remainder_bits, value_bits };
            let mut lines = [[0; LINE_BYTES]; 2];
            for line in &mut lines {
                rng.fill(line);
                // Few ones, many, or as they come; not full.
                for byte in line.iter_mut() {
                    *byte = [*byte, *byte & 0x11, *byte | 0xe0][(round % 3) as usize];
                }
                line[LINE_BYTES - 1] &= 0x7f;
            }
            let bucket = round % buckets;
            let remainder = (round / 7) & ((1 << remainder_bits) - 1);
            let expected =
                lines.iter().fold(0, |all, line| all | walked(line, shape, bucket, remainder));
            let lines = [&lines[0], &lines[1]];
            assert_eq!(values_plain(lines, shape, bucket, remainder), expected, "{shape:?}");
            assert_eq!(values(lines, shape, bucket, remainder), expected, "{shape:?}");
        }
    }

    fn walked(line: &Line, shape: Shape, bucket: u32, remainder: u32) -> u64 {
        let bit = |at: u32| at < 512 && line[at as usize / 8] >> (at % 8) & 1 == 1;
        let number = |at: u32, bits: u32| (0..bits).map(|of| u64::from(bit(at + of)) << of).sum();
        let end = shape.buckets + shape.slots;
        // Ones are looked for in complete words, as bits beyond are no lie about a valid line.
        let mut ones = (0..end.next_multiple_of(64)).filter(|at| bit(*at));
        let start = match bucket {
            0 => 0,
            _ => match ones.nth(bucket as usize - 1) {
                Some(one) => one + 1,
                None => return u64::MAX,
            },
        };
        let mut values = 0;
        for at in (start..end).take_while(|at| !bit(*at)) {
            let entry: u64 = number(shape.entry_at(at - bucket), shape.entry_bits());
            if entry >> shape.value_bits == u64::from(remainder) {
                values |= 1 << (entry & ((1 << shape.value_bits) - 1));
            }
        }
        values
    }
}
