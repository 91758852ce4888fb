//! Builds sorted blocks: collects entries until a span is full, then lays them out.
//!
//! The prefix that all keys of a span share is known only when the span is closed, so entries wait
//! as they came (they stay in the processor's cache) and are laid out once.
//!
//! ```text
//!   add -> Fits                        the entry is in
//!       -> Full, nothing changed       the caller lays the span out, clears, adds again
//! ```
//!
//! A span is one block unless an entry does not fit. Then it grows instead of being closed if
//! closing would leave more than an eighth of it unused, up to [`GROWN_BLOCKS_MAX`] blocks or twice
//! what the new entry takes alone: space against blocks per read.

use crate::base::codec::{put_varint, varint_len};
use crate::base::error::{Error, Result};
use crate::base::keys::head32;
use crate::base::limits::BLOCK_BYTES;
use crate::kernels::heads::HEAD_BYTES;
use crate::kernels::prefix::common_prefix;
use crate::run::block::{
    COUNT, EntryKind, HEADS, PART, PREFIX_LEN, PREFIX_LEN_MAX, SPAN, SPAN_BLOCKS_MAX, USED,
    joined_bytes, slot_bytes,
};
use crate::storage::block::{BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockKind};

/// A span of small entries does not grow beyond this to save space: a read of 16 KiB costs a third
/// more than one of 4 KiB, one of 64 KiB twice as much.
const GROWN_BLOCKS_MAX: usize = 6;

/// A span is closed when the unused part is at most one of so many.
const WASTE_DIVISOR: usize = 8;

/// The most entries of a span.
const ENTRIES_MAX: usize = u16::MAX as usize;

/// Whether an entry found room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// It is in.
    Fits,
    /// The span must be closed first.
    Full,
}

/// An entry that waits: where its key begins in `bytes`; the payload follows the key.
#[derive(Clone, Copy)]
struct Waiting {
    start: u32,
    key_len: u32,
    payload_len: u32,
    kind: EntryKind,
}

impl Waiting {
    fn key(self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.key_len as usize
    }

    fn payload(self) -> std::ops::Range<usize> {
        let start = self.key().end;
        start..start + self.payload_len as usize
    }
}

/// An entry that asks for room.
#[derive(Clone, Copy)]
struct Trial {
    /// The prefix that all keys share with it.
    prefix_len: usize,
    /// What all entries take with that prefix, heads and slots not counted.
    entry_bytes: usize,
    key_len: usize,
    payload_len: usize,
}

/// Entries of one span.
pub struct BlockBuilder {
    bytes: Vec<u8>,
    entries: Vec<Waiting>,
    prefix_len: usize,
    /// What the entries take when laid out with this prefix, heads and slots not counted.
    entry_bytes: usize,
    /// Entries a span must have before it may be called full.
    entries_min: usize,
    /// Joined bytes of a span of several blocks on their way out.
    joined: Vec<u8>,
    varint: Vec<u8>,
}

/// What one entry takes besides head and slot.
#[inline]
fn entry_size(prefix_len: usize, key_len: usize, payload_len: usize) -> usize {
    let rest = key_len - prefix_len;
    varint_len((rest as u64) << 2) + rest.saturating_sub(HEAD_BYTES) + payload_len
}

/// The blocks that `count` entries take, and the bytes used in them after the first header.
#[inline]
fn span_for(count: usize, prefix_len: usize, entry_bytes: usize) -> (usize, usize) {
    let fixed = prefix_len + entry_bytes + count * HEAD_BYTES;
    let single = fixed + count * slot_bytes(1);
    if single <= BLOCK_PAYLOAD_BYTES {
        return (1, single);
    }
    let several = fixed + count * slot_bytes(2);
    (several.div_ceil(BLOCK_PAYLOAD_BYTES).max(2), several)
}

