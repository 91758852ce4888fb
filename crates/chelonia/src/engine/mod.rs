//! The interface between the database (the layers above the engines) and the engines.
//!
//! An engine owns the durable structure of one keyspace and nothing else. It *absorbs* sorted
//! updates and creates *versions*; versions answer reads. Logs, memtables, snapshots, recovery and
//! background threads belong to the database, which calls the engine; the engine calls the modules
//! below it and storage.
//!
//! ```text
//!   database                          engine                          storage
//!   immutable memtable -- absorb ---> merges, writes new extents ---> write_at
//!                      <-- Absorbed { version, gained, lost } --
//!   background        -- plan -----> Job: run, install -------------> write_at
//!                      <-- Absorbed, or nothing if the job was dropped --
//!   checkpoint        -- root -----> describes its newest version
//!                      <-- root blob (stored in the catalog) --
//!   reads             -- Version::{look, read, multi_get, cursor} --> block cache
//! ```
//!
//! Contract:
//! 1. Absorbs, reclaims, plans, installs and root are called by one thread at a time per engine
//!    (under the lock `KeyspaceCore::flush`). [`Job::run`] is called without that lock, beside all
//!    of them; versions are read from any thread at any time.
//! 2. A version never changes, whatever the engine does later. It stays readable while it has
//!    holders: its extents are reused only when neither a holder nor the durable root can reach
//!    them (`versions/lifetimes.rs`).
//! 3. Everything a version refers to has been written (not necessarily synced) when absorb returns.
//!    A checkpoint syncs before it makes a root durable (`flush/checkpoint.rs`).
//! 4. After an error from absorb, reclaim or install the newest version is the one before the call,
//!    and all allocations of the call have been freed.
//! 5. A plan allocates nothing and waits for no job. Several jobs of an engine may be outstanding
//!    if none changes what another one reads or replaces: the plan sees to it.
//! 6. A job reads the version that was the newest at its plan; its caller holds that version. A job
//!    is installed on the version that is the newest then. If that no longer contains what the job
//!    replaces, the job is dropped.
//! 7. A job that is dropped, by its caller or by its install, or that failed, frees all of its
//!    allocations, and leaves no trace in any version. Its work can be planned again.
//!
//! | file | content |
//! | --- | --- |
//! | here | the traits [`Engine`], [`Job`] and [`Version`], and their arguments |
//! | `kind` | engines by number and name |
//! | `options` | options of every engine, and those that may change while a keyspace is open |
//! | `tests` | the test suite that every engine calls |

use crate::base::check::CheckReport;
use crate::base::checksum::KeyHash;
use crate::base::dump::DumpVisitor;
use crate::base::error::{Error, Result};
use crate::base::ids::{Extent, Generation};
use crate::base::keys::{Direction, KeyRange};
pub use crate::base::stream::Found;
use crate::base::stream::{LargeRef, NewValues, SortedStream, SortedUpdates, Update};
use crate::memory::epoch::Guard;
use crate::runtime::sync::Arc;
use crate::runtime::workers::Workers;
use crate::storage::Storage;
use crate::storage::cache::Presence;
use crate::storage::quota::Quota;

mod kind;
mod options;

pub use kind::EngineKind;
pub use options::{
    AutumnOptions, BminusOptions, EngineOptions, LevelOptions, LiveOptions, SplinterOptions,
    TreelineOptions, TurtleOptions,
};
pub(crate) use options::{
    DELTA_BYTES_DEFAULT, EPSILON_PERCENT_DEFAULT, FANOUT_DEFAULT, FILL_PERCENT_DEFAULT,
    FORECAST_ROUNDS_DEFAULT, GROUP_PAGES_DEFAULT, PAGE_BYTES_DEFAULT, PIVOTS_MAX,
    SEGMENT_BYTES_DEFAULT, SHADOW_DEFAULT, SPACE_PERCENT_DEFAULT,
};

/// The durable structure of one keyspace.
pub trait Engine: Send + Sync {
    /// Returns the newest version.
    fn version(&self) -> Arc<dyn Version>;

    /// Absorbs `updates`, which are newer than all entries of the engine, and creates the next
    /// version. Writes as much as `budget` says.
    fn absorb(
        &self,
        updates: &dyn SortedUpdates,
        budget: WriteBudget,
        work: &Work<'_>,
    ) -> Result<Absorbed>;

