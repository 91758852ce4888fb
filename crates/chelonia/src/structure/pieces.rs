//! Keys as pieces, and their comparison.
//!
//! A key of a node is stored in pieces, one for each of its ancestors. Pieces that two keys have
//! from the same ancestor are the same memory, and are not compared byte by byte.

use crate::kernels::prefix::common_prefix;
use std::cmp::Ordering;

/// Maximum number of ancestors of a key: more keys than that are not visited to assemble one.
pub(super) const DEPTH_MAX: usize = 32;

/// The bytes of a key, as its pieces.
pub(super) struct Pieces<'k> {
    /// The last one first.
    pieces: [&'k [u8]; DEPTH_MAX + 2],
    count: usize,
}

impl<'k> Pieces<'k> {
    /// A contiguous key.
    pub fn one(key: &'k [u8]) -> Self {
        let mut pieces: [&[u8]; DEPTH_MAX + 2] = [&[]; DEPTH_MAX + 2];
        pieces[0] = key;
        Self { pieces, count: 1 }
    }

    /// No pieces; [`Pieces::before`] adds them.
    #[inline]
    pub fn none() -> Self {
        Self { pieces: [&[]; DEPTH_MAX + 2], count: 0 }
    }

    /// Adds the piece before all others.
    #[inline]
    pub fn before(&mut self, piece: &'k [u8]) {
        self.pieces[self.count] = piece;
        self.count += 1;
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
