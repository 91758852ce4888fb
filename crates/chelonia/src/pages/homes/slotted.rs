//! The bytes of a page: records in the order in which they came, and their places in key order.
//!
//! ```text
//! offset size
//!      0    2  records
//!      2    2  end of the records' bytes, in units of two
//!      4    4  bytes of the records that are not dead
//!      8    4  bytes of keys and inline values
//!     12    2  records that refer to large values
//!     14    2  zero
//!     16   16  segments that differ from the base, a bit each; zero in a base on the device
//!     32       records, each at an even offset:
//!                v  length of the key, doubled; 1 more if the value is a reference to a large one
//!                v  length of the payload
//!                   key, payload                                     (v: a varint)
//!              ... zeros or bytes of dead records ...
//!    end -2n   places: offset of each record in units of two, in key order; the last one first
//! ```
//!
//! Offsets are those in the bytes of the page, which are spread over its blocks. An update changes
//! few of these bytes, so that few segments differ from the image on the device (`segments.rs`).

use super::PART_BYTES;
use crate::base::codec::{Decoder, get_varint, varint_len};
use crate::base::error::{Error, Result};
use crate::base::limits::INLINE_ENTRY_BYTES_MAX;
use crate::base::stream::LargeRef;
use crate::run::Totals;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Bytes before the first record.
pub const HEADER_BYTES: usize = 32;

/// The bits of segments in the header.
pub const BITS: std::ops::Range<usize> = 16..32;

/// Bytes of the place of a record.
pub(super) const PLACE_BYTES: usize = 2;

/// The longest head of a record: two varints below 2^18.
pub(super) const RECORD_HEAD_MAX: usize = 6;

/// Bytes of a record with a key and a payload of these lengths, without its place.
#[must_use]
pub fn record_bytes(key: usize, payload: usize) -> usize {
    let head = varint_len(2 * key as u64 + 1) + varint_len(payload as u64);
    (head + key + payload).next_multiple_of(2)
}

/// Bytes of a page that a record takes.
#[must_use]
pub fn taken_bytes(key: usize, payload: usize) -> usize {
    record_bytes(key, payload) + PLACE_BYTES
}

/// The largest page: offsets are two bytes, in units of two.
pub const PAGE_BLOCKS_MAX: u32 = 32;

const _: () = assert!(PAGE_BLOCKS_MAX as usize * PART_BYTES <= 2 * u16::MAX as usize);
const _: () = assert!(
    PAGE_BLOCKS_MAX as usize * PART_BYTES
        >= HEADER_BYTES + RECORD_HEAD_MAX + INLINE_ENTRY_BYTES_MAX + 1 + PLACE_BYTES
);

/// Bytes of a page of this many blocks.
#[must_use]
pub fn page_bytes(blocks: u32) -> usize {
    blocks as usize * PART_BYTES
}

/// Bytes for records and their places in a page of this many blocks.
#[must_use]
pub fn room(blocks: u32) -> usize {
    page_bytes(blocks) - HEADER_BYTES
}

pub(super) fn damaged(what: &str) -> Error {
    Error::corrupt(format!("a page contradicts itself: {what}"))
}

/// The bytes of a page, in one piece or in blocks.
#[derive(Clone, Copy)]
pub enum PageBytes<'p> {
    /// In one piece.
    Whole(&'p [u8]),
    /// The parts of it in the blocks of a page, as many as there are.
    Parts(&'p [&'p [u8]]),
}

impl<'p> PageBytes<'p> {
    fn len(self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Parts(parts) => parts.len() * PART_BYTES,
        }
    }

    /// `length` bytes from `at` on, copied if they are in several blocks.
    #[inline]
    pub(super) fn get(self, at: usize, length: usize) -> Result<Cow<'p, [u8]>> {
        let missing = || damaged("a record is not within it");
        match self {
            Self::Whole(bytes) => bytes.get(at..at + length).map(Cow::Borrowed).ok_or_else(missing),
            Self::Parts(parts) => {
                let (part, start) = (at / PART_BYTES, at % PART_BYTES);
                let first = parts.get(part).ok_or_else(missing)?;
                if let Some(bytes) = first.get(start..start + length) {
                    return Ok(Cow::Borrowed(bytes));
                }
                let mut bytes = Vec::with_capacity(length);
                let (mut part, mut start) = (part, start);
                while bytes.len() < length {
                    let from = parts.get(part).and_then(|part| part.get(start..));
                    let from = from.ok_or_else(missing)?;
                    let count = from.len().min(length - bytes.len());
                    bytes.extend_from_slice(&from[..count]);
                    (part, start) = (part + 1, 0);
                }
                Ok(Cow::Owned(bytes))
            }
        }
    }

    #[inline]
    pub(super) fn u16(self, at: usize) -> Result<usize> {
        let bytes = self.get(at, 2)?;
        Ok(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    }
}

