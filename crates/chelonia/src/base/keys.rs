//! Key ranges, scan directions, and the first bytes of a key as a number.

use std::ops::Bound;

/// The direction of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the least key up.
    Ascending,
    /// From the greatest key down.
    Descending,
}

/// An owned key range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRange {
    /// The lower bound.
    pub lower: Bound<Vec<u8>>,
    /// The upper bound.
    pub upper: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self { lower: Bound::Unbounded, upper: Bound::Unbounded }
    }

    /// The keys from `lower` (included) to `upper` (excluded); `None` is the end of the key space.
    #[must_use]
    pub fn half_open(lower: &[u8], upper: Option<&[u8]>) -> Self {
        Self {
            lower: Bound::Included(lower.to_vec()),
            upper: upper.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec())),
        }
    }

    /// The keys that begin with `prefix`.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let upper = prefix_successor(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        Self { lower: Bound::Included(prefix.to_vec()), upper }
    }

    /// The key of the bound at which a scan in this direction begins; `None` if there is no bound.
    #[must_use]
    pub fn start(&self, direction: Direction) -> Option<&[u8]> {
        let bound = match direction {
            Direction::Ascending => &self.lower,
            Direction::Descending => &self.upper,
        };
        match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        }
    }

    /// True if `key` is not before the lower bound.
    #[must_use]
    pub fn reaches(&self, key: &[u8]) -> bool {
        match &self.lower {
            Bound::Included(bound) => key >= bound.as_slice(),
            Bound::Excluded(bound) => key > bound.as_slice(),
            Bound::Unbounded => true,
        }
    }

    /// True if `key` is not after the upper bound.
    #[must_use]
    pub fn admits(&self, key: &[u8]) -> bool {
        match &self.upper {
            Bound::Included(bound) => key <= bound.as_slice(),
            Bound::Excluded(bound) => key < bound.as_slice(),
            Bound::Unbounded => true,
        }
    }

    /// True if `key` lies within both bounds.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.reaches(key) && self.admits(key)
    }

    /// True if no key can lie within (the bounds cross or meet without including).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        use Bound::{Excluded, Included, Unbounded};
        match (&self.lower, &self.upper) {
            (Unbounded, Excluded(upper)) => upper.is_empty(),
            (Unbounded, _) | (_, Unbounded) => false,
            (Included(lower), Included(upper)) => lower > upper,
            (Included(lower), Excluded(upper)) | (Excluded(lower), Included(upper)) => {
                lower >= upper
            }
            // No key lies between a key and its immediate successor (the key and a zero byte).
            (Excluded(lower), Excluded(upper)) => lower >= upper || is_successor(lower, upper),
        }
    }
}

/// Moves `bound` to `key`, which `make` includes or excludes, reusing its buffer.
pub fn move_bound(
    bound: &mut Bound<Vec<u8>>,
    key: &[u8],
    make: impl FnOnce(Vec<u8>) -> Bound<Vec<u8>>,
) {
    let mut buffer = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(buffer) | Bound::Excluded(buffer) => buffer,
        Bound::Unbounded => Vec::new(),
    };
    buffer.clear();
    buffer.extend_from_slice(key);
    *bound = make(buffer);
}

/// True if `upper` is the very next key after `lower`.
fn is_successor(lower: &[u8], upper: &[u8]) -> bool {
    upper.len() == lower.len() + 1 && upper[lower.len()] == 0 && upper.starts_with(lower)
}

/// The least key that is greater than every key beginning with `prefix`; `None` if there is none.
#[must_use]
pub fn prefix_successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut successor = prefix[..=last].to_vec();
    successor[last] += 1;
    Some(successor)
}

/// The first eight bytes as a number that orders as the keys do; shorter keys are padded with
/// zeros, so equal heads decide nothing.
#[inline]
#[must_use]
pub fn head64(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut padded = [0_u8; 8];
    padded[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(padded)
}

/// The first four bytes as a number that orders as the keys do; padded like [`head64`].
#[inline]
#[must_use]
pub fn head32(key: &[u8]) -> u32 {
    if let Some(first) = key.first_chunk::<4>() {
        return u32::from_be_bytes(*first);
    }
    let mut padded = [0_u8; 4];
    padded[..key.len()].copy_from_slice(key);
    u32::from_be_bytes(padded)
}

/// The shortest key `s` with `left < s <= right`: separates two neighboring keys. Needs `left <
/// right`.
#[must_use]
pub fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    debug_assert!(left < right, "a separator needs its keys in order");
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right[..(common + 1).min(right.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_ranges_hold_exactly_their_prefix() {
        let range = KeyRange::prefix(b"a\xff");
        assert!(range.contains(b"a\xff") && range.contains(b"a\xff\xff\xff"));
        assert!(!range.contains(b"b") && !range.contains(b"a\xfe"));
        assert!(KeyRange::prefix(b"\xff\xff").contains(b"\xff\xff\x00"));
        assert!(KeyRange::prefix(b"").contains(b""));
    }

    #[test]
    fn empty_ranges_are_reported() {
        use Bound::{Excluded, Included};
        let range = |lower, upper| KeyRange { lower, upper };
        assert!(range(Included(vec![2]), Included(vec![1])).is_empty());
        assert!(range(Included(vec![1]), Excluded(vec![1])).is_empty());
        assert!(range(Excluded(vec![1]), Excluded(vec![1, 0])).is_empty());
        assert!(!range(Included(vec![1]), Included(vec![1])).is_empty());
        assert!(!range(Excluded(vec![1]), Excluded(vec![1, 1])).is_empty());
        assert!(range(Bound::Unbounded, Excluded(vec![])).is_empty());
    }

    #[test]
    fn separators_divide() {
        for (left, right) in
            [(&b""[..], &b"a"[..]), (b"abc", b"abd"), (b"ab", b"abc"), (b"a", b"b")]
        {
            let middle = separator(left, right);
            assert!(left < middle.as_slice() && middle.as_slice() <= right);
        }
        assert_eq!(separator(b"apple", b"banana"), b"b");
    }
}
