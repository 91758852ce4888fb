//! Coverage marks for rare cases: whether tests ever reached them.
//!
//! A [`mark`] is placed where something happens that tests could miss. With the feature `internals`
//! it is counted, and `chelonia-torture` reports the marks that a run has not reached; without, it
//! compiles to nothing.

/// Declares the cases.
macro_rules! marks {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// A rare case. The code at the mark explains it; each variant has a short description.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Mark {
            $($(#[$about])* $name,)*
        }

        #[cfg(feature = "internals")]
        impl Mark {
            /// All of them.
            pub const ALL: &[Mark] = &[$(Mark::$name,)*];

            /// Finds a mark by its `Debug` name.
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
    /// Recovery continued in a segment that another recovery began.
    LogWentOnElsewhere,
    /// The log ended before a record whose large value is missing.
    LogCutAtLargeValue,
    /// One of several logs was cut because a write before is missing in another.
    LogCutAtGap,
    /// A recovery replaced the empty segment made by the previous one.
    LogEmptySegmentReplaced,
    /// A log file too short for a block was removed.
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
    /// A recovery found no space for the segment in which the log continues.
    LogBegunWithoutSpace,
    /// ... after a record that was cut, whose head was overwritten.
    LogCutOverwritten,
    /// A record was refused in the middle of being written, and the log continued elsewhere.
    LogWentOnBehindRefusal,
    /// A record continued in the next segment.
    LogRecordSpansSegments,
    /// A commit found its record synced by another commit.
    LogSyncShared,
    /// Segments were retained for a reader.
    LogTrimHeld,
    /// The log was stopped.
    LogPoisoned,
    /// One copy of the superblock was damaged.
    SuperblockCopyDamaged,
    /// The catalog outgrew the extent kept for it.
    CatalogOutgrew,
    /// The file grew by the needed size only.
    FileGrewExactly,
    /// Holes were filled for the needed size only.
    HolesFilledExactly,
    /// All free space was returned to the file system.
    SpaceAllGivenBack,
    /// A creation had not finished.
    CreationUnfinished,
    /// A flush resumed after parts that an earlier attempt had absorbed.
    FlushResumed,
    /// A memtable was split for a snapshot.
    FlushCut,
    /// A flush found space after a checkpoint.
    FlushFreedSpace,
    /// A superblock write had an unknown outcome.
    RootSuspect,
    /// A keyspace was dropped while it still had readers.
    DroppedWhileSeen,
    /// A commit waited for memory.
    CommitWaitedForMemory,
    /// A commit waited for a flush, because its keyspace was at its checkpoint distance.
    CommitWaitedForFlush,
    /// A commit completed before an earlier one.
    CommitOutOfOrder,
    /// A thread slept until a commit was visible.
    CommitSlept,
    /// A rarely written memtable was rotated to free log space.
    LaggardRotated,
    /// Keys of recent commits were dropped, because there were too many.
    RecentWritesDropped,
    /// A commit read again what its transaction had read, because such keys were dropped.
    TransactionReadAgain,
    /// A get retried because its target was unlinked.
    GetLookedAgain,
    /// An iterator released its cursors in the middle.
    IteratorLetGo,
    /// An iterator closed its cursors because all cursors together took too much memory.
    CursorsClosed,
    /// An iterator skipped an empty range.
    EmptyRangeSkipped,
    /// A tree was opened in the middle of a sweep of staged updates into pages.
    OpenedWithinSweep,
    /// A replay had to flush.
    ReplayFlushed,
    /// A replay of a read-only open flushed to a scratch file.
    ReplayToScratch,
    /// A cached record got its value from a flush.
    RecordRefreshed,
    /// A record was evicted to cache another record.
    RecordEvictedARecord,
    /// A block moved to another frame when its slab was given up.
    BlockRelocated,
    /// Two threads loaded the same block, and one copy was discarded.
    BlockLoadedTwice,
}

#[cfg(feature = "internals")]
mod counted {
    use super::Mark;
    use std::sync::atomic::{AtomicU64, Ordering};

    static COUNTS: [AtomicU64; Mark::ALL.len()] = [const { AtomicU64::new(0) }; Mark::ALL.len()];

    /// Counts one occurrence of a case.
    #[inline]
    pub fn mark(mark: Mark) {
        mark_again(mark, 1);
    }

    /// Counts several occurrences of a case, here or in another process.
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

/// No-op without the feature `internals`.
#[cfg(not(feature = "internals"))]
#[inline(always)]
pub fn mark(_: Mark) {}
