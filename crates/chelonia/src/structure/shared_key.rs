//! Keys of nodes, which hold the bytes that they share with their neighbours once.
//!
//! ```text
//!   base (shared)   [ user/00000000000000 ... ]
//!                     <----- shared ----->
//!   key             [      of the base     ][ rest ]
//! ```
//!
//! A node names hundreds of keys in order, and neighbours share most of their bytes where keys are
//! long. On disk a key is what it shares with the one before and the rest. [`SharedKey::after`]
//! makes of that a key that takes little more memory than disk: it refers to the base of the one
//! before as far as that goes.
//!
//! Invariants:
//! 1. `shared` is 0 without a base, at most the length of the base with one.
//! 2. What [`SharedKey::after`] allocates is what [`SharedKey::bytes_after`] says.
//!
//! Keys never change; any thread may read them.

use crate::base::keys::{KeyRange, head64};
use crate::base::sync::Arc;
use crate::kernels::prefix::common_prefix;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Bound;

/// With fewer bytes in common keys share nothing: to refer to a base costs as much.
const SHARED_MIN: usize = 64;

/// Up to so many bytes are copied rather than made a new base.
const COPIED_MAX: usize = 256;

/// What an allocation that is counted takes besides its bytes.
const COUNTS_BYTES: usize = 16;

/// A key: see the head of the file.
#[derive(Clone, Default, Debug)]
pub struct SharedKey {
    base: Option<Arc<[u8]>>,
    shared: usize,
    /// `None` if nothing follows.
    rest: Option<Arc<[u8]>>,
}

/// How a key comes to share bytes with the one before.
enum Sharing {
    /// Not at all.
    Nothing,
    /// So many bytes of its base; what it has in common beyond that is copied.
    Base(usize),
    /// All of what it has in common is a new base.
    NewBase,
}

fn shared_bytes(bytes: &[u8]) -> Option<Arc<[u8]>> {
    (!bytes.is_empty()).then(|| bytes.into())
}

impl SharedKey {
    /// The empty key, the least of all.
    pub const LEAST: Self = Self { base: None, shared: 0, rest: None };

    /// A key that shares nothing.
    #[must_use]
    pub fn whole(key: &[u8]) -> Self {
        Self { base: None, shared: 0, rest: shared_bytes(key) }
    }

    /// The key that begins with the first `common` bytes of `before`, at most all of them, and goes
    /// on with `tail`.
    #[must_use]
    pub fn after(before: &Self, common: usize, tail: &[u8]) -> Self {
        let common = common.min(before.len());
        let (base, shared) = match before.sharing(common) {
            Sharing::Nothing => (None, 0),
            Sharing::Base(shared) => (before.base.clone(), shared),
            Sharing::NewBase => (shared_bytes(&before.prefix(common)), common),
        };
        let rest = match before.middle(shared, common) {
            middle if middle.is_empty() => shared_bytes(tail),
            middle => Some([&*middle, tail].concat().into()),
        };
        Self { base, shared, rest }
    }

    /// The bytes that [`SharedKey::after`] allocates for a tail of so many.
    #[must_use]
    pub fn bytes_after(before: &Self, common: usize, tail: usize) -> usize {
        let common = common.min(before.len());
        COUNTS_BYTES
            + match before.sharing(common) {
                Sharing::Nothing => common + tail,
                Sharing::Base(shared) => common - shared + tail,
                Sharing::NewBase => COUNTS_BYTES + common + tail,
            }
    }

    fn sharing(&self, common: usize) -> Sharing {
        if common < SHARED_MIN {
            Sharing::Nothing
        } else if self.base.is_some() && common <= self.shared + COPIED_MAX {
            Sharing::Base(common.min(self.shared))
        } else {
            Sharing::NewBase
        }
    }