impl BlockBuilder {
    /// An empty builder whose spans have at least `entries_min` entries (except the last).
    pub fn new(entries_min: usize) -> Self {
        Self {
            bytes: Vec::new(),
            entries: Vec::new(),
            prefix_len: 0,
            entry_bytes: 0,
            entries_min,
            joined: Vec::new(),
            varint: Vec::new(),
        }
    }

    /// The first key that waits.
    pub fn first_key(&self) -> Option<&[u8]> {
        self.entries.first().map(|entry| &self.bytes[entry.key()])
    }

    /// The last key that waits.
    #[inline]
    pub fn last_key(&self) -> Option<&[u8]> {
        self.entries.last().map(|entry| &self.bytes[entry.key()])
    }

    /// Heap bytes held.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.entries.capacity() * size_of::<Waiting>()
            + self.joined.capacity()
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.prefix_len = 0;
        self.entry_bytes = 0;
    }

    /// Takes an entry if there is room. Keys must ascend.
    #[inline]
    pub fn add(&mut self, key: &[u8], kind: EntryKind, payload: &[u8]) -> Result<Added> {
        let prefix_len = match self.first_key() {
            None => key.len().min(PREFIX_LEN_MAX),
            Some(first) => common_prefix(&first[..self.prefix_len], key),
        };
        let mut entry_bytes = self.entry_bytes;
        if prefix_len != self.prefix_len {
            entry_bytes = self.sizes_with(prefix_len);
        }
        entry_bytes += entry_size(prefix_len, key.len(), payload.len());
        let (key_len, payload_len) = (key.len(), payload.len());
        if !self.has_room(Trial { prefix_len, entry_bytes, key_len, payload_len }) {
            return Ok(Added::Full);
        }
        let too_large = || Error::internal("an entry of a run is beyond every limit");
        let start = u32::try_from(self.bytes.len()).map_err(|_| too_large())?;
        let key_len = u32::try_from(key.len()).map_err(|_| too_large())?;
        let payload_len = u32::try_from(payload.len()).map_err(|_| too_large())?;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(payload);
        self.entries.push(Waiting { start, key_len, payload_len, kind });
        self.prefix_len = prefix_len;
        self.entry_bytes = entry_bytes;
        Ok(Added::Fits)
    }

    /// What all waiting entries take with another prefix: happens a few times per span.
    #[cold]
    fn sizes_with(&self, prefix_len: usize) -> usize {
        let sizes = self.entries.iter().map(|entry| {
            entry_size(prefix_len, entry.key_len as usize, entry.payload_len as usize)
        });
        sizes.sum()
    }

    /// True if the span should take the entry on trial: it is one block with it, or should grow.
    #[inline]
    fn has_room(&self, trial: Trial) -> bool {
        let (blocks, _) = span_for(self.entries.len() + 1, trial.prefix_len, trial.entry_bytes);
        blocks == 1 || self.should_grow(trial)
    }

    /// The choice between growing a span and closing it before the new entry.
    fn should_grow(&self, trial: Trial) -> bool {
        let count = self.entries.len() + 1;
        if count <= self.entries_min.max(1) {
            return true;
        }
        let (blocks, grown) = span_for(count, trial.prefix_len, trial.entry_bytes);
        let (now, used) = span_for(self.entries.len(), self.prefix_len, self.entry_bytes);
        if blocks <= now {
            return count <= ENTRIES_MAX;
        }
        let room = now * BLOCK_PAYLOAD_BYTES;
        let own_prefix = trial.key_len.min(PREFIX_LEN_MAX);
        let own_size = entry_size(own_prefix, trial.key_len, trial.payload_len);
        let (alone, alone_used) = span_for(1, own_prefix, own_size);
        let wasteful = (room - used) * WASTE_DIVISOR > room;
        // A key unlike the others shortens the prefix: then growing may cost more than closing.
        let cheaper = grown <= room + alone_used;
        wasteful
            && cheaper
            && blocks <= GROWN_BLOCKS_MAX.max(2 * alone).min(SPAN_BLOCKS_MAX as usize)
            && count <= ENTRIES_MAX
    }

    /// How many blocks the waiting entries take.
    pub fn span(&self) -> Result<u32> {
        let (blocks, _) = span_for(self.entries.len(), self.prefix_len, self.entry_bytes);
        match u32::try_from(blocks) {
            Ok(span) if span <= SPAN_BLOCKS_MAX => Ok(span),
            _ => Err(Error::internal("a span of a run is beyond every limit")),
        }
    }

    /// Lays the waiting entries out and hands the blocks (zeroed, not sealed) to `put` in order.
    pub fn lay_out(
        &mut self,
        kind: BlockKind,
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let span = self.span()?;
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.resize(joined_bytes(span), 0);
        self.write_joined(kind, span, &mut joined)?;
        let result = put_blocks(&joined, span, put);
        self.joined = joined;
        result
    }

    fn write_joined(&mut self, kind: BlockKind, span: u32, out: &mut [u8]) -> Result<()> {
        let impossible = || Error::internal("a span of a run was sized wrongly");
        let count = self.entries.len();
        let slot_bytes = slot_bytes(span);
        let slots = HEADS + count * HEAD_BYTES;
        let prefix = slots + count * slot_bytes;
        let mut at = prefix + self.prefix_len;
        if let Some(first) = self.entries.first() {
            let start = first.start as usize;
            out[prefix..at].copy_from_slice(&self.bytes[start..start + self.prefix_len]);
        }
        for (index, entry) in self.entries.iter().enumerate() {
            let rest = &self.bytes[entry.key()][self.prefix_len..];
            let head = HEADS + index * HEAD_BYTES;
            out[head..head + HEAD_BYTES].copy_from_slice(&head32(rest).to_le_bytes());
            let slot = slots + index * slot_bytes;
            let place = u32::try_from(at).map_err(|_| impossible())?.to_le_bytes();
            out[slot..slot + slot_bytes].copy_from_slice(&place[..slot_bytes]);
            let word = (rest.len() as u64) << 2 | entry.kind as u64;
            match u8::try_from(word) {
                Ok(byte) if byte < 0x80 => {
                    out[at] = byte;
                    at += 1;
                }
                _ => {
                    self.varint.clear();
                    put_varint(&mut self.varint, word);
                    out[at..at + self.varint.len()].copy_from_slice(&self.varint);
                    at += self.varint.len();
                }
            }
            let tail = rest.get(HEAD_BYTES..).unwrap_or(&[]);
            out[at..at + tail.len()].copy_from_slice(tail);
            at += tail.len();
            let payload = &self.bytes[entry.payload()];
            out[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len();
        }
        let used = at.checked_sub(joined_bytes(span - 1)).ok_or_else(impossible)?;
        let number = |value: usize| u16::try_from(value).map_err(|_| impossible());
        out[8] = kind as u8;
        out[SPAN] = u8::try_from(span).map_err(|_| impossible())?;
        out[COUNT..COUNT + 2].copy_from_slice(&number(count)?.to_le_bytes());
        out[PREFIX_LEN..PREFIX_LEN + 2].copy_from_slice(&number(self.prefix_len)?.to_le_bytes());
        out[USED..USED + 2].copy_from_slice(&number(used)?.to_le_bytes());
        Ok(())
    }
}

/// Cuts joined bytes into blocks again, with a header before each further one.
fn put_blocks(joined: &[u8], span: u32, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    put(&joined[..BLOCK_BYTES])?;
    let mut block = [0; BLOCK_BYTES];
    block[8] = BlockKind::DataMore as u8;
    for part in 1..span {
        let start = BLOCK_BYTES + (part as usize - 1) * BLOCK_PAYLOAD_BYTES;
        block[PART] = u8::try_from(part).unwrap_or(u8::MAX);
        block[BLOCK_HEADER_BYTES..].copy_from_slice(&joined[start..start + BLOCK_PAYLOAD_BYTES]);
        put(&block)?;
    }
    Ok(())
}
