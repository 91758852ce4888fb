//! Shortened key bounds of tables.
//!
//! A table records bounds of its keys. For long keys a shorter bound is enough:
//!
//! ```text
//!   last key of a table     user/7 b7f3 91ac 44 ...     its bound:  user/7 b7f3 91ad
//!   first key of the next   user/7 c014 8a1e 93 ...     its bound:  user/7 c014 8a1e
//! ```
//!
//! A bound is computed once, when its table is written, and stored with it: where an unreadable
//! block splits tables at a key, the bounds of both parts must stay on their sides of it.
//!
//! Tables of a level do not overlap, and neither do their bounds. The output of a merge lies within
//! the bounds of its inputs, which are known not to overlap tables outside the merge.

use crate::base::keys::KeyRange;
use crate::engines::autumn::table::Table;
use crate::kernels::prefix::common_prefix;
use crate::structure::SharedKey;
use std::ops::Bound;

/// Maximum length in bytes of a key that is used unchanged as a bound, so that bounds of usual keys
/// are exact.
const EXACT_MAX: usize = 64;

/// Minimum number of leading bytes that a raised upper bound keeps from its key.
const RAISED_MIN: usize = 48;

/// Neighbourhood of a table at the time it is written.
#[derive(Clone, Copy, Default)]
pub(super) struct Edges<'k> {
    /// Bound of the preceding table, if that is written, too.
    pub before: Option<&'k SharedKey>,
    /// A greater key; the next table does not begin before it.
    pub behind: Option<&'k [u8]>,
    /// Range that contains all keys of the table.
    pub range: Option<&'k KeyRange>,
    /// Tables the keys came from; empty if the bounds may extend as far as the other fields allow.
    pub merged: &'k [&'k Table],
}

impl Edges<'_> {
    /// Returns the lower bound of a table whose least key is `first`: not greater than that key.
    pub fn first(&self, first: &[u8]) -> SharedKey {
        let before = self.before.map_or(0, |before| common_with(before, first));
        let length = EXACT_MAX.max(before + 1);
        if first.len() <= length {
            return SharedKey::whole(first);
        }
        let merged = self.merged.iter().map(|table| &table.first);
        let mut bound = SharedKey::whole(&first[..length]);
        if let Some(least) = merged.filter(|least| **least <= *first).max()
            && *least > bound
        {
            bound = least.clone();
        }
        if let Some(Bound::Included(least)) = self.range.map(|range| &range.lower)
            && bound < **least
        {
            bound = SharedKey::whole(least);
        }
        if bound.len() < first.len() && bound <= *first { bound } else { SharedKey::whole(first) }
    }

    /// Returns the upper bound of a table whose greatest key is `last`: not less than that key.
    pub fn last(&self, last: &[u8]) -> SharedKey {
        if last.len() <= EXACT_MAX {
            return SharedKey::whole(last);
        }
        let end = match self.range.map(|range| &range.upper) {
            Some(Bound::Excluded(end)) => Some(end.as_slice()),
            _ => None,
        };
        let behind = [self.behind, end].into_iter().flatten().min();
        let ceiling = self.merged.iter().map(|table| &table.last).filter(|it| **it >= *last).min();
        let is_clear = |bound: &SharedKey| {
            behind.is_none_or(|behind| *bound < *behind)
                && ceiling.is_none_or(|ceiling| bound <= ceiling)
        };
        let common = behind.map_or(0, |behind| common_prefix(last, behind));
        let raised = raised(last, RAISED_MIN.max(common + 1)).filter(is_clear);
        let other = ceiling.filter(|it| it.len() < last.len() && is_clear(it)).cloned();
        raised.or(other).unwrap_or_else(|| SharedKey::whole(last))
    }
}

/// Number of leading bytes that `key` shares with `before`.
fn common_with(before: &SharedKey, key: &[u8]) -> usize {
    common_prefix(&before.to_bytes(), key)
}

/// Returns a shorter, greater key that shares its first `from` bytes with `key`.
fn raised(key: &[u8], from: usize) -> Option<SharedKey> {
    let place = from + key.get(from..)?.iter().position(|byte| *byte != u8::MAX)?;
    let mut raised = key[..=place].to_vec();
    raised[place] += 1;
    (raised.len() < key.len()).then(|| SharedKey::whole(&raised))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    /// Generates keys long enough to be shortened; some have long common prefixes and edge-case
    /// bytes.
    fn some_keys(rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for _ in 0..80 {
            let mut key = match keys.last() {
                Some(before) => {
                    before[..usize::try_from(rng.below(before.len() as u64 + 1)).unwrap()].to_vec()
                }
                None => Vec::new(),
            };
            let bytes = [0, 1, 0xfe, 0xff];
            for _ in 0..rng.below(200) {
                key.push(bytes[usize::try_from(rng.below(4)).unwrap()]);
            }
            keys.push(key);
        }
        keys.sort();
        keys.dedup();
        keys
    }

    #[test]
    fn bounds_of_neighbours_do_not_overlap() {
        let mut rng = Rng::new(3);
        for _ in 0..200 {
            let keys = some_keys(&mut rng);
            let mut before: Option<SharedKey> = None;
            for (place, key) in keys.iter().enumerate() {
                let behind = keys.get(place + 1).map(Vec::as_slice);
                let edges = Edges { before: before.as_ref(), behind, ..Edges::default() };
                let (first, last) = (edges.first(key), edges.last(key));
                assert!(first <= **key && last >= **key);
                assert!(before.is_none_or(|before| before < first));
                assert!(behind.is_none_or(|behind| last < *behind));
                before = Some(last);
            }
        }
    }

    #[test]
    fn bounds_of_keys_that_share_little_are_short() {
        let mut rng = Rng::new(4);
        let mut keys = vec![vec![0; 60_000]; 100];
        keys.iter_mut().for_each(|key| rng.fill(key));
        keys.sort();
        for pair in keys.windows(2) {
            let before = SharedKey::whole(&pair[0]);
            let edges = Edges { before: Some(&before), ..Edges::default() };
            assert!(edges.first(&pair[1]).len() <= EXACT_MAX);
            let edges = Edges { behind: Some(&pair[1]), ..Edges::default() };
            assert!(edges.last(&pair[0]).len() <= EXACT_MAX);
        }
    }

    #[test]
    fn bounds_stay_within_a_range() {
        let long = |byte: u8| vec![byte; 1_000];
        let range = KeyRange::half_open(&long(4)[..500], Some(&[&long(5)[..200], &[6]].concat()));
        let edges = Edges { range: Some(&range), ..Edges::default() };
        assert!(edges.first(&long(4)).is_within(&range));
        assert!(edges.last(&long(5)).is_within(&range));
    }
}
