//! The write-ahead log: a stream of records that every write enters before anything else.
//!
//! One [`LogTail`] appends, under the caller's lock; any thread makes it durable through [`Log`].
//! Appending copies into mapped memory: it survives the death of the process at once (level
//! `Process`) and a power cut once [`Log::sync_through_after`] returned (level `Sync`). Layouts of
//! bytes are in `log/format.rs`, files in `log/segments.rs`, recovery in `log/recover.rs`,
//! verification in `log/verify.rs`.
//!
//! ```text
//!       trim position                synced                    written
//!            |                         |                          |
//!   ---------+-------------------------+--------------------------+
//!   recycled | replayed by recovery    | survives the process     | (a record being copied)
//!            | survives a power cut    |                          |
//! ```
//! Invariants:
//! 1. `synced <= written`; both only grow; a place means "everything before it".
//! 2. Segments are synced in stream order before `synced` moves, so there is never a durable
//!    record whose predecessors are not (nor is one believed: the chain of checks).
//! 3. After a failed write or sync nothing is written, synced or retried any more: every call that
//!    would says `Stopped`. A device without space is not a failure: nothing was written.
//!
//! Group commit: of the threads that want a sync, one leads and syncs everything written so far;
//! the others wait, and most find their records synced by it when it is done.
//!
//! Thread-safety: [`Log`] is shared; [`LogTail`] has one owner. Locks: `group` is never held
//! together with another lock or during I/O; for those of the segments see there.

mod format;
mod reader;
mod recover;
mod segments;
mod slots;
mod tail;
#[cfg(test)]
mod tests;
mod verify;

pub use format::LogPosition;
pub use recover::{LogMode, Replay};
pub use tail::LogTail;
pub use verify::ReadBack;

#[cfg(feature = "internals")]
pub use format::seal;

use crate::base::checksum::checksum;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::memory::budget::Budget;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{
    Arc, AtomicBool, AtomicU64, CachePadded, Condvar, Mutex, OnceLock, Ordering,
};
use crate::storage::io::Directory;
use format::{block_start, payload_seed};
use segments::{Inherited, MappedSegment, SegmentSizes, Segments};

/// How a log is kept.
#[derive(Clone)]
pub struct LogOptions {
    /// The database's salt: tells its bytes from those of any other.
    pub salt: u64,
    /// The size of the first segment file, in bytes (whole blocks, at least two); each next one is
    /// twice as large.
    pub segment_bytes_first: u64,
    /// The size of the largest segment files, in bytes (whole blocks).
    pub segment_bytes_max: u64,
    /// Where mapped segments are counted.
    pub budget: Arc<Budget>,
}

impl LogOptions {
    fn sizes(&self) -> SegmentSizes {
        SegmentSizes { first: self.segment_bytes_first, max: self.segment_bytes_max }
    }
}

/// Figures of the log. Counts are totals since open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogStats {
    /// Records appended.
    pub records: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Bytes of the stream they took, with heads, headers and padding.
    pub stream_bytes: u64,
    /// Blocks of the stream they took.
    pub blocks: u64,
    /// Commits' syncs that reached the device (one may be of several files).
    pub syncs: u64,
    /// Calls of `sync_through` that another call's sync answered.
    pub syncs_shared: u64,
    /// Segment files made or made anew.
    pub segments_prepared: u64,
    /// Segment files that hold the log.
    pub segments_live: usize,
    /// Segment files that wait: prepared or free.
    pub segments_waiting: usize,
    /// The size of all segment files.
    pub file_bytes: u64,
    /// Records are copied into mapped memory; else each is a system call.
    pub mapped: bool,
}

/// The log as all threads see it.
pub struct Log {
    // Constant after open.
    salt: u64,
    payload_seed: u64,
    mapped: bool,
    /// Where this process began to write.
    begin: Lsn,
    appended: CachePadded<Appended>,
    // Written by the leader of a sync.
    synced: AtomicU64,
    syncs: AtomicU64,
    syncs_shared: AtomicU64,
    // Set once, by the first failure.
    poisoned: AtomicBool,
    poison: OnceLock<Error>,
    // With locks of its own.
    segments: Segments,
    group: Mutex<Group>,
    group_changed: Condvar,
}

/// What the tail tells with every record; nobody else writes it.
#[derive(Default)]
struct Appended {
    /// Where the last record ends.
    written: AtomicU64,
    records: AtomicU64,
    payload_bytes: AtomicU64,
}

/// Who syncs.
#[derive(Default)]
struct Group {
    /// A leader is at work.
    led: bool,
}

/// Held by the leader; lets the others go on when it is done, however it ends.
struct Lead<'a> {
    log: &'a Log,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.log.group.lock().led = false;
        self.log.group_changed.notify_all();
    }
}

