//! The byte layouts of the log: segment headers, block headers, records, and positions.
//!
//! The log is one endless stream of bytes. A byte's position in it is its [`Lsn`]; block `n` of
//! the stream holds the bytes from `n * 4096` on. Files hold ranges of whole blocks.
//!
//! Segment file:
//! ```text
//! offset size
//!      0 4096  segment header block: the header at 0, the same again at 2048 (another sector)
//!   4096    .  the blocks of the stream from `first_block` on
//! ```
//!
//! Segment header (each copy under its own checksum, so that a torn rewrite leaves one of the two):
//! ```text
//! offset size
//!      0    8  checksum: XXH3-64 of bytes 8..64, seeded with salt, kind and the copy's offset
//!      8    8  magic "CHELOLOG"
//!     16    4  format (1)
//!     20    4  zero
//!     24    8  serial: number of the header, counted over all headers written, so that of two that
//!              claim the same blocks the later one is valid
//!     32    8  first_block: number of the first block of the stream in this file
//!     40    8  blocks: how many there are
//!     48    8  continues_from, lsn: where the data before ended
//!     56    4  continues_from, chain: the chain value there
//!     60    4  zero
//! ```
//! A segment whose `continues_from` is its own first byte directly follows the segment before; its
//! chain field is zero and unused. Any other segment begins where a recovery or a creation ended: a
//! reader that arrives at that position continues in this segment, whatever bytes follow the
//! position in the older one.
//!
//! Block:
//! ```text
//! offset size
//!      0    8  checksum: XXH3-64 of bytes 8..32, seeded with salt and kind
//!      8    8  number of the block in the stream: never used twice, so it is the mark of the epoch
//!     16    8  watermark: everything before this lsn was durable when the block was opened
//!     24    4  chain: the chain value at `first_start`; if no record starts here, the check of the
//!              record that fills the block
//!     28    2  first_start: offset of the first place in this block where a record starts or would
//!              start; 0 if there is none
//!     30    2  zero
//!     32 4064  bytes of records
//! ```
//!
//! Record, continued after the header of the next block where it does not fit:
//! ```text
//! offset size
//!      0    4  check: low half of a mix of the record's lsn, the check before, length and hash
//!      4  1-4  varint: length of the payload, at least 1
//!      .    .  payload
//! ```
//! The check of a record is the chain value of the next, so a record is accepted only after the
//! exact records it was written after. Five zero bytes, with which no record begins, mean that the
//! rest of the block is empty. A record's head is never split: a position with less than
//! [`RECORD_HEAD_BYTES_MAX`] bytes before the end of its block is the start of the next block.
//! Likewise the position right after a block's header is named by the block's first byte: each
//! position has exactly one name.

use crate::base::checksum::{checksum, identity};
use crate::base::codec::{Decoder, get_varint};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::{BATCH_BYTES_MAX, BLOCK_BYTES, BLOCK_BYTES_U64, SECTOR_BYTES};
use crate::base::logs::LogPosition;

/// The longest payload of a record, in bytes: a full batch and the overhead of its entries.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// The space that the header takes in each block of the stream.
pub const BLOCK_HEADER_BYTES: usize = 32;

/// The space for records in each block of the stream.
pub const BLOCK_PAYLOAD_BYTES: usize = BLOCK_BYTES - BLOCK_HEADER_BYTES;

/// The most bytes before a record's payload.
pub const RECORD_HEAD_BYTES_MAX: usize = 8;

/// The offset of the second copy of the segment header.
const SEGMENT_COPY_OFFSET: usize = 2048;

/// The size of a segment header.
const SEGMENT_HEADER_BYTES: usize = 64;

/// Bound on block numbers, so that every lsn of a block can be computed.
const BLOCK_NUMBER_MAX: u64 = 1 << 50;

const MAGIC: [u8; 8] = *b"CHELOLOG";
const FORMAT: u32 = 1;

/// True if the block seems to have a copy of a segment header, which may be torn.
pub fn looks_like_header(block: &[u8]) -> bool {
    let has_magic = |copy: usize| block.get(copy + 8..copy + 16).is_some_and(|is| is == MAGIC);
    has_magic(0) || has_magic(SEGMENT_COPY_OFFSET)
}

