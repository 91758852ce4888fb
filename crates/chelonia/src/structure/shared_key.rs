//! Keys of nodes, which store the bytes that they share with their neighbours once.
//!
//! ```text
//!   key 1   user/00000000000000/a                    alone
//!   key 2   [ 20 bytes of key 1 ] bc                 kept, tail
//!   key 3   [ 21 bytes of key 2 ] d
//!   key 4   [ 20 bytes of key 1 ] e                  of no key that keeps as little of another
//! ```
//!
//! A node has hundreds of keys in order, and neighbours share most of their bytes where keys are
//! long. On disk a key is the length shared with the one before, and the rest. [`SharedKey::after`]
//! turns that into a key that takes hardly more memory than disk space, however long it is.
//!
//! Invariants:
//! 1. A key keeps more bytes of its parent than the parent keeps of its own parent, and at most
//!    all.
//! 2. No key has more than [`DEPTH_MAX`] ancestors; a deeper one shares nothing instead.
//! 3. [`SharedKey::after`] allocates at most [`SharedKey::bytes_after`] bytes.
//!
//! Keys are immutable; any thread may read them.

use super::pieces::{DEPTH_MAX, Pieces, compare};
use crate::base::keys::{KeyRange, head64};
use crate::memory::pages::{PAGE_BYTES, PagedBytes};
use crate::runtime::sync::Arc;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;

/// Minimum number of common bytes to share: for fewer a reference costs as much.
pub const SHARED_MIN: usize = 64;

/// Tails of at most this many bytes are in the key itself, which is not larger for it: a reference
/// with its kind takes 24 bytes.
const INLINE_MAX: usize = 22;

/// Tails of this many bytes or more have pages of their own.
const PAGED_MIN: usize = 16 << 10;

/// Overhead of a reference-counted allocation.
const COUNTS_BYTES: usize = 16;

/// Memory of a key as the parent of others, besides its tail.
const PARENT_BYTES: usize = size_of::<SharedKey>() + COUNTS_BYTES;

/// A key; see the module documentation.
#[derive(Clone, Default)]
pub struct SharedKey {
    /// The key that has its first bytes.
    parent: Option<Arc<SharedKey>>,
    /// The bytes after those that it shares with the parent.
    tail: Tail,
    /// Number of bytes shared with the parent.
    kept: u32,
    /// Number of ancestors.
    depth: u32,
}

// A node has hundreds of them.
const _: () = assert!(size_of::<SharedKey>() <= 40);

/// The key whose bytes a new key shares.
enum Kept<'k> {
    /// None: it shares nothing.
    Nothing,
    /// An ancestor of the key before.
    Of(&'k Arc<SharedKey>),
    /// The key before.
    OfBefore,
}

/// The last bytes of a key.
#[derive(Clone)]
enum Tail {
    Inline {
        length: u8,
        bytes: [u8; INLINE_MAX],
    },
    Short(Arc<[u8]>),
    /// Pages of its own: long keys are allocated and freed with their nodes, among small
    /// allocations.
    Long(Arc<PagedBytes>),
}

impl Default for Tail {
    fn default() -> Self {
        Self::NOTHING
    }
}

impl Tail {
    const NOTHING: Self = Self::Inline { length: 0, bytes: [0; INLINE_MAX] };

    fn of(bytes: &[u8]) -> Self {
        if bytes.len() <= INLINE_MAX {
            let mut own = [0; INLINE_MAX];
            own[..bytes.len()].copy_from_slice(bytes);
            // At most 22.
            return Self::Inline { length: u8::try_from(bytes.len()).unwrap_or(0), bytes: own };
        }
        let paged = if bytes.len() < PAGED_MIN { None } else { PagedBytes::copy_of(bytes) };
        paged.map_or_else(|| Self::Short(bytes.into()), |paged| Self::Long(Arc::new(paged)))
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }

    /// Memory on the heap and in pages.
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Inline { .. } => 0,
            Self::Short(bytes) => COUNTS_BYTES + bytes.len(),
            Self::Long(bytes) => PARENT_BYTES + bytes.len().next_multiple_of(PAGE_BYTES),
        }
    }

    /// True if both are the same memory outside of the key.
    fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.bytes(), other.bytes()) && self.heap_bytes() > 0
    }
}

