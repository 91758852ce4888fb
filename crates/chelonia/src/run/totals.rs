//! Totals of entries and bytes, and the weight that sizes are compared by.

use crate::base::codec::{Decoder, put_varint};
use crate::base::dump::DumpField;
use crate::base::error::Result;
use crate::base::stream::{SortedUpdates, Update};
use std::ops::{AddAssign, Range, SubAssign};

/// Overhead of an entry in a run besides its key and value: slot, head and lengths, in bytes.
const ENTRY_OVERHEAD: u64 = 8;

/// Upper bound of valid counts, so that sums of valid counts stay far from overflow. Forged counts
/// are possible nevertheless, so sums saturate.
pub(super) const COUNT_MAX: u64 = 1 << 56;

/// Totals of entries and bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Key and inline value bytes.
    pub bytes: u64,
}

impl Totals {
    /// Counts one entry.
    #[inline]
    pub fn add_entry(&mut self, key: &[u8], update: &Update<'_>) {
        self.entries += 1;
        self.tombstones += u64::from(update.is_delete());
        self.bytes += (key.len() + update.inline_bytes()) as u64;
    }

    /// The sum of `all`.
    pub fn sum(all: impl Iterator<Item = Totals>) -> Self {
        let mut sum = Self::default();
        all.for_each(|totals| sum += totals);
        sum
    }

    /// The size in bytes used for all decisions: close to the size on disk.
    pub fn weight(&self) -> u64 {
        weight(self.entries, self.bytes)
    }

    /// Appends the numbers: three varints.
    pub fn encode(&self, out: &mut Vec<u8>) {
        [self.entries, self.tombstones, self.bytes].into_iter().for_each(|n| put_varint(out, n));
    }

    /// Decodes the output of [`Totals::encode`].
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let (entries, tombstones) = (decoder.varint()?, decoder.varint()?);
        let totals = Self { entries, tombstones, bytes: decoder.varint()? };
        if tombstones > entries || entries > COUNT_MAX || totals.bytes > COUNT_MAX {
            return Err(decoder.damaged("totals are out of bounds"));
        }
        Ok(totals)
    }
}

impl Totals {
    /// The totals as fields of a dump.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, DumpField<'static>); 3] {
        [
            ("entries", DumpField::Number(self.entries)),
            ("tombstones", DumpField::Number(self.tombstones)),
            ("bytes", DumpField::Number(self.bytes)),
        ]
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.entries = self.entries.saturating_add(other.entries);
        self.tombstones = self.tombstones.saturating_add(other.tombstones);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl SubAssign for Totals {
    fn sub_assign(&mut self, other: Self) {
        self.entries = self.entries.saturating_sub(other.entries);
        self.tombstones = self.tombstones.saturating_sub(other.tombstones);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

/// The weight of `entries` entries with `bytes` bytes of keys and inline values.
pub fn weight(entries: u64, bytes: u64) -> u64 {
    bytes.saturating_add(entries.saturating_mul(ENTRY_OVERHEAD))
}

/// Divides the ranks of `updates` into ranges of similar weight, each about `weight_max` or less.
#[must_use]
pub fn even_ranges(updates: &dyn SortedUpdates, weight_max: u64) -> Vec<Range<usize>> {
    let count = updates.len();
    let weight_to = |rank: usize| weight(rank as u64, updates.bytes_before(rank));
    let total = weight_to(count);
    let parts = total.div_ceil(weight_max.max(1)).max(1);
    let mut ranges = Vec::new();
    let mut start = 0;
    for part in 1..=parts {
        let target = total / parts * part;
        let (mut low, mut high) = (start, count);
        while low < high {
            let middle = low.midpoint(high);
            if weight_to(middle) < target {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let end = if part == parts { count } else { low };
        if end > start {
            ranges.push(start..end);
            start = end;
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_lies_do_not_wrap_around() {
        let most = Totals { entries: COUNT_MAX, tombstones: COUNT_MAX, bytes: COUNT_MAX };
        let mut sum = Totals::default();
        (0..300).for_each(|_| sum += most);
        assert_eq!(sum, Totals { entries: u64::MAX, tombstones: u64::MAX, bytes: u64::MAX });
        assert_eq!(sum.weight(), u64::MAX);
        sum -= most;
        assert!(sum.entries < u64::MAX);
    }
}
