//! All logs of a database: one that all threads share, or several.
//!
//! With one log, its tail is under the commit lock, and positions in it order all writes. With
//! several, each thread appends to one of them, under a lock of that log's own, so that threads
//! copy their records side by side; the commit lock is held only to give out seqnos, with which
//! each record begins. The idea is that of the logs per thread of SplinterDB [5.4].
//!
//! ```text
//!   log 0   | 1-3 |       | 7 |            seqnos of the records
//!   log 1   | 4 |   | 6 | | 9 |
//!   log 2   | 5 |                          8 is missing: everything from 8 on is cut, in each log
//! ```
//! Invariants:
//! 1. Within a log seqnos ascend; over all logs each is in one record. A commit waits until all
//!    before it are visible, hence in their logs, before it is acknowledged.
//! 2. All that is counted as synced is a prefix of that order: the boundary is taken while nobody
//!    appends ([`Logs::lock_tails`]), and raised once the files of all logs are synced up to it. So
//!    the watermark of a block never names a write whose predecessors in another log may be lost.
//! 3. Replay takes records in the order of their seqnos and ends before the first that is missing;
//!    each log continues in a new segment that records where it was cut (`log/recover.rs`), before
//!    the first new record is written to any.
//!
//! | file | content |
//! | --- | --- |
//! | `mod` | the log of each thread; syncs; trimming |
//! | `numbers` | the seqno at the front of a record |
//! | `read` | replay, verification and salvage over all logs |
//!
//! Locks: the tails, by ascending number, then the commit lock; group locks as in `log/group.rs`.

pub mod numbers;
pub mod read;

use crate::base::error::Result;
use crate::base::ids::{Lsn, SeqNo};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::logs::{LogPosition, PerLog};
use crate::log::group::Group;
use crate::log::slots::LogIdentity;
use crate::log::tail::LogTail;
use crate::log::verify::LogHold;
use crate::log::{Log, LogOptions, LogStats, slots};
use crate::runtime::sync::{
    Arc, AtomicUsize, CachePadded, Mutex, MutexGuard, Ordering, thread_local,
};
use crate::storage::io::Directory;
use std::cell::Cell;

