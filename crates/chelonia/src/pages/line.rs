//! A line that maps keys to the pages of a group: the paper's linear model.
//!
//! ```text
//!   key       user:1042:a        position   eight bytes behind `user:`, as a number,
//!                  ^^^^^^^^                 less that of the group's first key
//!   page      slope * position + base, rounded down; the last page has all beyond
//! ```
//!
//! The line is chosen before pages are filled, and each entry is placed where the line finds it, so
//! a key is in one page only. A bound of a page is the least key that the line maps to it.

use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::structure::SharedKey;
use std::cmp::Ordering;

/// Bytes of a key that are its position.
pub const POSITION_BYTES: usize = 8;

/// A line from keys to pages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// Bytes of the group's first key that all its keys began with when it was written.
    pub common: usize,
    /// Number of pages.
    pub pages: usize,
    /// The bytes behind them in the group's first key, as a number.
    start: u64,
    /// Pages per unit of position; positive.
    slope: f64,
    /// The page of the first key, with its fraction.
    base: f64,
}

/// The first bytes of what follows the common prefix of a key, as a number.
fn number(rest: &[u8]) -> u64 {
    let mut bytes = [0; POSITION_BYTES];
    let count = rest.len().min(POSITION_BYTES);
    bytes[..count].copy_from_slice(&rest[..count]);
    u64::from_be_bytes(bytes)
}

impl Line {
    /// Creates the line of a group of `pages` pages, at least two, that begins at `first`.
    #[must_use]
    pub fn new(first: &SharedKey, common: usize, pages: usize, (slope, base): (f64, f64)) -> Self {
        Self { common, pages, start: number(&first.suffix(common)), slope, base }
    }

    /// The position of a key that begins like the group's keys, by what follows.
    #[must_use]
    pub fn position(first: &SharedKey, common: usize, rest: &[u8]) -> u64 {
        number(rest).saturating_sub(number(&first.suffix(common)))
    }

    fn page_at(&self, position: u64) -> usize {
        self.unlimited_page_at(position).min(self.pages - 1)
    }

    /// The page, as if there were any number of them.
    fn unlimited_page_at(&self, position: u64) -> usize {
        // The conversion of finite numbers rounds down, and negative ones to 0.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "pages are few, and the line is clamped to them"
        )]
        let page = (self.slope * position as f64 + self.base) as usize;
        page
    }

    /// The page of a key of the group; `None` if the line leads beyond the last page.
    #[must_use]
    pub fn page_within(&self, first: &SharedKey, key: &[u8]) -> Option<usize> {
        let position = Self::position(first, self.common, &key[self.common..]);
        Some(self.unlimited_page_at(position)).filter(|page| *page < self.pages)
    }

    /// The line of the first `pages` pages, with keys for each of them; `None` if there is none.
    #[must_use]
    pub fn cut(self, first: &SharedKey, pages: usize) -> Option<Self> {
        let is_line = self.slope.is_finite() && self.slope > 0.0 && self.base.is_finite();
        if !is_line || pages < 2 {
            return None;
        }
        let line = Self { pages, ..self };
        let bounds: Option<Vec<Vec<u8>>> = (1..pages).map(|page| line.bound(first, page)).collect();
        bounds?.is_sorted_by(|a, b| a < b).then_some(line)
    }

    /// The page of `key` in a group that begins at `first`.
    #[must_use]
    pub fn page_of(&self, first: &SharedKey, key: &[u8]) -> usize {
        let common = if self.common == 0 { 0 } else { first.common_with(key).min(self.common) };
        if common < self.common {
            // The key leaves what all shared.
            return if first.compare(key) == Ordering::Greater { 0 } else { self.pages - 1 };
        }
        self.page_at(number(&key[common..]).saturating_sub(self.start))
    }

    /// The least key of page `page`, which is not the first one; `None` if the line leads no key
    /// there.
    #[must_use]
    pub fn bound(&self, first: &SharedKey, page: usize) -> Option<Vec<u8>> {
        let most = u64::MAX - self.start;
        if self.page_at(most) < page || self.page_at(0) >= page {
            return None;
        }
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low.midpoint(high);
            if self.page_at(middle) < page {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let bytes = (self.start + low).to_be_bytes();
        // Of the keys with this position, the shortest is the least.
        let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
        Some([&first.prefix(self.common), &bytes[..POSITION_BYTES - zeros]].concat())
    }

    /// Appends the line: v bytes that all keys share, 8 slope, 8 base (little endian floats).
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.common as u64);
        out.extend_from_slice(&self.slope.to_le_bytes());
        out.extend_from_slice(&self.base.to_le_bytes());
    }

    /// Decodes the line of a group of `pages` pages that begins at `first`.
    pub fn decode(decoder: &mut Decoder<'_>, first: &SharedKey, pages: usize) -> Result<Self> {
        let common = decoder.length(first.len().min(KEY_BYTES_MAX))?;
        let (slope, base) = (f64::from_bits(decoder.u64()?), f64::from_bits(decoder.u64()?));
        let line = Self::new(first, common, pages, (slope, base));
        line.cut(first, pages)
            .ok_or_else(|| decoder.damaged("the line of a group does not lead to all its pages"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    #[test]
    fn bounds_are_where_the_page_changes() {
        let mut rng = Rng::new(5);
        for round in 0..200 {
            let first = [&b"user:"[..round % 6], &[7, 1, 2, 3][..round % 5]].concat();
            let common = (round % 6).min(first.len());
            let first = SharedKey::whole(&first);
            let slope = 10.0 / (1_u64 << (8 + rng.below(50))) as f64;
            let base = rng.below(100) as f64 / 100.0;
            let line = Line::new(&first, common, 5, (slope, base));
            for page in 1..5 {
                let bound = line.bound(&first, page).unwrap();
                assert_eq!(line.page_of(&first, &bound), page);
                let mut before = bound.clone();
                // The greatest key of eight bytes that is less.
                before.resize(common + POSITION_BYTES, 0);
                let less = number(&before[common..]) - 1;
                before.truncate(common);
                before.extend(less.to_be_bytes());
                assert_eq!(line.page_of(&first, &before), page - 1, "{bound:?}");
            }
            let mut out = Vec::new();
            line.encode(&mut out);
            let decode = |bytes: &[u8]| Line::decode(&mut Decoder::new(bytes, "line"), &first, 5);
            assert_eq!(decode(&out).unwrap(), line);
            let broken = Line { slope: -slope, ..line };
            out.clear();
            broken.encode(&mut out);
            assert!(decode(&out).is_err());
        }
    }

    #[test]
    fn keys_that_differ_from_all_are_in_the_first_or_the_last_page() {
        let first = SharedKey::whole(b"user:5");
        let line = Line::new(&first, 5, 3, (1e-16, 0.5));
        assert_eq!(line.page_of(&first, b"user"), 0);
        assert_eq!(line.page_of(&first, b"zebra"), 2);
        assert_eq!(line.page_of(&first, b"user:5"), 0);
    }
}
