//! One line of a blocked Bloom filter: 64 bytes, `probes` bits of it per key.
//!
//! Probe `i` tests bit `(hash * STEP^(i + 1)) >> 23` (32-bit arithmetic, so nine bits are left: 512
//! bits). Multiplying by an odd number keeps the upper bits mixed, and the powers are constants, so
//! eight probes are one vector. Bit `b` of a line is bit `b % 8` of byte `b / 8`.

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
    #[cfg(target_arch = "aarch64")]
    return arm::contains_neon(line, hash, probes);
    #[cfg(not(target_arch = "aarch64"))]
    contains_plain(line, hash, probes)
}

/// The scalar version.
#[cfg(any(test, not(target_arch = "aarch64")))]
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

/// The number of probes in one vector.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const LANES: u32 = 8;

/// The first eight powers of [`STEP`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const POWERS: [u32; LANES as usize] = {
    let mut powers = [0; LANES as usize];
    let mut power = 1_u32;
    let mut index = 0;
    while index < powers.len() {
        power = power.wrapping_mul(STEP);
        powers[index] = power;
        index += 1;
    }
    powers
};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Line, POWERS};
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_blendv_epi8, _mm256_cmpgt_epi32, _mm256_loadu_si256,
        _mm256_mullo_epi32, _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_setr_epi32,
        _mm256_slli_epi32, _mm256_sllv_epi32, _mm256_srai_epi32, _mm256_srli_epi32,
        _mm256_testc_si256,
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
        let mut base = hash;
        let mut left = probes;
        while left > 0 {
            let hashes = _mm256_mullo_epi32(_mm256_set1_epi32(base.cast_signed()), powers);
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

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{LANES, LINE_BYTES, Line, POWERS};
    use std::arch::aarch64::{
        uint8x8_t, uint16x8_t, vand_u8, vcge_u8, vcombine_u16, vdup_n_u8, vld1_u8, vld1q_u8_x4,
        vld1q_u32, vminv_u8, vmovn_u16, vmulq_n_u32, vorr_u8, vqtbl4_u8, vreinterpret_s8_u8,
        vshl_u8, vshrn_n_u32, vshrq_n_u16, vtst_u8,
    };

    const LANE: [u8; LANES as usize] = [0, 1, 2, 3, 4, 5, 6, 7];

    const _: () = assert!(LINE_BYTES == 64, "four vectors hold a line");

    pub fn contains_neon(line: &Line, hash: u32, probes: u32) -> bool {
        let mut base = hash;
        let mut left = probes;
        while left > 0 {
            // SAFETY: NEON is in the baseline of aarch64. The loads lie within the 64 bytes of the
            // line, the eight numbers of the powers, and the eight bytes of the lanes.
            let missing = unsafe {
                let (low, high) = (vld1q_u32(POWERS.as_ptr()), vld1q_u32(POWERS[4..].as_ptr()));
                let low = vshrn_n_u32::<16>(vmulq_n_u32(low, base));
                let high = vshrn_n_u32::<16>(vmulq_n_u32(high, base));
                // Of the nine upper bits, six choose a byte of the line and three a bit of it.
                let hashes: uint16x8_t = vcombine_u16(low, high);
                let byte = vmovn_u16(vshrq_n_u16::<10>(hashes));
                let place = vand_u8(vmovn_u16(vshrq_n_u16::<7>(hashes)), vdup_n_u8(7));
                let bit: uint8x8_t = vshl_u8(vdup_n_u8(1), vreinterpret_s8_u8(place));
                let set = vtst_u8(vqtbl4_u8(vld1q_u8_x4(line.as_ptr()), byte), bit);
                let count = u8::try_from(left.min(LANES)).unwrap_or(u8::MAX);
                let unwanted = vcge_u8(vld1_u8(LANE.as_ptr()), vdup_n_u8(count));
                vminv_u8(vorr_u8(set, unwanted)) == 0
            };
            if missing {
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
    use crate::runtime::rng::Rng;

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
