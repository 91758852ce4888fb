//! The treeline engine: groups of small pages that are updated in place, after the TreeLine paper.
//!
//! Structure, algorithm and differences from the paper: `docs/engines/treeline.md`. Numbers in
//! brackets are sections of the paper. Groups and pages: `crate::pages`.
//!
//! | module | contents |
//! | --- | --- |
//! | `config` | options of a tree and the sizes derived from them |
//! | `node`, `staged` | groups and the nodes that list them; staged memtables |
//! | `codec` | on-disk encoding of nodes, the directory and the root blob |
//! | `absorb` | staging a memtable |
//! | `sweep` | staged memtables into pages, as jobs; updating groups, and writing them |
//! | `forecast` | where inserts are expected |
//! | `output` | extents written, and extents no longer referenced; nodes |
//! | `read` | point reads and range reads |
//! | `version`, `contract` | a version; what every engine does with one |
//! | `check` | verification, salvage, dumps |
//! | `counters` | event counters |
//!
//! Invariants:
//! 1. The newest version is replaced only after everything it refers to was written.
//! 2. A failed absorb or job changes nothing: the newest version stays, and its allocations are
//!    freed.
//! 3. The extents reported as gained and lost are exactly the difference between two versions.
//! 4. A staged update is newer than all updates in memtables staged before it, and in pages.
//! 5. A slot is written only while no version, held or durable, refers to it.
//!
//! Absorbs, plans and installs are called by one thread at a time (`crate::engine`). `newest`,
//! `config` and `forecast` are locked only briefly, and no other lock is taken while one is held.

pub use self::config::TreelineConfig;
use self::counters::Counters;
use self::forecast::Forecast;
use self::node::NodeCache;
use self::output::Output;
use self::sweep::{Due, SweepJob};
use self::version::{Parts, TreelineVersion};
use crate::base::error::Result;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::stream::SortedUpdates;
use crate::engine::{Absorbed, Engine, EngineStats, Job, LiveOptions, Version, Work, WriteBudget};
use crate::run::OpenRuns;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, RwLock};
use crate::storage::Storage;
use crate::storage::quota::Quota;
use crate::structure::DirectoryRoot;

mod absorb;
mod check;
mod codec;
mod config;
mod contract;
mod counters;
mod forecast;
mod node;
mod output;
mod read;
mod staged;
mod sweep;
mod version;

#[cfg(test)]
mod tests;

/// The root blob, in errors.
const ROOT: &str = "root of a treeline tree";

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
    drop(Parts::decode(bytes, &node_cache));
}

/// State shared by an engine and its versions.
struct Shared {
    node_cache: NodeCache,
    counters: Counters,
    due: Due,
}

/// A treeline tree: see the module documentation.
pub struct Treeline {
    shared: Arc<Shared>,
    newest: RwLock<Arc<TreelineVersion>>,
    config: Mutex<TreelineConfig>,
    forecast: Mutex<Forecast>,
    /// Number of memtables, the oldest, that the outstanding job sweeps; 0 if none is outstanding.
    claimed: AtomicUsize,
}

impl Treeline {
    /// Opens the tree described by `root`, or an empty one. Reads the directory.
    pub fn open(
        storage: &Arc<Storage>,
        config: TreelineConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        let node_cache = NodeCache::new(Arc::clone(storage), OpenRuns::default());
        let (blob, parts) =
            DirectoryRoot::open(root, ROOT, storage, |bytes| Parts::decode(bytes, &node_cache))?;
        if parts.sinking > 0 {
            mark(Mark::OpenedWithinSweep);
        }
        let shared =
            Arc::new(Shared { node_cache, counters: Counters::default(), due: Due::default() });
        let version =
            TreelineVersion::new(Arc::clone(&shared), blob.directory, parts, blob.disk_blocks);
        let tree = Self {
            shared,
            newest: RwLock::new(Arc::new(version)),
            config: Mutex::new(config.within(storage.budget().limit())),
            forecast: Mutex::new(Forecast::new(storage.budget())),
            claimed: AtomicUsize::new(0),
        };
        tree.note_pending();
        Ok(tree)
    }

