//! Opening: a new database, or one that was closed, killed, or lost its power.
//!
//! An existing one is opened the same way whatever happened to it:
//!
//! 1. Take the lock; read the superblock (its best copy) and the catalog it names.
//! 2. Open every keyspace's engine at its durable root; walk the extents that the roots refer to.
//! 3. Read the log once: large values that its records refer to are in use too, and the log ends
//!    before the first record whose large values did not reach the device. Free space is what
//!    nobody named; nothing was allocated up to here.
//! 4. Replay the log into memtables, with the seqnos the records had; what a keyspace has absorbed
//!    is skipped. Memtables that fill up are drained as always, so that recovery needs no more
//!    memory than the budget; read-only, to a scratch file. Nothing is made durable that would
//!    shorten the log. If the device is full memtables may fill their whole share, which is what
//!    they had before: what had been drained when the device became full is given back by a crash.
//! 5. Go on behind the log in a new segment ([`crate::log::Log::recover`]), and accept writes.
//!
//! A crash in any step changes nothing that the next attempt needs.
//!
//! A creation that was cut off leaves a data file without a catalog: that is no database yet, and
//! is made anew. But not if there is a log with anything in it, which no such creation leaves: then
//! it is the data file that was lost, and what the log holds is all there is.

use crate::base::budget::Budget;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::SeqNo;
use crate::base::stream::Update;
use crate::base::sync::{Arc, AtomicBool, Mutex, OnceLock, Ordering, RwLock};
use crate::db::background::Threads;
use crate::db::core::{Change, CheckpointState, CommitState, Core, Counters, DurableVersion};
use crate::db::governor::Governor;
use crate::db::handle::Handle;
use crate::db::health::Health;
use crate::db::keyspace_core::KeyspaceCore;
use crate::db::lifetimes::Lifetimes;
use crate::db::options::StoredOptions;
use crate::db::pacing::Pacer;
use crate::db::record::Entries;
use crate::db::settings::{RecoveryProgress, Settings};
use crate::db::signals::Signals;
use crate::db::snapshots::Snapshots;
use crate::db::view::Buffer;
use crate::db::visibility::Visibility;
use crate::engines::{self, EngineContext, EngineOptions};
use crate::log::{Log, LogMode, LogOptions, LogPosition, Replay};
use crate::memtable::Memtable;
use crate::storage::block::DATA_FILE;
use crate::storage::data_file::catalog::{Catalog, CatalogEntry};
use crate::storage::data_file::superblock::LogMark;
use crate::storage::io::{Directory, File, ScratchPlace};
use crate::storage::{Opened, Storage};
use std::collections::BTreeMap;

/// The size of the first log segment: an empty database is small.
const LOG_SEGMENT_BYTES_FIRST: u64 = 16 << 10;
/// The number of the first keyspace.
const FIRST_KEYSPACE: u32 = 1;

/// What a new log segment may take of the device beside its own bytes.
const LOG_HEADROOM_BYTES: u64 = 64 << 10;

/// How many records are replayed between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;