    /// The same key, which shares with `before` what both have in common.
    #[must_use]
    pub fn beside(&self, before: &Self) -> Self {
        let common = self.common_prefix(before);
        if self.base.is_none() && common < SHARED_MIN {
            return self.clone();
        }
        Self::after(before, common, &self.middle(common, self.len()))
    }

    /// The same key, which shares nothing.
    #[must_use]
    pub fn alone(&self) -> Self {
        if self.base.is_none() { self.clone() } else { Self::whole(&self.to_bytes()) }
    }

    /// What it takes on the heap, in bytes, where the base of `before` is counted already.
    #[must_use]
    pub fn heap_bytes(&self, before: Option<&Self>) -> usize {
        let counted = before.and_then(|before| before.base.as_ref());
        let base = match (&self.base, counted) {
            (Some(base), Some(counted)) if Arc::ptr_eq(base, counted) => 0,
            (Some(base), _) => base.len() + COUNTS_BYTES,
            (None, _) => 0,
        };
        base + self.rest.as_ref().map_or(0, |rest| rest.len() + COUNTS_BYTES)
    }

    /// What it has of the base, and the rest.
    #[inline]
    fn parts(&self) -> (&[u8], &[u8]) {
        let base = self.base.as_ref().map_or(&[][..], |base| &base[..self.shared]);
        (base, self.rest.as_deref().unwrap_or_default())
    }

    /// The key, borrowed.
    #[inline]
    #[must_use]
    pub fn view(&self) -> KeyView<'_> {
        let (first, second) = self.parts();
        KeyView { first, second }
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// True for the least of all keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key in one piece.
    #[must_use]
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        self.middle(0, self.len())
    }

    /// The first `length` bytes.
    #[must_use]
    pub fn prefix(&self, length: usize) -> Cow<'_, [u8]> {
        self.middle(0, length.min(self.len()))
    }

    /// The bytes from `from` on.
    #[must_use]
    pub fn suffix(&self, from: usize) -> Cow<'_, [u8]> {
        self.middle(from.min(self.len()), self.len())
    }

    /// Bytes `from` to `to`.
    fn middle(&self, from: usize, to: usize) -> Cow<'_, [u8]> {
        let (base, rest) = self.parts();
        if from >= base.len() {
            return Cow::Borrowed(&rest[from - base.len()..to - base.len()]);
        }
        if to <= base.len() {
            return Cow::Borrowed(&base[from..to]);
        }
        Cow::Owned([&base[from..], &rest[..to - base.len()]].concat())
    }

    /// How many bytes both have in common at their front.
    #[must_use]
    pub fn common_prefix(&self, other: &Self) -> usize {
        let same = self.same_base(other);
        if same > 0 && (self.shared != same || other.shared != same) {
            // One of them ends its share where the other goes on: rare, and short.
            let (one, two) = (self.suffix(same), other.suffix(same));
            return same + common_prefix(&one, &two);
        }
        let ((a, b), (c, d)) = (self.parts(), other.parts());
        if same > 0 {
            return same + common_prefix(b, d);
        }
        let least = a.len().min(c.len());
        let first = common_prefix(a, c);
        if first < least {
            return first;
        }
        let (longer, after, single) =
            if a.len() > least { (&a[least..], b, d) } else { (&c[least..], d, b) };
        let second = common_prefix(longer, single);
        if second < longer.len() {
            return least + second;
        }
        least + second + common_prefix(after, &single[second..])
    }

    /// The bytes that both have of the same base.
    fn same_base(&self, other: &Self) -> usize {
        match (&self.base, &other.base) {
            (Some(one), Some(two)) if Arc::ptr_eq(one, two) => self.shared.min(other.shared),
            _ => 0,
        }
    }

    /// The first eight bytes as a number ([`head64`]).
    #[must_use]
    pub fn head(&self) -> u64 {
        match self.parts() {
            ([], rest) => head64(rest),
            (base, _) if base.len() >= 8 => head64(base),
            _ => head64(&self.prefix(8)),
        }
    }

    /// How it compares with a key in one piece.
    #[inline]
    #[must_use]
    pub fn compare(&self, key: &[u8]) -> Ordering {
        let (base, rest) = self.parts();
        if base.is_empty() { rest.cmp(key) } else { compare_parts(base, rest, key) }
    }

    /// True if it is not after the upper bound of `range`.
    #[must_use]
    pub fn is_admitted(&self, range: &KeyRange) -> bool {
        match &range.upper {
            Bound::Included(bound) => self.compare(bound).is_le(),
            Bound::Excluded(bound) => self.compare(bound).is_lt(),
            Bound::Unbounded => true,
        }
    }

    /// True if it is not before the lower bound of `range`.
    #[must_use]
    pub fn is_reached(&self, range: &KeyRange) -> bool {
        match &range.lower {
            Bound::Included(bound) => self.compare(bound).is_ge(),
            Bound::Excluded(bound) => self.compare(bound).is_gt(),
            Bound::Unbounded => true,
        }
    }

    /// The keys from this one (included) to `upper` (excluded); `None` is the end of all keys.
    #[must_use]
    pub fn range_to(&self, upper: Option<&Self>) -> KeyRange {
        KeyRange::half_open(&self.to_bytes(), upper.map(Self::to_bytes).as_deref())
    }

    /// True if it lies within `range`.
    #[must_use]
    pub fn is_within(&self, range: &KeyRange) -> bool {
        self.is_reached(range) && self.is_admitted(range)
    }
}

