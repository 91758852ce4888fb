//! Key spans: from a key to another one, exclusive, or to the end.

use crate::base::keys::KeyRange;
use crate::structure::{KeyView, SharedKey};

/// A borrowed key span: from a key to another (exclusive) or to the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySpan<'k> {
    /// First key of the span.
    pub lower: KeyView<'k>,
    /// End of the span (exclusive); `None` is the end of all keys.
    pub upper: Option<KeyView<'k>>,
}

impl<'k> KeySpan<'k> {
    /// Converts to owned bounds.
    pub fn to_range(self) -> KeyRange {
        KeyRange::half_open(&self.lower.to_bytes(), self.upper.map(KeyView::to_bytes).as_deref())
    }

    /// Converts to owned bounds, without copying the key bytes of pivots.
    pub fn to_shared(self) -> SharedRange {
        SharedRange { lower: self.lower.to_shared(), upper: self.upper.map(KeyView::to_shared) }
    }

    /// Returns true if `key` is in the span.
    pub fn contains(self, key: KeyView<'_>) -> bool {
        self.lower <= key && self.upper.is_none_or(|upper| key < upper)
    }

    /// Intersects two spans; `None` if the intersection is empty.
    pub fn clip(self, other: KeySpan<'k>) -> Option<KeySpan<'k>> {
        let lower = self.lower.max(other.lower);
        let upper = match (self.upper, other.upper) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, None) | (None, one) => one,
        };
        upper.is_none_or(|upper| lower < upper).then_some(KeySpan { lower, upper })
    }
}

/// A key span with owned bounds.
pub struct SharedRange {
    lower: SharedKey,
    upper: Option<SharedKey>,
}

impl SharedRange {
    /// Creates the span from `lower` to `upper` (exclusive) or the end.
    pub fn new(lower: SharedKey, upper: Option<SharedKey>) -> Self {
        Self { lower, upper }
    }

    /// The borrowed span.
    pub fn span(&self) -> KeySpan<'_> {
        KeySpan { lower: self.lower.view(), upper: self.upper.as_ref().map(SharedKey::view) }
    }
}

impl From<SharedRange> for KeyRange {
    fn from(range: SharedRange) -> Self {
        range.lower.range_to(range.upper.as_ref())
    }
}
