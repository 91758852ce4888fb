//! The log record of a commit: all its entries, complete or not at all.
//!
//! ```text
//! record   varint  number of entries (at least 1)
//!          entry*
//! entry    varint  keyspace id << 2 | kind      kind: 0 put, 1 delete, 2 put of a large value
//!          varint  key length
//!          bytes   key
//!          put:          varint value length (below `LARGE_VALUE_BYTES_MIN`), bytes value
//!          large value:  reference (`crate::base::stream::LargeRef`)
//! ```
//!
//! Entries take consecutive seqnos in their order, so no number is stored: the log is a chain
//! without holes, and the superblock has the seqno at the position where replay begins.

use crate::base::codec::{Decoder, Sink, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::ids::KeyspaceId;
use crate::base::limits::{BATCH_BYTES_MAX, KEY_BYTES_MAX, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::{LARGE_REF_BYTES_MAX, LargeRef, Update};

const KIND_PUT: u64 = 0;
const KIND_DELETE: u64 = 1;
const KIND_LARGE: u64 = 2;

/// Starts a record of `entries` entries in `out`, which is empty.
pub fn begin(out: &mut impl Sink, entries: usize) {
    put_varint(out, entries as u64);
}

/// Appends one entry.
pub fn push(out: &mut impl Sink, keyspace: KeyspaceId, key: &[u8], update: Update<'_>) {
    let kind = match update {
        Update::Put(_) => KIND_PUT,
        Update::PutCompressed(_) => unreachable!("only streams of runs have compressed values"),
        Update::Delete => KIND_DELETE,
        Update::PutLarge(_) => KIND_LARGE,
    };
    put_varint(out, u64::from(keyspace.0) << 2 | kind);
    put_bytes(out, key);
    match update {
        Update::Put(value) => put_bytes(out, value),
        Update::PutCompressed(_) | Update::Delete => {}
        Update::PutLarge(large) => large.encode(out),
    }
}

/// Most bytes that an entry takes in a record beside its key and its value: the keyspace with the
/// kind, the key's length, and the value's length or a reference.
pub const FRAME_BYTES_MAX: usize = 5 + 3 + LARGE_REF_BYTES_MAX;

const _: () = assert!(KEY_BYTES_MAX < 1 << 21, "its length takes at most three bytes");
const _: () = assert!(LARGE_VALUE_BYTES_MIN < 1 << 21, "so do shorter values'");

/// One entry of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The keyspace that it belongs to.
    pub keyspace: KeyspaceId,
    /// Its key.
    pub key: &'a [u8],
    /// The update of the key: a put, a delete or a reference to a large value.
    pub update: Update<'a>,
}

/// The entries of a record, validated as they are read.
pub struct Entries<'a> {
    decoder: Decoder<'a>,
    left: usize,
}

impl<'a> Entries<'a> {
    /// Reads the record in `payload`.
    pub fn new(payload: &'a [u8]) -> Result<Self> {
        let mut decoder = Decoder::new(payload, "log record");
        let left = decoder.length(BATCH_BYTES_MAX)?;
        if left == 0 {
            return Err(decoder.damaged("no entries"));
        }
        Ok(Self { decoder, left })
    }

    /// The number of entries not yet read.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// The next entry.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'a>>> {
        if self.left == 0 {
            self.decoder.finish()?;
            return Ok(None);
        }
        self.left -= 1;
        let tag = self.decoder.varint()?;
        let Ok(id) = u32::try_from(tag >> 2) else {
            return Err(self.decoder.damaged("a keyspace number is too large"));
        };
        let key = self.decoder.bytes(KEY_BYTES_MAX)?;
        let update = match tag & 3 {
            KIND_PUT => Update::Put(self.decoder.bytes(LARGE_VALUE_BYTES_MIN - 1)?),
            KIND_DELETE => Update::Delete,
            KIND_LARGE => Update::PutLarge(LargeRef::decode(&mut self.decoder)?),
            _ => return Err(self.decoder.damaged("an entry has an unknown kind")),
        };
        Ok(Some(Entry { keyspace: KeyspaceId(id), key, update }))
    }
}

/// Decodes a record of the log. For tests.
#[cfg(feature = "internals")]
pub fn decode_record(bytes: &[u8]) -> Result<()> {
    let mut entries = Entries::new(bytes)?;
    while entries.next_entry()?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Extent, Generation};
    use crate::runtime::rng::Rng;

    #[test]
    fn records_come_back_and_garbage_does_not_panic() {
        let large =
            LargeRef { extent: Extent::new(7, 9), generation: Generation(3), bytes: 40_000 };
        let entries = [
            (KeyspaceId(0), &b""[..], Update::Put(b"")),
            (KeyspaceId(3), b"key", Update::Delete),
            (KeyspaceId(u32::MAX), b"other", Update::PutLarge(large)),
            (KeyspaceId(1), b"last", Update::Put(&[9; 5000])),
        ];
        let mut payload = Vec::new();
        begin(&mut payload, entries.len());
        for (keyspace, key, update) in entries {
            let before = payload.len();
            push(&mut payload, keyspace, key, update);
            let value_bytes = match update {
                Update::Put(value) => value.len(),
                Update::PutCompressed(_) | Update::PutLarge(_) | Update::Delete => 0,
            };
            let framed = payload.len() - before;
            assert!(framed <= key.len() + value_bytes + FRAME_BYTES_MAX);
        }
        let mut read = Entries::new(&payload).unwrap();
        for (keyspace, key, update) in entries {
            assert_eq!(read.next_entry().unwrap(), Some(Entry { keyspace, key, update }));
        }
        assert_eq!(read.next_entry().unwrap(), None);

        let mut rng = Rng::new(1);
        for _ in 0..2_000 {
            let mut damaged = payload.clone();
            let place = usize::try_from(rng.below(damaged.len() as u64)).unwrap();
            damaged[place] = rng.next_u64().to_le_bytes()[0];
            damaged.truncate(damaged.len() - usize::try_from(rng.below(20)).unwrap());
            if let Ok(mut read) = Entries::new(&damaged) {
                while let Ok(Some(_)) = read.next_entry() {}
            }
        }
    }

    #[test]
    fn inline_values_are_decoded_up_to_what_a_memtable_takes_and_no_further() {
        for (bytes, fits) in [(LARGE_VALUE_BYTES_MIN - 1, true), (LARGE_VALUE_BYTES_MIN, false)] {
            let value = vec![7; bytes];
            let mut payload = Vec::new();
            begin(&mut payload, 1);
            push(&mut payload, KeyspaceId(1), b"key", Update::Put(&value));
            let entry = Entries::new(&payload).unwrap().next_entry();
            assert_eq!(entry.is_ok(), fits, "{bytes} bytes");
        }
    }
}
