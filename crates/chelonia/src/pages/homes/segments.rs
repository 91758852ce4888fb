//! Segments: the parts of a page that differ from its base, and the delta block that has them.
//!
//! ```text
//! delta block, behind the head that all blocks of pages have (`mod.rs`)
//!      0    8  stamp of the base that it changes
//!      8   16  segments in it, a bit each
//!     24    2  bytes of a segment
//!     26    1  place of the slot that has the base
//!     27    1  zero
//!     28       the segments, in order; the rest is zero
//! ```
//!
//! A page is cut into segments of 128 or 256 bytes [3.2]. A delta has all segments that differ from
//! the base, not only those that the last update changed: one delta is enough to read the page.

use super::PART_BYTES;
use super::slotted::BITS;
use crate::base::error::{Error, Result};

/// Bytes of a delta block before its segments.
const DELTA_HEAD: usize = 28;

/// Segments of a page that a delta can have, a bit each.
const SEGMENTS_MAX: usize = 128;

/// A set of segments.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Segments(u128);

impl Segments {
    /// The segments that a merged page says to differ from its base.
    #[must_use]
    pub fn of(page: &[u8]) -> Self {
        let bits = page.get(BITS).and_then(|bits| bits.first_chunk());
        Self(bits.map_or(0, |bits| u128::from_le_bytes(*bits)))
    }

    /// Notes the set in a merged page.
    pub fn note(self, page: &mut [u8]) {
        page[BITS].copy_from_slice(&self.0.to_le_bytes());
    }

    /// Number of segments.
    #[must_use]
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// These segments, and those in which the two pages differ. `None` if pages of this size have
    /// no deltas, or not these segments, as a damaged page may say.
    #[must_use]
    pub fn with_changes(self, old: &[u8], new: &[u8], bytes: usize) -> Option<Self> {
        let count = old.len().div_ceil(bytes);
        if old.len() != new.len() || count > SEGMENTS_MAX || self.ends_beyond(count) {
            return None;
        }
        let mut set = self.0;
        for (index, (old, new)) in old.chunks(bytes).zip(new.chunks(bytes)).enumerate() {
            let differs = match index {
                0 => old[..BITS.start] != new[..BITS.start] || old[BITS.end..] != new[BITS.end..],
                _ => old != new,
            };
            set |= u128::from(differs) << index;
        }
        Some(Self(set))
    }

    /// True if a delta block has space for them.
    #[must_use]
    pub fn fit(self, bytes: usize) -> bool {
        DELTA_HEAD + self.count() * bytes <= PART_BYTES
    }

    /// True if there is a segment that a page of `count` segments does not have.
    fn ends_beyond(self, count: usize) -> bool {
        self.0.checked_shr(u32::try_from(count).unwrap_or(u32::MAX)).is_some_and(|rest| rest != 0)
    }

    fn each(self) -> impl Iterator<Item = usize> {
        (0..SEGMENTS_MAX).filter(move |index| self.0 >> index & 1 == 1)
    }

    /// Writes the delta of `page` over the base with stamp `base` in place `slot` to `part`.
    pub fn write(self, page: &[u8], (base, slot): (u64, u8), bytes: usize, part: &mut [u8]) {
        part.fill(0);
        part[..8].copy_from_slice(&base.to_le_bytes());
        part[8..24].copy_from_slice(&self.0.to_le_bytes());
        let size = u16::try_from(bytes).unwrap_or(u16::MAX);
        part[24..26].copy_from_slice(&size.to_le_bytes());
        part[26] = slot;
        let mut at = DELTA_HEAD;
        for index in self.each() {
            let segment = &page[index * bytes..page.len().min((index + 1) * bytes)];
            part[at..at + segment.len()].copy_from_slice(segment);
            if index == 0 {
                part[at + BITS.start..at + BITS.end].fill(0);
            }
            at += bytes;
        }
    }
}

/// The stamp of the base of a delta.
#[must_use]
pub fn base_of(part: &[u8]) -> u64 {
    part.first_chunk().map_or(0, |base| u64::from_le_bytes(*base))
}

/// The place of the slot that has the base of a delta.
#[must_use]
pub fn slot_of(part: &[u8]) -> u8 {
    part.get(26).copied().unwrap_or(0)
}

/// Applies the delta in `part` to `page`, its base, and notes its segments there.
pub fn apply(page: &mut [u8], part: &[u8]) -> Result<()> {
    let impossible = || Error::corrupt("a delta has segments that its page does not have");
    let set = part.get(8..24).and_then(|bits| bits.first_chunk());
    let set = Segments(set.map_or(0, |bits| u128::from_le_bytes(*bits)));
    let size = part.get(24..26).and_then(|size| size.first_chunk());
    let bytes = usize::from(size.map_or(0, |size| u16::from_le_bytes(*size)));
    if bytes < BITS.end || !set.fit(bytes) {
        return Err(impossible());
    }
    let mut at = DELTA_HEAD;
    for index in set.each() {
        let start = index * bytes;
        let end = page.len().min(start + bytes);
        let target = page.get_mut(start..end).filter(|target| !target.is_empty());
        let target = target.ok_or_else(impossible)?;
        target.copy_from_slice(&part[at..at + target.len()]);
        at += bytes;
    }
    set.note(page);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    #[test]
    fn a_delta_turns_its_base_into_the_page() {
        let mut rng = Rng::new(3);
        for (size, bytes) in [(2 * PART_BYTES, 128), (PART_BYTES, 256), (4 * PART_BYTES, 128)] {
            let mut base = vec![0; size];
            rng.fill(&mut base);
            base[BITS].fill(0);
            let (mut old, mut set) = (base.clone(), Segments::default());
            for step in 1..10 {
                let mut new = old.clone();
                let at = [0, 40, size - 1, 5_000 % size][step % 4];
                new[at] ^= 1 << (step % 8);
                set = set.with_changes(&old, &new, bytes).unwrap();
                assert!(set.fit(bytes) && set.count() <= 4, "{set:?}");
                set.note(&mut new);
                let mut part = vec![1; PART_BYTES];
                set.write(&new, (77, 3), bytes, &mut part);
                let mut read = base.clone();
                apply(&mut read, &part).unwrap();
                assert!(read == new && Segments::of(&read) == set);
                assert_eq!((base_of(&part), slot_of(&part)), (77, 3));
                old = new;
            }
        }
        assert_eq!(Segments::default().with_changes(&[0; 40_000], &[0; 40_000], 128), None);
    }

    #[test]
    fn segments_beyond_the_page_are_not_changed() {
        let page = vec![0; PART_BYTES];
        for (segment, is_within) in [(0, true), (15, true), (16, false), (127, false)] {
            let set = Segments(1 << segment).with_changes(&page, &page, 256);
            assert_eq!(set.is_some(), is_within, "{segment}");
        }
        let largest = vec![0; SEGMENTS_MAX * 128];
        assert!(Segments(1 << 127).with_changes(&largest, &largest, 128).is_some());
    }

    #[test]
    fn noise_is_not_applied_beyond_the_page() {
        let mut rng = Rng::new(4);
        for _ in 0..2_000 {
            let mut part = vec![0; PART_BYTES];
            rng.fill(&mut part[..40]);
            if rng.below(2) == 0 {
                part[24..26].copy_from_slice(&128_u16.to_le_bytes());
            }
            let _ = apply(&mut vec![0; PART_BYTES], &part);
        }
    }
}
