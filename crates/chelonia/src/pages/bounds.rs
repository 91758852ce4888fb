//! The lower bounds of the pages of a group.
//!
//! The group begins at its own first key; a bound is kept for each further page. All bounds are
//! greater than the first key, so what they have in common with it is not stored:
//!
//! ```text
//!   first key of the group   user:1042:a
//!   bounds                         1043   1077:c   2        common: 5 bytes, `user:`
//! ```
//!
//! Or the bounds follow from a line (`line.rs`), which takes less memory than keys, and leaves the
//! choice of what is in a page to the line.

use super::line::Line;
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::structure::{Allowance, SharedKey};
use std::cmp::Ordering;

/// The lower bounds of the second and later pages of a group.
#[derive(Clone, PartialEq, Debug)]
pub enum Bounds {
    /// A key for each.
    Keys(BoundKeys),
    /// A line from which they follow, of at least two pages.
    Line(Line),
}

/// Bounds as keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BoundKeys {
    /// Bytes of the group's first key that all bounds begin with.
    common: usize,
    /// The rest of each bound, one after the other.
    rests: Box<[u8]>,
    /// Where each rest ends.
    ends: Box<[u32]>,
}

/// Forms of encoded bounds.
const KEYS: u8 = 0;
const LINE: u8 = 1;

impl Bounds {
    /// Stores `bounds`, ascending and greater than `first`.
    #[must_use]
    pub fn new(first: &SharedKey, bounds: &[Vec<u8>]) -> Self {
        // In ascending order the last one shares least with the first key.
        let common = bounds.last().map_or(0, |last| first.common_with(last));
        let mut rests = Vec::new();
        let mut ends = Vec::with_capacity(bounds.len());
        for bound in bounds {
            rests.extend_from_slice(&bound[common..]);
            ends.push(u32::try_from(rests.len()).unwrap_or(u32::MAX));
        }
        Self::Keys(BoundKeys { common, rests: rests.into(), ends: ends.into() })
    }

    /// Number of bounds: one less than pages.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.ends.len(),
            Self::Line(line) => line.pages - 1,
        }
    }

    /// Bound `index`, of the page after page `index`.
    #[must_use]
    pub fn key(&self, first: &SharedKey, index: usize) -> Vec<u8> {
        match self {
            Self::Keys(keys) => [&first.prefix(keys.common), keys.rest(index)].concat(),
            // A line leads to all its pages.
            Self::Line(line) => line.bound(first, index + 1).unwrap_or_default(),
        }
    }

    /// The page that may have `key`: the number of bounds that are not greater. `first` is the
    /// first key of the group.
    #[inline]
    #[must_use]
    pub fn page_of(&self, first: &SharedKey, key: &[u8]) -> usize {
        match self {
            Self::Keys(keys) => keys.page_of(first, key),
            Self::Line(line) => line.page_of(first, key),
        }
    }

    /// Heap memory in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.rests.len() + 4 * keys.ends.len(),
            Self::Line(_) => 0,
        }
    }

    /// Appends the bounds: 1 form; then a line, or v bytes in common with the first key; each:
    /// v length, the rest.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Keys(keys) => {
                out.push(KEYS);
                put_varint(out, keys.common as u64);
                for index in 0..keys.ends.len() {
                    put_bytes(out, keys.rest(index));
                }
            }
            Self::Line(line) => {
                out.push(LINE);
                line.encode(out);
            }
        }
    }

    /// Decodes `count` bounds of a group that begins at `first`.
    pub fn decode(
        decoder: &mut Decoder<'_>,
        first: &SharedKey,
        count: usize,
        allowance: &mut Allowance,
    ) -> Result<Self> {
        match decoder.u8()? {
            KEYS => BoundKeys::decode(decoder, first, count, allowance).map(Self::Keys),
            LINE => Line::decode(decoder, first, count + 1).map(Self::Line),
            _ => Err(decoder.damaged("the bounds of a group have an unknown form")),
        }
    }
}

impl BoundKeys {
    fn rest(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.rests[start..self.ends[index] as usize]
    }

    #[inline]
    fn page_of(&self, first: &SharedKey, key: &[u8]) -> usize {
        if self.ends.is_empty() {
            return 0;
        }
        let common = if self.common == 0 { 0 } else { first.common_with(key).min(self.common) };
        if common < self.common {
            // The key leaves what all bounds share.
            return if first.compare(key) == Ordering::Greater { 0 } else { self.ends.len() };
        }
        let rest = &key[common..];
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.rest(middle) <= rest {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn decode(
        decoder: &mut Decoder<'_>,
        first: &SharedKey,
        count: usize,
        allowance: &mut Allowance,
    ) -> Result<Self> {
        let common = decoder.length(first.len())?;
        let (mut rests, mut ends) = (Vec::new(), Vec::with_capacity(count));
        let beyond = first.suffix(common).into_owned();
        let mut before: &[u8] = &beyond;
        for _ in 0..count {
            let rest = decoder.bytes(KEY_BYTES_MAX - common)?;
            allowance.take_key(rest.len() + 4)?;
            if rest <= before {
                return Err(decoder.damaged("the pages of a group are out of order"));
            }
            rests.extend_from_slice(rest);
            ends.push(u32::try_from(rests.len()).unwrap_or(u32::MAX));
            before = rest;
        }
        Ok(Self { common, rests: rests.into(), ends: ends.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;
    use crate::storage::Storage;

    #[test]
    fn a_key_is_in_the_page_whose_bound_is_the_last_not_greater() {
        let (storage, _directory) = Storage::testing(16 << 20);
        let mut rng = Rng::new(1);
        for round in 0..200 {
            let prefix = b"p".repeat([0, 50, 100][round % 3]);
            let key = |rng: &mut Rng| {
                let mut key = prefix.clone();
                let length = rng.below(4);
                key.extend(
                    (0..length)
                        .map(|_| b"abc"[usize::from(rng.one_in(2)) + usize::from(rng.one_in(2))]),
                );
                key
            };
            let mut keys: Vec<Vec<u8>> = (0..round % 12 + 1).map(|_| key(&mut rng)).collect();
            keys.sort();
            keys.dedup();
            let first = SharedKey::whole(&keys[0]);
            let bounds = Bounds::new(&first, &keys[1..]);
            let mut out = Vec::new();
            bounds.encode(&mut out);
            let mut decoder = Decoder::new(&out, "bounds");
            let mut allowance = Allowance::of(&storage);
            let count = bounds.count();
            let decoded = Bounds::decode(&mut decoder, &first, count, &mut allowance).unwrap();
            assert_eq!(decoded, bounds);
            for (index, key) in keys[1..].iter().enumerate() {
                assert_eq!(bounds.key(&first, index), *key);
            }
            for _ in 0..30 {
                let mut probe = key(&mut rng);
                if rng.below(5) == 0 {
                    probe.insert(0, rng.next_u64().to_le_bytes()[0]);
                }
                let expected = keys[1..].iter().filter(|bound| **bound <= probe).count();
                assert_eq!(bounds.page_of(&first, &probe), expected, "{keys:?} {probe:?}");
            }
        }
    }
}
