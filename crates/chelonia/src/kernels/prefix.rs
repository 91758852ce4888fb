//! The length of the common prefix of two byte strings.
//!
//! Compares eight bytes at a time, by the trailing zeros of an exclusive or. Wider registers did
//! not pay for their set-up: keys that share more than a few words are rare, and long ones are
//! memory-bound.

/// The length of the longest common prefix of `left` and `right`.
#[inline]
#[must_use]
pub fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    let shorter = left.len().min(right.len());
    let (left, right) = (&left[..shorter], &right[..shorter]);
    let (left_words, left_tail) = left.as_chunks::<8>();
    let (right_words, right_tail) = right.as_chunks::<8>();
    for (index, (a, b)) in left_words.iter().zip(right_words).enumerate() {
        let difference = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if difference != 0 {
            return index * 8 + difference.trailing_zeros() as usize / 8;
        }
    }
    let equal = left_tail.iter().zip(right_tail).take_while(|(a, b)| a == b).count();
    left_words.len() * 8 + equal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    #[test]
    fn it_agrees_with_the_plain_count() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let mut left = vec![0_u8; usize::try_from(rng.below(40)).unwrap()];
            rng.fill(&mut left);
            let mut right = left.clone();
            for _ in 0..rng.below(3) {
                if !right.is_empty() {
                    let place = usize::try_from(rng.below(right.len() as u64)).unwrap();
                    right[place] ^= 1 << rng.below(8);
                }
            }
            right.resize(usize::try_from(rng.below(40)).unwrap(), 7);
            let plain = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
            assert_eq!(common_prefix(&left, &right), plain);
        }
    }
}