    /// Does a small unit of work that will free more space than it takes, after the next
    /// checkpoint. Called on a nearly full device, whether or not the work is otherwise worthwhile.
    /// `None` if there is nothing to gain.
    fn reclaim(&self, work: &Work<'_>) -> Result<Option<Absorbed>>;

    /// Estimates the bytes that [`Engine::reclaim`] allocates before it frees some. Called by
    /// commits: must not block for long.
    fn reclaim_needs_bytes(&self) -> u64;

    /// Bytes of the data file that an absorb with `budget` allocates at most for each byte of
    /// updates, about, without large values. Constant. Called by commits.
    ///
    /// The default is that of engines whose absorbs make free space before they need more, and
    /// whose replaced extents are freed by the next checkpoint.
    fn space_times(&self, budget: WriteBudget) -> u64 {
        match budget {
            WriteBudget::Usual => 3,
            WriteBudget::Minimal => 2,
        }
    }

    /// Encodes the newest version: see [`Version::root`].
    fn root(&self) -> Result<Vec<u8>> {
        self.version().root()
    }

    /// Plans one bounded job of background work on the newest version, for as many threads as
    /// `work` has; `None` if there is none that can run beside the outstanding ones. Cheap.
    fn plan(&self, work: &Work<'_>) -> Result<Option<Box<dyn Job + '_>>>;

    /// True if [`Engine::plan`] may find a job. Called often, by any thread.
    fn wants_maintenance(&self) -> bool;

    /// Sets whether updates are expected soon (initially true); called at every tick. While none
    /// are, the result of read-optimising jobs lasts longer, so more of them are worthwhile.
    fn expect_updates(&self, expected: bool);

    /// Returns the pending background work, in bytes to be rewritten. Writers are delayed as it
    /// grows.
    fn debt_bytes(&self) -> u64;

    /// Sets the checkpoint distance (bytes of updates per absorb). An engine whose structure does
    /// not depend on it ignores it.
    fn set_checkpoint_distance(&self, bytes: u64);

    /// Applies changed live options. Called only with options of this engine.
    fn set_live_options(&self, options: LiveOptions);

    /// Returns statistics by cause.
    fn stats(&self) -> EngineStats;
}

/// A unit of background work that was planned and is not installed yet. Dropping it frees what it
/// allocated.
pub trait Job {
    /// True if the lock is to be held from the plan to the install: jobs like this one were dropped
    /// repeatedly, because an absorb came in between.
    fn keeps_lock(&self) -> bool {
        false
    }

    /// Does the work and writes its output, without the lock. Called once, before the install.
    fn run(&mut self, work: &Work<'_>) -> Result<()>;

    /// Makes the next version from the newest one and the output, under the lock. `None` if the job
    /// was dropped.
    fn install(self: Box<Self>, work: &Work<'_>) -> Result<Option<Absorbed>>;
}

/// Does one job from the plan to the install, under the lock; `None` if there is none.
#[cfg(test)]
pub fn do_job(engine: &dyn Engine, work: &Work<'_>) -> Result<Option<Absorbed>> {
    while let Some(mut job) = engine.plan(work)? {
        job.run(work)?;
        if let Some(absorbed) = job.install(work)? {
            return Ok(Some(absorbed));
        }
    }
    Ok(None)
}

/// An immutable state of one engine.
pub trait Version: Send + Sync {
    /// Looks up `key` in memory only, without reading from the device.
    fn look(&self, key: &[u8], hash: KeyHash, guard: &Guard) -> Result<Looked>;

    /// Returns the value of `key`, if it has one; continues where [`Version::look`] met data that
    /// is not in memory. The caller holds no guard, because a read may take long.
    fn read(&self, key: &[u8], hash: KeyHash, from: Progress) -> Result<Answer>;

    /// Returns the value of `key`, if it has one. The caller holds no guard.
    fn get(&self, key: &[u8], hash: KeyHash) -> Result<Answer> {
        self.read(key, hash, Progress::default())
    }

    /// Returns the values of `keys`, in the given order. Missing blocks are read together. The
    /// caller holds no guard.
    fn multi_get(&self, keys: &[(&[u8], KeyHash)]) -> Result<Vec<Answer>> {
        keys.iter().map(|(key, hash)| self.get(key, *hash)).collect()
    }

    /// Returns the entries within `range`, in `direction`; holds the version while it lives. The
    /// stream has no tombstones.
    fn cursor(
        self: Arc<Self>,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn SortedStream + Send>>;

    /// Encodes the version so that `crate::engines::open` can open it again. All data that the blob
    /// refers to has been written.
    fn root(&self) -> Result<Vec<u8>>;

    /// Visits every extent that the version refers to, each once. Reads metadata, never data. Skips
    /// unreadable metadata, continues after it, and returns the error at the end.
    fn extents(&self, visit: &mut dyn FnMut(OwnedExtent) -> Result<()>) -> Result<()>;

    /// Sends the parts of the version's structure to `out`, with their locations and totals. Items
    /// of the top level have depth 1.
    fn describe(&self, out: &mut dyn DumpVisitor) -> Result<()>;

    /// Reads everything and checks every checksum and every invariant; findings that do not stop
    /// the walk go to `report`.
    fn verify(&self, report: &mut dyn CheckReport) -> Result<()>;

    /// Checks the pages around key `from` for a scrub, if extents of pages cannot be checked by
    /// themselves ([`OwnedExtent::is_sealed`]); returns the key at which to go on, if there is
    /// more.
    fn check_pages(&self, _from: &[u8], _report: &mut dyn CheckReport) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Passes everything that can be read to `found`, despite damage: the updates of a key in the
    /// order in which they were made, oldest first. Fails only if `found` does.
    fn salvage(&self, found: &mut dyn Salvaged) -> Result<()>;
}

/// Result of a lookup in memory.
pub enum Looked {
    /// The result of [`Version::get`].
    Answer(Answer),
    /// Data must be read first.
    OnDevice(Progress),
}

/// Progress of a lookup in memory, in units of the engine: the parts passed do not have the key,
/// and their read cost is counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress(pub usize);

/// Result of a lookup in a version.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Answer {
    /// The entry found, if there is one.
    pub found: Option<Found>,
    /// Where the entry's blocks were (memory or device).
    pub presence: Presence,
}

/// Number of keys that [`look_many`] looks up under one guard.
const LOOKS_UNDER_GUARD: usize = 128;

/// Looks up a key in memory, like [`Version::look`].
pub type Look<'l> = dyn FnMut(&[u8], KeyHash, &Guard) -> Result<Looked> + 'l;

/// Reads the remaining keys, given the progress of each lookup in memory.
pub type ReadRest<'r> =
    dyn FnMut(&[(&[u8], KeyHash)], &[Progress], &mut dyn FnMut(usize, Answer)) -> Result<()> + 'r;

/// Returns the values of many keys: looks all of them up in memory first, and then reads the rest
/// together, without a guard.
pub fn look_many(
    storage: &Storage,
    keys: &[(&[u8], KeyHash)],
    look: &mut Look<'_>,
    read: &mut ReadRest<'_>,
) -> Result<Vec<Answer>> {
    let mut answers: Vec<Answer> = vec![Answer::default(); keys.len()];
    let (mut rest, mut passed, mut places) = (Vec::new(), Vec::new(), Vec::new());
    let mut guard = storage.epochs().pin();
    for (place, (key, hash)) in keys.iter().enumerate() {
        if place % LOOKS_UNDER_GUARD == LOOKS_UNDER_GUARD - 1 {
            drop(guard);
            guard = storage.epochs().pin();
        }
        match look(key, *hash, &guard)? {
            Looked::Answer(answer) => answers[place] = answer,
            Looked::OnDevice(from) => {
                rest.push((*key, *hash));
                passed.push(from);
                places.push(place);
            }
        }
    }
    drop(guard);
    if !rest.is_empty() {
        read(&rest, &passed, &mut |index, answer| answers[places[index]] = answer)?;
    }
    Ok(answers)
}

/// An extent that a version refers to. Its generation limits the versions that can refer to it to
/// those made after it was allocated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OwnedExtent {
    /// The blocks.
    pub extent: Extent,
    /// The generation that its blocks were sealed with.
    pub generation: Generation,
    /// How it is used and checked.
    pub kind: ExtentKind,
}

/// How an extent is allocated and checked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ExtentKind {
    /// Written once: all of its blocks carry its generation.
    Structure,
    /// A large value, written once.
    LargeValue,
    /// A group of pages: allocated and freed as a whole. Its blocks are checked page by page: slots
    /// that no page is in may hold anything.
    PageGroup,
    /// A page of a group: written once, in a slot that is used again later. It is neither allocated
    /// nor freed by itself: at the end of its lifetime its slot may be overwritten.
    Page,
}

impl OwnedExtent {
    /// An extent of runs, nodes, or other structure that is written once.
    #[must_use]
    pub fn structure(extent: Extent, generation: Generation) -> Self {
        Self { extent, generation, kind: ExtentKind::Structure }
    }

    /// True for the extent of a large value.
    #[must_use]
    pub fn is_large_value(&self) -> bool {
        self.kind == ExtentKind::LargeValue
    }

    /// True if blocks are allocated for it, and not only as a part of another extent.
    #[must_use]
    pub fn is_allocated(&self) -> bool {
        self.kind != ExtentKind::Page
    }

    /// True if its blocks are sealed with its generation.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.kind != ExtentKind::PageGroup
    }

    /// Lets its blocks be used again, at the end of its lifetime.
    pub fn release(&self, storage: &Storage) {
        if self.is_allocated() {
            storage.free_unreachable(self.extent);
        } else {
            storage.release_slot(self.extent.start, self.generation);
        }
    }
}

impl From<&LargeRef> for OwnedExtent {
    fn from(large: &LargeRef) -> Self {
        let kind = ExtentKind::LargeValue;
        Self { extent: large.extent, generation: large.generation, kind }
    }
}

/// Returns the number of blocks of a version that gained and lost these extents, after a version of
/// `before` blocks.
#[must_use]
pub fn blocks_after(before: u64, gained: &[OwnedExtent], lost: &[OwnedExtent]) -> u64 {
    let blocks = |extents: &[OwnedExtent]| -> u64 {
        // Pages are parts of their groups.
        let allocated = extents.iter().filter(|owned| owned.is_allocated());
        allocated.map(|owned| u64::from(owned.extent.blocks)).sum()
    };
    (before + blocks(gained)).saturating_sub(blocks(lost))
}

/// Result of an absorb.
pub struct Absorbed {
    /// The next version.
    pub version: Arc<dyn Version>,
    /// Extents that only the next version refers to, not the one before. Large values that came
    /// with the updates count as gained. Pages are not listed: they come with their group, or are
    /// written to a slot of it.
    pub gained: Vec<OwnedExtent>,
    /// Extents that only the version before refers to, not the next one. A page is listed if its
    /// group stays, so that its slot is held; otherwise it goes with its group.
    pub lost: Vec<OwnedExtent>,
}

/// How much an absorb may write. The space that it may allocate is a limit of its own
/// ([`Work::quota`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteBudget {
    /// As much as is best for later reads and writes.
    Usual,
    /// Hardly more than the updates: the device is nearly full.
    Minimal,
}

