//! Search for a byte among up to sixteen: the lookup in a node with sixteen keys.
//!
//! Keys are unordered and distinct; bytes behind the count are arbitrary and must not match.

#![expect(unsafe_code, reason = "an island: vector instructions")]

/// The index of `byte` among the first `count` of `keys`.
#[inline]
#[must_use]
pub fn position16(keys: [u8; 16], count: usize, byte: u8) -> Option<usize> {
    first(equal_mask(keys, byte) & below(count))
}

/// One bit for each of the first `count` places (at most 16).
#[inline]
fn below(count: usize) -> u32 {
    debug_assert!(count <= 16, "a node of sixteen has at most sixteen keys");
    (1_u32 << (count & 31)).wrapping_sub(1)
}

#[inline]
fn first(mask: u32) -> Option<usize> {
    (mask != 0).then(|| mask.trailing_zeros() as usize)
}

/// Bit `i` is set if `keys[i]` is `byte`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn equal_mask(keys: [u8; 16], byte: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: SSE2 is part of every x86-64; the load reads exactly the sixteen bytes of `keys`.
    let mask = unsafe {
        let keys = _mm_loadu_si128(keys.as_ptr().cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(keys, _mm_set1_epi8(byte.cast_signed())))
    };
    mask.cast_unsigned()
}

/// Bit `i` is set if `keys[i]` is `byte`.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
fn equal_mask(keys: [u8; 16], byte: u8) -> u32 {
    use std::arch::aarch64::vld1q_u8;
    use std::arch::aarch64::{vaddv_u8, vandq_u8, vceqq_u8, vdupq_n_u8, vget_high_u8, vget_low_u8};
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: NEON is part of every aarch64; the loads read exactly sixteen bytes each.
    let (low, high) = unsafe {
        let equal = vceqq_u8(vld1q_u8(keys.as_ptr()), vdupq_n_u8(byte));
        let bits = vandq_u8(equal, vld1q_u8(BITS.as_ptr()));
        (vaddv_u8(vget_low_u8(bits)), vaddv_u8(vget_high_u8(bits)))
    };
    u32::from(low) | (u32::from(high) << 8)
}

/// Bit `i` is set if `keys[i]` is `byte`.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline]
fn equal_mask(keys: [u8; 16], byte: u8) -> u32 {
    equal_mask_portable(keys, byte)
}

/// The scalar version.
#[cfg_attr(not(any(test, miri)), allow(dead_code, reason = "the truth that the others answer to"))]
fn equal_mask_portable(keys: [u8; 16], byte: u8) -> u32 {
    keys.iter().enumerate().fold(0, |mask, (place, key)| mask | (u32::from(*key == byte) << place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    #[test]
    fn the_vector_search_agrees_with_its_twin() {
        let mut rng = Rng::new(16);
        for _ in 0..20_000 {
            let mut keys = [0_u8; 16];
            rng.fill(&mut keys);
            // Sometimes few distinct bytes, so that arbitrary bytes behind the count would match.
            if rng.one_in(2) {
                keys.iter_mut().for_each(|key| *key &= 0x83);
            }
            let byte = keys[usize::try_from(rng.below(16)).unwrap()] ^ u8::from(rng.one_in(3));
            assert_eq!(equal_mask(keys, byte), equal_mask_portable(keys, byte));
            for count in 0..=16 {
                let expected = keys[..count].iter().position(|key| *key == byte);
                assert_eq!(position16(keys, count, byte), expected);
            }
        }
    }
}
