//! The write-ahead log: a stream of records; every write is appended here first.
//!
//! [`LogTail`] appends, under the caller's lock; any thread makes records durable through [`Log`].
//! An append copies into mapped memory: the record survives a process crash at once (level
//! `Process`) and a power failure after [`Log::sync_through_after`] has returned (level `Sync`).
//!
//! | file | content |
//! | --- | --- |
//! | `format` | byte layouts of segments, blocks and records |
//! | `tail` | appends, under the commit lock |
//! | `segments`, `slots` | segment files, prepared ahead and recycled; their names |
//! | `inventory` | the files of a log and the blocks they hold |
//! | `reader` | reads a log that may be damaged or torn |
//! | `recover` | replay, and where a torn log ends |
//! | `verify` | verification of a log in use |
//! | `group` | one sync for many threads |
//! | `several` | all logs of a database: the log of each thread, one order over all of them |
//!
//! ```text
//!       trim position                synced                    written
//!            |                         |                          |
//!   ---------+-------------------------+--------------------------+
//!   recycled | replayed by recovery    | survives the process     | (a record being copied)
//!            | survives a power failure|                          |
//! ```
//! Invariants:
//! 1. `synced <= written`; both only grow; a position means "everything before it".
//! 2. Segments are synced in stream order before `synced` moves, so no durable record has a
//!    predecessor that is not durable. Recovery enforces the same by the chain of checks.
//! 3. After a failed write or sync nothing is written, synced or retried any more: every such call
//!    returns `Stopped`. `NoSpace` does not stop the log: nothing was written.
//!
//! A database has one log that all threads share, or several, of which each thread uses one
//! ([`Logs`]): then each record begins with the seqnos of its entries, which order all logs.
//!
//! Thread-safety: [`Log`] and [`Logs`] are shared; [`LogTail`] has one owner. `log/group.rs` and
//! `log/segments.rs` describe their locks.

mod format;
mod group;
mod inventory;
mod reader;
mod recover;
mod segments;
mod several;
mod slots;
mod tail;
#[cfg(test)]
mod tests;
mod verify;

pub use recover::{LogMode, Replay};
pub use several::Logs;
pub use several::numbers::{FIRST_SEQNO_BYTES, Numbers};
pub use several::read::Replayed;
pub use slots::LogIdentity;
pub use tail::LogTail;
pub use verify::ReadBack;

#[cfg(feature = "internals")]
pub use format::seal;

use crate::base::checksum::checksum;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::logs::LogPosition;
use crate::memory::budget::Budget;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, CachePadded, OnceLock, Ordering};
use crate::storage::io::Directory;
use format::{block_start, payload_seed};
use group::Group;
use segments::{Inherited, MappedSegment, SegmentSizes, Segments};

/// Configuration of a log.
#[derive(Clone)]
pub struct LogOptions {
    /// The log's number, and a salt that distinguishes its bytes from those of other databases.
    pub identity: LogIdentity,
    /// Size of the first segment file, in bytes (whole blocks, at least two); each following
    /// segment is twice as large.
    pub segment_bytes_first: u64,
    /// Size of the largest segment files, in bytes (whole blocks).
    pub segment_bytes_max: u64,
    /// The budget that mapped segments are charged to.
    pub budget: Arc<Budget>,
}

impl LogOptions {
    fn sizes(&self) -> SegmentSizes {
        SegmentSizes { first: self.segment_bytes_first, max: self.segment_bytes_max }
    }
}

/// Statistics of the log. Counts are totals since open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogStats {
    /// Records appended.
    pub records: u64,
    /// Payload bytes of these records.
    pub payload_bytes: u64,
    /// Stream bytes of these records, with record heads, block headers and padding.
    pub stream_bytes: u64,
    /// Stream blocks of these records.
    pub blocks: u64,
    /// Syncs for commits that reached the device (one may cover several files).
    pub syncs: u64,
    /// Calls of `sync_through` that were satisfied by another thread's sync.
    pub syncs_shared: u64,
    /// Segment files created or reused.
    pub segments_prepared: u64,
    /// Segment files that hold live log data.
    pub segments_live: usize,
    /// Segment files not in use: prepared or free.
    pub segments_waiting: usize,
    /// Total size of all segment files.
    pub file_bytes: u64,
    /// True if records are copied into mapped memory; false if each write is a system call.
    pub mapped: bool,
}

/// The part of the log shared by all threads.
pub struct Log {
    // Constant after open.
    salt: u64,
    payload_seed: u64,
    mapped: bool,
    /// Position where this process began to write.
    begin: Lsn,
    appended: CachePadded<Appended>,
    /// Counts positions.
    group: Group,
    // Set once, on the first failure.
    poisoned: AtomicBool,
    poison: OnceLock<Error>,
    // Has its own locks.
    segments: Segments,
}

/// State published by the tail with every record; only the tail writes it.
#[derive(Default)]
struct Appended {
    /// End of the last record.
    written: AtomicU64,
    records: AtomicU64,
    payload_bytes: AtomicU64,
}

