//! Builds sorted blocks: collects entries until a span is full, then lays them out.
//!
//! The prefix that all keys of a span share is known only when the span is closed, so entries are
//! collected unformatted (they stay in the processor's cache) and laid out once.
//!
//! ```text
//!   add -> Fits                        the entry was added
//!       -> Overflows                   it was added; the caller lays the span out, and clears
//!       -> Full, nothing changed       the caller lays the span out, clears, adds again
//! ```
//!
//! A span is one block. If an entry does not fit, its payload overflows (`run/block/overflow.rs`)
//! if closing the block before it would leave more than an eighth unused, or if the entry would
//! take as many blocks without the rest of this one. Index blocks and pages have no overflows, and
//! keys are complete: where these do not fit, the span grows instead of being closed if closing
//! would leave more than an eighth of it unused, up to [`GROWN_BLOCKS_MAX`] blocks or twice the
//! size of the new entry alone. This trades space against blocks per read.

use crate::base::codec::{put_varint, varint_len};
use crate::base::error::{Error, Result};
use crate::base::keys::head32;
use crate::base::limits::BLOCK_BYTES;
use crate::kernels::heads::HEAD_BYTES;
use crate::kernels::prefix::common_prefix;
use crate::run::block::overflow::{EXTENSION_BYTES, PASSED, RECEIVED, blocks_of};
use crate::run::block::{
    ALIKE, COUNT, EXTENDED, EntryKind, HEADS, PART, PREFIX_LEN, PREFIX_LEN_MAX, SPAN,
    SPAN_BLOCKS_MAX, USED, joined_bytes, slot_bytes,
};
use crate::storage::block::{BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockKind};

/// A span of small entries does not grow beyond this to save space: a read of 16 KiB costs a third
/// more than one of 4 KiB, one of 64 KiB twice as much.
const GROWN_BLOCKS_MAX: usize = 6;

/// A span is closed when its unused part is at most this fraction (1/8).
const WASTE_DIVISOR: usize = 8;

/// Maximum number of entries of a span.
const ENTRIES_MAX: usize = u16::MAX as usize;

/// Result of adding an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// The entry was added.
    Fits,
    /// The entry was added, and the span is complete: it goes on in the blocks behind.
    Overflows,
    /// The span must be closed first.
    Full,
}

/// A collected entry: the start of its key in `bytes`; the payload follows the key.
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

/// Sizes of entries when laid out.
#[derive(Clone, Copy, Default)]
struct Sizes {
    count: usize,
    /// The prefix that all keys share.
    prefix_len: usize,
    /// Keys after the prefix, payloads, and length fields; without heads and slots.
    entry_bytes: usize,
    /// If all entries are alike, the size of the length field of each.
    word: Option<usize>,
}

impl Sizes {
    /// Sizes of a single entry.
    fn of_one(key_len: usize, payload_len: usize) -> Self {
        let prefix_len = key_len.min(PREFIX_LEN_MAX);
        let entry_bytes = entry_size(prefix_len, key_len, payload_len);
        Self { count: 1, prefix_len, entry_bytes, word: Some(word_size(prefix_len, key_len)) }
    }

    /// Number of blocks of the span, and the bytes used in them after the first header.
    #[inline]
    fn span(&self) -> (usize, usize) {
        let fixed = self.prefix_len + self.entry_bytes + self.count * HEAD_BYTES;
        let (single, several) = match self.word {
            Some(word) => {
                let bytes = fixed - self.count.saturating_sub(1) * word;
                (bytes, bytes)
            }
            None => (fixed + self.count * slot_bytes(1), fixed + self.count * slot_bytes(2)),
        };
        if single <= BLOCK_PAYLOAD_BYTES {
            return (1, single);
        }
        (several.div_ceil(BLOCK_PAYLOAD_BYTES).max(2), several)
    }