    fn newest(&self) -> Arc<TreelineVersion> {
        Arc::clone(&self.newest.read())
    }

    fn storage(&self) -> &Arc<Storage> {
        self.shared.node_cache.storage()
    }

    fn config(&self) -> TreelineConfig {
        *self.config.lock()
    }

    /// An empty output that allocates within `quota`.
    fn output<'t>(&'t self, quota: &'t Quota<'t>) -> Output<'t> {
        let Shared { node_cache, counters, .. } = &*self.shared;
        Output::new(node_cache, (counters, &counters.node_bytes), quota)
    }
}

impl Engine for Treeline {
    fn version(&self) -> Arc<dyn Version> {
        self.newest()
    }

    fn absorb(
        &self,
        updates: &dyn SortedUpdates,
        budget: WriteBudget,
        work: &Work<'_>,
    ) -> Result<Absorbed> {
        if updates.is_empty() {
            return Ok(Absorbed { version: self.newest(), gained: Vec::new(), lost: Vec::new() });
        }
        self.stage(updates, budget, work)
    }

    fn reclaim(&self, work: &Work<'_>) -> Result<Option<Absorbed>> {
        // One node at a time.
        let Some(mut job) = self.plan_sweep(1) else { return Ok(None) };
        job.run(work)?;
        Box::new(job).install(work)
    }

    fn reclaim_needs_bytes(&self) -> u64 {
        let version = self.newest();
        let weight = version.parts.staged_weight();
        let node = self.config().node_bytes_max();
        (2 * weight + node).min(2 * version.disk_blocks * BLOCK_BYTES_U64 + (64 << 10))
    }

    fn plan(&self, _: &Work<'_>) -> Result<Option<Box<dyn Job + '_>>> {
        if !self.shared.due.is_due(&self.newest().parts) {
            return Ok(None);
        }
        let job: Option<SweepJob<'_>> = self.plan_sweep(self.config().job_bytes());
        Ok(job.map(|job| Box::new(job) as Box<dyn Job>))
    }

    fn wants_maintenance(&self) -> bool {
        self.shared.due.is_possible()
    }

    fn expect_updates(&self, expected: bool) {
        if self.shared.due.set_busy(expected) {
            self.note_pending();
        }
    }

    fn debt_bytes(&self) -> u64 {
        self.shared.due.debt_bytes()
    }

    fn set_checkpoint_distance(&self, bytes: u64) {
        self.config.lock().checkpoint_distance = bytes;
    }

    fn set_live_options(&self, _: LiveOptions) {}

    fn stats(&self) -> EngineStats {
        let version = self.newest();
        let counters = &self.shared.counters;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Parts { staged, directory, .. } = &version.parts;
        // A forged directory may contain any number.
        let groups = directory.nodes.iter().map(|node| u64::from(node.facts.groups));
        let tables = staged.iter().flat_map(|staged| &staged.tables);
        let buffered = tables.clone().map(|table| table.run.reference().user_bytes);
        EngineStats {
            height: if version.place.is_none() { 0 } else { 2 },
            nodes: directory.nodes.len() as u64,
            leaves: groups.fold(0, u64::saturating_add),
            buffered_runs: tables.count() as u64,
            leaf_bytes: version.parts.totals().bytes,
            buffered_bytes: buffered.fold(0, u64::saturating_add),
            disk_bytes: version.disk_blocks.saturating_mul(BLOCK_BYTES_U64),
            run_bytes_written: read(&counters.data_bytes),
            node_bytes_written: read(&counters.node_bytes),
            merge_bytes_read: read(&counters.read_bytes),
            events: counters.list(self.shared.node_cache.moves()),
        }
    }
}
