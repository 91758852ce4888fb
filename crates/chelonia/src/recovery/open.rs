//! Open: creates a database, or opens one after a close, a kill or a power loss.
//!
//! An existing database is opened the same way in all cases:
//!
//! 1. Take the lock, and that of the data file; read the superblock (its best copy) and the catalog
//!    it names.
//! 2. Open every keyspace's engine at its durable root; walk the extents that the roots refer to.
//! 3. Read the log once: large values that its records refer to are in use too, and the log ends
//!    before the first record whose large values did not reach the device. Free space is what no
//!    root or record refers to; nothing was allocated up to here.
//! 4. Replay the log into memtables, with the original seqnos; updates that a keyspace has absorbed
//!    are skipped. Memtables that fill up are flushed as usual, so that recovery needs no more
//!    memory than the budget; read-only, to a scratch file. Nothing is made durable that would
//!    shorten the log. On a full device memtables may fill their whole share, as they did before:
//!    space that flushes had taken when the device became full is freed by the crash.
//! 5. Continue the log in a new segment ([`crate::log::Logs::recover`]), and accept writes.
//!
//! A crash in any step changes nothing that the next attempt needs.
//!
//! An interrupted creation leaves a data file without a catalog: that is no database yet, and is
//! created again. A log with content, which no such creation leaves, prevents that: then the data
//! file was lost, and the log has the only data. And a file without superblocks beside a Chelonia
//! log is a damaged data file, not a foreign one.
//!
//! A refused directory stays unchanged: it is checked before the lock file is created.

use crate::admission::governor::Governor;
use crate::admission::headroom::Headroom;
use crate::admission::pacing::Pacer;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::SeqNo;
use crate::base::logs::PerLog;
use crate::engines;
use crate::flush::background::Threads;
use crate::log::{Log, LogIdentity, LogOptions, Logs};
use crate::memory::budget::Budget;
use crate::memtable::Memtable;
use crate::options::database::{LogLayout, Settings};
use crate::options::keyspace::StoredOptions;
use crate::records::RecordCache;
use crate::recovery::replay::{replay_log, survey_log};
use crate::runtime::sync::{Arc, AtomicBool, CachePadded, Mutex, OnceLock, RwLock};
use crate::state::core::{
    Change, CheckpointState, CommitState, CommitTotals, Core, Counters, DurableVersion,
};
use crate::state::health::Health;
use crate::state::jobs::WorkerShares;
use crate::state::keyspace::KeyspaceCore;
use crate::state::pending_sync::PendingSyncs;
use crate::state::scrubbing::Scrub;
use crate::state::signals::Signals;
use crate::storage::block::DATA_FILE;
use crate::storage::data_file::catalog::{Catalog, CatalogEntry};
use crate::storage::io::fence::{Fence, FencedDirectory};
use crate::storage::io::{Directory, LockGuard};
use crate::storage::{Opened, Storage};
use crate::versions::dropped::Dropped;
use crate::versions::lifetimes::Lifetimes;
use crate::versions::pins::Snapshots;
use crate::versions::recent_writes::RecentWrites;
use crate::versions::view::Buffer;
use crate::versions::visibility::Visibility;
use std::collections::BTreeMap;

/// Size of the first log segment: an empty database is small.
const LOG_SEGMENT_BYTES_FIRST: u64 = 16 << 10;
/// The number of the first keyspace.
const FIRST_KEYSPACE: u32 = 1;

/// Opens the database in `directory` as `settings` say, and starts its background.
pub fn open(settings: &Settings, directory: &Arc<dyn Directory>) -> Result<(Arc<Core>, Threads)> {
    if may_create(settings) {
        check_not_foreign(&**directory)?;
    }
    let lock = take_lock(settings, &**directory)?;
    let fence = Arc::new(Fence::default());
    let fenced = FencedDirectory::new(Arc::clone(directory), Arc::clone(&fence));
    let directory: &Arc<dyn Directory> = &(Arc::new(fenced) as Arc<dyn Directory>);
    let budget = Budget::new(settings.memory);
    let core = match Storage::open(&**directory, &budget, settings.read_only) {
        Ok(opened) if opened.superblock.catalog.is_some() => {
            open_existing(settings, directory, fence, opened)?
        }
        Ok(opened) if may_create(settings) => {
            Log::check_none_in_use(&**directory)?;
            begin(settings, directory, fence, opened.storage)?
        }
        Err(error) if error.kind() == ErrorKind::NotFound && may_create(settings) => {
            Log::check_none_in_use(&**directory)?;
            let opened = Storage::create(&**directory, &budget, settings.salt()?)?;
            begin(settings, directory, fence, opened.storage)?
        }
        Ok(_) => return Err(nothing_to_open(&**directory, no_database())),
        Err(error) => return Err(nothing_to_open(&**directory, error)),
    };
    *core.lock.lock() = Some(lock);
    core.storage.trim_memory();
    let threads = if core.read_only || core.stepped {
        Threads::default()
    } else {
        Threads::start(&core).map_err(|error| Error::io("start a thread", "", error))?
    };
    Ok((core, threads))
}

