//! The sorted block: entries in key order, searched with one read.
//!
//! Data and index of a run both consist of sorted blocks. A sorted block fills a *span* of one or
//! more consecutive blocks; nearly always it is one, and it is several when a key is too long for a
//! block (`run/build/sorted.rs`). A value may *overflow* the block of its key: it goes on in the
//! next ones, so that at most an eighth of a block is left empty (`run/block/overflow.rs`). The
//! first block of a span is its head; the others carry the header of `DataMore` and then bytes that
//! continue the head's:
//!
//! ```text
//! head                                              each further block of the span
//! offset size                                       offset size
//!      0    9  checksum, kind (Data or Index)            0    9  checksum, kind (DataMore)
//!      9    1  span: blocks, head included; 128 more     9    1  zero
//!              if its entries are alike, 64 more if
//!              an overflow begins or ends in it
//!     10    2  count of entries, at least 1             10    2  part: 1 after the head, 2 ...
//!     12    2  prefix length                            12    4  zero
//!     14    2  used: bytes after the header in          16 4080  the bytes that continue
//!              the last block of the span
//!     16       heads, slots, prefix, entries;
//!              before them 8 bytes about overflows
//! ```
//!
//! A *joined* span, without the headers of all blocks but the first, has this layout:
//!
//! ```text
//!     16            heads    count x u32   first four bytes of each key after the prefix,
//!                                          zero-padded, as a number that orders like the bytes
//!     16 + 4n       slots    count x u16   where each entry begins (u32 if the span is > 1)
//!     ...           prefix   the bytes that all keys share
//!     ...           entries, in order, each up to where the next begins:
//!                     varint  rest << 2 | kind     rest = key length - prefix length
//!                     bytes   the key after prefix and head (none if rest <= 4)
//!                     bytes   payload: kind 0 the value; kind 1 (tombstone) nothing;
//!                             kind 2 a reference to a large value; kind 3 a compressed
//!                             value (`base/stream/compressed.rs`)
//! ```
//!
//! If all entries of a span are *alike* (of one kind, with keys of one length and payloads of one
//! length, like records of fixed size), neither slots nor lengths are needed: the varint is stored
//! once, after the prefix, and the entries after it have equal sizes:
//!
//! ```text
//!     16            heads    count x u32
//!     16 + 4n       prefix
//!     ...           varint  rest << 2 | kind
//!     ...           entries, in order: the key after prefix and head, and the payload
//! ```
//!
//! A record of an 8-byte key and a 120-byte value takes 128 bytes less the shared prefix, so a
//! block holds 32 of them.
//!
//! Here are the layout and its decoding; `block/search.rs` searches a block, `block/key_buffer.rs`
//! assembles keys, `block/overflow.rs` values that overflow.
//!
//! Invariants (`Run::verify` checks all; a merge checks that keys ascend; a reader checks only
//! bounds):
//! 1. Keys ascend strictly. `prefix` is the common prefix of the first and last key (at most 65,535
//!    bytes).
//! 2. Slots ascend, the first is the end of the prefix; the last entry ends at `used`, or overflows
//!    there. Entries that are alike fill the space between exactly.
//! 3. An index block's payloads refer to blocks before it, in ascending order.

use crate::base::codec::{Decoder, get_varint};
use crate::base::error::{Error, Result};
use crate::base::limits::{
    BLOCK_BYTES, INLINE_ENTRY_BYTES_MAX, KEY_BYTES_MAX, LARGE_VALUE_BYTES_MIN,
};
use crate::base::stream::{Compressed, Dictionary, LargeRef, Update};
use crate::kernels::heads::HEAD_BYTES;
use crate::storage::block::{BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockKind};
use overflow::Overflow;

mod key_buffer;
pub(in crate::run) mod overflow;
mod search;

pub use key_buffer::KeyBuffer;
pub use overflow::overflow_blocks;
pub use search::SortedBlock;

pub(in crate::run) const KIND: usize = 8;
pub(in crate::run) const SPAN: usize = 9;
pub(in crate::run) const COUNT: usize = 10;
/// Offset of the part number in a further block of a span (the place of the count in a head).
pub const PART: usize = 10;
pub(in crate::run) const PREFIX_LEN: usize = 12;
pub(in crate::run) const USED: usize = 14;
pub(in crate::run) const HEADS: usize = BLOCK_HEADER_BYTES;

/// Maximum number of blocks of a span: two keys of the greatest length, which an index block must
/// hold to form a level, or one entry of the greatest size.
pub const SPAN_BLOCKS_MAX: u32 = 48;

/// The longest prefix that the header can encode.
pub(in crate::run) const PREFIX_LEN_MAX: usize = u16::MAX as usize;

/// Flag in the span byte: the entries of the span are alike.
pub(in crate::run) const ALIKE: u8 = 0x80;

/// Flag in the span byte: the span is one block, and an overflow begins or ends in it.
pub(in crate::run) const EXTENDED: u8 = 0x40;

const _: () = assert!(SPAN_BLOCKS_MAX < EXTENDED as u32);

