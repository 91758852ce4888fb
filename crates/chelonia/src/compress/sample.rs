//! A sample of values.

use crate::base::stream::{Dictionary, SortedUpdates, Update};
use std::ops::Range;

/// A value counts with this many bytes at most, so that a few large ones do not fill the sample.
const VALUE_BYTES_MAX: usize = 4 << 10;

/// Some values.
#[derive(Default)]
pub struct Sample {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Sample {
    /// Values of `updates`, evenly spaced, with about `bytes` bytes.
    #[must_use]
    pub fn of(updates: &dyn SortedUpdates, bytes: usize) -> Self {
        let mut sample = Self::default();
        let (all, mean) = (updates.len(), mean_bytes(updates));
        let count = (bytes / mean.clamp(1, VALUE_BYTES_MAX)).clamp(1, all.max(1));
        for number in 0..count.min(all) {
            if sample.bytes.len() >= bytes {
                break;
            }
            if let Update::Put(value) = updates.update(number * all / count) {
                sample.push(&value[..value.len().min(VALUE_BYTES_MAX)]);
            }
        }
        sample
    }

    /// Adds a value.
    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    /// The bytes of all values.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The places of the values.
    pub fn values(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter().copied()).map(|(start, end)| start..end)
    }

    /// The bytes that a thousand bytes of these values take with `dictionary`.
    #[must_use]
    pub fn permille(&self, dictionary: &Dictionary) -> u64 {
        let mut payload = Vec::new();
        let taken = self.values().map(|value| {
            let value = &self.bytes[value];
            let is_smaller = dictionary.compress(value, &mut payload);
            if is_smaller { payload.len() } else { value.len() }
        });
        let taken: usize = taken.sum();
        (taken as u64 * 1000).checked_div(self.bytes.len() as u64).unwrap_or(1000)
    }
}

/// The mean number of bytes of an update, with its key.
fn mean_bytes(updates: &dyn SortedUpdates) -> usize {
    let all = updates.len() as u64;
    let mean = updates.bytes_before(updates.len()).checked_div(all).unwrap_or(0);
    usize::try_from(mean).unwrap_or(usize::MAX)
}