/// Decodes the header of a segment. For tests.
#[cfg(feature = "internals")]
pub fn decode_segment_header(bytes: &[u8], salt: u64) -> Result<()> {
    format::SegmentHeader::decode(bytes, salt).map(|header| {
        // Whoever reads a header goes on with these.
        header.map(|header| (header.end_block(), header.is_sequel(), header.encode(salt)));
    })
}

/// Decodes the header of a block and the head of a record at every place. For tests.
#[cfg(feature = "internals")]
pub fn decode_block_header(bytes: &[u8], salt: u64) {
    let _ = format::BlockHeader::decode(bytes, salt).map(|header| header.encode(salt));
    for room in bytes.windows(format::RECORD_HEAD_BYTES_MAX).step_by(64) {
        let _ = format::Head::decode(room);
    }
}

impl Log {
    /// True if a file of this name is one of a log's.
    pub fn has_file(name: &str) -> bool {
        slots::slot_of(name).is_some()
    }

    /// Fails if there are files of a log that holds anything: [`Log::create`] would remove them.
    pub fn check_none_in_use(dir: &dyn Directory) -> Result<()> {
        slots::check_none_in_use(dir)
    }

    /// True if a file of `dir` begins as those of a log do.
    pub fn is_there(dir: &dyn Directory) -> Result<bool> {
        slots::is_there(dir)
    }

    /// The bytes of the log's files in `dir`, for a reader that has no log of its own.
    pub fn file_bytes(dir: &dyn Directory) -> Result<u64> {
        slots::bytes_in(dir)
    }

    /// Makes the log of a new database, whose first record will be at or after `start`. Files of a
    /// log that are there already (left by a creation that did not finish) are removed.
    pub fn create(
        dir: Arc<dyn Directory>,
        options: &LogOptions,
        start: LogPosition,
    ) -> Result<(LogTail, Arc<Log>)> {
        for name in dir.list()? {
            if slots::slot_of(&name).is_some() {
                dir.remove(&name)?;
            }
        }
        let next_block = start.lsn.0.div_ceil(BLOCK_BYTES_U64);
        let inherited = Inherited { next_block, next_serial: 1, ..Inherited::default() };
        Self::begin(dir, options, inherited, start)
    }

    /// A log that goes on behind `from` in a segment of its own, durable when this returns.
    fn begin(
        dir: Arc<dyn Directory>,
        options: &LogOptions,
        inherited: Inherited,
        from: LogPosition,
    ) -> Result<(LogTail, Arc<Log>)> {
        let begin = block_start(inherited.next_block);
        let mapped = dir.facts().mapped_log;
        let budget = Arc::clone(&options.budget);
        let segments = Segments::new(dir, options.salt, options.sizes(), budget, inherited)?;
        let open = segments.begin(from)?;
        let log = Arc::new(Self {
            salt: options.salt,
            payload_seed: payload_seed(options.salt),
            mapped,
            begin,
            appended: CachePadded(Appended {
                written: AtomicU64::new(begin.0),
                ..Appended::default()
            }),
            synced: AtomicU64::new(begin.0),
            syncs: AtomicU64::new(0),
            syncs_shared: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            poison: OnceLock::new(),
            segments,
            group: Mutex::new(Group::default()),
            group_changed: Condvar::new(),
        });
        Ok((LogTail::new(Arc::clone(&log), open, from.chain), log))
    }

    /// The hash of a payload that [`LogTail::append`] asks for: to be computed before the lock is
    /// taken under which the tail is used.
    #[inline]
    #[must_use]
    pub fn payload_hash(&self, payload: &[u8]) -> u64 {
        checksum(payload, self.payload_seed)
    }

    /// Everything before survives the death of the process.
    #[inline]
    #[must_use]
    pub fn written(&self) -> Lsn {
        Lsn(self.appended.written.load(Ordering::Acquire))
    }

    /// Everything before survives a power cut.
    #[inline]
    #[must_use]
    pub fn synced(&self) -> Lsn {
        Lsn(self.synced.load(Ordering::Acquire))
    }

    /// [`Log::sync_through_after`] for records that refer to nothing.
    #[cfg(test)]
    pub fn sync_through(&self, lsn: Lsn) -> Result<()> {
        self.sync_through_after(lsn, || Ok(()))
    }

