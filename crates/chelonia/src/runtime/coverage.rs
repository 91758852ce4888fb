//! Rare cases, and whether they were ever reached: a test that never comes by a case says nothing
//! of it.
//!
//! A [`mark`] stands where something happens that tests could miss. With the feature `internals` it
//! is counted, and `chelonia-torture` tells which marks a run has not met; without, it is nothing.

/// Declares the cases.
macro_rules! marks {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// A rare case. What it is stands where it is marked; here it is said in a word.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Mark {
            $($(#[$about])* $name,)*
        }

        #[cfg(feature = "internals")]
        impl Mark {
            /// All of them.
            pub const ALL: &[Mark] = &[$(Mark::$name,)*];

            /// The one of this name, as `Debug` writes it.
            pub fn named(name: &str) -> Option<Mark> {
                match name {
                    $(stringify!($name) => Some(Mark::$name),)*
                    _ => None,
                }
            }
        }
    };
}

marks! {
    /// Recovery went on in a segment that another recovery began.
    LogWentOnElsewhere,
    /// The log ended before a record whose large value is not there.
    LogCutAtLargeValue,
    /// A recovery replaced the empty segment that the one before had made.
    LogEmptySegmentReplaced,
    /// A file of the log without room for a block was removed.
    LogStrayRemoved,
    /// Two segments claimed the same blocks.
    LogClaimsOverlapped,
    /// A commit had to make a segment itself.
    LogSegmentMadeByCommit,
    /// Free segments were too small and were removed.
    LogSegmentsOutgrown,
    /// A segment could not be made.
    LogSegmentNotMade,
    /// The device had no space for a segment of the usual size.
    LogSegmentSmallForSpace,
    /// A record was refused in the middle of being written, and the log went on elsewhere.
    LogWentOnBehindRefusal,
    /// A record went on in the next segment.
    LogRecordSpansSegments,
    /// A commit found its record synced by another.
    LogSyncShared,
    /// Segments stayed for somebody who reads them.
    LogTrimHeld,
    /// The log was stopped.
    LogPoisoned,
    /// One copy of the superblock was damaged.
    SuperblockCopyDamaged,
    /// The catalog outgrew the extent that was kept for it.
    CatalogOutgrew,
    /// The file grew by what was needed and no more.
    FileGrewExactly,
    /// Holes were filled as far as was needed and no further.
    HolesFilledExactly,
    /// All free space was given back to the device.
    SpaceAllGivenBack,
    /// A creation had not finished.
    CreationUnfinished,
    /// A drain went on behind parts that an earlier attempt had absorbed.
    FlushResumed,
    /// A memtable was cut for a snapshot.
    FlushCut,
    /// A drain found room after a checkpoint.
    FlushFreedSpace,
    /// A superblock may have been written or not.
    RootSuspect,
    /// A keyspace was dropped that somebody still sees.
    DroppedWhileSeen,
    /// A commit waited for memory.
    CommitWaitedForMemory,
    /// A commit completed before one that came first.
    CommitOutOfOrder,
    /// A thread slept until a commit was visible.
    CommitSlept,
    /// A seldom written memtable was finalized for the log's sake.
    LaggardRotated,
    /// A get looked again, for what it looked for was unlinked.
    GetLookedAgain,
    /// An iterator let go of its cursors in the middle.
    IteratorLetGo,
    /// An iterator closed its cursors, for those of all took too much memory.
    CursorsClosed,
    /// An iterator jumped over a gap.
    EmptyRangeSkipped,
    /// A replay had to drain.
    ReplayFlushed,
    /// A reader's replay drained to a scratch file.
    ReplayToScratch,
    /// A cached record got the value of a drain.
    RecordRefreshed,
    /// Room for a record was made of the record itself.
    RecordEvictedARecord,
    /// A block moved to another frame when its slab was given away.
    BlockRelocated,
    /// Two loaded the same block, and one of them for nothing.
    BlockLoadedTwice,
}

#[cfg(feature = "internals")]
mod counted {
    use super::Mark;
    use std::sync::atomic::{AtomicU64, Ordering};

    static COUNTS: [AtomicU64; Mark::ALL.len()] = [const { AtomicU64::new(0) }; Mark::ALL.len()];

    /// Counts a case that was reached.
    #[inline]
    pub fn mark(mark: Mark) {
        mark_again(mark, 1);
    }

    /// Counts a case that was reached so often, here or in another process.
    #[inline]
    pub fn mark_again(mark: Mark, times: u64) {
        COUNTS[mark as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// How often this process reached each case.
    pub fn reached() -> impl Iterator<Item = (Mark, u64)> {
        Mark::ALL.iter().map(|mark| (*mark, COUNTS[*mark as usize].load(Ordering::Relaxed)))
    }
}

#[cfg(feature = "internals")]
pub use counted::{mark, mark_again, reached};

/// Nothing is counted.
#[cfg(not(feature = "internals"))]
#[inline(always)]
pub fn mark(_: Mark) {}
