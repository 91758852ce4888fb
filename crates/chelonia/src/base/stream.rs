//! What flows between the parts: updates in key order.
//!
//! Memtables, runs and merges all speak [`SortedStream`]; none of them knows the others.

use crate::base::bytes::Value;
use crate::base::codec::{Decoder, Sink, put_varint};
use crate::base::error::Result;
use crate::base::ids::{Extent, Generation};

/// Where a large value lives: an extent of its own whose blocks carry `generation`.
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

    /// Reads what [`LargeRef::encode`] wrote.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let (start, blocks) = (decoder.varint()?, decoder.varint_u32()?);
        let generation = Generation(decoder.varint()?);
        let bytes = decoder.varint_u32()?;
        if start.checked_add(u64::from(blocks)).is_none() {
            return Err(decoder.damaged("an extent reaches past the end of numbers"));
        }
        Ok(Self { extent: Extent::new(start, blocks), generation, bytes })
    }
}

/// What a reference counts as where the bytes of entries are added up: about what it takes. The
/// sums are on disk, so this never changes.
const LARGE_REF_COUNTED_BYTES: usize = 24;

/// The most bytes of an encoded reference: two numbers of 64 bits and two of 32.
pub const LARGE_REF_BYTES_MAX: usize = 2 * 10 + 2 * 5;

/// What an entry says of its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update<'a> {
    /// The key has this value.
    Put(&'a [u8]),
    /// The key has a large value, kept elsewhere.
    PutLarge(LargeRef),
    /// The key is deleted: a tombstone.
    Delete,
}

impl Update<'_> {
    /// The bytes the user gave, as far as they are stored inline; a reference counts as 24.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        match self {
            Update::Put(value) => value.len(),
            Update::PutLarge(_) => LARGE_REF_COUNTED_BYTES,
            Update::Delete => 0,
        }
    }

    /// The reference to a large value.
    #[must_use]
    pub fn large(&self) -> Option<LargeRef> {
        match self {
            Update::PutLarge(large) => Some(*large),
            Update::Put(_) | Update::Delete => None,
        }
    }

    /// True for a tombstone.
    #[must_use]
    pub fn is_delete(&self) -> bool {
        matches!(self, Update::Delete)
    }
}

/// What a lookup found of a key that has a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The value.
    Value(Value),
    /// A large value, still to be read.
    Large(LargeRef),
}

/// Entries in key order (ascending or descending, as the stream was made), each key once.
///
/// A stream stands on an entry or at its end; it is made standing on the first one. After an error
/// from [`SortedStream::advance`] the stream must not be used any further.
pub trait SortedStream {
    /// The key it stands on; `None` at the end.
    fn key(&self) -> Option<&[u8]>;

    /// The entry it stands on. Must not be called at the end.
    fn update(&self) -> Update<'_>;

    /// Goes to the next entry.
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

/// A finished memtable as an engine sees it: updates in ascending key order, each key once, with
/// random access by rank, so that a tree can plan before it moves anything.
pub trait SortedUpdates: Send + Sync {
    /// How many there are.
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

    /// Hints that rank `index`, which was hinted at a while ago, is read next, all of it: how much
    /// that is can be seen by now. Out of range is fine.
    fn prefetch_rest(&self, index: usize);
}
