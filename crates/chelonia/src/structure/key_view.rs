//! Borrowed views of keys that are stored in pieces, and their comparison.
//!
//! A key of a node ([`SharedKey`]) is stored in pieces, one for each of its ancestors. Pieces that
//! two keys have from the same ancestor are the same memory, and are not compared byte by byte.

use super::shared_key::{DEPTH_MAX, SharedKey};
use crate::kernels::prefix::common_prefix;
use std::borrow::Cow;
use std::cmp::Ordering;

/// The bytes of a key, as its pieces.
pub(super) struct Pieces<'k> {
    /// The last one first.
    pieces: [&'k [u8]; DEPTH_MAX + 2],
    count: usize,
}

impl<'k> Pieces<'k> {
    pub fn one(key: &'k [u8]) -> Self {
        let mut pieces: [&[u8]; DEPTH_MAX + 2] = [&[]; DEPTH_MAX + 2];
        pieces[0] = key;
        Self { pieces, count: 1 }
    }

    pub fn of(key: &'k SharedKey) -> Self {
        let mut pieces: [&[u8]; DEPTH_MAX + 2] = [&[]; DEPTH_MAX + 2];
        let (mut next, mut length, mut count) = (Some(key), key.len(), 0);
        while let Some(key) = next {
            let (tail, kept, parent) = key.last_piece();
            pieces[count] = &tail[..length - kept];
            count += 1;
            length = kept;
            next = parent;
        }
        Self { pieces, count }
    }

    /// Iterates the pieces in order.
    pub fn iter(&self) -> impl Iterator<Item = &'k [u8]> {
        self.pieces[..self.count].iter().rev().copied()
    }
}

/// The length of the common prefix of two keys, and their order.
pub(super) fn compare(one: &Pieces<'_>, other: &Pieces<'_>) -> (usize, Ordering) {
    let (mut ones, mut others) = (one.iter(), other.iter());
    let (mut a, mut b): (&[u8], &[u8]) = (&[], &[]);
    let mut common = 0;
    loop {
        while a.is_empty()
            && let Some(next) = ones.next()
        {
            a = next;
        }
        while b.is_empty()
            && let Some(next) = others.next()
        {
            b = next;
        }
        let least = a.len().min(b.len());
        let same = if a.as_ptr() == b.as_ptr() { least } else { common_prefix(a, b) };
        common += same;
        if same < least || least == 0 {
            return (common, a[same..].cmp(&b[same..]));
        }
        (a, b) = (&a[least..], &b[least..]);
    }
}

/// A borrowed key, of a node or contiguous.
#[derive(Clone, Copy, Debug)]
pub struct KeyView<'k>(Viewed<'k>);

#[derive(Clone, Copy, Debug)]
enum Viewed<'k> {
    Whole(&'k [u8]),
    Shared(&'k SharedKey),
}

impl<'k> KeyView<'k> {
    /// The empty key, the least of all.
    pub const LEAST: Self = Self(Viewed::Whole(&[]));

    /// Views a key of a node.
    pub(super) fn of(key: &'k SharedKey) -> Self {
        Self(Viewed::Shared(key))
    }

    /// The key as contiguous bytes.
    #[must_use]
    pub fn to_bytes(self) -> Cow<'k, [u8]> {
        match self.0 {
            Viewed::Whole(key) => Cow::Borrowed(key),
            Viewed::Shared(key) => key.to_bytes(),
        }
    }

    /// The same key, owned.
    #[must_use]
    pub fn to_shared(self) -> SharedKey {
        match self.0 {
            Viewed::Whole(key) => SharedKey::whole(key),
            Viewed::Shared(key) => key.clone(),
        }
    }

    fn pieces(self) -> Pieces<'k> {
        match self.0 {
            Viewed::Whole(key) => Pieces::one(key),
            Viewed::Shared(key) => Pieces::of(key),
        }
    }
}

impl<'k> From<&'k [u8]> for KeyView<'k> {
    fn from(key: &'k [u8]) -> Self {
        Self(Viewed::Whole(key))
    }
}

impl Ord for KeyView<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.pieces(), &other.pieces()).1
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
