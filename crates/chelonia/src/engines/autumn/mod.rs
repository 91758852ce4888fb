//! The autumn engine: an LSM-tree whose levels grow with the data, after the Autumn paper.
//!
//! Structure, policy and differences from the paper: `docs/engines/autumn.md`.
//!
//! | module | contents |
//! | --- | --- |
//! | `options` | options of a tree and the sizes derived from them |
//! | `merge/garnering` | the Garnering policy: level capacities, number of levels, filter bits |
//! | `table` | tables, nodes and sequences in memory |
//! | `bounds` | shortened key bounds of tables |
//! | `codec` | on-disk encoding of nodes, the directory and the root blob |
//! | `merge/absorb` | writing memtables as sequences of level 0 |
//! | `merge/plan` | selection of the next compaction step |
//! | `merge/level0_picker`, `merge/choose` | table selection: in level 0; in the levels below |
//! | `merge/job`, `merge/claims` | one compaction step as a job; what outstanding jobs merge |
//! | `merge/merging`, `merge/unit` | effect of a merge on a version; one merge unit |
//! | `merge/output` | extents written, and extents no longer referenced |
//! | `read` | point reads and range reads |
//! | `version`, `contract` | a version; what every engine does with one |
//! | `check` | verification, unreadable runs that merges skip, salvage, dumps |
//! | `counters` | event counters |
//!
//! Invariants:
//! 1. The newest version is replaced only after everything it refers to was written.
//! 2. A failed absorb or merge unit changes nothing: the newest version stays, and its allocations
//!    are freed.
//! 3. The extents reported as gained and lost are exactly the difference between two versions.
//! 4. Sequences are ordered from newest to oldest: level 0 from its newest sequence on, then level
//!    1, 2, ... Updates in an earlier sequence are newer.
//!
//! Locks: `writer` is held for a whole absorb, and for the plan and the install of a job, not for
//! its run; then `claims`; `newest` only briefly, and no other lock is taken while it is held.

use self::check::damage::Damage;
use self::codec::{Directory, LEVEL0_MAX};
use self::counters::Counters;
use self::merge::claims::Claims;
use self::merge::job::Planned;
use self::merge::output::Output;
use self::merge::plan::{Sizes, Step};
pub use self::options::AutumnConfig;
use self::table::{NodeCache, Sequence};
use self::version::{AutumnVersion, Next};
use crate::base::error::{Error, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::stream::SortedUpdates;
use crate::engine::{
    Absorbed, Engine, EngineStats, Job, LiveOptions, Version, Work, WriteBudget, blocks_after,
};
use crate::run::OpenRuns;
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, RwLock};
use crate::storage::Storage;
use crate::structure::{DirectoryRoot, SharedKey, events};
use std::collections::BTreeMap;

mod bounds;
mod check;
mod codec;
mod contract;
mod counters;
mod merge;
mod options;
mod read;
mod table;
mod version;

#[cfg(test)]
mod tests;

/// Approximate bytes of the nodes and the directory written by one reclaiming unit.
const RECLAIM_NODES_BYTES: u64 = 64 << 10;

/// The root blob, in errors.
const ROOT: &str = "root of an autumn tree";

/// Decodes a root blob, for tests.
#[cfg(feature = "internals")]
pub fn decode_root(bytes: &[u8]) -> Result<()> {
    DirectoryRoot::decode(bytes, ROOT).map(|_| ())
}

/// Decodes a node and a directory, for tests.
#[cfg(feature = "internals")]
pub fn decode_structure(bytes: &[u8], storage: &Arc<Storage>) {
    let node_cache = NodeCache::new(Arc::clone(storage), OpenRuns::default());
    drop(codec::decode_node(bytes, &node_cache));
    drop(Directory::decode(bytes, &node_cache));
}

/// State shared by an engine and its versions.
struct Shared {
    node_cache: NodeCache,
    counters: Counters,
    /// A read was slowed down by level 0.
    is_read: AtomicBool,
}

/// Additional merge work of an absorb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gather {
    /// Merge small sequences of level 0.
    Small,
    /// Merge nothing: on a nearly full device the space is reserved for the updates.
    Nothing,
}

/// An autumn tree: see the module documentation.
pub struct Autumn {
    shared: Arc<Shared>,
    newest: RwLock<Arc<AutumnVersion>>,
    /// Options that may change while an absorb runs.
    options: Mutex<AutumnConfig>,
    writer: Mutex<Writer>,
    /// Key ranges that outstanding jobs merge.
    claims: Mutex<Claims>,
    /// Updates are expected soon.
    busy: AtomicBool,
    wants: AtomicBool,
    debt: AtomicU64,
}