    /// Returns once everything before `lsn`, which has been written, survives a power cut. Records
    /// may refer to what lies outside the log: `referred` makes that durable, for every record that
    /// is written when it is called. Only the thread that leads a sync calls it, and the log counts
    /// as synced no further than it was written before that: a record that comes later may reach
    /// the device now, but nobody says that it had to. A failure stops the log, for whoever waits
    /// has to be told too.
    pub fn sync_through_after(
        &self,
        lsn: Lsn,
        referred: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.synced() >= lsn {
            return Ok(());
        }
        if lsn > self.written() {
            return Err(Error::internal("the log is asked to sync what was not written"));
        }
        {
            let mut group = self.group.lock();
            loop {
                if self.synced() >= lsn {
                    self.syncs_shared.fetch_add(1, Ordering::Relaxed);
                    mark(Mark::LogSyncShared);
                    return Ok(());
                }
                self.check_running()?;
                if !group.led {
                    break;
                }
                self.group_changed.wait(&mut group);
            }
            group.led = true;
        }
        let _lead = Lead { log: self };
        self.sync_written(referred)
    }

    /// Says that a commit waits for a sync, as the next ones probably will: the next new segment is
    /// made so that it is synced fast.
    pub fn expect_syncs(&self) {
        self.segments.expect_syncs();
    }

    /// Syncs everything written so far; called by the one leader.
    fn sync_written(&self, referred: impl FnOnce() -> Result<()>) -> Result<()> {
        let target = self.written();
        referred().map_err(|error| self.poison(error))?;
        for file in self.segments.unsynced(self.synced(), target) {
            file.sync().map_err(|error| self.poison(error))?;
        }
        // Another thread may have stopped the log while the device was at work; what is synced
        // stays true.
        self.synced.fetch_max(target.0, Ordering::AcqRel);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.segments.unmap_retired();
        Ok(())
    }

    /// Frees the segments that lie wholly before `position`. The caller has made durable that no
    /// recovery will begin before it.
    pub fn trim(&self, position: LogPosition) {
        self.segments.trim(position.lsn);
    }

    /// Prepares the segment that comes after the open one, unless it is prepared already, so that
    /// no append has to. Call it in the background when [`Log::wants_segment`] says so. Want of
    /// room (`NoSpace`, `TooManyFiles`) stops nothing.
    pub fn prepare_next(&self) -> Result<()> {
        self.check_running()?;
        self.segments.prepare_next().map_err(|error| self.poison_unless_transient(error))
    }

    /// True once the open segment is half full and no other is prepared.
    #[inline]
    #[must_use]
    pub fn wants_segment(&self) -> bool {
        self.segments.wanted()
    }

    /// Removes segment files that hold nothing, but for one that is ready to be written.
    pub fn release_idle(&self) {
        self.segments.release_idle();
    }

    /// The next segments have at most so many bytes (whole blocks, and not less than the first
    /// one); larger ones are used up or removed.
    pub fn set_segment_bytes_max(&self, bytes: u64) {
        self.segments.set_bytes_max(bytes);
    }

    /// While `held` the log makes no new files: it goes on in segments that it has, those that were
    /// trimmed among them, and then fails with `NoSpace`.
    pub fn hold_growth(&self, held: bool) {
        self.segments.hold_growth(held);
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let figures = self.segments.figures();
        let stream_bytes = self.written().0 - self.begin.0;
        LogStats {
            records: self.appended.records.load(Ordering::Relaxed),
            payload_bytes: self.appended.payload_bytes.load(Ordering::Relaxed),
            stream_bytes,
            blocks: stream_bytes.div_ceil(BLOCK_BYTES_U64),
            syncs: self.syncs.load(Ordering::Relaxed),
            syncs_shared: self.syncs_shared.load(Ordering::Relaxed),
            segments_prepared: figures.prepared_total,
            segments_live: figures.live,
            segments_waiting: figures.prepared + figures.free,
            file_bytes: figures.file_bytes,
            mapped: self.mapped,
        }
    }

    /// Fails if the log was stopped.
    #[inline]
    fn check_running(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) { Err(self.stopped()) } else { Ok(()) }
    }

    #[cold]
    fn stopped(&self) -> Error {
        let cause = self.poison.get().map_or_else(String::new, ToString::to_string);
        Error::new(ErrorKind::Stopped, format!("the log was stopped by a failure: {cause}"))
    }

    /// Stops the log because of `error`, which is handed back: as a failure, even if it is that
    /// there was no room, for something may have been written.
    #[cold]
    fn poison(&self, error: Error) -> Error {
        let error = error.not_transient();
        mark(Mark::LogPoisoned);
        // Whoever sees the flag finds the cause.
        let _ = self.poison.set(error.clone());
        self.poisoned.store(true, Ordering::Release);
        error
    }

    #[cold]
    fn poison_unless_transient(&self, error: Error) -> Error {
        if error.is_transient() { error } else { self.poison(error) }
    }

    // For the tail.

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
