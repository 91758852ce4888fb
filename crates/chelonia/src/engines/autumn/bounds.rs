//! Bounds of tables that need not be keys.
//!
//! A table says between which keys its own are. Where keys are long, less of them says it as well:
//!
//! ```text
//!   last key of a table     user/7 b7f3 91ac 44 ...     its bound:  user/7 b7f3 91ad
//!   first key of the next   user/7 c014 8a1e 93 ...     its bound:  user/7 c014 8a1e
//! ```
//!
//! A bound is found once, when its table is written, and stays with it: where what cannot be read
//! parts tables at a key, the bounds of both parts have to stay on their sides of it.
//!
//! Tables of a level do not overlap, nor may their bounds. What a merge makes lies between bounds
//! of what it merged, which are known to be clear of tables that it does not know.

use super::table::Table;
use crate::base::keys::KeyRange;
use crate::kernels::prefix::common_prefix;
use crate::structure::SharedKey;
use std::ops::Bound;

/// Keys up to this many bytes are bounds as they are, so that those of usual keys are exact.
const EXACT_MAX: usize = 64;

/// The last bytes of that are where a bound above may differ from its key.
const RAISED_MIN: usize = 48;

/// What is known of the neighbourhood of a table when it is written.
#[derive(Clone, Copy, Default)]
pub(super) struct Edges<'k> {
    /// The bound of the table before it, if that is written, too.
    pub before: Option<&'k SharedKey>,
    /// A greater key where the next table begins at the earliest.
    pub behind: Option<&'k [u8]>,
    /// Its keys are within this.
    pub range: Option<&'k KeyRange>,
    /// Its keys were in these tables; empty if it may extend as far as the other bounds let it.
    pub merged: &'k [&'k Table],
}

impl Edges<'_> {
    /// A bound of a table whose least key is `first`: not greater.
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

    /// A bound of a table whose greatest key is `last`: not less.
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

/// How many bytes `key` has in common with `before`.
fn common_with(before: &SharedKey, key: &[u8]) -> usize {
    common_prefix(&before.to_bytes(), key)
}

/// A shorter key that is greater, whose first `from` bytes are the same.
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

    /// Keys long enough to be shortened, some of which share much and have awkward bytes.
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