/// Recomputes the checksums of a block, whatever its content: those of a segment header, if it
/// looks like one, or that of a block of the stream. For tests.
#[cfg(any(test, feature = "internals"))]
pub fn seal(block: &mut [u8], salt: u64) {
    if looks_like_header(block) {
        for offset in [0, SEGMENT_COPY_OFFSET] {
            if let Some(copy) = block.get_mut(offset..offset + SEGMENT_HEADER_BYTES) {
                let sum = checksum(&copy[8..], identity([salt, KIND_SEGMENT, offset as u64]));
                copy[..8].copy_from_slice(&sum.to_le_bytes());
            }
        }
    } else if let Some(header) = block.get_mut(..BLOCK_HEADER_BYTES) {
        let sum = checksum(&header[8..], identity([salt, KIND_BLOCK, 0]));
        header[..8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Purpose of a checksum, mixed into its seed.
const KIND_BLOCK: u64 = 0x626c_6f63;
const KIND_SEGMENT: u64 = 0x7365_676d;
const KIND_PAYLOAD: u64 = 0x7061_796c;

const _: () = assert!(BATCH_BYTES_MAX * 2 <= RECORD_BYTES_MAX);
const _: () = assert!(RECORD_BYTES_MAX < 1 << 28, "the length takes at most four bytes");
const _: () = assert!(SEGMENT_HEADER_BYTES <= SECTOR_BYTES);
const _: () = assert!(SEGMENT_COPY_OFFSET.is_multiple_of(SECTOR_BYTES));
const _: () = assert!(BLOCK_BYTES <= u16::MAX as usize);

impl LogPosition {
    /// Appends lsn (8 bytes) and chain (4 bytes).
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lsn.0.to_le_bytes());
        out.extend_from_slice(&self.chain.to_le_bytes());
    }

    /// Decodes the output of [`LogPosition::encode`].
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let (lsn, chain) = (Lsn(decoder.u64()?), decoder.u32()?);
        if block_of(lsn) > BLOCK_NUMBER_MAX {
            return Err(decoder.damaged("a log position is out of range"));
        }
        Ok(Self { lsn, chain })
    }
}

/// The number of the block that holds `lsn`.
#[inline]
pub fn block_of(lsn: Lsn) -> u64 {
    lsn.0 / BLOCK_BYTES_U64
}

/// The offset of `lsn` in its block.
#[inline]
pub fn offset_of(lsn: Lsn) -> usize {
    index(lsn.0 % BLOCK_BYTES_U64)
}

/// The first byte of block `number`.
#[inline]
pub fn block_start(number: u64) -> Lsn {
    Lsn(number * BLOCK_BYTES_U64)
}

/// The canonical position of `offset` (up to and including the block's end) in block `number`.
#[inline]
pub fn place(number: u64, offset: usize) -> Lsn {
    if offset <= BLOCK_HEADER_BYTES {
        block_start(number)
    } else if offset + RECORD_HEAD_BYTES_MAX > BLOCK_BYTES {
        block_start(number + 1)
    } else {
        Lsn(number * BLOCK_BYTES_U64 + offset as u64)
    }
}

/// Converts a number to an index; saturates if it does not fit.
#[inline]
pub fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The seed of payload hashes.
pub fn payload_seed(salt: u64) -> u64 {
    identity([salt, KIND_PAYLOAD, 0])
}

/// The header of a block of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// The block's number in the stream.
    pub number: u64,
    /// Everything before this position was durable when the block was opened.
    pub watermark: Lsn,
    /// The chain value at `first_start`.
    pub chain: u32,
    /// The offset of the first record start; 0 if there is none.
    pub first_start: u16,
}

impl BlockHeader {
    /// Encodes the header as stored in the block.
    pub fn encode(&self, salt: u64) -> [u8; BLOCK_HEADER_BYTES] {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.watermark.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.chain.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.first_start.to_le_bytes());
        let sum = checksum(&bytes[8..], identity([salt, KIND_BLOCK, 0]));
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes the header of `block`; `None` unless it is a valid one of this database.
    pub fn decode(block: &[u8], salt: u64) -> Option<Self> {
        let header = block.first_chunk::<BLOCK_HEADER_BYTES>()?;
        let mut decoder = Decoder::new(header, "a log block header");
        let sum = decoder.u64().ok()?;
        if sum != checksum(&header[8..], identity([salt, KIND_BLOCK, 0])) {
            return None;
        }
        let number = decoder.u64().ok()?;
        let watermark = Lsn(decoder.u64().ok()?);
        let (chain, first_start) = (decoder.u32().ok()?, decoder.u16().ok()?);
        let start = usize::from(first_start);
        let start_is_sane = start == 0
            || (BLOCK_HEADER_BYTES..=BLOCK_BYTES - RECORD_HEAD_BYTES_MAX).contains(&start);
        let sane = number < BLOCK_NUMBER_MAX
            && watermark <= block_start(number)
            && start_is_sane
            && decoder.u16().ok()? == 0;
        sane.then_some(Self { number, watermark, chain, first_start })
    }
}