fn may_create(settings: &Settings) -> bool {
    settings.create && !settings.read_only
}

pub fn no_database() -> Error {
    Error::new(ErrorKind::NotFound, "there is no database at this path")
}

/// Fails if the directory has foreign files and none of a database: no database is created among
/// them. Nothing was written yet.
fn check_not_foreign(directory: &dyn Directory) -> Result<()> {
    let names = directory.list()?;
    if names.is_empty() || names.iter().any(|name| name == DATA_FILE || Log::has_file(name)) {
        return Ok(());
    }
    Err(Error::invalid("the directory has other files and no database; use an empty directory"))
}

/// Takes the lock. A writer creates the lock file if it is missing, but not in a directory that it
/// will refuse: that stays unchanged.
fn take_lock(settings: &Settings, directory: &dyn Directory) -> Result<Box<dyn LockGuard>> {
    let is_writer = !settings.read_only;
    let is_missing = |error: &Error| is_writer && error.kind() == ErrorKind::NotFound;
    match directory.lock(is_writer, false) {
        Err(error) if is_missing(&error) => {}
        taken => return taken,
    }
    let Err(refused) = check_lockable(settings, directory) else {
        return directory.lock(true, true);
    };
    // A database without a lock file is not open, but one may have been created meanwhile.
    match directory.lock(true, false) {
        Err(error) if is_missing(&error) => Err(refused),
        taken => taken,
    }
}

/// Fails if the files, which no process has open, are no database and none may be created.
fn check_lockable(settings: &Settings, directory: &dyn Directory) -> Result<()> {
    match Storage::is_there(directory) {
        Ok(true) => Ok(()),
        Ok(false) if may_create(settings) => Log::check_none_in_use(directory),
        Ok(false) => Err(nothing_to_open(directory, no_database())),
        Err(error) => Err(nothing_to_open(directory, error)),
    }
}

/// The error of a data file whose open failed with `error`: if a Chelonia log is beside it, the
/// data file is lost or damaged, not foreign.
pub fn nothing_to_open(directory: &dyn Directory, error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Log::check_none_in_use(directory).err().unwrap_or_else(no_database),
        ErrorKind::InvalidArgument if Log::is_there(directory).unwrap_or(false) => {
            let text = "the data file beside this log is damaged: it has no superblock";
            Error::corrupt(text).at(DATA_FILE, 0)
        }
        _ => error,
    }
}

/// Creates a new database in a data file without a checkpoint.
fn begin(
    settings: &Settings,
    directory: &Arc<dyn Directory>,
    fence: Arc<Fence>,
    storage: Arc<Storage>,
) -> Result<Arc<Core>> {
    let logs = settings.log_layout.logs()?;
    let core = new_core(settings, (directory, fence), storage, FIRST_KEYSPACE, SeqNo::ZERO)?;
    let (tail, logs) = Logs::create(directory, &log_options(settings, &core), logs)?;
    core.begin_logs(tail, logs);
    // The empty catalog makes it a database.
    core.checkpoint_locked(&mut core.checkpoint.lock())?;
    Ok(core)
}

fn log_options(settings: &Settings, core: &Core) -> LogOptions {
    let segment_bytes = settings.internals.log_segment_bytes;
    LogOptions {
        identity: LogIdentity::new(0, core.storage.salt()),
        segment_bytes_first: segment_bytes.unwrap_or(LOG_SEGMENT_BYTES_FIRST),
        segment_bytes_max: core.governor.log_segment_bytes(),
        budget: Arc::clone(core.storage.budget()),
    }
}