/// Resources an engine may use while it works.
pub struct Work<'a> {
    /// Threads for independent parts of the work.
    pub workers: &'a Workers,
    /// Called with the number of ranks absorbed since the last call; for progress and pacing.
    pub progress: &'a (dyn Fn(u64) + Sync),
    /// Disk space that it may allocate.
    pub quota: &'a Quota<'a>,
    /// How the values of new runs are stored. Engines without runs ignore it.
    pub values: NewValues<'a>,
}

/// Receives the entries found by `salvage`.
pub trait Salvaged {
    /// Receives an update of `key`, newer than all updates of it received before.
    fn update(&mut self, key: &[u8], update: Update<'_>) -> Result<()>;
    /// Reports updates of these keys that cannot be read at this point: updates received before may
    /// be out of date.
    fn lost(&mut self, keys: KeyRange, cause: Error) -> Result<()>;
}

/// Statistics of one engine, by cause. Byte counts are totals since open.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EngineStats {
    /// Height of the structure (0 when empty).
    pub height: u32,
    /// Tree nodes.
    pub nodes: u64,
    /// Runs of the lowest level: the leaves of `turtle`, the last level of `autumn`; the groups of
    /// pages of `treeline`. None in `splinter`: there a leaf is a range of keys, and its branches
    /// count as buffered.
    pub leaves: u64,
    /// Runs above the leaves: the buffers of `turtle`, the other levels of `autumn`, all branches
    /// of `splinter`, staged runs of `treeline`.
    pub buffered_runs: u64,
    /// Key and inline value bytes in leaves, before compression.
    pub leaf_bytes: u64,
    /// Key and inline value bytes in buffers, before compression.
    pub buffered_bytes: u64,
    /// Bytes of blocks that the newest version occupies.
    pub disk_bytes: u64,
    /// Bytes written for runs and pages of entries.
    pub run_bytes_written: u64,
    /// Bytes written for tree nodes.
    pub node_bytes_written: u64,
    /// Bytes read by merges.
    pub merge_bytes_read: u64,
    /// Event counts by name, in a fixed order: splits, joins, flushes, ... They are described in
    /// `docs/engines/events.md`.
    pub events: Vec<(&'static str, u64)>,
}

#[cfg(test)]
pub mod tests;