/// Decodes the header of a segment. For tests.
#[cfg(feature = "internals")]
pub fn decode_segment_header(bytes: &[u8], salt: u64) -> Result<()> {
    format::SegmentHeader::decode(bytes, salt).map(|header| {
        // A reader of a header uses these next.
        header.map(|header| (header.end_block(), header.is_sequel(), header.encode(salt)));
    })
}

/// Decodes the header of a block, and the head of a record at every offset. For tests.
#[cfg(feature = "internals")]
pub fn decode_block_header(bytes: &[u8], salt: u64) {
    let _ = format::BlockHeader::decode(bytes, salt).map(|header| header.encode(salt));
    for room in bytes.windows(format::RECORD_HEAD_BYTES_MAX).step_by(64) {
        let _ = format::Head::decode(room);
    }
}

impl Log {
    /// True if `name` is the name of a log file.
    pub fn has_file(name: &str) -> bool {
        slots::is_name(name)
    }

    /// Fails if log files that hold data exist: [`Log::create`] would remove them.
    pub fn check_none_in_use(dir: &dyn Directory) -> Result<()> {
        slots::check_none_in_use(dir)
    }

    /// True if a file of `dir` begins with a segment header.
    pub fn is_there(dir: &dyn Directory) -> Result<bool> {
        slots::is_there(dir)
    }

    /// Total size of the log files in `dir`, for a reader that has not opened the log.
    pub fn file_bytes(dir: &dyn Directory) -> Result<u64> {
        slots::bytes_in(dir)
    }

    /// Creates a log in a directory that has no files of it; the first record will be at or after
    /// `start`.
    pub fn create(
        dir: Arc<dyn Directory>,
        options: &LogOptions,
        start: LogPosition,
    ) -> Result<(LogTail, Arc<Log>)> {
        let next_block = start.lsn.0.div_ceil(BLOCK_BYTES_U64);
        let inherited = Inherited { next_block, next_serial: 1, ..Inherited::default() };
        let mapped = dir.facts().mapped_log;
        let segments = Self::segments(dir, options, inherited)?;
        let open = segments.begin(start)?;
        Ok(Self::begin(segments, (options, mapped), Some(open), start))
    }

    fn segments(
        dir: Arc<dyn Directory>,
        options: &LogOptions,
        inherited: Inherited,
    ) -> Result<Segments> {
        let budget = Arc::clone(&options.budget);
        Segments::new(dir, options.identity, options.sizes(), budget, inherited)
    }

    /// Creates a log that continues `from` in `open`, a durable segment; or, without one, in the
    /// segment that the first append makes.
    fn begin(
        segments: Segments,
        (options, mapped): (&LogOptions, bool),
        open: Option<MappedSegment>,
        from: LogPosition,
    ) -> (LogTail, Arc<Log>) {
        let begin = open.as_ref().map_or(from.lsn, |open| block_start(open.first_block));
        let log = Arc::new(Self {
            salt: options.identity.salt(),
            payload_seed: payload_seed(options.identity.salt()),
            mapped,
            begin,
            appended: CachePadded(Appended {
                written: AtomicU64::new(begin.0),
                ..Appended::default()
            }),
            group: Group::new(begin.0),
            poisoned: AtomicBool::new(false),
            poison: OnceLock::new(),
            segments,
        });
        let tail = match open {
            Some(open) => LogTail::new(Arc::clone(&log), open, from.chain),
            None => LogTail::without_segment(Arc::clone(&log), from),
        };
        (tail, log)
    }

    /// Computes the payload hash that [`LogTail::append`] expects; call it before taking the lock
    /// that guards the tail.
    #[inline]
    #[must_use]
    pub fn payload_hash(&self, payload: &[u8]) -> u64 {
        checksum(payload, self.payload_seed)
    }

    /// Everything before this position survives a process crash.
    #[inline]
    #[must_use]
    pub fn written(&self) -> Lsn {
        Lsn(self.appended.written.load(Ordering::Acquire))
    }

    /// Everything before this position survives a power failure.
    #[inline]
    #[must_use]
    pub fn synced(&self) -> Lsn {
        Lsn(self.group.durable())
    }

    /// [`Log::sync_through_after`] for records that refer to nothing outside the log.
    #[cfg(test)]
    pub fn sync_through(&self, lsn: Lsn) -> Result<()> {
        self.sync_through_after(lsn, || Ok(()))
    }

    /// Returns once everything before `lsn`, which has been written, survives a power failure.
    /// Records may refer to data outside the log: `referred` makes that data durable, for every
    /// record written before the call. Only the leader of a sync calls it. `synced` advances only
    /// to the position that was written before that call: later records may reach the device too,
    /// but are not counted as synced. A failure stops the log, because the waiting threads must see
    /// it too.
    pub fn sync_through_after(
        &self,
        lsn: Lsn,
        referred: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if lsn > self.written() {
            return Err(Error::internal("sync requested beyond the written end of the log"));
        }
        match self.group.join(lsn.0, || self.check_running())? {
            Some(_lead) => self.sync_written(referred),
            None => Ok(()),
        }
    }