impl SharedKey {
    /// The empty key, the least of all.
    pub const LEAST: Self = Self { parent: None, tail: Tail::NOTHING, kept: 0, depth: 0 };

    /// Creates a key that shares nothing.
    #[must_use]
    pub fn whole(key: &[u8]) -> Self {
        Self { tail: Tail::of(key), ..Self::LEAST }
    }

    /// Creates the key that begins with the first `common` bytes of `before`, at most all of them,
    /// and continues with `tail`.
    #[must_use]
    pub fn after(before: &Self, common: usize, tail: &[u8]) -> Self {
        let common = common.min(before.len());
        let parent = match before.kept_by(common) {
            Kept::Nothing => return Self::whole(&[&*before.prefix(common), tail].concat()),
            Kept::Of(ancestor) => Arc::clone(ancestor),
            Kept::OfBefore => Arc::new(before.clone()),
        };
        let depth = parent.depth + 1;
        let kept = u32::try_from(common).unwrap_or(u32::MAX);
        Self { parent: Some(parent), tail: Tail::of(tail), kept, depth }
    }

    /// The bytes that [`SharedKey::after`] allocates for a tail of `tail` bytes.
    #[must_use]
    pub fn bytes_after(before: &Self, common: usize, tail: usize) -> usize {
        let common = common.min(before.len());
        COUNTS_BYTES
            + tail_bytes(tail)
            + match before.kept_by(common) {
                Kept::Nothing => tail_bytes(common + tail) - tail_bytes(tail),
                Kept::Of(_) => 0,
                Kept::OfBefore => PARENT_BYTES,
            }
    }

    fn kept(&self) -> usize {
        self.kept as usize
    }

    /// The key whose bytes the next key shares, if it has `common` bytes in common with this one.
    fn kept_by(&self, common: usize) -> Kept<'_> {
        if common < SHARED_MIN {
            return Kept::Nothing;
        }
        let (mut key, mut kept) = (self, Kept::OfBefore);
        while let Some(parent) = key.parent.as_ref().filter(|_| common <= key.kept()) {
            (key, kept) = (parent, Kept::Of(parent));
        }
        if (key.depth as usize) < DEPTH_MAX { kept } else { Kept::Nothing }
    }

    /// Copies the key so that it shares its common prefix with `before`.
    #[must_use]
    pub fn beside(&self, before: &Self) -> Self {
        let common = self.common_prefix(before);
        if common < SHARED_MIN {
            return self.alone();
        }
        Self::after(before, common, &self.suffix(common))
    }

    /// Copies the key so that it shares nothing.
    #[must_use]
    pub fn alone(&self) -> Self {
        if self.parent.is_none() { self.clone() } else { Self::whole(&self.to_bytes()) }
    }

    /// Heap memory of the key in bytes, not counting memory shared with `before`.
    #[must_use]
    pub fn heap_bytes(&self, before: Option<&Self>) -> usize {
        let mut bytes = self.tail.heap_bytes();
        let mut parent = &self.parent;
        while let Some(key) = parent {
            if before.is_some_and(|before| before.has_ancestor(key)) {
                break;
            }
            bytes += PARENT_BYTES;
            if before.is_some_and(|before| before.has_tail_of(key)) {
                break;
            }
            bytes += key.tail.heap_bytes();
            parent = &key.parent;
        }
        bytes
    }

    /// True if `other` is one of its ancestors.
    fn has_ancestor(&self, other: &Arc<Self>) -> bool {
        let mut next = self.parent.as_ref();
        while let Some(key) = next {
            if Arc::ptr_eq(key, other) {
                return true;
            }
            next = key.parent.as_ref();
        }
        false
    }

    /// True if it or an ancestor has the same tail memory as `other`.
    fn has_tail_of(&self, other: &Self) -> bool {
        let mut next = Some(self);
        while let Some(key) = next {
            if key.tail.is(&other.tail) {
                return true;
            }
            next = key.parent.as_deref();
        }
        false
    }

    /// Its bytes, as the pieces in which they are stored.
    pub(super) fn pieces(&self) -> Pieces<'_> {
        let mut pieces = Pieces::none();
        let (mut next, mut length) = (Some(self), self.len());
        while let Some(key) = next {
            pieces.before(&key.tail.bytes()[..length - key.kept()]);
            length = key.kept();
            next = key.parent.as_deref();
        }
        pieces
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept() + self.tail.bytes().len()
    }

    /// The key as contiguous bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        self.prefix(self.len())
    }

    /// The first `length` bytes.
    #[must_use]
    pub fn prefix(&self, length: usize) -> Cow<'_, [u8]> {
        match &self.parent {
            None => Cow::Borrowed(&self.tail.bytes()[..length.min(self.len())]),
            Some(_) => {
                let mut bytes = self.pieces().iter().collect::<Vec<_>>().concat();
                bytes.truncate(length);
                Cow::Owned(bytes)
            }
        }
    }

    /// The bytes from `from` on.
    #[must_use]
    pub fn suffix(&self, from: usize) -> Cow<'_, [u8]> {
        let tail = self.tail.bytes();
        match from.checked_sub(self.kept()) {
            Some(from) => Cow::Borrowed(&tail[from.min(tail.len())..]),
            None => Cow::Owned(self.to_bytes()[from..].to_vec()),
        }
    }

    /// Length of the common prefix of both keys.
    #[must_use]
    pub fn common_prefix(&self, other: &Self) -> usize {
        compare(&self.pieces(), &other.pieces()).0
    }

    /// Length of the common prefix with a contiguous key.
    #[must_use]
    pub fn common_with(&self, key: &[u8]) -> usize {
        compare(&self.pieces(), &Pieces::one(key)).0
    }

    /// The first eight bytes as a number ([`head64`]).
    #[must_use]
    pub fn head(&self) -> u64 {
        let mut key = self;
        // Each key shares at least 64 bytes with its parent, so the root ancestor has the first 8.
        while let Some(parent) = &key.parent {
            key = parent;
        }
        head64(key.tail.bytes())
    }

    /// Compares with a contiguous key.
    #[inline]
    #[must_use]
    pub fn compare(&self, key: &[u8]) -> Ordering {
        match &self.parent {
            None => self.tail.bytes().cmp(key),
            Some(_) => compare(&self.pieces(), &Pieces::one(key)).1,
        }
    }

    /// True if it is not greater than the upper bound of `range`.
    #[must_use]
    pub fn is_admitted(&self, range: &KeyRange) -> bool {
        match &range.upper {
            Bound::Included(bound) => self.compare(bound).is_le(),
            Bound::Excluded(bound) => self.compare(bound).is_lt(),
            Bound::Unbounded => true,
        }
    }

    /// True if it is not less than the lower bound of `range`.
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