/// State used only by absorbs and merges.
#[derive(Default)]
struct Writer {
    damage: Damage,
    /// Key at which the next merge of each level starts.
    from: BTreeMap<usize, SharedKey>,
    /// Levels that cannot be compacted because of unreadable blocks.
    stuck: Vec<usize>,
}

impl Writer {
    /// Forgets positions by level, after levels were renumbered.
    fn forget_places(&mut self) {
        self.from.clear();
        self.stuck.clear();
    }
}

impl Autumn {
    /// Opens the tree described by `root`, or an empty one. Reads the directory.
    pub fn open(
        storage: &Arc<Storage>,
        options: AutumnConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        let node_cache = NodeCache::new(Arc::clone(storage), OpenRuns::default());
        let (blob, directory) = DirectoryRoot::open(root, ROOT, storage, |bytes| {
            Directory::decode(bytes, &node_cache)
        })?;
        let shared = Arc::new(Shared {
            node_cache,
            counters: Counters::default(),
            is_read: AtomicBool::new(false),
        });
        let next = Next {
            level0: directory.level0.into_iter().map(Arc::new).collect(),
            sinking: directory.sinking,
            levels: directory.levels.into_iter().map(Arc::new).collect(),
        };
        let version =
            AutumnVersion::new(Arc::clone(&shared), blob.directory, next, blob.disk_blocks);
        let tree = Self {
            shared,
            newest: RwLock::new(Arc::new(version)),
            options: Mutex::new(options),
            writer: Mutex::default(),
            claims: Mutex::default(),
            busy: AtomicBool::new(true),
            wants: AtomicBool::new(false),
            debt: AtomicU64::new(0),
        };
        tree.reassess(&[]);
        Ok(tree)
    }

    fn newest(&self) -> Arc<AutumnVersion> {
        Arc::clone(&self.newest.read())
    }

    fn options(&self) -> AutumnConfig {
        *self.options.lock()
    }

    /// True if level 0 should be merged for the sake of reads: reads pay for it, and the keyspace
    /// is write-idle.
    fn is_eager(&self) -> bool {
        !self.busy.load(Ordering::Relaxed) && self.shared.is_read.load(Ordering::Relaxed)
    }

    /// Recomputes whether work is pending and how much.
    fn reassess(&self, stuck: &[usize]) {
        let version = self.newest();
        let policy = self.options().policy();
        let debt = Sizes::of(&version).debt(&policy, stuck);
        self.debt.store(debt, Ordering::Relaxed);
        let wants = self.step_beside(&version, stuck, &[]).is_some();
        self.wants.store(wants, Ordering::Relaxed);
    }

    /// Writes the updates as a sequence of level 0, after the merge requested by `gather`.
    fn absorb_as(
        &self,
        updates: &dyn SortedUpdates,
        work: &Work<'_>,
        gather: Gather,
    ) -> Result<Absorbed> {
        let mut writer = self.writer.lock();
        let version = self.newest();
        if updates.is_empty() {
            return Ok(Absorbed { version, gained: Vec::new(), lost: Vec::new() });
        }
        if version.level0.len() >= LEVEL0_MAX {
            return Err(Error::internal("level 0 has reached its maximum number of sequences"));
        }
        let output = self.output(work);
        let mut next = Next::of(&version);
        if gather == Gather::Small {
            self.gather_small(&version, &mut writer, &mut next, &output, work);
        }
        let sequence = match self.write_level0(&version, updates, work, &output) {
            Ok(sequence) => sequence,
            Err(error) => {
                // The first error is more useful than one from the roll-back.
                let _ = output.roll_back();
                return Err(error);
            }
        };
        next.level0.insert(0, Arc::new(sequence));
        let absorbed = self.publish(&version, next, output)?;
        events::add(&self.shared.counters.absorbs, 1);
        self.reassess(&writer.stuck);
        Ok(absorbed)
    }

    /// Returns an empty output of `work`: it allocates within its quota.
    fn output<'t>(&'t self, work: &Work<'t>) -> Output<'t> {
        let (node_cache, counters) = (&self.shared.node_cache, &self.shared.counters);
        Output::new(node_cache, counters, self.options().run, work)
    }