/// Slots of a span of one block are `u16`, of a longer one `u32`.
pub(in crate::run) fn slot_bytes(span: u32) -> usize {
    if span == 1 { 2 } else { 4 }
}

const OVERHEAD_MAX: usize = BLOCK_HEADER_BYTES + 64;
const SPAN_BYTES_MAX: usize = SPAN_BLOCKS_MAX as usize * BLOCK_PAYLOAD_BYTES;
const _: () = assert!(2 * (KEY_BYTES_MAX + OVERHEAD_MAX) <= SPAN_BYTES_MAX);
const _: () = assert!(INLINE_ENTRY_BYTES_MAX + OVERHEAD_MAX <= SPAN_BYTES_MAX);

/// The kind of an entry; the numbers are on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EntryKind {
    /// The payload is the value.
    Value = 0,
    /// The key is deleted.
    Tombstone = 1,
    /// The payload is a [`LargeRef`].
    Large = 2,
    /// The payload is a compressed value.
    Compressed = 3,
}

/// The length in bytes of a joined span.
#[inline]
pub fn joined_bytes(span: u32) -> usize {
    BLOCK_HEADER_BYTES + span as usize * BLOCK_PAYLOAD_BYTES
}

/// The number of blocks of the span whose head is `block`.
pub fn span_of(block: &[u8], kind: BlockKind) -> Result<u32> {
    if block.get(KIND) != Some(&(kind as u8)) {
        return Err(damaged("its kind differs from its reference"));
    }
    let span = block.get(SPAN).map_or(0, |span| u32::from(span & !(ALIKE | EXTENDED)));
    if !(1..=SPAN_BLOCKS_MAX).contains(&span) {
        return Err(damaged("its span is out of range"));
    }
    Ok(span)
}

/// The distance of `block` from the head whose span, or overflow, it continues: 0 for a head.
pub fn part_of(block: &[u8], kind: BlockKind) -> Result<u32> {
    if is_of(block, kind) {
        return Ok(0);
    }
    let part = u32::from(u16_at(block, PART));
    let continues = is_of(block, BlockKind::DataMore) || is_of(block, BlockKind::DataOverflow);
    if !continues || !(1..SPAN_BLOCKS_MAX).contains(&part) {
        return Err(damaged("it is neither a head nor continues one"));
    }
    Ok(part)
}

/// True if `block` is of this kind.
#[inline]
pub fn is_of(block: &[u8], kind: BlockKind) -> bool {
    block.get(KIND) == Some(&(kind as u8))
}

/// Removes the headers from the blocks of a span: the result is the first [`joined_bytes`] of
/// `blocks`. `blocks` is the complete span.
pub fn join_in_place(blocks: &mut [u8]) -> Result<()> {
    let span = blocks.len() / BLOCK_BYTES;
    for index in 1..span {
        let start = index * BLOCK_BYTES;
        let more = &blocks[start..start + BLOCK_BYTES];
        if !is_of(more, BlockKind::DataMore) || usize::from(u16_at(more, PART)) != index {
            return Err(damaged("a span is not continued by its next block"));
        }
        let to = BLOCK_BYTES + (index - 1) * BLOCK_PAYLOAD_BYTES;
        blocks.copy_within(start + BLOCK_HEADER_BYTES..start + BLOCK_BYTES, to);
    }
    Ok(())
}

pub(in crate::run) fn damaged(reason: &str) -> Error {
    Error::corrupt(format!("a sorted block: {reason}"))
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u16::from_le_bytes(*b))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}

/// The layout of a joined span. Checked: every part lies within the span.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    count: usize,
    heads: usize,
    /// End of the heads: start of the slots, or of the prefix if entries are alike.
    slots: usize,
    wide_slots: bool,
    prefix: usize,
    prefix_len: usize,
    entries: usize,
    end: usize,
    alike: Option<Alike>,
    /// Bytes of the last entry after the block.
    overflow: usize,
}

/// The common properties of the entries of a span that are alike.
#[derive(Clone, Copy, Debug)]
struct Alike {
    kind: EntryKind,
    rest_len: usize,
    /// Size of an entry in bytes.
    bytes: usize,
}

impl Layout {
    /// Reads the header of the joined span `bytes`, which is at least [`joined_bytes`] long.
    #[inline]
    pub fn parse(bytes: &[u8], kind: BlockKind) -> Result<Self> {
        let span = span_of(bytes, kind)?;
        let count = usize::from(u16_at(bytes, COUNT));
        let used = usize::from(u16_at(bytes, USED));
        let end = joined_bytes(span - 1) + used;
        let is_alike = bytes[SPAN] & ALIKE != 0;
        let Overflow { heads, received, passed } = Overflow::of(bytes)?;
        if heads != HEADS && kind != BlockKind::Data {
            return Err(damaged("only entries of a run overflow"));
        }
        let slots = heads + count * HEAD_BYTES;
        let prefix = slots + if is_alike { 0 } else { count * slot_bytes(span) };
        let prefix_len = usize::from(u16_at(bytes, PREFIX_LEN));
        let entries = prefix + prefix_len;
        let fits = count > 0
            && used + received <= BLOCK_PAYLOAD_BYTES
            && entries <= end
            && joined_bytes(span) <= bytes.len();
        if !fits {
            return Err(damaged("its parts exceed its size"));
        }
        let wide_slots = span > 1;
        let layout = Self {
            count,
            heads,
            slots,
            wide_slots,
            prefix,
            prefix_len,
            entries,
            end,
            alike: None,
            overflow: passed,
        };
        if is_alike { layout.of_alike(bytes) } else { Ok(layout) }
    }

