//! One line of a blocked Bloom filter: 64 bytes, `probes` bits of it per key.
//!
//! Probe `i` looks at bit `(hash * STEP^(i + 1)) >> 23` (32-bit arithmetic, so nine bits are left:
//! 512 bits). Multiplying by an odd number keeps the upper bits mixed, and the powers are known
//! beforehand, so eight probes are one vector. Bit `b` of a line is bit `b % 8` of byte `b / 8`.

#![expect(unsafe_code, reason = "an island: instruction sets chosen at run time")]

/// The bytes of a line: one cache line.
pub const LINE_BYTES: usize = 64;

/// One line.
pub type Line = [u8; LINE_BYTES];

/// The golden ratio as 32 bits: odd, and its powers are spread well.
const STEP: u32 = 0x9e37_79b9;

/// A line has 2^9 bits.
const BIT_SHIFT: u32 = 32 - 9;

#[inline]
fn bit(hash: u32) -> (usize, u8) {
    let bit = hash >> BIT_SHIFT;
    ((bit / 8) as usize, 1 << (bit % 8))
}

/// Sets the bits of `hash`.
#[inline]
pub fn insert(line: &mut Line, mut hash: u32, probes: u32) {
    for _ in 0..probes {
        hash = hash.wrapping_mul(STEP);
        let (byte, mask) = bit(hash);
        line[byte] |= mask;
    }
}

/// True if all bits of `hash` are set.
#[inline]
#[must_use]
pub fn contains(line: &Line, hash: u32, probes: u32) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { x86::contains_avx2(line, hash, probes) };
    }
    contains_plain(line, hash, probes)
}

/// The plain twin.
#[inline]
fn contains_plain(line: &Line, mut hash: u32, probes: u32) -> bool {
    for _ in 0..probes {
        hash = hash.wrapping_mul(STEP);
        let (byte, mask) = bit(hash);
        if line[byte] & mask == 0 {
            return false;
        }
    }
    true
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Line, STEP};
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_blendv_epi8, _mm256_cmpgt_epi32, _mm256_loadu_si256,
        _mm256_mullo_epi32, _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_setr_epi32,
        _mm256_slli_epi32, _mm256_sllv_epi32, _mm256_srai_epi32, _mm256_srli_epi32,
        _mm256_testc_si256,
    };

    const LANES: u32 = 8;

    /// The first eight powers of [`STEP`].
    const POWERS: [i32; 8] = {
        let mut powers = [0; 8];
        let mut power = 1_u32;
        let mut index = 0;
        while index < 8 {
            power = power.wrapping_mul(STEP);
            powers[index] = power.cast_signed();
            index += 1;
        }
        powers
    };

    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn contains_avx2(line: &Line, hash: u32, probes: u32) -> bool {
        // SAFETY: both loads lie within the 64 bytes of the line, the third within the powers.
        let (low, high, powers) = unsafe {
            (
                _mm256_loadu_si256(line.as_ptr().cast::<__m256i>()),
                _mm256_loadu_si256(line.as_ptr().add(32).cast::<__m256i>()),
                _mm256_loadu_si256(POWERS.as_ptr().cast::<__m256i>()),
            )
        };
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let mut base = hash.cast_signed();
        let mut left = probes;
        while left > 0 {
            let hashes = _mm256_mullo_epi32(_mm256_set1_epi32(base), powers);
            // The upper four bits choose one of sixteen words: three of eight, one of two halves.
            let word = _mm256_srli_epi32::<28>(hashes);
            let from_low = _mm256_permutevar8x32_epi32(low, word);
            let from_high = _mm256_permutevar8x32_epi32(high, word);
            let half = _mm256_srai_epi32::<31>(hashes);
            let words = _mm256_blendv_epi8(from_low, from_high, half);
            // The next five choose the bit in the word.
            let place = _mm256_srli_epi32::<27>(_mm256_slli_epi32::<4>(hashes));
            let bits = _mm256_sllv_epi32(_mm256_set1_epi32(1), place);
            let count = left.min(LANES).cast_signed();
            let wanted = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
            if _mm256_testc_si256(words, _mm256_and_si256(bits, wanted)) == 0 {
                return false;
            }
            left = left.saturating_sub(LANES);
            base = base.wrapping_mul(POWERS[7]);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    #[test]
    fn every_way_agrees_and_forgets_nothing() {
        let mut rng = Rng::new(3);
        for probes in 1..=24 {
            for load in [0, 1, 10, 40, 120] {
                let mut line = [0; LINE_BYTES];
                let keys: Vec<u32> =
                    (0..load).map(|_| u32::try_from(rng.below(1 << 32)).unwrap()).collect();
                for key in &keys {
                    insert(&mut line, *key, probes);
                }
                assert!(keys.iter().all(|key| contains(&line, *key, probes)));
                for _ in 0..300 {
                    let other = u32::try_from(rng.below(1 << 32)).unwrap();
                    let plain = contains_plain(&line, other, probes);
                    assert_eq!(contains(&line, other, probes), plain);
                }
            }
        }
    }
}