    /// Writes the directory of the version described by `next` and publishes that version.
    fn publish(&self, version: &AutumnVersion, next: Next, output: Output<'_>) -> Result<Absorbed> {
        let directory = match output.write_directory(version.directory, &next) {
            Ok(directory) => directory,
            Err(error) => {
                // The first error is more useful than one from the roll-back.
                let _ = output.roll_back();
                return Err(error);
            }
        };
        let (gained, lost) = output.settle();
        let disk_blocks = blocks_after(version.disk_blocks, &gained, &lost);
        let shared = Arc::clone(&self.shared);
        let next = Arc::new(AutumnVersion::new(shared, directory, next, disk_blocks));
        *self.newest.write() = Arc::clone(&next);
        Ok(Absorbed { version: next, gained, lost })
    }
}

impl Engine for Autumn {
    fn version(&self) -> Arc<dyn Version> {
        self.newest()
    }

    fn absorb(
        &self,
        updates: &dyn SortedUpdates,
        budget: WriteBudget,
        work: &Work<'_>,
    ) -> Result<Absorbed> {
        let gather = match budget {
            WriteBudget::Usual => Gather::Small,
            WriteBudget::Minimal => Gather::Nothing,
        };
        self.absorb_as(updates, work, gather)
    }

    fn plan(&self, work: &Work<'_>) -> Result<Option<Box<dyn Job + '_>>> {
        Ok(self.plan_job(*work.workers)?.map(|job| job as Box<dyn Job>))
    }

    fn reclaim(&self, work: &Work<'_>) -> Result<Option<Absorbed>> {
        let mut job = {
            let mut writer = self.writer.lock();
            let version = self.newest();
            let sizes = Sizes::of(&version);
            let Some(step) = sizes.reclaim_step(&writer.stuck) else { return Ok(None) };
            let measure = self.options().measure_least();
            let planned = self.plan_step(step, &version, &mut writer, measure, *work.workers)?;
            match (planned, step) {
                (Planned::Job(job), _) => job,
                (Planned::Stuck, Step::Down(level)) => {
                    writer.stuck.push(level);
                    return Ok(None);
                }
                (Planned::Stuck | Planned::Blocked, _) => return Ok(None),
            }
        };
        job.run(work)?;
        job.install(work)
    }

    fn reclaim_needs_bytes(&self) -> u64 {
        // Tables to merge and tables they overlap; then the nodes that list them.
        let all: u64 = self.newest().sequences().map(|sequence| sequence.weight()).sum();
        (4 * self.options().measure_least().unit_bytes).min(2 * all) + RECLAIM_NODES_BYTES
    }

    fn wants_maintenance(&self) -> bool {
        self.wants.load(Ordering::Relaxed)
    }

    fn expect_updates(&self, expected: bool) {
        let before = self.busy.swap(expected, Ordering::Relaxed);
        let is_asked = before || !self.wants.load(Ordering::Relaxed);
        if is_asked && self.is_eager() && !self.newest().level0.is_empty() {
            self.wants.store(true, Ordering::Relaxed);
        }
    }

    fn debt_bytes(&self) -> u64 {
        self.debt.load(Ordering::Relaxed)
    }

    fn set_checkpoint_distance(&self, bytes: u64) {
        self.options.lock().checkpoint_distance = bytes;
        self.reassess(&[]);
    }

    fn set_live_options(&self, options: LiveOptions) {
        let LiveOptions::Levels(levels) = options else { return };
        self.options.lock().levels = levels;
        self.reassess(&[]);
    }

    fn stats(&self) -> EngineStats {
        let version = self.newest();
        let counters = &self.shared.counters;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let sequences: Vec<&Arc<Sequence>> = version.level0.iter().chain(&version.levels).collect();
        let last = version.levels.last().filter(|last| !last.is_empty());
        let last = last.or_else(|| version.levels.iter().rev().find(|level| !level.is_empty()));
        let (leaves, leaf_bytes) = last.map_or((0, 0), |last| (last.tables(), last.totals().bytes));
        // A forged directory may contain any number.
        let all = sequences.iter().map(|sequence| sequence.totals().bytes);
        let all = all.fold(0, u64::saturating_add);
        let tables: u64 = sequences.iter().map(|sequence| sequence.tables()).sum();
        EngineStats {
            height: u32::try_from(version.levels.len()).unwrap_or(u32::MAX),
            nodes: sequences.iter().map(|sequence| sequence.nodes.len() as u64).sum(),
            leaves,
            buffered_runs: tables - leaves,
            leaf_bytes,
            buffered_bytes: all - leaf_bytes,
            disk_bytes: version.disk_blocks * BLOCK_BYTES_U64,
            run_bytes_written: read(&counters.data_bytes),
            node_bytes_written: read(&counters.node_bytes),
            merge_bytes_read: read(&counters.read_bytes),
            events: counters.list(self.shared.node_cache.moves()),
        }
    }
}
