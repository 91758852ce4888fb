//! Replay: puts the log back into memtables, with the original seqnos.
//!
//! The log is read twice: first to find its end and the large values it refers to (nothing may be
//! allocated before they are known), then to replay it.
//!
//! Memtables that fill up are flushed on the way, read-only to a scratch file; on a full device
//! they stay in memory within the write share. Nothing is made durable before the log continues in
//! its next segment, for which disk space is reserved from the start.

use crate::admission::governor::Governor;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::SeqNo;
use crate::base::logs::LogMark;
use crate::base::stream::Update;
use crate::flush::memtable::FlushPace;
use crate::log::{LogMode, LogOptions, Logs, Replay, Replayed};
use crate::options::database::{RecoveryProgress, Settings};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::storage::block::DATA_FILE;
use crate::storage::io::{Directory, File, ScratchPlace};
use crate::write::record::Entries;
use std::collections::BTreeMap;

/// Number of records between two progress reports.
const PROGRESS_EVERY: u64 = 4096;

/// Disk space that a new log segment may take beside its own bytes.
const LOG_HEADROOM_BYTES: u64 = 64 << 10;

/// The result of the first reading of the log.
pub struct Surveyed {
    /// The last seqno in the log.
    last: SeqNo,
    /// Bytes of the records.
    payload_bytes: u64,
}

/// Step 3 of an open: the first reading.
pub fn survey_log(
    core: &Core,
    directory: &Arc<dyn Directory>,
    options: &LogOptions,
    mark: LogMark,
) -> Result<Surveyed> {
    let absorbed = absorbed_by_id(core);
    let (mut seqno, mut last) = (mark.seqno, mark.seqno);
    let mut replay = |record: Replayed<'_>| {
        let mut entries = Entries::new(record.payload)?;
        let mut in_use = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            seqno = seqno.next();
            let wanted = absorbed.get(&entry.keyspace.0).is_some_and(|upto| seqno > *upto);
            let (Update::PutLarge(large), true) = (entry.update, wanted) else { continue };
            match core.storage.verify_large(&large) {
                Ok(_) => in_use.push(large.extent),
                Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Replay::Cut),
                Err(error) => return Err(error),
            }
        }
        in_use.into_iter().try_for_each(|extent| core.storage.mark_used(extent))?;
        last = seqno;
        Ok(Replay::Continue)
    };
    let found = Logs::recover(directory, options, &mark, LogMode::ReadOnly, &mut replay)?;
    Ok(Surveyed { last, payload_bytes: found.payload_bytes })
}

/// The last absorbed seqno of each keyspace.
fn absorbed_by_id(core: &Core) -> BTreeMap<u32, SeqNo> {
    let keyspaces = core.all_keyspaces();
    keyspaces.iter().map(|one| (one.id.0, one.latest.lock().absorbed)).collect()
}

/// Steps 4 and 5 of an open.
pub fn replay_log(
    settings: &Settings,
    core: &Arc<Core>,
    directory: &Arc<dyn Directory>,
    options: &LogOptions,
    mark: LogMark,
    surveyed: &Surveyed,
) -> Result<()> {
    let mode = if core.read_only { LogMode::ReadOnly } else { LogMode::ReadWrite };
    let mut replayer = Replayer::new(settings, core, mark.seqno, surveyed.payload_bytes);
    if mode == LogMode::ReadWrite {
        let bytes = options.segment_bytes_first * mark.begin.len() as u64;
        replayer.reserve = reserve_for_log(core, &**directory, bytes);
        replayer.release_reserve();
    }
    let mut replay = |record: Replayed<'_>| {
        if replayer.seqno >= surveyed.last {
            return Ok(Replay::Cut);
        }
        replayer.record(record)?;
        Ok(Replay::Continue)
    };
    let recovered = Logs::recover(directory, options, &mark, mode, &mut replay)?;
    replayer.report();
    replayer.check_order()?;
    let flushed = core.counters.flushes.load(Ordering::Relaxed) > 0;
    let mut commit = core.commit.lock();
    commit.next_seqno = replayer.seqno.next();
    commit.next_ticket = replayer.ticket;
    commit.opened_ends = recovered.ends;
    drop(commit);
    if let Some((tail, logs)) = recovered.writer {
        core.begin_logs(tail, logs);
    }
    if !flushed || core.read_only {
        return Ok(());
    }
    // Flushed memtables need no second replay then. Without space now they are replayed again, or a
    // later checkpoint finds some.
    core.checkpoint_now().or_else(|error| if error.is_transient() { Ok(()) } else { Err(error) })
}

/// Reserves disk space for the segments in which the logs will continue, so that flushes do not
/// take the last of it: an unnamed file, dropped before the segments are created. On a full device
/// the data file returns free space, which a crash left there. `None` if there is not enough, or
/// such files are not supported: then creating the segments shows whether there is space.
fn reserve_for_log(core: &Core, directory: &dyn Directory, bytes: u64) -> Option<Arc<dyn File>> {
    let wanted = bytes + LOG_HEADROOM_BYTES;
    let reserve = || {
        let scratch = directory.scratch(ScratchPlace::Here)?;
        scratch.allocate(0, wanted).map(|()| scratch)
    };
    match reserve() {
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            core.storage.give_all_back().ok()?;
            reserve().ok()
        }
        reserved => reserved.ok(),
    }
}

