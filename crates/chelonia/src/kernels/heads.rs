//! Search in a sorted array of heads: `u32` numbers, little-endian, packed, at any alignment.
//!
//! A head is the first four bytes of what distinguishes a key in its block, as a number that orders
//! like the bytes. Blocks of usual records hold about thirty, so counting all heads smaller than
//! the target, several at a time and without mispredicted branches, beats a binary search. Of more
//! than [`COUNTED_MAX`] the last head of each cache line is compared first: these loads do not wait
//! for each other, as those of a binary search do.
//!
//! ```text
//!   > SAMPLED_MAX: halve   |  > COUNTED_MAX: count    |  count lanes below  |  last lanes again,
//!   until as many are left |  lines below the target  |  the target         |  those counted off
//! ```
//!
//! On an unsorted array (a damaged block with a valid checksum) the result is some number up to the
//! count, nothing worse.

#![expect(unsafe_code, reason = "an island: vector loads and instruction sets chosen at run time")]

/// The lines of longer arrays are sampled before heads are counted.
const COUNTED_MAX: usize = 64;

/// Longer ones are halved before their lines are sampled.
const SAMPLED_MAX: usize = 1024;

/// Heads of a line of the processor's cache.
const LINE_HEADS: usize = 16;

/// The bytes of one head.
pub const HEAD_BYTES: usize = 4;

/// The number of `heads` (sorted ascending) less than `target`, which is the index of the first
/// that is not. Bytes past the last complete head are ignored.
#[inline]
#[must_use]
pub fn lower_bound(heads: &[u8], target: u32) -> usize {
    let (start, rest) = narrow(heads, target);
    start + count_below(rest, target)
}

/// The index range of all heads equal to `target`.
#[inline]
#[must_use]
pub fn equal_range(heads: &[u8], target: u32) -> (usize, usize) {
    let lower = lower_bound(heads, target);
    let (whole, _) = heads.as_chunks::<HEAD_BYTES>();
    let equal = |index: usize| whole.get(index).is_some_and(|head| value(head) == target);
    // Almost always none or one is equal.
    if !equal(lower) {
        return (lower, lower);
    }
    if !equal(lower + 1) {
        return (lower, lower + 1);
    }
    let above = target.checked_add(1);
    (lower, above.map_or(whole.len(), |above| lower_bound(heads, above).max(lower)))
}

#[inline]
fn value(head: &[u8; HEAD_BYTES]) -> u32 {
    u32::from_le_bytes(*head)
}

/// Finds the line of heads that has the answer: the number of heads before it, and the line.
#[inline]
fn narrow(heads: &[u8], target: u32) -> (usize, &[u8]) {
    let (mut open, _) = heads.as_chunks::<HEAD_BYTES>();
    if open.len() <= COUNTED_MAX {
        return (0, heads);
    }
    let mut start = 0;
    while open.len() > SAMPLED_MAX {
        let middle = open.len() / 2;
        if value(&open[middle]) < target {
            start += middle + 1;
            open = &open[middle + 1..];
        } else {
            open = &open[..middle];
        }
    }
    // The last head of each line: loads that do not depend on each other, and no branches.
    let (lines, _) = open.as_chunks::<LINE_HEADS>();
    let first =
        LINE_HEADS * lines.iter().filter(|line| value(&line[LINE_HEADS - 1]) < target).count();
    let end = open.len().min(first + LINE_HEADS);
    (start + first, open[first..end].as_flattened())
}

#[inline]
fn count_below(heads: &[u8], target: u32) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { x86::count_below_avx2(heads, target) };
        }
        x86::count_below_sse2(heads, target)
    }
    #[cfg(target_arch = "aarch64")]
    {
        arm::count_below_neon(heads, target)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    count_below_plain(heads, target)
}

/// The scalar version.
#[inline]
fn count_below_plain(heads: &[u8], target: u32) -> usize {
    let (whole, _) = heads.as_chunks::<HEAD_BYTES>();
    whole.iter().filter(|head| value(head) < target).count()
}

