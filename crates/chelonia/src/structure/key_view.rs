//! Borrowed views of keys, of a node ([`SharedKey`]) or contiguous.

use super::pieces::{Pieces, compare};
use super::shared_key::SharedKey;
use crate::base::keys::head64;
use std::borrow::Cow;
use std::cmp::Ordering;

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

    /// The first eight bytes as a number ([`head64`]).
    #[must_use]
    pub fn head(self) -> u64 {
        match self.0 {
            Viewed::Whole(key) => head64(key),
            Viewed::Shared(key) => key.head(),
        }
    }

    fn pieces(self) -> Pieces<'k> {
        match self.0 {
            Viewed::Whole(key) => Pieces::one(key),
            Viewed::Shared(key) => key.pieces(),
        }
    }
}

impl SharedKey {
    /// A borrowed view of the key.
    #[inline]
    #[must_use]
    pub fn view(&self) -> KeyView<'_> {
        KeyView(Viewed::Shared(self))
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
