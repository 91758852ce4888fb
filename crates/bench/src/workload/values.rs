//! Values that can be checked: their bytes name the record and the version, and all other bytes
//! follow from these.
//!
//! ```text
//!   0  u64  the record, mixed                    \
//!   8  u16  the version xor bits of the record    > a half that looks random
//!  10  ...  bytes that follow from both          /
//!   h  ...  zeros, from the half on (behind the version)
//! ```
//!
//! The bytes behind the version may also be random up to the end, or a piece of a file that record
//! and version choose ([`Filling`]). If values may be shorter than 16 bytes, all have a short head,
//! in which the record has four bytes.
//!
//! All numbers are little-endian. The length follows from record and version too, so a value that
//! is too short, too long or of another record is seen.

use crate::failure::{Failure, Result};
use crate::kinds::SizeRange;
use crate::workload::random::{mix, unmix};
use std::path::PathBuf;
use std::sync::Arc;

/// Which update of a record a value is; 0 is the insert. It starts again after [`VERSION_MAX`].
pub type Version = u16;

/// The greatest version.
pub const VERSION_MAX: Version = (1 << 15) - 1;

/// The record and the version.
const HEADER_BYTES: usize = 10;

/// The same where values may be shorter than [`LONG_BYTES_MIN`].
const SHORT_HEADER_BYTES: usize = 6;

/// The shortest value of a run whose values all have a long head.
const LONG_BYTES_MIN: usize = 16;

/// The shortest value that can be checked.
pub const VALUE_BYTES_MIN: usize = 8;

/// Spreads a record over the four bytes of a short head: multiplication with an odd number, and
/// with its inverse.
const SHORT_FACTORS: [u32; 2] = [0x9E37_79B1, 0x0E8B_2F51];

/// The bytes of values behind their head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filling {
    /// Random ones up to the half, and zeros: every compression gets them to half of their size.
    Half,
    /// Random ones: no compression makes them smaller.
    Random,
    /// A piece of a file, from a random place on.
    File(PathBuf),
}

impl Filling {
    /// Reads an argument.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "half" => Ok(Self::Half),
            "random" => Ok(Self::Random),
            _ => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Ok(Self::File(path.into())),
                _ => Err("allowed are half, random and file:PATH".to_owned()),
            },
        }
    }
}