/// A key in two pieces, borrowed.
#[derive(Clone, Copy, Default, Debug)]
pub struct KeyView<'k> {
    first: &'k [u8],
    second: &'k [u8],
}

impl<'k> KeyView<'k> {
    /// The key in one piece.
    #[must_use]
    pub fn to_bytes(self) -> Cow<'k, [u8]> {
        match (self.first, self.second) {
            ([], whole) | (whole, []) => Cow::Borrowed(whole),
            (first, second) => Cow::Owned([first, second].concat()),
        }
    }
}

impl<'k> From<&'k [u8]> for KeyView<'k> {
    fn from(key: &'k [u8]) -> Self {
        Self { first: &[], second: key }
    }
}

impl Ord for KeyView<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let least = self.first.len().min(other.first.len());
        self.first[..least].cmp(&other.first[..least]).then_with(|| {
            let (one, two) = (&self.first[least..], &other.first[least..]);
            if two.is_empty() {
                compare_parts(one, self.second, other.second)
            } else {
                compare_parts(two, other.second, self.second).reverse()
            }
        })
    }
}

impl PartialOrd for KeyView<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for KeyView<'_> {}

impl PartialEq for KeyView<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

/// How `first` and then `second` compare with `whole`.
fn compare_parts(first: &[u8], second: &[u8], whole: &[u8]) -> Ordering {
    let least = first.len().min(whole.len());
    first[..least].cmp(&whole[..least]).then_with(|| {
        if first.len() > least { Ordering::Greater } else { second.cmp(&whole[least..]) }
    })
}

impl From<&[u8]> for SharedKey {
    fn from(key: &[u8]) -> Self {
        Self::whole(key)
    }
}

impl Ord for SharedKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let same = self.same_base(other);
        let (mut one, mut two) = (self.view(), other.view());
        (one.first, two.first) = (&one.first[same..], &two.first[same..]);
        one.cmp(&two)
    }
}

impl PartialOrd for SharedKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for SharedKey {}

impl PartialEq for SharedKey {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.cmp(other).is_eq()
    }
}

impl PartialEq<[u8]> for SharedKey {
    fn eq(&self, other: &[u8]) -> bool {
        self.len() == other.len() && self.compare(other).is_eq()
    }
}

impl PartialOrd<[u8]> for SharedKey {
    #[inline]
    fn partial_cmp(&self, other: &[u8]) -> Option<Ordering> {
        Some(self.compare(other))
    }
}