/// Maximum memory of a tail of `length` bytes.
fn tail_bytes(length: usize) -> usize {
    if length < PAGED_MIN { length } else { PARENT_BYTES + length.next_multiple_of(PAGE_BYTES) }
}

/// Debug output must not contain key bytes.
impl fmt::Debug for SharedKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a key of {} bytes", self.len())
    }
}

impl Ord for SharedKey {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.parent, &other.parent) {
            (None, None) => self.tail.bytes().cmp(other.tail.bytes()),
            _ => compare(&self.pieces(), &other.pieces()).1,
        }
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

/// The number of keys of a node, ascending, that are not greater than `key`; `heads` are their
/// heads, and `whole` returns the key with a number.
#[inline]
pub fn begun_by<'k>(heads: &[u64], key: &[u8], whole: impl Fn(usize) -> &'k SharedKey) -> usize {
    let head = head64(key);
    let first = heads.partition_point(|other| *other < head);
    if heads.get(first) != Some(&head) {
        return first;
    }
    // Long keys often have equal heads; then complete keys must be compared.
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
    use crate::kernels::prefix::common_prefix;
    use crate::runtime::rng::Rng;

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
                    assert_eq!(one.common_with(other_key), common);
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
    fn keys_that_are_longer_and_longer_take_little() {
        let mut before = SharedKey::whole(&[7; 1_000]);
        let mut bytes = before.heap_bytes(None);
        for number in 2..=60 {
            let next = SharedKey::whole(&vec![7; number * 1_000]).beside(&before);
            bytes += next.heap_bytes(Some(&before));
            before = next;
        }
        assert_eq!(before, SharedKey::whole(&[7; 60_000]));
        // All of them together, and the one that is too deep.
        assert!(bytes < 110_000, "{bytes}");
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