    /// Completes the layout of a span whose entries are alike: decodes their common word once.
    #[inline]
    fn of_alike(mut self, bytes: &[u8]) -> Result<Self> {
        let word = Word::read(&bytes[self.entries..self.end], self.prefix_len)?;
        self.entries += word.len;
        let all = self.end - self.entries;
        let alike = Alike { kind: word.kind, rest_len: word.rest_len, bytes: all / self.count };
        if alike.bytes * self.count != all || alike.bytes < word.tail_len() {
            return Err(damaged("its entries of equal size do not fill it exactly"));
        }
        self.alike = Some(alike);
        Ok(self)
    }

    /// Number of entries, at least one.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Length of the prefix that all keys share.
    #[inline]
    pub fn prefix_len(&self) -> usize {
        self.prefix_len
    }

    /// Number of blocks of the overflow of the last entry; 0 if it does not overflow.
    #[inline]
    pub fn overflow_blocks(&self) -> u32 {
        overflow::blocks_of(self.overflow)
    }

    /// End of the entries.
    #[cfg(test)]
    pub fn end(&self) -> usize {
        self.end
    }
}

/// The word before an entry: its kind and the length of its key.
struct Word {
    kind: EntryKind,
    rest_len: usize,
    /// Length of the encoded word.
    len: usize,
}

impl Word {
    /// Decodes the word at the front of `bytes`.
    #[inline]
    fn read(bytes: &[u8], prefix_len: usize) -> Result<Self> {
        let (word, len) = match bytes.first() {
            Some(byte) if *byte < 0x80 => (u64::from(*byte), 1),
            _ => get_varint(bytes).ok_or_else(|| damaged("an entry's length does not decode"))?,
        };
        let kind = match word & 3 {
            0 => EntryKind::Value,
            1 => EntryKind::Tombstone,
            2 => EntryKind::Large,
            _ => EntryKind::Compressed,
        };
        match usize::try_from(word >> 2) {
            Ok(rest_len) if rest_len + prefix_len <= KEY_BYTES_MAX => {
                Ok(Self { kind, rest_len, len })
            }
            _ => Err(damaged("a key is too long")),
        }
    }

    /// Number of key bytes stored in the entry.
    #[inline]
    fn tail_len(&self) -> usize {
        self.rest_len.saturating_sub(HEAD_BYTES)
    }
}

/// One entry in a span: positions within the joined bytes.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The key's bytes after the prefix.
    pub rest_len: usize,
    /// Start of the key's bytes after prefix and head.
    pub tail: usize,
    /// Start of the payload.
    pub payload: usize,
    /// End of the payload, or of the part of it that is in the block.
    pub end: usize,
    /// Bytes of the payload after the block.
    pub overflow: usize,
}

impl Entry {
    /// Fails if it has an inline value that is too large for a run.
    #[inline]
    pub fn check_value(&self) -> Result<()> {
        let is_large = self.end - self.payload + self.overflow >= LARGE_VALUE_BYTES_MIN;
        if is_large { Err(damaged("an inline value is too large")) } else { Ok(()) }
    }

    /// The update of an entry that does not overflow. Fails if it does, or as
    /// [`Entry::update_with`].
    #[inline]
    pub fn update<'a>(
        &self,
        bytes: &'a [u8],
        dictionary: Option<&'a Dictionary>,
    ) -> Result<Update<'a>> {
        if self.overflow > 0 {
            return Err(damaged("an entry goes on in blocks that its index entry does not name"));
        }
        self.update_with(&bytes[self.payload..self.end], dictionary)
    }

    /// The update of an entry with this payload, in a run with this dictionary. Fails if a
    /// reference to a large value does not decode, or a compressed value says to have no possible
    /// length, or has no dictionary.
    #[inline]
    pub fn update_with<'a>(
        &self,
        payload: &'a [u8],
        dictionary: Option<&'a Dictionary>,
    ) -> Result<Update<'a>> {
        match self.kind {
            EntryKind::Value => Ok(Update::Put(payload)),
            EntryKind::Compressed => {
                let missing = || damaged("a value is compressed in a run without a dictionary");
                let dictionary = dictionary.ok_or_else(missing)?;
                Compressed::new(payload, dictionary).map(Update::PutCompressed)
            }
            EntryKind::Tombstone if payload.is_empty() => Ok(Update::Delete),
            EntryKind::Tombstone => Err(damaged("a tombstone has a value")),
            EntryKind::Large => {
                let mut decoder = Decoder::new(payload, "a reference to a large value");
                let large = LargeRef::decode(&mut decoder)?;
                decoder.finish()?;
                Ok(Update::PutLarge(large))
            }
        }
    }
}