thread_local! {
    /// The number of the log that this thread appends to while no other thread does.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// The tail of one of several logs, locked; `None` once the database is closed.
pub type OwnTail<'a> = MutexGuard<'a, Option<LogTail>>;

/// All logs of a database that is open for writing.
pub struct Logs {
    logs: Vec<Arc<Log>>,
    /// The tails of several logs. That of one log is under the commit lock.
    tails: Vec<CachePadded<Mutex<Option<LogTail>>>>,
    /// Counts seqnos, with several logs.
    group: Group,
    /// Commits take the logs in turns, whatever their thread, so that runs can be replayed.
    turns: Option<AtomicUsize>,
}

impl LogOptions {
    /// The options of one of `logs` logs; these are those of the database.
    pub(in crate::log) fn of_log(&self, number: usize, logs: usize) -> Self {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        let max = share(self.segment_bytes_max, logs).max(self.segment_bytes_first);
        let identity = LogIdentity::new(number, self.identity.salt());
        Self { identity, segment_bytes_max: max, ..self.clone() }
    }
}

/// A part of `bytes`, in whole blocks, for each of `logs`.
fn share(bytes: u64, logs: usize) -> u64 {
    bytes / logs.max(1) as u64 / BLOCK_BYTES_U64 * BLOCK_BYTES_U64
}

impl Logs {
    /// Creates the `count` logs of a new database, removing log files that an unfinished creation
    /// left. Returns the tail of a single log with them.
    pub fn create(
        dir: &Arc<dyn Directory>,
        options: &LogOptions,
        count: usize,
    ) -> Result<(Option<LogTail>, Self)> {
        for name in dir.list()?.into_iter().filter(|name| slots::is_name(name)) {
            dir.remove(&name)?;
        }
        let create = |number| {
            Log::create(Arc::clone(dir), &options.of_log(number, count), LogPosition::START)
        };
        let made = (0..count).map(create).collect::<Result<Vec<_>>>()?;
        Ok(Self::new(made, SeqNo::ZERO))
    }

    /// Combines logs whose records up to `durable` are durable.
    fn new(made: Vec<(LogTail, Arc<Log>)>, durable: SeqNo) -> (Option<LogTail>, Self) {
        let (mut tails, logs): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        let single = if logs.len() == 1 { tails.pop() } else { None };
        let tails = tails.into_iter().map(|tail| CachePadded(Mutex::new(Some(tail)))).collect();
        (single, Self { logs, tails, group: Group::new(durable.0), turns: None })
    }

    /// Where the next record of each begins, before the first commit.
    pub fn begins(&self) -> PerLog<LogPosition> {
        match self.lock_tails() {
            tails if tails.is_empty() => PerLog::default(),
            tails => PerLog::collect(
                tails.iter().map(|tail| tail.as_ref().map(LogTail::position).unwrap_or_default()),
            ),
        }
    }

    /// Lets commits take the logs in turns.
    #[must_use]
    pub fn in_turns(self) -> Self {
        Self { turns: Some(AtomicUsize::new(0)), ..self }
    }

    /// True if all threads share one log.
    #[inline]
    pub fn is_single(&self) -> bool {
        self.tails.is_empty()
    }

    /// The one log, or the first.
    #[inline]
    pub fn first(&self) -> &Arc<Log> {
        &self.logs[0]
    }

    /// The number and the tail of the log that this thread appends to, with several logs. A thread
    /// keeps its log until it finds another thread there; then it moves on to one that is free.
    #[inline]
    pub fn own_tail(&self) -> (usize, OwnTail<'_>) {
        let count = self.tails.len();
        if let Some(turns) = &self.turns {
            let number = turns.fetch_add(1, Ordering::Relaxed) % count;
            return (number, self.tails[number].lock());
        }
        // Thread-local memory is gone when destructors of an ending thread commit something.
        let own = OWN.try_with(Cell::get).unwrap_or_default() % count;
        for number in (own..count).chain(0..own) {
            if let Some(tail) = self.tails[number].try_lock() {
                if number != own {
                    let _ = OWN.try_with(|own| own.set(number));
                }
                return (number, tail);
            }
        }
        (own, self.tails[own].lock())
    }

    /// Keeps all threads from appending to one of several logs: then all records that got seqnos
    /// are in their logs.
    pub fn lock_tails(&self) -> Vec<OwnTail<'_>> {
        self.tails.iter().map(|tail| tail.lock()).collect()
    }

    /// Closes the blocks that are written, in several logs; see [`LogTail::seal_block`].
    pub fn seal_blocks(&self) -> Result<()> {
        for mut tail in self.lock_tails() {
            if let Some(tail) = &mut *tail {
                tail.seal_block()?;
            }
        }
        Ok(())
    }

    /// How far each is written.
    pub fn written(&self) -> PerLog<Lsn> {
        PerLog::collect(self.logs.iter().map(|log| log.written()))
    }

    /// Bytes written to all logs since the database was created.
    #[inline]
    pub fn written_bytes(&self) -> u64 {
        self.logs.iter().map(|log| log.written().0).sum()
    }

    /// How far each is synced.
    pub fn synced(&self) -> PerLog<Lsn> {
        PerLog::collect(self.logs.iter().map(|log| log.synced()))
    }

    /// True if nothing was written since the last sync.
    pub fn is_synced(&self) -> bool {
        self.logs.iter().all(|log| log.synced() >= log.written())
    }

    /// Returns once all writes up to `seqno`, which have their seqnos, survive a power failure, in
    /// several logs; all that was written, if it is [`SeqNo::MAX`]. `last` is called while nobody
    /// appends, and returns the last seqno given out; `referred` is that of
    /// [`Log::sync_through_after`].
    pub fn sync_several(
        &self,
        seqno: SeqNo,
        last: impl FnOnce() -> SeqNo,
        referred: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let check = || self.logs.iter().try_for_each(|log| log.check_running());
        if seqno == SeqNo::MAX && self.is_synced() {
            return check();
        }
        let Some(_lead) = self.group.join(seqno.0, check)? else { return Ok(()) };
        let (ends, last) = {
            let _tails = self.lock_tails();
            // A log that was stopped meanwhile may lack a record that has its seqnos: what other
            // logs have behind it must not count as durable.
            check()?;
            (self.written(), last())
        };
        referred().map_err(|error| self.first().poison(error))?;
        for (log, end) in self.logs.iter().zip(ends.iter()) {
            if log.synced() < *end {
                log.sync_files(*end)?;
                log.group.count_sync();
            }
        }
        self.logs.iter().zip(ends.iter()).for_each(|(log, end)| log.raise_synced(*end));
        self.group.raise(last.0);
        Ok(())
    }

    /// True while a thread syncs several logs for all.
    #[cfg(test)]
    pub fn is_syncing(&self) -> bool {
        self.group.is_led()
    }

    /// See [`Log::expect_syncs`].
    pub fn expect_syncs(&self) {
        self.logs.iter().for_each(|log| log.expect_syncs());
    }

    /// See [`Log::trim`].
    pub fn trim(&self, positions: &PerLog<LogPosition>) {
        self.logs.iter().zip(positions.iter()).for_each(|(log, position)| log.trim(*position));
    }

    /// See [`Log::prepare_next`]; of several logs, those that want a segment.
    pub fn prepare_next(&self) -> Result<()> {
        let mut logs = self.logs.iter().filter(|log| self.is_single() || log.wants_segment());
        logs.try_for_each(|log| log.prepare_next())
    }

    /// See [`Log::wants_segment`].
    #[inline]
    pub fn wants_segment(&self) -> bool {
        self.logs.iter().any(|log| log.wants_segment())
    }

    /// See [`Log::release_idle`].
    pub fn release_idle(&self) {
        self.logs.iter().for_each(|log| log.release_idle());
    }

    /// See [`Log::set_segment_bytes_max`]; the logs divide `bytes`.
    pub fn set_segment_bytes_max(&self, bytes: u64) {
        let each = share(bytes, self.logs.len());
        self.logs.iter().for_each(|log| log.set_segment_bytes_max(each));
    }

    /// See [`Log::hold_growth`].
    pub fn hold_growth(&self, held: bool) {
        self.logs.iter().for_each(|log| log.hold_growth(held));
    }

    /// See [`Log::hold`].
    pub fn hold(&self) -> Vec<LogHold<'_>> {
        self.logs.iter().map(|log| log.hold()).collect()
    }

    /// The statistics of all logs together.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let mut sum = LogStats::default();
        for log in &self.logs {
            let one = log.stats();
            sum.records += one.records;
            sum.payload_bytes += one.payload_bytes;
            sum.stream_bytes += one.stream_bytes;
            sum.blocks += one.blocks;
            sum.syncs += one.syncs;
            sum.syncs_shared += one.syncs_shared;
            sum.segments_prepared += one.segments_prepared;
            sum.segments_live += one.segments_live;
            sum.segments_waiting += one.segments_waiting;
            sum.file_bytes += one.file_bytes;
            sum.mapped = one.mapped;
        }
        sum.syncs_shared += self.group.syncs_shared();
        sum
    }
}