/// How many of the keys of a node, ascending, are `key` or less: their heads are given, and
/// `whole` gives the key of a number.
#[inline]
pub fn begun_by<'k>(heads: &[u64], key: &[u8], whole: impl Fn(usize) -> &'k SharedKey) -> usize {
    let head = head64(key);
    let first = heads.partition_point(|other| *other < head);
    if heads.get(first) != Some(&head) {
        return first;
    }
    // Long keys have the same heads; then each comparison is long, too.
    let (mut low, mut high) = (first, first + heads[first..].partition_point(|it| *it == head));
    while low < high {
        let middle = low.midpoint(high);
        if whole(middle).compare(key).is_le() { low = middle + 1 } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    /// Keys that share much with each other, sorted.
    fn some_keys(rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
        for _ in 0..60 {
            let before = &keys[usize::try_from(rng.below(keys.len() as u64)).unwrap()];
            let common = usize::try_from(rng.below(before.len() as u64 + 1)).unwrap();
            let mut key = before[..common].to_vec();
            for _ in 0..rng.below(600) {
                key.push(u8::try_from(rng.below(2)).unwrap());
            }
            keys.push(key);
        }
        keys.sort();
        keys.dedup();
        keys
    }

    #[test]
    fn keys_come_back_and_compare_as_their_bytes_do() {
        let mut rng = Rng::new(5);
        for _ in 0..40 {
            let keys = some_keys(&mut rng);
            let mut shared: Vec<SharedKey> = vec![SharedKey::whole(&keys[0])];
            for key in &keys[1..] {
                let before = &shared[shared.len() - 1];
                shared.push(SharedKey::whole(key).beside(before));
            }
            let heads: Vec<u64> = shared.iter().map(SharedKey::head).collect();
            for (index, (key, one)) in keys.iter().zip(&shared).enumerate() {
                assert_eq!((&*one.to_bytes(), one.len()), (&**key, key.len()));
                assert_eq!(one.head(), head64(key));
                assert!(*one == one.alone() && *one == **key);
                let from = usize::try_from(rng.below(key.len() as u64 + 1)).unwrap();
                assert_eq!((&*one.prefix(from), &*one.suffix(from)), key.split_at(from));
                for (other_key, other) in keys.iter().zip(&shared) {
                    assert_eq!(one.cmp(other), key.cmp(other_key));
                    assert_eq!(one.compare(other_key), key.cmp(other_key));
                    assert_eq!(one.view().cmp(&other.view()), key.cmp(other_key));
                    assert_eq!(one.view().cmp(&other_key[..].into()), key.cmp(other_key));
                    let common = common_prefix(key, other_key);
                    assert_eq!(one.common_prefix(other), common);
                }
                assert_eq!(begun_by(&heads, key, |it| &shared[it]), index + 1);
            }
        }
    }

    #[test]
    fn keys_with_a_long_prefix_take_it_once() {
        let long = vec![7; 60_000];
        let key = |number: u32| [&long[..], &number.to_be_bytes()].concat();
        let mut before = SharedKey::whole(&key(0));
        let mut bytes = before.heap_bytes(None);
        for number in 1..256 {
            let next = SharedKey::whole(&key(number)).beside(&before);
            bytes += next.heap_bytes(Some(&before));
            before = next;
        }
        assert!(bytes < 130_000, "{bytes}");
    }

    #[test]
    fn what_a_key_takes_is_known_before_it_is_made() {
        let mut rng = Rng::new(6);
        for _ in 0..40 {
            let keys = some_keys(&mut rng);
            let mut before = SharedKey::LEAST;
            for key in &keys {
                let common = SharedKey::whole(key).common_prefix(&before);
                let tail = &key[common..];
                let said = SharedKey::bytes_after(&before, common, tail.len());
                let next = SharedKey::after(&before, common, tail);
                assert!(next.heap_bytes(Some(&before)) <= said, "{said}");
                before = next;
            }
        }
    }
}