    /// The bytes used in a block of entries that are not stored as alike.
    fn unlike(&self) -> usize {
        self.prefix_len + self.entry_bytes + self.count * (HEAD_BYTES + slot_bytes(1))
    }
}

/// Collects and lays out the entries of one span.
pub struct BlockBuilder {
    bytes: Vec<u8>,
    entries: Vec<Waiting>,
    /// Their sizes.
    sizes: Sizes,
    /// Minimum number of entries before the span may be full.
    entries_min: usize,
    /// True if payloads may overflow.
    overflows: bool,
    /// Bytes of the last entry that overflow.
    passed: usize,
    /// The end of the overflow before, for the end of the open block, and its distance from the
    /// head of its entry.
    received: Vec<u8>,
    part: usize,
    /// Buffer for the joined bytes of a span of several blocks.
    joined: Vec<u8>,
    varint: Vec<u8>,
}

/// Size of the length field of an entry.
#[inline]
fn word_size(prefix_len: usize, key_len: usize) -> usize {
    varint_len(((key_len - prefix_len) as u64) << 2)
}

/// Size of one entry without head and slot.
#[inline]
fn entry_size(prefix_len: usize, key_len: usize, payload_len: usize) -> usize {
    let rest = key_len - prefix_len;
    word_size(prefix_len, key_len) + rest.saturating_sub(HEAD_BYTES) + payload_len
}

impl BlockBuilder {
    /// Creates an empty builder whose spans have at least `entries_min` entries (except the last).
    pub fn new(entries_min: usize) -> Self {
        Self {
            bytes: Vec::new(),
            entries: Vec::new(),
            sizes: Sizes::default(),
            entries_min,
            overflows: false,
            passed: 0,
            received: Vec::new(),
            part: 0,
            joined: Vec::new(),
            varint: Vec::new(),
        }
    }

    /// Creates an empty builder for entries of a run, which may overflow.
    pub fn with_overflows() -> Self {
        Self { overflows: true, ..Self::new(1) }
    }

    /// The first collected key.
    pub fn first_key(&self) -> Option<&[u8]> {
        self.entries.first().map(|entry| &self.bytes[entry.key()])
    }

    /// The last collected key.
    #[inline]
    pub fn last_key(&self) -> Option<&[u8]> {
        self.entries.last().map(|entry| &self.bytes[entry.key()])
    }

    /// The last collected key, and the one before it, if the last entry overflows behind others:
    /// the index has an entry of its own for it.
    pub fn overflowing(&self) -> Option<(&[u8], &[u8])> {
        match &self.entries[..] {
            [.., before, last] if self.passed > 0 => {
                Some((&self.bytes[before.key()], &self.bytes[last.key()]))
            }
            _ => None,
        }
    }

    /// Number of blocks of the overflow of the last entry.
    pub fn overflow_blocks(&self) -> u32 {
        blocks_of(self.passed)
    }

