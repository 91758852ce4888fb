//! Little-endian integers and varints, encoded and decoded with every bound checked.
//!
//! A varint carries seven bits per byte, least significant first, the high bit set on all but the
//! last byte; it is at most ten bytes long and must be the shortest encoding of its number.

use crate::base::error::{Error, Result};

/// A growable byte output.
pub trait Sink {
    /// Appends `byte`.
    fn push(&mut self, byte: u8);

    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn push(&mut self, byte: u8) {
        Vec::push(self, byte);
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends `value` as a varint.
#[inline]
pub fn put_varint(out: &mut impl Sink, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// The encoded length of `value` in bytes.
#[inline]
#[must_use]
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends `bytes`, preceded by their length.
pub fn put_bytes(out: &mut impl Sink, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put(bytes);
}

/// Reads a varint from the front of `bytes`: the value and its encoded length, or `None` if there
/// is no valid varint or it is not the shortest encoding.
#[inline]
#[must_use]
pub fn get_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * index);
        if byte & 0x80 == 0 {
            let shortest = index == 0 || bits != 0;
            return shortest.then_some((value, index + 1));
        }
    }
    None
}

/// A decoder for bytes whose checksum was verified but whose content is not trusted.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> Decoder<'a> {
    /// Creates a decoder for `bytes`; `what` names the structure in errors.
    #[must_use]
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what }
    }

    /// Returns a corruption error for this structure, with the reason.
    pub fn damaged(&self, reason: &str) -> Error {
        Error::corrupt(format!("{}: {reason}", self.what))
    }

    /// The number of bytes left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.bytes.split_at_checked(count) else {
            return Err(self.damaged("truncated"));
        };
        self.bytes = tail;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| self.damaged("truncated"))
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A little-endian `u16`.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A little-endian `u32`.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A little-endian `u64`.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A varint.
    pub fn varint(&mut self) -> Result<u64> {
        let Some((value, length)) = get_varint(self.bytes) else {
            return Err(self.damaged("invalid varint"));
        };
        self.bytes = &self.bytes[length..];
        Ok(value)
    }

    /// Reads a varint that must fit in 32 bits.
    pub fn varint_u32(&mut self) -> Result<u32> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| self.damaged("number does not fit in 32 bits"))
    }

    /// Reads a varint that must not exceed `max`; for lengths and counts, before anything is
    /// allocated.
    pub fn length(&mut self, max: usize) -> Result<usize> {
        let value = self.varint()?;
        match usize::try_from(value) {
            Ok(length) if length <= max => Ok(length),
            _ => Err(self.damaged("length exceeds its limit")),
        }
    }

    /// Reads bytes preceded by their length, at most `max`.
    pub fn bytes(&mut self, max: usize) -> Result<&'a [u8]> {
        let length = self.length(max)?;
        self.take(length)
    }

    /// Fails unless all bytes were read.
    pub fn finish(&self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.damaged("trailing bytes")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value));
                assert_eq!(get_varint(&out), Some((value, out.len())));
                assert_eq!(get_varint(&out[..out.len() - 1]), None);
            }
        }
    }

    #[test]
    fn long_and_overflowing_varints_are_refused() {
        assert_eq!(get_varint(&[0x80, 0x00]), None);
        assert_eq!(get_varint(&[0xff; 10]), None);
        let mut eleven = vec![0x80; 10];
        eleven.push(1);
        assert_eq!(get_varint(&eleven), None);
    }

    #[test]
    fn a_decoder_never_reads_past_its_bytes() {
        let mut decoder = Decoder::new(&[1, 2, 3], "test");
        assert!(decoder.u32().is_err());
        assert_eq!(decoder.u16().unwrap(), 0x0201);
        assert!(decoder.finish().is_err());
        assert!(Decoder::new(&[200, 1], "test").bytes(100).is_err());
    }
}