/// `first_start` of a block that begins with the last `rest` bytes of a record (0 if that fills
/// it).
#[inline]
pub fn first_start_after(rest: usize) -> u16 {
    let start = rest.saturating_add(BLOCK_HEADER_BYTES);
    if start + RECORD_HEAD_BYTES_MAX > BLOCK_BYTES { 0 } else { u16::try_from(start).unwrap_or(0) }
}

/// The header of a segment file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Number of the header, counted over all headers written.
    pub serial: u64,
    /// Number of the first stream block in the file.
    pub first_block: u64,
    /// Number of stream blocks in the file.
    pub blocks: u64,
    /// End of the data that this segment continues.
    pub continues_from: LogPosition,
}

impl SegmentHeader {
    /// The number after the last block.
    pub fn end_block(&self) -> u64 {
        self.first_block + self.blocks
    }

    /// True if the segment directly follows the one before.
    pub fn is_sequel(&self) -> bool {
        self.continues_from.lsn == block_start(self.first_block)
    }

    /// Encodes the header block with both copies.
    pub fn encode(&self, salt: u64) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        for offset in [0, SEGMENT_COPY_OFFSET] {
            let mut body = Vec::with_capacity(SEGMENT_HEADER_BYTES);
            body.extend_from_slice(&MAGIC);
            body.extend_from_slice(&FORMAT.to_le_bytes());
            body.extend_from_slice(&[0; 4]);
            for number in [self.serial, self.first_block, self.blocks] {
                body.extend_from_slice(&number.to_le_bytes());
            }
            self.continues_from.encode(&mut body);
            body.extend_from_slice(&[0; 4]);
            let sum = checksum(&body, identity([salt, KIND_SEGMENT, offset as u64]));
            block[offset..offset + 8].copy_from_slice(&sum.to_le_bytes());
            block[offset + 8..offset + SEGMENT_HEADER_BYTES].copy_from_slice(&body);
        }
        block
    }

    /// Decodes the header of `block`: of two valid copies the one with the later serial. Returns
    /// `None` if neither copy is valid, and an error if a valid one has an unknown format.
    pub fn decode(block: &[u8], salt: u64) -> Result<Option<Self>> {
        let mut best: Option<Self> = None;
        for offset in [0, SEGMENT_COPY_OFFSET] {
            let Some(copy) = block.get(offset..offset + SEGMENT_HEADER_BYTES) else { continue };
            let seed = identity([salt, KIND_SEGMENT, offset as u64]);
            let header = Self::decode_copy(copy, seed)?;
            if header.is_some_and(|header| best.is_none_or(|best| header.serial > best.serial)) {
                best = header;
            }
        }
        Ok(best)
    }

    /// The offset of a copy in `block` that differs from this header, if there is one: a segment
    /// that was written to has two equal copies.
    pub fn damaged_copy(&self, block: &[u8], salt: u64) -> Option<u64> {
        [0, SEGMENT_COPY_OFFSET].map(|offset| offset as u64).into_iter().find(|offset| {
            let start = index(*offset);
            let copy = block.get(start..start + SEGMENT_HEADER_BYTES).unwrap_or_default();
            let seed = identity([salt, KIND_SEGMENT, *offset]);
            !matches!(Self::decode_copy(copy, seed), Ok(Some(header)) if header == *self)
        })
    }

    fn decode_copy(copy: &[u8], seed: u64) -> Result<Option<Self>> {
        let mut decoder = Decoder::new(copy, "a log segment header");
        let sum = decoder.u64()?;
        if sum != checksum(&copy[8..], seed) || decoder.array()? != MAGIC {
            return Ok(None);
        }
        if decoder.u32()? != FORMAT {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the log has a newer format than this version supports",
            ));
        }
        decoder.u32()?;
        let (serial, first_block) = (decoder.u64()?, decoder.u64()?);
        let blocks = decoder.u64()?;
        let Ok(continues_from) = LogPosition::decode(&mut decoder) else { return Ok(None) };
        let sane = first_block < BLOCK_NUMBER_MAX
            && (1..BLOCK_NUMBER_MAX).contains(&blocks)
            && continues_from.lsn <= block_start(first_block);
        Ok(sane.then_some(Self { serial, first_block, blocks, continues_from }))
    }
}

/// The check of the record at `start`, whose position has the previous record's check.
#[inline]
pub fn record_check(start: LogPosition, length: u32, payload_hash: u64) -> u32 {
    let chained = (u64::from(start.chain) << 32) | u64::from(length);
    let mixed = identity([start.lsn.0, chained, payload_hash]);
    (mixed & 0xffff_ffff) as u32
}