impl std::fmt::Display for Filling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Half => f.write_str("half"),
            Self::Random => f.write_str("random"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Makes and reads values.
#[derive(Clone, Debug)]
pub struct Values {
    sizes: SizeRange,
    /// The content of the file that they are pieces of.
    text: Option<Arc<[u8]>>,
    has_zeros: bool,
}

impl Values {
    /// Values of these sizes, which are at least [`VALUE_BYTES_MIN`], half random and half zeros.
    #[cfg(test)]
    pub fn new(sizes: SizeRange) -> Self {
        Self { sizes, text: None, has_zeros: true }
    }

    /// Values of these sizes that are filled so. Reads the file.
    pub fn filled(sizes: SizeRange, filling: &Filling) -> Result<Self> {
        let text = match filling {
            Filling::Half | Filling::Random => None,
            Filling::File(path) => {
                let text = std::fs::read(path)
                    .map_err(|error| Failure::failed(format!("read {}", path.display()), error))?;
                if text.len() < 2 * sizes.max {
                    let name = path.display();
                    return Err(Failure::usage(format!(
                        "--values: {name} has fewer bytes than two values"
                    )));
                }
                Some(text.into())
            }
        };
        Ok(Self { sizes, text, has_zeros: *filling == Filling::Half })
    }

    /// Records are less than this.
    pub fn records_end(&self) -> u64 {
        if self.header_bytes() == SHORT_HEADER_BYTES { 1 << 32 } else { u64::MAX }
    }

    /// The mean length.
    pub fn mean_bytes(&self) -> f64 {
        self.sizes.mean()
    }

    /// Writes the value of `record` at `version` to `value`.
    pub fn write(&self, record: u64, version: Version, value: &mut Vec<u8>) {
        let (size, half) = self.lengths(record, version);
        value.clear();
        if self.header_bytes() == HEADER_BYTES {
            value.extend_from_slice(&mix(record).to_le_bytes());
        } else {
            debug_assert!(record < self.records_end());
            let [short, inverse] = SHORT_FACTORS;
            debug_assert_eq!(short.wrapping_mul(inverse), 1);
            value.extend_from_slice(&low_half(record).wrapping_mul(short).to_le_bytes());
        }
        value.extend_from_slice(&(version ^ mask(record)).to_le_bytes());
        if let Some(piece) = self.piece(record, version, size) {
            value.extend_from_slice(piece);
            return;
        }
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
        let header = self.header_bytes();
        let (record, rest) = if header == HEADER_BYTES {
            let (record, rest) = value.split_first_chunk::<8>()?;
            (unmix(u64::from_le_bytes(*record)), rest)
        } else {
            let (record, rest) = value.split_first_chunk::<4>()?;
            (u32::from_le_bytes(*record).wrapping_mul(SHORT_FACTORS[1]).into(), rest)
        };
        let (version, _) = rest.split_first_chunk::<2>()?;
        let version = u16::from_le_bytes(*version) ^ mask(record);
        let (size, half) = self.lengths(record, version);
        if version > VERSION_MAX || value.len() != size {
            return None;
        }
        if let Some(piece) = self.piece(record, version, size) {
            return (&value[header..] == piece).then_some((record, version));
        }
        let (random, zeros) = value.split_at(half);
        let mut stream = Stream::new(record, version);
        let mut chunks = random[header..].chunks_exact(8);
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
        let half = if self.has_zeros { size.div_ceil(2).max(self.header_bytes()) } else { size };
        (size, half)
    }

    /// The bytes of the record and the version.
    fn header_bytes(&self) -> usize {
        if self.sizes.min < LONG_BYTES_MIN { SHORT_HEADER_BYTES } else { HEADER_BYTES }
    }

    /// The piece of the file that is in a value of `size` bytes.
    fn piece(&self, record: u64, version: Version, size: usize) -> Option<&[u8]> {
        let text = self.text.as_ref()?;
        let length = size - self.header_bytes();
        let places = (text.len() - length) as u64;
        let at = mix(record ^ u64::from(version).rotate_right(24)) % places;
        let at = usize::try_from(at).unwrap_or(0);
        Some(&text[at..at + length])
    }
}

fn low_half(record: u64) -> u32 {
    let [a, b, c, d, ..] = record.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
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
        for sizes in [(8, 8), (8, 40), (16, 16), (120, 120), (16, 300)] {
            let sizes = SizeRange::new(sizes.0, sizes.1);
            let values = Values::new(sizes);
            let mut value = Vec::new();
            let last = values.records_end() - 1;
            for record in (0..500).chain([last, last / 3]) {
                for version in [0, 1, 77, VERSION_MAX] {
                    values.write(record, version, &mut value);
                    assert!((sizes.min..=sizes.max).contains(&value.len()));
                    assert_eq!(values.read(&value), Some((record, version)));
                }
            }
        }
    }

    #[test]
    fn values_of_any_filling_are_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: Vec<u8> = (0..5000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(file.path(), &text).unwrap();
        let sizes = SizeRange::new(16, 300);
        let of_file = format!("file:{}", file.path().display());
        for filling in ["half", "random", &of_file] {
            let filling = Filling::parse(filling).unwrap();
            let values = Values::filled(sizes, &filling).unwrap();
            let mut value = Vec::new();
            for record in 0..500 {
                for version in [0, 9] {
                    values.write(record, version, &mut value);
                    assert_eq!(values.read(&value), Some((record, version)));
                    let last = value.len() - 1;
                    value[last] ^= 1;
                    assert_eq!(values.read(&value), None, "{filling}");
                }
            }
        }
        assert!(
            Values::filled(SizeRange::fixed(20_000), &Filling::parse(&of_file).unwrap()).is_err()
        );
        assert!(Filling::parse("file:").is_err() && Filling::parse("zeros").is_err());
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