/// Opens the database in `directory` as `settings` say.
pub fn open(settings: &Settings, directory: &Arc<dyn Directory>) -> Result<Arc<Handle>> {
    Governor::check(settings.memory)?;
    if may_create(settings) {
        check_not_foreign(&**directory)?;
    }
    let lock = directory.lock(!settings.read_only, !settings.read_only)?;
    let budget = Budget::new(settings.memory);
    let core = match Storage::open(&**directory, &budget, settings.read_only) {
        Ok(opened) if opened.superblock.catalog.is_some() => {
            open_existing(settings, directory, opened)?
        }
        Ok(opened) if may_create(settings) => {
            Log::check_none_in_use(&**directory)?;
            begin(settings, directory, opened.storage)?
        }
        Err(error) if error.kind() == ErrorKind::NotFound && may_create(settings) => {
            Log::check_none_in_use(&**directory)?;
            let opened = Storage::create(&**directory, &budget, settings.salt()?)?;
            begin(settings, directory, opened.storage)?
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => return Err(Error::new(ErrorKind::NotFound, "there is no database at this path")),
    };
    *core.lock.lock() = Some(lock);
    core.storage.trim_memory();
    let threads = if core.read_only || core.stepped {
        Threads::default()
    } else {
        Threads::start(&core).map_err(|error| Error::io("start a thread", "", error))?
    };
    Ok(Handle::new(core, threads))
}

fn may_create(settings: &Settings) -> bool {
    settings.create && !settings.read_only
}

/// Fails if the directory has files of somebody else's and none of ours: a database is not made
/// among them. Nothing was written yet.
fn check_not_foreign(directory: &dyn Directory) -> Result<()> {
    let names = directory.list()?;
    if names.is_empty() || names.iter().any(|name| name == DATA_FILE || Log::has_file(name)) {
        return Ok(());
    }
    Err(Error::invalid(
        "the directory holds other files and no database; name a directory of its own",
    ))
}

/// Makes a new database of a data file that no checkpoint was made in.
fn begin(
    settings: &Settings,
    directory: &Arc<dyn Directory>,
    storage: Arc<Storage>,
) -> Result<Arc<Core>> {
    let start = LogPosition::START;
    let (tail, log) = Log::create(Arc::clone(directory), &log_options(settings, &storage), start)?;
    let core = new_core(settings, directory, storage, FIRST_KEYSPACE, SeqNo::ZERO);
    let _ = core.log.set(log);
    core.commit.lock().tail = Some(tail);
    // The first catalog, an empty one: from now on there is a database.
    core.checkpoint_locked(&mut core.checkpoint.lock())?;
    Ok(core)
}

fn log_options(settings: &Settings, storage: &Storage) -> LogOptions {
    let max = Governor::log_segment_bytes(settings.memory);
    LogOptions {
        salt: storage.salt(),
        segment_bytes_first: settings
            .internals
            .log_segment_bytes
            .unwrap_or(LOG_SEGMENT_BYTES_FIRST),
        segment_bytes_max: settings.internals.log_segment_bytes.unwrap_or(max),
        budget: Arc::clone(storage.budget()),
    }
}

/// The shared state, with no keyspaces and no log yet.
fn new_core(
    settings: &Settings,
    directory: &Arc<dyn Directory>,
    storage: Arc<Storage>,
    next_keyspace: u32,
    visible: SeqNo,
) -> Arc<Core> {
    let visibility = Arc::new(Visibility::new(visible));
    let clock = settings.internals.clock.clone();
    let budget = Arc::clone(storage.budget());
    Arc::new(Core {
        directory: Arc::clone(directory),
        storage,
        read_only: settings.read_only,
        log: OnceLock::new(),
        durability: settings.durability,
        workers: settings.workers(),
        stepped: settings.internals.stepped,
        commit: Mutex::new(CommitState {
            tail: None,
            opened_end: LogPosition::START.lsn,
            next_seqno: visible.next(),
            next_ticket: 0,
        }),
        snapshots: Snapshots::new(Arc::clone(&visibility)),
        visibility,
        keyspaces: RwLock::new(BTreeMap::new()),
        keyspaces_change: Mutex::new(()),
        checkpoint: Mutex::new(CheckpointState {
            durable: BTreeMap::new(),
            doubtful: Vec::new(),
            next_keyspace,
            change: Change::Nothing,
        }),
        health: Health::default(),
        governor: Governor::new(budget, settings.internals.write_share),
        pacer: Pacer::new(clock.clone()),
        clock,
        signals: Signals::default(),
        counters: Counters::default(),
        large_unsynced: AtomicBool::new(false),
        lock: Mutex::new(None),
    })
}

/// Steps 2 to 5.
fn open_existing(
    settings: &Settings,
    directory: &Arc<dyn Directory>,
    opened: Opened,
) -> Result<Arc<Core>> {
    let Opened { storage, superblock, catalog } = opened;
    let mark = superblock.log;
    let core = new_core(settings, directory, storage, catalog.next_keyspace, mark.seqno);
    open_keyspaces(&core, catalog)?;
    let options = log_options(settings, &core.storage);
    let found = survey_log(&core, directory, &options, mark)?;
    replay_log(settings, &core, directory, &options, mark, &found)?;
    Ok(core)
}

/// Where a superblock says replay begins.
fn replay_start(mark: LogMark) -> LogPosition {
    LogPosition { lsn: mark.lsn, chain: mark.chain }
}

/// Step 2.
fn open_keyspaces(core: &Arc<Core>, catalog: Catalog) -> Result<()> {
    let mut durable = BTreeMap::new();
    for entry in catalog.keyspaces {
        let name = entry.name.clone();
        let keyspace = open_keyspace(core, entry)?;
        let version = keyspace.current_view().version.clone();
        version.version().extents(&mut |owned| core.storage.mark_used(owned.extent))?;
        let absorbed = keyspace.latest.lock().absorbed;
        durable.insert(keyspace.id, DurableVersion { _version: version.as_root(), absorbed });
        core.keyspaces.write().insert(name, keyspace);
    }
    core.checkpoint.lock().durable = durable;
    Ok(())
}

/// Opens the keyspace that a catalog entry describes.
pub fn open_keyspace(core: &Core, entry: CatalogEntry) -> Result<Arc<KeyspaceCore>> {
    let stored = StoredOptions::decode(&entry.options)?;
    if stored.engine.number() != entry.engine {
        return Err(Error::corrupt("catalog: a keyspace names two engines"));
    }
    let root = Some(entry.root.as_slice()).filter(|root| !root.is_empty());
    new_keyspace(core, entry.id, entry.name, stored, root, entry.absorbed)
}

/// A keyspace over the engine at `root`, or over a new one.
pub fn new_keyspace(
    core: &Core,
    id: crate::base::ids::KeyspaceId,
    name: String,
    stored: StoredOptions,
    root: Option<&[u8]>,
    absorbed: SeqNo,
) -> Result<Arc<KeyspaceCore>> {
    let distance = core.governor.checkpoint_distance(stored.checkpoint_distance.unwrap_or(0));
    let options = EngineOptions {
        filter: stored.filter,
        bits_per_key: stored.filter_bits_per_key,
        leaf_bytes: u64::from(stored.leaf_bytes.unwrap_or(0)),
        pivots_max: stored.pivots_max,
        checkpoint_distance: distance,
    };
    let context = EngineContext { storage: Arc::clone(&core.storage), options };
    let engine = engines::open(stored.engine, &context, root)?;
    let lifetimes = Lifetimes::new(Arc::clone(&core.storage));
    let active = Buffer::new(Memtable::new(Arc::clone(core.storage.budget())));
    KeyspaceCore::new(id, name, stored, engine, lifetimes, absorbed, active)
}

/// What the first reading of the log found.
struct Surveyed {
    /// Where the log ends.
    end: LogPosition,
    /// Bytes of the records.
    payload_bytes: u64,
}

/// Step 3.
fn survey_log(
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

fn absorbed_by_id(core: &Core) -> BTreeMap<u32, SeqNo> {
    let keyspaces = core.all_keyspaces();
    keyspaces.iter().map(|one| (one.id.0, one.latest.lock().absorbed)).collect()
}

/// Steps 4 and 5.
fn replay_log(
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
    let drained = core.counters.drains.load(Ordering::Relaxed) > 0;
    let mut commit = core.commit.lock();
    commit.next_seqno = replayer.seqno.next();
    commit.next_ticket = replayer.ticket;
    commit.opened_end = recovered.end.lsn;
    if let Some((tail, log)) = recovered.writer {
        commit.tail = Some(tail);
        let _ = core.log.set(log);
    }
    drop(commit);
    if !drained || core.read_only {
        return Ok(());
    }
    // What was drained on the way need not be replayed again. If there is no room for that now, it
    // is, or a later checkpoint finds some.
    core.checkpoint_now().or_else(|error| if error.is_passing() { Ok(()) } else { Err(error) })
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
    drain_at: u64,
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
            drain_at: core.governor.write_share() / 2,
            progress: RecoveryProgress { log_bytes_total: total, ..RecoveryProgress::default() },
            on_progress: settings.on_recovery.as_deref(),
        }
    }

    fn record(&mut self, start: LogPosition, payload: &[u8]) -> Result<()> {
        let mut entries = Entries::new(payload)?;
        let first = self.seqno.next();
        let last = SeqNo(self.seqno.0 + entries.left() as u64);
        let mut touched = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            self.seqno = self.seqno.next();
            let id = entry.keyspace.0;
            // A keyspace that is not in the catalog was dropped after this write.
            let Some(keyspace) = self.keyspaces.get(&id) else { continue };
            if self.absorbed.get(&id).is_some_and(|upto| self.seqno <= *upto) {
                continue;
            }
            let view = keyspace.current_view();
            view.buffers[0].touch(start, first, last);
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
        if held < self.drain_at {
            return Ok(());
        }
        let share = governor.write_share();
        match self.drain() {
            Ok(()) => self.drain_at = share / 2,
            // It is tried again, but not for every record.
            Err(error) if held <= share && self.is_for_want_of_space(&error) => {
                self.drain_at = held + share / 16;
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
        if core.read_only && core.storage.is_read_only() {
            core.storage.continue_in(core.directory.scratch(ScratchPlace::Anywhere)?)?;
        }
        if !core.all_keyspaces().iter().any(|keyspace| keyspace.memtable_bytes().1 > 0) {
            let _commit = core.commit.lock();
            core.rotate_largest(u64::MAX);
        }
        while core.drain_oldest()? {}
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
                "the log does not fit into the memory budget and cannot be drained ({error}); \
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

impl Core {
    /// Syncs, and marks in the superblock how far the log is durable: an intact end.
    pub fn shut_down(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.health.check_write()?;
        // A checkpoint of another thread ends first, or finds the log without an end and fails.
        let _order = self.checkpoint.lock();
        self.sync()?;
        self.commit.lock().tail = None;
        let Some(log) = self.log.get() else { return Ok(()) };
        log.release_idle();
        let before = self.storage.superblock().log;
        let mark = LogMark { durable: before.durable.max(log.synced()), ..before };
        let marked = self.storage.mark_log(mark);
        marked.map(|_| ()).map_err(|error| self.health.stop(error))
    }
}