/// Encodes the head of a record; also returns its length in bytes.
#[inline]
pub fn encode_head(check: u32, length: u32) -> ([u8; RECORD_HEAD_BYTES_MAX], usize) {
    let mut head = [0; RECORD_HEAD_BYTES_MAX];
    head[..4].copy_from_slice(&check.to_le_bytes());
    let (mut rest, mut at) = (length, 4);
    while rest >= 0x80 {
        head[at] = (rest & 0x7f) as u8 | 0x80;
        rest >>= 7;
        at += 1;
    }
    head[at] = (rest & 0x7f) as u8;
    (head, at + 1)
}

/// Content of a position where a record may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    /// The head of a record.
    Record {
        /// Its check.
        check: u32,
        /// The length of its payload.
        length: u32,
        /// The length of the head.
        head_bytes: usize,
    },
    /// The rest of the block is empty.
    Empty,
    /// Bytes that are not a valid head.
    Damaged,
}

impl Head {
    /// Decodes the head at the front of `bytes`, which has at least [`RECORD_HEAD_BYTES_MAX`]
    /// bytes.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Head {
        let Some((check, rest)) = bytes.split_first_chunk::<4>() else { return Head::Damaged };
        let check = u32::from_le_bytes(*check);
        if check == 0 && rest.first() == Some(&0) {
            return Head::Empty;
        }
        match get_varint(&rest[..rest.len().min(4)]) {
            Some((length, size)) if length > 0 && length <= RECORD_BYTES_MAX as u64 => {
                let Ok(length) = u32::try_from(length) else { return Head::Damaged };
                Head::Record { check, length, head_bytes: 4 + size }
            }
            _ => Head::Damaged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    #[test]
    fn headers_come_back_and_any_flipped_bit_is_seen() {
        let header =
            BlockHeader { number: 77, watermark: Lsn(4096 * 70 + 5), chain: 9, first_start: 33 };
        let bytes = header.encode(1);
        assert_eq!(BlockHeader::decode(&bytes, 1), Some(header));
        assert_eq!(BlockHeader::decode(&bytes, 2), None);
        for bit in 0..BLOCK_HEADER_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockHeader::decode(&bytes, 1), None);
        }
    }

    #[test]
    fn one_copy_of_a_segment_header_is_enough_and_the_later_one_wins() {
        let continues_from = LogPosition { lsn: Lsn(500), chain: 4 };
        let old = SegmentHeader { serial: 1, first_block: 9, blocks: 3, continues_from };
        let new = SegmentHeader { serial: 2, first_block: 30, ..old };
        let (old_block, new_block) = (old.encode(5), new.encode(5));
        assert_eq!(SegmentHeader::decode(&new_block, 5).unwrap(), Some(new));
        assert_eq!(SegmentHeader::decode(&new_block, 6).unwrap(), None);
        for offset in [0, SEGMENT_COPY_OFFSET] {
            for bit in 0..SEGMENT_HEADER_BYTES * 8 {
                let mut block = new_block.clone();
                block[offset + bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SegmentHeader::decode(&block, 5).unwrap(), Some(new));
            }
            let mut torn = old_block.clone();
            torn[offset..offset + SECTOR_BYTES]
                .copy_from_slice(&new_block[offset..offset + SECTOR_BYTES]);
            assert_eq!(SegmentHeader::decode(&torn, 5).unwrap(), Some(new));
        }
    }

    #[test]
    fn heads_come_back_and_noise_never_panics() {
        for length in [1, 127, 128, 16_383, 16_384, 2_097_152, 16 << 20] {
            let (bytes, head_bytes) = encode_head(7, length);
            assert_eq!(Head::decode(&bytes), Head::Record { check: 7, length, head_bytes });
        }
        assert_eq!(Head::decode(&[0; 8]), Head::Empty);
        assert_eq!(Head::decode(&encode_head(7, (16 << 20) + 1).0), Head::Damaged);
        let mut rng = Rng::new(3);
        let mut noise = [0; BLOCK_BYTES];
        for _ in 0..2000 {
            rng.fill(&mut noise[..SEGMENT_HEADER_BYTES]);
            Head::decode(&noise[..8]);
            assert_eq!(BlockHeader::decode(&noise, 1), None);
            assert_eq!(SegmentHeader::decode(&noise, 1).unwrap(), None);
        }
    }

    #[test]
    fn each_place_has_one_name() {
        assert_eq!(place(2, BLOCK_HEADER_BYTES), block_start(2));
        assert_eq!(place(2, BLOCK_BYTES), block_start(3));
        assert_eq!(place(2, BLOCK_BYTES - 7), block_start(3));
        assert_eq!(place(2, BLOCK_BYTES - 8), Lsn(3 * 4096 - 8));
        assert_eq!(first_start_after(BLOCK_PAYLOAD_BYTES - 7), 0);
        assert_eq!(first_start_after(BLOCK_PAYLOAD_BYTES - 8), 4088);
        assert_eq!(first_start_after(0), 32);
    }
}
