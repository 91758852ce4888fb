//! Values that can be checked: their bytes name the record and the version, and all other bytes
//! follow from these.
//!
//! ```text
//!   0  u64  the record, mixed                    \
//!   8  u16  the version xor bits of the record    > a half that looks random
//!  10  ...  bytes that follow from both          /
//!   h  ...  zeros, from the half on (h is at least 10)
//! ```
//!
//! All numbers are little-endian. The length follows from record and version too, so a value that
//! is too short, too long or of another record is seen.

use crate::kinds::SizeRange;
use crate::workload::random::{mix, unmix};

/// Which update of a record a value is; 0 is the insert. It starts again after [`VERSION_MAX`].
pub type Version = u16;

/// The greatest version.
pub const VERSION_MAX: Version = (1 << 15) - 1;

/// The record and the version.
const HEADER_BYTES: usize = 10;

/// The shortest value that can be checked.
pub const VALUE_BYTES_MIN: usize = 16;

/// Makes and reads values.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    sizes: SizeRange,
}

impl Values {
    /// Values of these sizes, which are at least [`VALUE_BYTES_MIN`].
    pub fn new(sizes: SizeRange) -> Self {
        Self { sizes }
    }

    /// The mean length.
    pub fn mean_bytes(&self) -> f64 {
        self.sizes.mean()
    }

    /// Writes the value of `record` at `version` to `value`.
    pub fn write(&self, record: u64, version: Version, value: &mut Vec<u8>) {
        let (size, half) = self.lengths(record, version);
        value.clear();
        value.extend_from_slice(&mix(record).to_le_bytes());
        value.extend_from_slice(&(version ^ mask(record)).to_le_bytes());
        let mut stream = Stream::new(record, version);
        while value.len() + 8 <= half {
            value.extend_from_slice(&stream.next());
        }
        let rest = half - value.len();
        value.extend_from_slice(&stream.next()[..rest]);
        value.resize(size, 0);
    }

    /// The record and version that `value` belongs to; `None` if it is not a value of ours.
    pub fn read(&self, value: &[u8]) -> Option<(u64, Version)> {
        let (record, rest) = value.split_first_chunk::<8>()?;
        let (version, _) = rest.split_first_chunk::<2>()?;
        let record = unmix(u64::from_le_bytes(*record));
        let version = u16::from_le_bytes(*version) ^ mask(record);
        let (size, half) = self.lengths(record, version);
        if version > VERSION_MAX || value.len() != size {
            return None;
        }
        let (random, zeros) = value.split_at(half);
        let mut stream = Stream::new(record, version);
        let mut chunks = random[HEADER_BYTES..].chunks_exact(8);
        let chunks_match = chunks.by_ref().all(|chunk| chunk == stream.next());
        let rest = chunks.remainder();
        let right = chunks_match && rest == &stream.next()[..rest.len()] && is_zero(zeros);
        right.then_some((record, version))
    }

    /// The length of a value and of its random half.
    fn lengths(&self, record: u64, version: Version) -> (usize, usize) {
        let size = if self.sizes.min == self.sizes.max {
            self.sizes.min
        } else {
            self.sizes.of(mix(record ^ u64::from(version).rotate_right(16)))
        };
        (size, size.div_ceil(2).max(HEADER_BYTES))
    }
}

fn mask(record: u64) -> u16 {
    let [low, high, ..] = mix(!record).to_le_bytes();
    u16::from_le_bytes([low, high])
}

fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<8>();
    chunks.iter().all(|chunk| u64::from_le_bytes(*chunk) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Bytes that follow from record and version.
struct Stream {
    state: u64,
}

impl Stream {
    fn new(record: u64, version: Version) -> Self {
        Self { state: mix(record.wrapping_add(u64::from(version) << 48)) }
    }

    fn next(&mut self) -> [u8; 8] {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state ^ (self.state >> 32)).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_record_and_version() {
        for sizes in [SizeRange::fixed(16), SizeRange::fixed(120), SizeRange::new(16, 300)] {
            let values = Values::new(sizes);
            let mut value = Vec::new();
            for record in (0..500).chain([u64::MAX - 1, 1 << 40]) {
                for version in [0, 1, 77, VERSION_MAX] {
                    values.write(record, version, &mut value);
                    assert!((sizes.min..=sizes.max).contains(&value.len()));
                    assert_eq!(values.read(&value), Some((record, version)));
                }
            }
        }
    }

    #[test]
    fn half_is_zero() {
        let mut value = Vec::new();
        Values::new(SizeRange::fixed(120)).write(5, 1, &mut value);
        assert!(value[60..].iter().all(|byte| *byte == 0));
        assert!(value[..60].iter().filter(|byte| **byte == 0).count() < 5);
    }

    #[test]
    fn every_wrong_byte_and_length_is_seen() {
        let values = Values::new(SizeRange::new(40, 60));
        let mut value = Vec::new();
        for record in 0..50 {
            values.write(record, 3, &mut value);
            for index in 0..value.len() {
                value[index] ^= 0x10;
                assert_ne!(values.read(&value), Some((record, 3)), "byte {index}");
                value[index] ^= 0x10;
            }
            for length in 0..value.len() {
                assert_eq!(values.read(&value[..length]), None);
            }
            value.push(0);
            assert_eq!(values.read(&value), None);
        }
    }
}