/// Replays records into memtables.
struct Replayer<'a> {
    core: &'a Arc<Core>,
    keyspaces: BTreeMap<u32, Arc<KeyspaceCore>>,
    absorbed: BTreeMap<u32, SeqNo>,
    /// The last replayed seqno.
    seqno: SeqNo,
    ticket: u64,
    /// Disk space reserved for the next segment until the last record is replayed.
    reserve: Option<Arc<dyn File>>,
    /// Bytes in memtables at which they are flushed.
    flush_at: u64,
    progress: RecoveryProgress,
    on_progress: Option<&'a (dyn Fn(RecoveryProgress) + Send + Sync)>,
}

impl<'a> Replayer<'a> {
    fn new(settings: &'a Settings, core: &'a Arc<Core>, seqno: SeqNo, total: u64) -> Self {
        let keyspaces = core.all_keyspaces();
        Self {
            keyspaces: keyspaces.into_iter().map(|keyspace| (keyspace.id.0, keyspace)).collect(),
            absorbed: absorbed_by_id(core),
            core,
            seqno,
            ticket: 0,
            reserve: None,
            flush_at: core.governor.write_share() / 2,
            progress: RecoveryProgress { log_bytes_total: total, ..RecoveryProgress::default() },
            on_progress: settings.on_recovery.as_deref(),
        }
    }

    fn record(&mut self, Replayed { starts, payload }: Replayed<'_>) -> Result<()> {
        let mut entries = Entries::new(payload)?;
        let first = self.seqno.next();
        let last = SeqNo(self.seqno.0 + entries.left() as u64);
        let mut touched = Vec::new();
        self.core.storage.budget().make_ready(payload.len() as u64)?;
        while let Some(entry) = entries.next_entry()? {
            self.seqno = self.seqno.next();
            let id = entry.keyspace.0;
            // A keyspace missing from the catalog was dropped after this write.
            let Some(keyspace) = self.keyspaces.get(&id) else { continue };
            if self.absorbed.get(&id).is_some_and(|upto| self.seqno <= *upto) {
                continue;
            }
            let view = keyspace.current_view();
            let large = entry.update.large().map(|large| large.bytes as usize);
            let bytes = entry.key.len() + large.unwrap_or(entry.update.inline_bytes());
            view.buffers[0].touch(starts, first, last, bytes as u64);
            let pins = &*self.core.snapshots;
            view.buffers[0].memtable.insert(entry.key, entry.update, self.seqno, pins);
            if !touched.contains(&id) {
                touched.push(id);
            }
        }
        self.core.visibility.complete(self.ticket, last)?;
        self.ticket += 1;
        self.core.commit.lock().next_seqno = last.next();
        self.progress.records += 1;
        self.progress.log_bytes_done += payload.len() as u64;
        if self.progress.records.is_multiple_of(PROGRESS_EVERY) {
            self.report();
        }
        self.make_room()?;
        self.release_reserve();
        Ok(())
    }

    /// Releases the disk space reserved for the log once nothing is left to replay.
    fn release_reserve(&mut self) {
        if self.progress.log_bytes_done >= self.progress.log_bytes_total {
            self.reserve = None;
        }
    }

    /// Keeps memtables within the write share.
    fn make_room(&mut self) -> Result<()> {
        let governor = &self.core.governor;
        let held = governor.memtable_bytes();
        if held < self.flush_at {
            return Ok(());
        }
        let share = governor.write_share();
        match self.drain() {
            Ok(()) => self.flush_at = share / 2,
            // The flush is retried, but not for every record.
            Err(error) if held <= share && self.is_for_want_of_space(&error) => {
                self.flush_at = held + share / 16;
            }
            Err(error) if self.is_for_want_of_space(&error) => {
                return Err(self.too_long(held, &error));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn drain(&self) -> Result<()> {
        let core = self.core;
        mark(Mark::ReplayFlushed);
        let _hurry = core.pacer.hurry();
        if core.read_only && core.storage.is_read_only() {
            mark(Mark::ReplayToScratch);
            core.storage.continue_in(core.directory.scratch(ScratchPlace::Anywhere)?)?;
        }
        if !core.all_keyspaces().iter().any(|keyspace| keyspace.memtable_bytes().1 > 0) {
            let _commit = core.commit.lock();
            core.rotate_largest(u64::MAX);
        }
        let drain = || match core.flush_oldest(FlushPace::Usual) {
            Err(error) if error.is_transient() => core.flush_oldest(FlushPace::Minimal),
            flushed => flushed,
        };
        while drain()? {}
        Ok(())
    }

    /// True if there is nowhere to flush to; the state is unchanged.
    fn is_for_want_of_space(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::NoSpace
            || (self.core.read_only && self.core.storage.is_read_only())
    }

    /// The error of a log that neither fits into memory nor can be flushed.
    fn too_long(&self, held: u64, error: &Error) -> Error {
        let RecoveryProgress { log_bytes_done, log_bytes_total, .. } = self.progress;
        let all =
            u128::from(held) * u128::from(log_bytes_total) / u128::from(log_bytes_done.max(1));
        let budget = Governor::budget_for_write_share(u64::try_from(all).unwrap_or(u64::MAX));
        Error::new(
            error.kind(),
            format!(
                "the log does not fit into the memory budget and cannot be flushed ({error}); \
                 free disk space, or open the database with about {budget} bytes of memory"
            ),
        )
    }

    /// Fails if a root is ahead of the log: new writes would reuse its seqnos.
    fn check_order(&self) -> Result<()> {
        if self.absorbed.values().all(|absorbed| *absorbed <= self.seqno) {
            return Ok(());
        }
        Err(Error::corrupt("the log ends before writes that the data file contains")
            .at(DATA_FILE, 0))
    }

    fn report(&self) {
        if let Some(on_progress) = self.on_progress {
            on_progress(self.progress);
        }
    }
}
