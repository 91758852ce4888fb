//! The purposes of memory: the rows of the memory statistics.

use crate::memory::split::Side;

/// The purpose of memory: the rows of the memory statistics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Use {
    /// Memtables: entries and their index.
    Memtable,
    /// Cached blocks of runs: data, indexes, filters.
    Cache,
    /// Cached records.
    Records,
    /// Merge buffers, pages in flight, sorted views of memtables.
    Work,
    /// Windows of open cursors; in the statistics a part of the row of work.
    Scans,
    /// Tree nodes, slot arrays, open runs and other bookkeeping on the heap.
    Metadata,
    /// Mapped log segments and log buffers.
    Log,
    /// Reads and writes of open transactions; in the statistics a part of the row of work.
    Transactions,
}

/// The number of [`Use`]s.
pub const USES: usize = 8;

impl Use {
    /// All of them, in the order of the statistics.
    pub const ALL: [Use; USES] = [
        Use::Memtable,
        Use::Cache,
        Use::Records,
        Use::Work,
        Use::Scans,
        Use::Metadata,
        Use::Log,
        Use::Transactions,
    ];

    /// The side of the read memory, if the purpose is one.
    pub(super) fn side(self) -> Option<Side> {
        match self {
            Use::Cache => Some(Side::Blocks),
            Use::Records => Some(Side::Records),
            Use::Memtable
            | Use::Work
            | Use::Scans
            | Use::Metadata
            | Use::Log
            | Use::Transactions => None,
        }
    }
}