/// Builds the shared state, with no keyspaces and no log yet.
fn new_core(
    settings: &Settings,
    (directory, fence): (&Arc<dyn Directory>, Arc<Fence>),
    storage: Arc<Storage>,
    next_keyspace: u32,
    visible: SeqNo,
) -> Result<Arc<Core>> {
    let visibility = Arc::new(Visibility::new(visible));
    let health = Health::new(directory.path())?;
    let clock = settings.internals.clock.clone();
    let budget = Arc::clone(storage.budget());
    storage.set_clock(clock.clone());
    Ok(Arc::new(Core {
        directory: Arc::clone(directory),
        fence,
        records: RecordCache::new(&budget, storage.epochs(), storage.salt()),
        storage,
        read_only: settings.read_only,
        log: OnceLock::new(),
        durability: settings.durability,
        workers: settings.workers(),
        shares: WorkerShares::new(settings.workers(), budget.limit()),
        stepped: settings.internals.stepped,
        leave_log: settings.internals.leave_log,
        is_log_sparse: settings.log_layout == LogLayout::Sparse,
        scrub_interval: settings.scrub_interval,
        commit: CachePadded(Mutex::new(CommitState {
            next_seqno: visible.next(),
            next_ticket: 0,
            totals: CommitTotals::default(),
            tail: None,
            opened_ends: PerLog::default(),
            starts: PerLog::default(),
        })),
        snapshots: Snapshots::new(
            Arc::clone(&visibility),
            Arc::clone(&budget),
            Arc::clone(health.process()),
        ),
        recent_writes: RecentWrites::new(Arc::clone(&budget), Arc::clone(health.process())),
        visibility,
        keyspaces: RwLock::new(BTreeMap::new()),
        keyspaces_change: Mutex::new(()),
        checkpoint: Mutex::new(CheckpointState {
            durable: BTreeMap::new(),
            suspect: Vec::new(),
            next_keyspace,
            change: Change::Nothing,
        }),
        health,
        governor: Governor::new(budget, &settings.internals),
        pacer: Pacer::new(clock.clone()),
        clock,
        headroom: Headroom::default(),
        signals: Signals::default(),
        pending_syncs: PendingSyncs::default(),
        scrub: Scrub::default(),
        dropped: Dropped::default(),
        counters: Counters::default(),
        large_unsynced: AtomicBool::new(false),
        #[cfg(any(test, feature = "internals"))]
        beside_job: Mutex::default(),
        lock: Mutex::new(None),
    }))
}

/// Steps 2 to 5.
fn open_existing(
    settings: &Settings,
    directory: &Arc<dyn Directory>,
    fence: Arc<Fence>,
    opened: Opened,
) -> Result<Arc<Core>> {
    let Opened { storage, superblock, catalog } = opened;
    let mark = superblock.log;
    let core = new_core(settings, (directory, fence), storage, catalog.next_keyspace, mark.seqno)?;
    open_keyspaces(&core, catalog)?;
    let options = log_options(settings, &core);
    let found = survey_log(&core, directory, &options, mark)?;
    replay_log(settings, &core, directory, &options, mark, &found)?;
    Ok(core)
}

/// Step 2.
fn open_keyspaces(core: &Arc<Core>, catalog: Catalog) -> Result<()> {
    let mut durable = BTreeMap::new();
    for entry in catalog.keyspaces {
        let name = entry.name.clone();
        let keyspace = open_keyspace(core, entry)?;
        let version = keyspace.current_view().version.clone();
        version.version().extents(&mut |owned| match owned.is_allocated() {
            true => core.storage.mark_used(owned.extent),
            false => Ok(()),
        })?;
        let absorbed = keyspace.latest.lock().absorbed;
        durable.insert(keyspace.id, DurableVersion { version: version.as_root(), absorbed });
        core.keyspaces.write().insert(name, keyspace);
    }
    core.checkpoint.lock().durable = durable;
    core.set_space_factors(None);
    Ok(())
}

/// Opens the keyspace that a catalog entry describes.
pub fn open_keyspace(core: &Core, entry: CatalogEntry) -> Result<Arc<KeyspaceCore>> {
    let stored = StoredOptions::decode(&entry.options)?;
    if stored.engine.kind().number() != entry.engine {
        return Err(Error::corrupt("catalog: a keyspace has two different engines"));
    }
    let root = Some(entry.root.as_slice()).filter(|root| !root.is_empty());
    new_keyspace(core, entry.id, entry.name, stored, root, entry.absorbed)
}

/// Builds a keyspace over the engine at `root`, or over a new engine.
pub fn new_keyspace(
    core: &Core,
    id: crate::base::ids::KeyspaceId,
    name: String,
    stored: StoredOptions,
    root: Option<&[u8]>,
    absorbed: SeqNo,
) -> Result<Arc<KeyspaceCore>> {
    let distance = core.governor.usual_distance(stored.checkpoint_distance.unwrap_or(0));
    let engine = engines::open(&stored.context(&core.storage, distance), root)?;
    let lifetimes = Lifetimes::new(Arc::clone(&core.storage));
    let active = Buffer::new(Memtable::new(Arc::clone(core.storage.budget())));
    KeyspaceCore::new(id, name, stored, engine, lifetimes, absorbed, active)
}
