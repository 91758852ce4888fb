//! Newtypes for numbers: sequence numbers, log positions, blocks, generations, extents.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// The number of a committed write: the order of all writes of a database. The first is 1.
    SeqNo(u64)
}

impl SeqNo {
    /// Before the first write.
    pub const ZERO: SeqNo = SeqNo(0);
    /// After every write.
    pub const MAX: SeqNo = SeqNo(u64::MAX);

    /// The next number.
    #[must_use]
    pub fn next(self) -> SeqNo {
        SeqNo(self.0 + 1)
    }
}

id! {
    /// The number of a keyspace within its database; never reused.
    KeyspaceId(u32)
}

id! {
    /// A position in the log, in bytes since the log of this database began. Block headers and
    /// padding count, so a position is never reused, whichever segment holds it.
    Lsn(u64)
}

id! {
    /// The number of a block of the data file: its byte offset divided by the block size.
    BlockNo(u64)
}

id! {
    /// Distinguishes uses of the same extent: every allocation has a new generation. The upper 24
    /// bits count the opens of the database, the lower 40 the allocations since.
    Generation(u64)
}

/// A range of blocks of the data file: the unit of allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Extent {
    /// The first block.
    pub start: BlockNo,
    /// The number of blocks.
    pub blocks: u32,
}

impl Extent {
    /// The extent of `blocks` blocks from `start` on.
    #[must_use]
    pub fn new(start: u64, blocks: u32) -> Self {
        Self { start: BlockNo(start), blocks }
    }

    /// The block after the last one.
    #[must_use]
    pub fn end(self) -> BlockNo {
        BlockNo(self.start.0 + u64::from(self.blocks))
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        u64::from(self.blocks) * crate::base::limits::BLOCK_BYTES_U64
    }

    /// The byte offset of the extent in the data file.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.start.0 * crate::base::limits::BLOCK_BYTES_U64
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}..{})", self.start.0, self.end().0)
    }
}