    /// Reports that a commit waits for a sync, and that further ones are likely: the next new
    /// segment is created so that its syncs are fast.
    pub fn expect_syncs(&self) {
        self.segments.expect_syncs();
    }

    /// Syncs everything written so far; called by the leader only.
    fn sync_written(&self, referred: impl FnOnce() -> Result<()>) -> Result<()> {
        let target = self.written();
        referred().map_err(|error| self.poison(error))?;
        self.sync_files(target)?;
        self.raise_synced(target);
        self.group.count_sync();
        Ok(())
    }

    /// Syncs the files with records before `target` that were not synced yet.
    fn sync_files(&self, target: Lsn) -> Result<()> {
        for file in self.segments.unsynced(self.synced(), target) {
            file.sync().map_err(|error| self.poison(error))?;
        }
        Ok(())
    }

    /// Counts everything before `target`, which was written, as synced. Another thread may have
    /// stopped the log while the device was working; the position remains valid.
    fn raise_synced(&self, target: Lsn) {
        self.group.raise(target.0);
        self.segments.unmap_retired();
    }

    /// Frees the segments that lie entirely before `position`. The caller must have made durable
    /// that no recovery begins before it.
    pub fn trim(&self, position: LogPosition) {
        self.segments.trim(position.lsn);
    }

    /// Prepares the segment after the open one, unless one is prepared already, so that no append
    /// has to. Call it in the background when [`Log::wants_segment`] returns true. `NoSpace` and
    /// `TooManyFiles` do not stop the log.
    pub fn prepare_next(&self) -> Result<()> {
        self.check_running()?;
        self.segments.prepare_next().map_err(|error| self.poison_unless_transient(error))
    }

    /// True if the open segment is at least half full and no other is prepared.
    #[inline]
    #[must_use]
    pub fn wants_segment(&self) -> bool {
        self.segments.wanted()
    }

    /// Removes segment files that hold no data, except one that is ready to be written.
    pub fn release_idle(&self) {
        self.segments.release_idle();
    }

    /// Sets the maximum size of new segments, in bytes (whole blocks, at least the size of the
    /// first segment); larger existing ones are used up or removed.
    pub fn set_segment_bytes_max(&self, bytes: u64) {
        self.segments.set_bytes_max(bytes);
    }

    /// While `held` the log creates no files: it continues in existing segments, including trimmed
    /// ones, and then fails with `NoSpace`.
    pub fn hold_growth(&self, held: bool) {
        self.segments.hold_growth(held);
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let figures = self.segments.figures();
        let stream_bytes = self.written().0 - self.begin.0;
        LogStats {
            records: self.appended.records.load(Ordering::Relaxed),
            payload_bytes: self.appended.payload_bytes.load(Ordering::Relaxed),
            stream_bytes,
            blocks: stream_bytes.div_ceil(BLOCK_BYTES_U64),
            syncs: self.group.syncs(),
            syncs_shared: self.group.syncs_shared(),
            segments_prepared: figures.prepared_total,
            segments_live: figures.live,
            segments_waiting: figures.prepared + figures.free,
            file_bytes: figures.file_bytes,
            mapped: self.mapped,
        }
    }

    /// Fails if the log has been stopped.
    #[inline]
    fn check_running(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) { Err(self.stopped()) } else { Ok(()) }
    }

    #[cold]
    fn stopped(&self) -> Error {
        let cause = self.poison.get().map_or_else(String::new, ToString::to_string);
        Error::new(ErrorKind::Stopped, format!("the log was stopped by a failure: {cause}"))
    }

    /// Stops the log because of `error` and returns it as a failure, even if it was `NoSpace`,
    /// because a part may have been written.
    #[cold]
    fn poison(&self, error: Error) -> Error {
        let error = error.not_transient();
        mark(Mark::LogPoisoned);
        // A thread that sees the flag finds the cause.
        let _ = self.poison.set(error.clone());
        self.poisoned.store(true, Ordering::Release);
        error
    }

    #[cold]
    fn poison_unless_transient(&self, error: Error) -> Error {
        if error.is_transient() { error } else { self.poison(error) }
    }

    // Used by the tail.

    fn salt(&self) -> u64 {
        self.salt
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        self.mapped
    }

    #[inline]
    fn count_record(&self, payload_bytes: u64) {
        let Appended { records, payload_bytes: total, .. } = &*self.appended;
        records.store(records.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        total.store(total.load(Ordering::Relaxed) + payload_bytes, Ordering::Relaxed);
    }

    #[inline]
    fn publish(&self, written: Lsn) {
        self.appended.written.store(written.0, Ordering::Release);
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        self.segments.reserve(blocks).map_err(|error| self.poison_unless_transient(error))
    }

    fn take_segment(&self) -> Result<MappedSegment> {
        self.segments.take()
    }

    fn go_on_behind(&self, from: LogPosition) -> Result<MappedSegment> {
        let open = self.segments.go_on_behind(from);
        open.map_err(|error| self.poison_unless_transient(error))
    }

    fn retire_segment(&self, full: MappedSegment) {
        self.segments.retire(full);
    }

    fn want_segment(&self) {
        self.segments.want();
    }
}
