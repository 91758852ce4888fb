//! The entries of a commit: a single one, or those of a batch in the order they were given.
//!
//! A batch stores its entries in one buffer:
//!
//! ```text
//! entry    varint  keyspace index << 1 | 1 if it has a value, 0 if it deletes
//!          varint  key length, bytes   key
//!          varint  value length, bytes   value         only if it has one
//! ```
//!
//! A commit decodes them each time that it needs them instead of making a list, so that a batch of
//! many small entries takes little more memory than its bytes.

use crate::base::codec::{get_varint, put_bytes, put_varint};
use crate::base::limits::{BATCH_ENTRY_BYTES, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::{LargeRef, Update};
use crate::memory::pages::PageBuffer;
use crate::write::record;

/// One entry as the user gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write<'a> {
    /// Index of the keyspace in the commit.
    pub keyspace: usize,
    pub key: &'a [u8],
    /// The value; `None` deletes the key.
    pub value: Option<&'a [u8]>,
}

impl<'a> Write<'a> {
    /// The update for the log and the memtable: a large value takes the next of the references made
    /// for large values, in order.
    pub fn update<'r>(&self, large: &mut impl Iterator<Item = &'r LargeRef>) -> Update<'a> {
        match self.value {
            None => Update::Delete,
            Some(value) if value.len() < LARGE_VALUE_BYTES_MIN => Update::Put(value),
            Some(_) => large.next().map_or(Update::Delete, |large| Update::PutLarge(*large)),
        }
    }
}

/// Bytes that a write counts against the limit of a batch, and as memory.
pub fn counted_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    let inline = value.map_or(0, <[u8]>::len);
    let inline = if inline < LARGE_VALUE_BYTES_MIN { inline } else { 0 };
    key.len() + inline + BATCH_ENTRY_BYTES
}

/// Total bytes of the values of `writes` that are stored in extents of their own.
pub fn large_bytes<'a>(writes: impl Writes<'a>) -> u64 {
    let values = writes.iter().filter_map(|write| write.value);
    let large = values.filter(|value| value.len() >= LARGE_VALUE_BYTES_MIN);
    large.map(|value| value.len() as u64).sum()
}

// So a record is never longer than the counted bytes of its writes, except for the entry count.
const _: () = assert!(record::FRAME_BYTES_MAX <= BATCH_ENTRY_BYTES);

/// The entries of a batch; the format is at the head of the file.
#[derive(Default)]
pub struct WriteList {
    bytes: PageBuffer,
    len: usize,
}

impl WriteList {
    /// Appends an entry.
    pub fn push(&mut self, write: Write<'_>) {
        let has_value = u64::from(write.value.is_some());
        put_varint(&mut self.bytes, (write.keyspace as u64) << 1 | has_value);
        put_bytes(&mut self.bytes, write.key);
        if let Some(value) = write.value {
            put_bytes(&mut self.bytes, value);
        }
        self.len += 1;
    }

    /// Removes all entries; a buffer of more than `capacity_max` bytes is freed.
    pub fn clear(&mut self, capacity_max: usize) {
        self.bytes.clear(capacity_max);
        self.len = 0;
    }

    /// The number of entries.
    pub fn count(&self) -> usize {
        self.len
    }
}

/// The entries of a commit, readable any number of times: a slice, or the entries of a batch.
pub trait Writes<'a>: Copy {
    /// The number of entries.
    fn len(self) -> usize;

    /// All entries, in order.
    fn iter(self) -> impl Iterator<Item = Write<'a>>;
}

impl<'a> Writes<'a> for &'a [Write<'a>] {
    #[inline]
    fn len(self) -> usize {
        <[_]>::len(self)
    }

    #[inline]
    fn iter(self) -> impl Iterator<Item = Write<'a>> {
        <[_]>::iter(self).copied()
    }
}

impl<'a> Writes<'a> for &'a WriteList {
    fn len(self) -> usize {
        self.len
    }

    fn iter(self) -> impl Iterator<Item = Write<'a>> {
        ListIter { rest: self.bytes.as_slice() }
    }
}

/// Iterator over the entries of a batch.
struct ListIter<'a> {
    rest: &'a [u8],
}

impl<'a> ListIter<'a> {
    fn number(&mut self) -> Option<usize> {
        let (number, bytes) = get_varint(self.rest)?;
        self.rest = &self.rest[bytes..];
        usize::try_from(number).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Decodes the next entry. The buffer is this process's own: it never ends within an entry.
    fn next_of_list(&mut self) -> Option<Write<'a>> {
        let tag = self.number()?;
        let key = self.bytes()?;
        let value = if tag & 1 == 1 { Some(self.bytes()?) } else { None };
        Some(Write { keyspace: tag >> 1, key, value })
    }
}

impl<'a> Iterator for ListIter<'a> {
    type Item = Write<'a>;

    fn next(&mut self) -> Option<Write<'a>> {
        if self.rest.is_empty() { None } else { self.next_of_list() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_gives_back_what_was_put_in_and_is_empty_once_cleared() {
        let long = vec![7; 100_000];
        let writes = [
            Write { keyspace: 0, key: b"", value: None },
            Write { keyspace: 1_000, key: b"key", value: Some(b"") },
            Write { keyspace: 3, key: &long[..60_000], value: Some(&long) },
            Write { keyspace: 0, key: b"key", value: None },
        ];
        let mut list = WriteList::default();
        for round in 1..=3 {
            writes.iter().for_each(|write| list.push(*write));
            assert_eq!(Writes::len(&list), writes.len(), "round {round}");
            let again = || Writes::iter(&list);
            assert!(again().eq(writes) && again().eq(writes), "round {round}");
            list.clear(if round == 1 { usize::MAX } else { 0 });
            assert_eq!((list.count(), Writes::iter(&list).next()), (0, None));
        }
    }
}