/// Some lanes of heads compared at once.
///
/// # Safety
/// `below` reads `LANES * HEAD_BYTES` bytes at `from`, which must be readable, and uses the
/// instruction set of the implementor, which the processor must have.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe trait Lanes {
    const LANES: usize;

    /// Bit `i` is set if the head in lane `i` is less than `target`.
    unsafe fn below(from: *const u8, target: u32) -> u32;
}

/// The algorithm, generic over the instruction set.
///
/// # Safety
/// The processor must have the instruction set of `L`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
unsafe fn count_below_lanes<L: Lanes>(heads: &[u8], target: u32) -> usize {
    let count = heads.len() / HEAD_BYTES;
    if count < L::LANES {
        return count_below_plain(heads, target);
    }
    let mut below = 0;
    let mut index = 0;
    while index + L::LANES <= count {
        // SAFETY: lanes `index..index + LANES` lie within `heads`; the caller vouches for the set.
        let mask = unsafe { L::below(heads.as_ptr().add(index * HEAD_BYTES), target) };
        below += mask.count_ones() as usize;
        index += L::LANES;
    }
    let left = count - index;
    if left > 0 {
        // SAFETY: the last `LANES` heads lie within, for there are at least that many.
        let mask = unsafe { L::below(heads.as_ptr().add((count - L::LANES) * HEAD_BYTES), target) };
        below += (mask >> (L::LANES - left)).count_ones() as usize;
    }
    below
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, count_below_lanes};
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_castsi128_ps, _mm_cmpgt_epi32, _mm_loadu_si128, _mm_movemask_ps,
        _mm_set1_epi32, _mm_xor_si128, _mm256_castsi256_ps, _mm256_cmpgt_epi32, _mm256_loadu_si256,
        _mm256_movemask_ps, _mm256_set1_epi32, _mm256_xor_si256,
    };

    /// Both instruction sets compare signed numbers only; flipping the top bit gives the unsigned
    /// order.
    const FLIP: i32 = i32::MIN;

    struct Sse2;

    // SAFETY: reads 16 bytes, uses SSE2.
    unsafe impl Lanes for Sse2 {
        const LANES: usize = 4;

        #[inline(always)]
        unsafe fn below(from: *const u8, target: u32) -> u32 {
            // SAFETY: the caller vouches for 16 bytes; SSE2 is in the baseline.
            unsafe {
                let heads = _mm_loadu_si128(from.cast::<__m128i>());
                let heads = _mm_xor_si128(heads, _mm_set1_epi32(FLIP));
                let target = _mm_set1_epi32(target.cast_signed() ^ FLIP);
                let below = _mm_cmpgt_epi32(target, heads);
                _mm_movemask_ps(_mm_castsi128_ps(below)).cast_unsigned()
            }
        }
    }

    struct Avx2;

    // SAFETY: reads 32 bytes, uses AVX2.
    unsafe impl Lanes for Avx2 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn below(from: *const u8, target: u32) -> u32 {
            // SAFETY: the caller vouches for 32 bytes and for AVX2.
            unsafe {
                let heads = _mm256_loadu_si256(from.cast::<__m256i>());
                let heads = _mm256_xor_si256(heads, _mm256_set1_epi32(FLIP));
                let target = _mm256_set1_epi32(target.cast_signed() ^ FLIP);
                let below = _mm256_cmpgt_epi32(target, heads);
                _mm256_movemask_ps(_mm256_castsi256_ps(below)).cast_unsigned()
            }
        }
    }

    #[inline]
    pub fn count_below_sse2(heads: &[u8], target: u32) -> usize {
        // SAFETY: SSE2 is in the baseline of x86-64.
        unsafe { count_below_lanes::<Sse2>(heads, target) }
    }

    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2,popcnt")]
    pub unsafe fn count_below_avx2(heads: &[u8], target: u32) -> usize {
        // SAFETY: the caller vouches for AVX2.
        unsafe { count_below_lanes::<Avx2>(heads, target) }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Lanes, count_below_lanes};
    use std::arch::aarch64::{
        vaddvq_u32, vandq_u32, vcltq_u32, vdupq_n_u32, vld1q_u8, vld1q_u32, vreinterpretq_u32_u8,
    };

    struct Neon;

    // SAFETY: reads 16 bytes, uses NEON.
    unsafe impl Lanes for Neon {
        const LANES: usize = 4;

        #[inline(always)]
        unsafe fn below(from: *const u8, target: u32) -> u32 {
            const LANE_BITS: [u32; 4] = [1, 2, 4, 8];
            // SAFETY: the caller vouches for 16 bytes; NEON is in the baseline.
            unsafe {
                let heads = vreinterpretq_u32_u8(vld1q_u8(from));
                let below = vcltq_u32(heads, vdupq_n_u32(target));
                vaddvq_u32(vandq_u32(below, vld1q_u32(LANE_BITS.as_ptr())))
            }
        }
    }

    #[inline]
    pub fn count_below_neon(heads: &[u8], target: u32) -> usize {
        // SAFETY: NEON is in the baseline of aarch64.
        unsafe { count_below_lanes::<Neon>(heads, target) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    type Count = fn(&[u8], u32) -> usize;

    /// All implementations that this processor supports.
    fn ways() -> Vec<(&'static str, Count)> {
        let mut ways: Vec<(&'static str, Count)> = vec![("chosen", count_below)];
        #[cfg(target_arch = "x86_64")]
        {
            ways.push(("sse2", x86::count_below_sse2));
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2.
                ways.push(("avx2", |heads, target| unsafe {
                    x86::count_below_avx2(heads, target)
                }));
            }
        }
        #[cfg(target_arch = "aarch64")]
        ways.push(("neon", arm::count_below_neon));
        ways
    }

    fn packed(heads: &[u32]) -> Vec<u8> {
        heads.iter().flat_map(|head| head.to_le_bytes()).collect()
    }

    #[test]
    fn every_way_counts_as_the_plain_one() {
        let mut rng = Rng::new(7);
        for round in 0..3_000 {
            let count = round % 70;
            let spread = [8, 1 << 16, u64::from(u32::MAX) + 1][round % 3];
            let mut heads: Vec<u32> =
                (0..count).map(|_| u32::try_from(rng.below(spread)).unwrap()).collect();
            heads.sort_unstable();
            let bytes = packed(&heads);
            let mut targets = vec![0, u32::MAX, 1 << 31, (1 << 31) - 1];
            targets.extend(heads.iter().flat_map(|head| [*head, head.wrapping_add(1)]));
            for target in targets {
                let plain = count_below_plain(&bytes, target);
                for (name, way) in ways() {
                    assert_eq!(way(&bytes, target), plain, "{name} {target} {heads:?}");
                }
            }
        }
    }

    #[test]
    fn bounds_are_those_of_the_slice() {
        let mut rng = Rng::new(8);
        for count in [0, 1, 2, 31, 64, 65, 66, 127, 1000, 5000] {
            for spread in [3, 50, 1 << 20, u64::from(u32::MAX) + 1] {
                let mut heads: Vec<u32> =
                    (0..count).map(|_| u32::try_from(rng.below(spread)).unwrap()).collect();
                heads.sort_unstable();
                let bytes = packed(&heads);
                for _ in 0..50 {
                    let target = u32::try_from(rng.below(spread)).unwrap();
                    let lower = heads.partition_point(|head| *head < target);
                    let upper = heads.partition_point(|head| *head <= target);
                    assert_eq!(lower_bound(&bytes, target), lower);
                    assert_eq!(equal_range(&bytes, target), (lower, upper));
                }
                assert_eq!(equal_range(&bytes, u32::MAX).1, heads.len());
            }
        }
    }

    #[test]
    fn unsorted_heads_give_a_number_within_the_array() {
        let mut rng = Rng::new(9);
        for _ in 0..2_000 {
            let mut bytes = vec![0; usize::try_from(rng.below(900)).unwrap()];
            rng.fill(&mut bytes);
            let target = u32::try_from(rng.below(1 << 32)).unwrap();
            let (lower, upper) = equal_range(&bytes, target);
            assert!(lower <= upper && upper <= bytes.len() / HEAD_BYTES);
        }
    }
}