    /// Heap bytes held.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.entries.capacity() * size_of::<Waiting>()
            + self.joined.capacity()
            + self.received.capacity()
    }

    /// Removes all entries. The end of an overflow stays, for the next block.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.sizes = Sizes::default();
        self.passed = 0;
    }

    /// Removes the end of an overflow too.
    pub fn reset(&mut self) {
        self.clear();
        self.received.clear();
    }

    /// Adds an entry if there is space. Keys must ascend.
    #[inline]
    pub fn add(&mut self, key: &[u8], kind: EntryKind, payload: &[u8]) -> Result<Added> {
        debug_assert_eq!(self.passed, 0, "nothing comes after an overflow in a block");
        let mut sizes = self.sizes_with(key, kind, payload.len());
        if self.has_space(sizes, key.len(), payload.len()) {
            return self.push(sizes, key, kind, payload).map(|()| Added::Fits);
        }
        let Some(passed) = self.overflow_of(sizes, key.len(), payload.len()) else {
            return Ok(Added::Full);
        };
        sizes.word = None;
        self.passed = passed;
        self.push(sizes, key, kind, payload).map(|()| Added::Overflows)
    }

    /// Adds an entry if the span then takes at most `blocks` blocks, and `bytes_max` bytes in them.
    /// Keys must ascend.
    pub fn add_within(
        &mut self,
        (blocks, bytes_max): (usize, usize),
        key: &[u8],
        kind: EntryKind,
        payload: &[u8],
    ) -> Result<Added> {
        let sizes = self.sizes_with(key, kind, payload.len());
        let (grown, bytes) = sizes.span();
        if grown > blocks || bytes > bytes_max || sizes.count > ENTRIES_MAX {
            return Ok(Added::Full);
        }
        self.push(sizes, key, kind, payload).map(|()| Added::Fits)
    }

    /// Number of blocks of a span of this one entry.
    #[must_use]
    pub fn blocks_alone(key_len: usize, payload_len: usize) -> usize {
        Sizes::of_one(key_len, payload_len).span().0
    }

    /// Number of bytes of the collected entries when laid out, without headers.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        if self.entries.is_empty() { 0 } else { self.sizes.span().1 }
    }

    /// True if nothing was collected, nor is the end of an overflow left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.received.is_empty()
    }

    #[inline]
    fn push(&mut self, sizes: Sizes, key: &[u8], kind: EntryKind, payload: &[u8]) -> Result<()> {
        let too_large = || Error::internal("an entry of a run exceeds its size limit");
        let start = u32::try_from(self.bytes.len()).map_err(|_| too_large())?;
        let key_len = u32::try_from(key.len()).map_err(|_| too_large())?;
        let payload_len = u32::try_from(payload.len()).map_err(|_| too_large())?;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(payload);
        self.entries.push(Waiting { start, key_len, payload_len, kind });
        self.sizes = sizes;
        Ok(())
    }

    /// The sizes with one more entry.
    #[inline]
    fn sizes_with(&self, key: &[u8], kind: EntryKind, payload_len: usize) -> Sizes {
        let Some(first) = self.entries.first() else {
            let sizes = Sizes::of_one(key.len(), payload_len);
            return if self.received.is_empty() { sizes } else { Sizes { word: None, ..sizes } };
        };
        let before = self.sizes;
        let prefix_len = common_prefix(&self.bytes[first.key()][..before.prefix_len], key);
        let entry_bytes = if prefix_len == before.prefix_len {
            before.entry_bytes
        } else {
            self.bytes_with(prefix_len)
        };
        let alike = before.word.is_some()
            && first.key_len as usize == key.len()
            && first.payload_len as usize == payload_len
            && first.kind == kind;
        Sizes {
            count: before.count + 1,
            prefix_len,
            entry_bytes: entry_bytes + entry_size(prefix_len, key.len(), payload_len),
            word: alike.then(|| word_size(prefix_len, key.len())),
        }
    }

    /// The size of all collected entries with another prefix; called a few times per span.
    #[cold]
    fn bytes_with(&self, prefix_len: usize) -> usize {
        let sizes = self.entries.iter().map(|entry| {
            entry_size(prefix_len, entry.key_len as usize, entry.payload_len as usize)
        });
        sizes.sum()
    }

    /// True if the span should take an entry that makes its sizes `grown`: it then fits one block,
    /// or should grow.
    #[inline]
    fn has_space(&self, grown: Sizes, key_len: usize, payload_len: usize) -> bool {
        let (blocks, bytes) = grown.span();
        if blocks == 1 && bytes <= self.room() {
            return true;
        }
        // In a run values overflow: a span grows only where a key does not fit.
        let may_grow = self.received.is_empty()
            && (!self.overflows || grown.unlike() - payload_len >= self.room_of_overflowing());
        may_grow && self.should_grow(grown, key_len, payload_len)
    }

    /// The bytes that entries may use of the open block.
    #[inline]
    fn room(&self) -> usize {
        match self.received.len() {
            0 => BLOCK_PAYLOAD_BYTES,
            received => BLOCK_PAYLOAD_BYTES.saturating_sub(EXTENSION_BYTES + received),
        }
    }

    /// The bytes that entries may use of the open block if the last one overflows.
    fn room_of_overflowing(&self) -> usize {
        BLOCK_PAYLOAD_BYTES.saturating_sub(EXTENSION_BYTES + self.received.len())
    }

    /// The bytes of a new entry after the block, if it should overflow; it makes the sizes `grown`.
    fn overflow_of(&self, grown: Sizes, key_len: usize, payload_len: usize) -> Option<usize> {
        let (blocks, used) = if self.entries.is_empty() { (1, 0) } else { self.sizes.span() };
        let (whole, room) = (grown.unlike(), self.room_of_overflowing());
        let is_possible = self.overflows
            && blocks == 1
            && whole - payload_len < room
            && grown.count <= ENTRIES_MAX;
        if !is_possible {
            return None;
        }
        let passed = whole.checked_sub(room)?;
        let is_wasteful = self.room().saturating_sub(used) * WASTE_DIVISOR > BLOCK_PAYLOAD_BYTES;
        let alone = Sizes::of_one(key_len, payload_len).unlike();
        let alone = if alone > BLOCK_PAYLOAD_BYTES { alone + EXTENSION_BYTES } else { alone };
        let blocks = 1 + blocks_of(passed);
        let is_cheap = blocks <= blocks_of(alone);
        (is_wasteful || is_cheap).then_some(passed)
    }

    /// Decides between growing a span and closing it before the new entry.
    fn should_grow(&self, grown: Sizes, key_len: usize, payload_len: usize) -> bool {
        let count = grown.count;
        if count <= self.entries_min.max(1) {
            return true;
        }
        let (blocks, grown) = grown.span();
        let (now, used) = self.sizes.span();
        if blocks <= now {
            return count <= ENTRIES_MAX;
        }
        let room = now * BLOCK_PAYLOAD_BYTES;
        let (alone, alone_used) = Sizes::of_one(key_len, payload_len).span();
        let wasteful = room.saturating_sub(used) * WASTE_DIVISOR > room;
        // A dissimilar key shortens the prefix: then growing may cost more than closing.
        let cheaper = grown <= room + alone_used;
        wasteful
            && cheaper
            && blocks <= GROWN_BLOCKS_MAX.max(2 * alone).min(SPAN_BLOCKS_MAX as usize)
            && count <= ENTRIES_MAX
    }

    /// Number of blocks of the collected entries, without an overflow.
    pub fn span(&self) -> Result<u32> {
        let blocks = if self.passed > 0 { 1 } else { self.sizes.span().0 };
        match u32::try_from(blocks) {
            Ok(span) if span <= SPAN_BLOCKS_MAX => Ok(span),
            _ => Err(Error::internal("a span of a run exceeds its block limit")),
        }
    }

    /// Lays out the collected entries and passes the blocks (zeroed, not sealed) to `put` in order;
    /// without entries, the end of an overflow.
    pub fn lay_out(
        &mut self,
        kind: BlockKind,
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.entries.is_empty() && !self.received.is_empty() {
            put(&overflow_block(self.part, &self.received))?;
            self.received.clear();
            return Ok(());
        }
        let span = self.span()?;
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.resize(joined_bytes(span), 0);
        self.write_joined(kind, span, &mut joined)?;
        let result = put_blocks(&joined, span, put);
        self.joined = joined;
        self.received.clear();
        result.and_then(|()| self.put_overflow(put))
    }

    /// Passes the full blocks of the last entry's overflow to `put`, and keeps its end.
    fn put_overflow(&mut self, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Some(last) = self.entries.last().filter(|_| self.passed > 0) else { return Ok(()) };
        let payload = &self.bytes[last.payload()];
        let parts = payload[payload.len() - self.passed..].chunks(BLOCK_PAYLOAD_BYTES);
        for (part, bytes) in (1..).zip(parts) {
            if bytes.len() == BLOCK_PAYLOAD_BYTES {
                put(&overflow_block(part, bytes))?;
            } else {
                self.received.extend_from_slice(bytes);
                self.part = part;
            }
        }
        Ok(())
    }

    fn write_joined(&mut self, kind: BlockKind, span: u32, out: &mut [u8]) -> Result<()> {
        let impossible =
            || Error::internal("the computed size of a span does not match its content");
        let count = self.entries.len();
        let prefix_len = self.sizes.prefix_len;
        let alike = self.sizes.word.is_some();
        let slot_bytes = if alike { 0 } else { slot_bytes(span) };
        let is_extended = self.passed > 0 || !self.received.is_empty();
        let heads = HEADS + if is_extended { EXTENSION_BYTES } else { 0 };
        let slots = heads + count * HEAD_BYTES;
        let prefix = slots + count * slot_bytes;
        let mut at = prefix + prefix_len;
        if let Some(first) = self.entries.first() {
            let start = first.start as usize;
            out[prefix..at].copy_from_slice(&self.bytes[start..start + prefix_len]);
        }
        for (index, entry) in self.entries.iter().enumerate() {
            let rest = &self.bytes[entry.key()][prefix_len..];
            let head = heads + index * HEAD_BYTES;
            out[head..head + HEAD_BYTES].copy_from_slice(&head32(rest).to_le_bytes());
            let slot = slots + index * slot_bytes;
            let place = u32::try_from(at).map_err(|_| impossible())?.to_le_bytes();
            out[slot..slot + slot_bytes].copy_from_slice(&place[..slot_bytes]);
            if index == 0 || !alike {
                self.varint.clear();
                put_varint(&mut self.varint, (rest.len() as u64) << 2 | entry.kind as u64);
                out[at..at + self.varint.len()].copy_from_slice(&self.varint);
                at += self.varint.len();
            }
            let tail = rest.get(HEAD_BYTES..).unwrap_or(&[]);
            out[at..at + tail.len()].copy_from_slice(tail);
            at += tail.len();
            let mut payload = &self.bytes[entry.payload()];
            if index + 1 == count {
                payload = &payload[..payload.len() - self.passed];
            }
            out[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len();
        }
        let used = at.checked_sub(joined_bytes(span - 1)).ok_or_else(impossible)?;
        let number = |value: usize| u16::try_from(value).map_err(|_| impossible());
        out[8] = kind as u8;
        out[SPAN] = u8::try_from(span).map_err(|_| impossible())? | if alike { ALIKE } else { 0 };
        if is_extended {
            out[SPAN] |= EXTENDED;
            out[RECEIVED..RECEIVED + 2]
                .copy_from_slice(&number(self.received.len())?.to_le_bytes());
            let passed = u32::try_from(self.passed).map_err(|_| impossible())?;
            out[PASSED..PASSED + 4].copy_from_slice(&passed.to_le_bytes());
            out[BLOCK_BYTES - self.received.len()..BLOCK_BYTES].copy_from_slice(&self.received);
        }
        out[COUNT..COUNT + 2].copy_from_slice(&number(count)?.to_le_bytes());
        out[PREFIX_LEN..PREFIX_LEN + 2].copy_from_slice(&number(prefix_len)?.to_le_bytes());
        out[USED..USED + 2].copy_from_slice(&number(used)?.to_le_bytes());
        Ok(())
    }
}

/// A block that has nothing but `bytes` of the overflow of the entry `part` blocks before.
fn overflow_block(part: usize, bytes: &[u8]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[8] = BlockKind::DataOverflow as u8;
    block[PART] = u8::try_from(part).unwrap_or(u8::MAX);
    let received = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    block[USED..USED + 2].copy_from_slice(&received.to_le_bytes());
    block[BLOCK_BYTES - bytes.len()..].copy_from_slice(bytes);
    block
}

/// Splits joined bytes into blocks, with a header before each further one.
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
