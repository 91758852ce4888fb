//! Step 2 of a commit: its log record, in a buffer that costs the next commit nothing.

use crate::base::codec::Sink;
use crate::base::ids::SeqNo;
use crate::base::stream::LargeRef;
use crate::log::{FIRST_SEQNO_BYTES, Numbers};
use crate::memory::budget::{Budget, Charge, Use};
use crate::memory::pages::PageBuffer;
use crate::runtime::sync::{Arc, thread_local};
use crate::state::keyspace::KeyspaceCore;
use crate::write::record;
use crate::write::writes::Writes;
use std::cell::Cell;

thread_local! {
    /// The record under construction, reused so that a commit allocates nothing.
    static RECORD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A commit that counts more bytes than this has a record buffer of its own, which is charged to
/// the budget while it exists.
pub const RECORD_BYTES_KEPT: u64 = 64 << 10;

/// The front of a record, before its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// None: the database has one log.
    Empty,
    /// Space for the first seqno, known when the record gets its place.
    Seqno,
}

impl Front {
    #[inline]
    fn begin(self, out: &mut impl Sink) {
        if self == Front::Seqno {
            out.put(&[0; FIRST_SEQNO_BYTES]);
        }
    }
}

/// The log record of a commit.
pub enum Payload {
    Small(Vec<u8>),
    /// In pages of its own.
    Large {
        bytes: PageBuffer,
        _charge: Charge,
    },
}

impl Payload {
    /// Encodes a record of at most about [`RECORD_BYTES_KEPT`] into this thread's buffer.
    pub fn small<'a>(
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        large: &[LargeRef],
        front: Front,
    ) -> Self {
        // Thread-local memory is gone when destructors of an ending thread commit something.
        let mut bytes = RECORD.try_with(Cell::take).unwrap_or_default();
        bytes.clear();
        front.begin(&mut bytes);
        encode(&mut bytes, keyspaces, writes, large);
        Payload::Small(bytes)
    }

    /// Encodes a larger record.
    pub fn large<'a>(
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        large: &[LargeRef],
        front: Front,
        budget: &Arc<Budget>,
    ) -> Self {
        let mut bytes = PageBuffer::new();
        front.begin(&mut bytes);
        encode(&mut bytes, keyspaces, writes, large);
        let _charge = budget.charge(Use::Log, bytes.capacity() as u64);
        Payload::Large { bytes, _charge }
    }

    /// The record; empty after [`Payload::free_large`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::Small(bytes) => bytes,
            Payload::Large { bytes, .. } => bytes.as_slice(),
        }
    }

    /// Writes the first seqno at the front of the record.
    #[inline]
    pub fn number(&mut self, first: SeqNo) {
        let front = Numbers::front(first);
        match self {
            Payload::Small(bytes) => bytes[..FIRST_SEQNO_BYTES].copy_from_slice(&front),
            Payload::Large { bytes, .. } => bytes.overwrite_front(&front),
        }
    }

    /// Frees a large record once it is in the log.
    #[inline]
    pub fn free_large(&mut self) {
        if matches!(self, Payload::Large { .. }) {
            *self = Payload::Small(Vec::new());
        }
    }

    /// Ends the use; this thread's next commit reuses the buffer of a small record.
    #[inline]
    pub fn finish(self) {
        if let Payload::Small(bytes) = self
            && bytes.capacity() > 0
        {
            let _ = RECORD.try_with(|record| record.set(bytes));
        }
    }
}

fn encode<'a>(
    payload: &mut impl Sink,
    keyspaces: &[&Arc<KeyspaceCore>],
    writes: impl Writes<'a>,
    large: &[LargeRef],
) {
    record::begin(payload, writes.len());
    let mut large = large.iter();
    for write in writes.iter() {
        let update = write.update(&mut large);
        record::push(payload, keyspaces[write.keyspace].id, write.key, update);
    }
}