/// Where a record is in the bytes of its page.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Spans {
    /// The key.
    pub key: std::ops::Range<usize>,
    /// The payload: the value, or a reference to a large one.
    pub payload: std::ops::Range<usize>,
    /// True if it is a reference.
    pub is_large: bool,
}

/// The place of a record's key and payload in a page.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub key: (usize, usize),
    pub payload: (usize, usize),
    pub is_large: bool,
}

/// A page to read.
#[derive(Clone, Copy)]
pub struct Page<'p>(pub(super) PageBytes<'p>);

impl<'p> Page<'p> {
    /// The page with these bytes, which were verified. Fails if there are too few for its records.
    #[inline]
    pub fn parse(bytes: PageBytes<'p>) -> Result<Self> {
        let page = Self(bytes);
        let places = bytes.u16(0)? * PLACE_BYTES;
        if HEADER_BYTES + places > bytes.len() {
            return Err(damaged("it has more records than space"));
        }
        Ok(page)
    }

    /// Number of records.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.u16(0).unwrap_or(0)
    }

    #[inline]
    pub(super) fn record(&self, index: usize) -> Result<Record> {
        let place = self.0.len() - PLACE_BYTES * (index + 1);
        let at = 2 * self.0.u16(place)?;
        let head = self.0.get(at, RECORD_HEAD_MAX.min(self.0.len().saturating_sub(at)))?;
        let (key, first) = get_varint(&head).ok_or_else(|| damaged("a key has no length"))?;
        let (payload, second) =
            get_varint(&head[first..]).ok_or_else(|| damaged("a payload has no length"))?;
        let to_usize = |length: u64| {
            let length = usize::try_from(length).ok().filter(|length| *length <= self.0.len());
            length.ok_or_else(|| damaged("a record is longer than it"))
        };
        let (key_len, payload) = (to_usize(key / 2)?, to_usize(payload)?);
        let start = at + first + second;
        let (key_at, payload_at) = ((start, key_len), (start + key_len, payload));
        Ok(Record { key: key_at, payload: payload_at, is_large: key % 2 == 1 })
    }

    /// The key of a record.
    #[inline]
    pub fn key(&self, index: usize) -> Result<Cow<'p, [u8]>> {
        let (at, length) = self.record(index)?.key;
        self.0.get(at, length)
    }

    /// The payload of a record, and whether it refers to a large value.
    pub fn payload(&self, index: usize) -> Result<(Cow<'p, [u8]>, bool)> {
        let record = self.record(index)?;
        Ok((self.0.get(record.payload.0, record.payload.1)?, record.is_large))
    }

    /// Where the key and the payload of a record are, in a page in one piece; and whether the
    /// payload refers to a large value.
    pub fn spans(&self, index: usize) -> Result<Spans> {
        let Record { key, payload, is_large } = self.record(index)?;
        let end = payload.0 + payload.1;
        if end > self.0.len() {
            return Err(damaged("a record is not within it"));
        }
        Ok(Spans { key: key.0..key.0 + key.1, payload: payload.0..end, is_large })
    }

    /// The large value that a record refers to, if any.
    pub fn large(&self, index: usize) -> Result<Option<LargeRef>> {
        let record = self.record(index)?;
        if !record.is_large {
            return Ok(None);
        }
        let payload = self.0.get(record.payload.0, record.payload.1)?;
        large_of(&payload).map(Some)
    }

    /// The place of `key`: that of its record, or where it would be.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Result<std::result::Result<usize, usize>> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle)?.as_ref().cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Ok(middle)),
            }
        }
        Ok(Err(low))
    }

    /// The totals that the header states, and the number of large values.
    #[must_use]
    pub fn totals(&self) -> (Totals, u32) {
        let head = self.0.get(0, HEADER_BYTES).unwrap_or_default();
        let u32_at = |at: usize| {
            let bytes = head.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let totals =
            Totals { entries: self.count() as u64, tombstones: 0, bytes: u64::from(u32_at(8)) };
        (totals, u32_at(12) & 0xffff)
    }

    /// Bytes that records and their places take.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        let head = self.0.get(4, 4).unwrap_or_default();
        let live = head.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
        live + PLACE_BYTES * self.count()
    }
}

/// Decodes the payload of a reference to a large value.
pub fn large_of(payload: &[u8]) -> Result<LargeRef> {
    let mut decoder = Decoder::new(payload, "reference to a large value");
    let large = LargeRef::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(large)
}

/// The number of blocks of a page that one such record fits in, at least `least`.
#[must_use]
pub fn blocks_for(key: usize, payload: usize, least: u32) -> u32 {
    let needed = (HEADER_BYTES + taken_bytes(key, payload)).div_ceil(PART_BYTES);
    u32::try_from(needed).unwrap_or(u32::MAX).max(least)
}
