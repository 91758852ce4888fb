//! Sorted streams of updates, the interface between memtables, runs and merges.
//!
//! All of them implement [`SortedStream`] and none depends on another.

use crate::base::bytes::Value;
use crate::base::codec::{Decoder, Sink, put_varint};
use crate::base::error::Result;
use crate::base::ids::{Extent, Generation};

mod compressed;
mod dictionary;
mod zstd;

pub use compressed::{COMPRESSED_VALUE_BYTES_MIN, Compressed, NewValues};
pub use dictionary::{Codec, Dictionary, DictionaryId};
pub use zstd::train as train_zstd;

/// A reference to a large value: an extent of its own whose blocks carry `generation`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LargeRef {
    /// The blocks.
    pub extent: Extent,
    /// The generation the blocks were sealed with.
    pub generation: Generation,
    /// The value's length in bytes.
    pub bytes: u32,
}

impl LargeRef {
    /// Appends the reference: four varints.
    pub fn encode(&self, out: &mut impl Sink) {
        put_varint(out, self.extent.start.0);
        put_varint(out, u64::from(self.extent.blocks));
        put_varint(out, self.generation.0);
        put_varint(out, u64::from(self.bytes));
    }

    /// Decodes a reference written by [`LargeRef::encode`].
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let (start, blocks) = (decoder.varint()?, decoder.varint_u32()?);
        let generation = Generation(decoder.varint()?);
        let bytes = decoder.varint_u32()?;
        if start.checked_add(u64::from(blocks)).is_none() {
            return Err(decoder.damaged("extent end overflows"));
        }
        Ok(Self { extent: Extent::new(start, blocks), generation, bytes })
    }
}

/// The bytes that a reference counts where the bytes of entries are summed: about its encoded size.
/// The sums are on disk, so this never changes.
const LARGE_REF_COUNTED_BYTES: usize = 24;

/// The most bytes of an encoded reference: two numbers of 64 bits and two of 32.
pub const LARGE_REF_BYTES_MAX: usize = 2 * 10 + 2 * 5;

/// The update of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update<'a> {
    /// The key has this value.
    Put(&'a [u8]),
    /// The key has this value, compressed. Only streams of runs have such updates.
    PutCompressed(Compressed<'a>),
    /// The key has a large value, stored in an extent of its own.
    PutLarge(LargeRef),
    /// The key is deleted: a tombstone.
    Delete,
}

impl Update<'_> {
    /// The user's bytes that are inline, not compressed; a reference counts as 24.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        match self {
            Update::Put(value) => value.len(),
            Update::PutCompressed(value) => value.value_len(),
            Update::PutLarge(_) => LARGE_REF_COUNTED_BYTES,
            Update::Delete => 0,
        }
    }

    /// The reference to a large value.
    #[must_use]
    pub fn large(&self) -> Option<LargeRef> {
        match self {
            Update::PutLarge(large) => Some(*large),
            Update::Put(_) | Update::PutCompressed(_) | Update::Delete => None,
        }
    }

    /// True for a tombstone.
    #[must_use]
    pub fn is_delete(&self) -> bool {
        matches!(self, Update::Delete)
    }
}

/// The result of a lookup for a key that has a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The value.
    Value(Value),
    /// A large value, still to be read.
    Large(LargeRef),
}

/// A stream of entries in key order (ascending or descending, as created), each key once.
///
/// A stream is positioned on an entry or at its end; a new stream is on the first entry. After an
/// error from [`SortedStream::advance`] the stream must not be used any further.
pub trait SortedStream {
    /// The key of the current entry; `None` at the end.
    fn key(&self) -> Option<&[u8]>;

    /// The update of the current entry. Must not be called at the end.
    fn update(&self) -> Update<'_>;

    /// Moves to the next entry.
    fn advance(&mut self) -> Result<()>;
}

impl<S: SortedStream + ?Sized> SortedStream for Box<S> {
    fn key(&self) -> Option<&[u8]> {
        (**self).key()
    }

    fn update(&self) -> Update<'_> {
        (**self).update()
    }

    fn advance(&mut self) -> Result<()> {
        (**self).advance()
    }
}

/// An immutable memtable as engines see it: updates in ascending key order, each key once, with
/// random access by rank, so that a tree can plan before it moves anything.
pub trait SortedUpdates: Send + Sync {
    /// The number of updates.
    fn len(&self) -> usize;

    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of rank `index`.
    fn key(&self, index: usize) -> &[u8];

    /// The update of rank `index`.
    fn update(&self, index: usize) -> Update<'_>;

    /// Key and inline value bytes of the ranks below `index` (`index` up to and with `len`).
    fn bytes_before(&self, index: usize) -> u64;

    /// The rank of the first key that is not less than `key`.
    fn lower_bound(&self, key: &[u8]) -> usize;

    /// Hints that rank `index` is read soon; out of range is fine.
    fn prefetch(&self, index: usize);

    /// Hints that rank `index`, hinted before, is read next and completely: its length is known by
    /// now. Out of range is fine.
    fn prefetch_rest(&self, index: usize);
}
