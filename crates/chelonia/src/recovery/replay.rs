//! Replay: the log goes back into memtables, with the seqnos its records had.
//!
//! It is read twice: once to find where it ends and which large values it refers to (nothing may be
//! allocated before they are known), once to put it back.
//!
//! Memtables that fill up are drained on the way, read-only to a scratch file; what cannot be
//! drained because there is no room stays in memory as far as the write share goes. Nothing is made
//! durable before the log goes on in its next segment, for which room is kept from the start.

use crate::admission::governor::Governor;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::SeqNo;
use crate::base::stream::Update;
use crate::flush::memtable::FlushPace;
use crate::log::{Log, LogMode, LogOptions, LogPosition, Replay};
use crate::options::database::{RecoveryProgress, Settings};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::storage::block::DATA_FILE;
use crate::storage::data_file::superblock::LogMark;
use crate::storage::io::{Directory, File, ScratchPlace};
use crate::write::record::Entries;
use std::collections::BTreeMap;

/// How many records are replayed between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;

/// What a new log segment may take of the device beside its own bytes.
const LOG_HEADROOM_BYTES: u64 = 64 << 10;

/// Where a superblock says replay begins.
fn replay_start(mark: LogMark) -> LogPosition {
    LogPosition { lsn: mark.lsn, chain: mark.chain }
}

/// What the first reading of the log found.
pub struct Surveyed {
    /// Where the log ends.
    end: LogPosition,
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
    let mut seqno = mark.seqno;
    let mut replay = |_: LogPosition, payload: &[u8], _: LogPosition| {
        let mut entries = Entries::new(payload)?;
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
        Ok(Replay::Continue)
    };
    let found = Log::recover(
        directory,
        options,
        replay_start(mark),
        mark.durable,
        LogMode::ReadOnly,
        &mut replay,
    )?;
    Ok(Surveyed { end: found.end, payload_bytes: found.payload_bytes })
}

/// How far each keyspace has absorbed its writes.
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
        replayer.reserve = reserve_for_log(core, &**directory, options.segment_bytes_first);
        replayer.release_reserve();
    }
    let mut replay = |start: LogPosition, payload: &[u8], _: LogPosition| {
        if start.lsn >= surveyed.end.lsn {
            return Ok(Replay::Cut);
        }
        replayer.record(start, payload)?;
        Ok(Replay::Continue)
    };
    let recovered =
        Log::recover(directory, options, replay_start(mark), mark.durable, mode, &mut replay)?;
    replayer.report();
    replayer.check_order()?;
    let flushed = core.counters.flushes.load(Ordering::Relaxed) > 0;
    let mut commit = core.commit.lock();
    commit.next_seqno = replayer.seqno.next();
    commit.next_ticket = replayer.ticket;
    commit.opened_end = recovered.end.lsn;
    if let Some((tail, log)) = recovered.writer {
        commit.tail = Some(tail);
        let _ = core.log.set(log);
    }
    drop(commit);
    if !flushed || core.read_only {
        return Ok(());
    }
    // What was drained on the way need not be replayed again. If there is no room for that now, it
    // is, or a later checkpoint finds some.
    core.checkpoint_now().or_else(|error| if error.is_transient() { Ok(()) } else { Err(error) })
}

/// Keeps room on the device for the segment in which the log will go on, so that draining does not
/// take the last of it: a file without a name, to be dropped before the segment is made. A full
/// device gets free space of the data file back for it, which a crash left there. `None` if there
/// is not enough, or such files cannot be made: then the segment shows whether there is room.
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

/// Puts records back into memtables.
struct Replayer<'a> {
    core: &'a Arc<Core>,
    keyspaces: BTreeMap<u32, Arc<KeyspaceCore>>,
    absorbed: BTreeMap<u32, SeqNo>,
    /// The last seqno so far.
    seqno: SeqNo,
    ticket: u64,
    /// Until the last record is replayed: room on the device for the segment that follows.
    reserve: Option<Arc<dyn File>>,
    /// Memtables are drained once they hold so many bytes.
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

    fn record(&mut self, start: LogPosition, payload: &[u8]) -> Result<()> {
        let mut entries = Entries::new(payload)?;
        let first = self.seqno.next();
        let last = SeqNo(self.seqno.0 + entries.left() as u64);
        let mut touched = Vec::new();
        self.core.storage.budget().make_ready(payload.len() as u64)?;
        while let Some(entry) = entries.next_entry()? {
            self.seqno = self.seqno.next();
            let id = entry.keyspace.0;
            // A keyspace that is not in the catalog was dropped after this write.
            let Some(keyspace) = self.keyspaces.get(&id) else { continue };
            if self.absorbed.get(&id).is_some_and(|upto| self.seqno <= *upto) {
                continue;
            }
            let view = keyspace.current_view();
            let large = entry.update.large().map(|large| large.bytes as usize);
            let bytes = entry.key.len() + large.unwrap_or(entry.update.inline_bytes());
            view.buffers[0].touch(start, first, last, bytes as u64);
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

    /// Gives the room up that was kept for the log, if nothing is left to be replayed.
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
            // It is tried again, but not for every record.
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

    /// True if there is nowhere to drain to; what is there is as it was.
    fn is_for_want_of_space(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::NoSpace
            || (self.core.read_only && self.core.storage.is_read_only())
    }

    /// The error of a log that neither fits into memory nor can be drained.
    fn too_long(&self, held: u64, error: &Error) -> Error {
        let RecoveryProgress { log_bytes_done, log_bytes_total, .. } = self.progress;
        let all =
            u128::from(held) * u128::from(log_bytes_total) / u128::from(log_bytes_done.max(1));
        let budget = Governor::budget_for_write_share(u64::try_from(all).unwrap_or(u64::MAX));
        Error::new(
            error.kind(),
            format!(
                "the log does not fit into the memory budget and cannot be flushed ({error}); \
                 make room there, or open the database with about {budget} bytes of memory"
            ),
        )
    }

    /// Fails if a root is ahead of the log: new writes would get seqnos that it has already.
    fn check_order(&self) -> Result<()> {
        if self.absorbed.values().all(|absorbed| *absorbed <= self.seqno) {
            return Ok(());
        }
        Err(Error::corrupt("the log ends before what the data file holds").at(DATA_FILE, 0))
    }

    fn report(&self) {
        if let Some(on_progress) = self.on_progress {
            on_progress(self.progress);
        }
    }
}
