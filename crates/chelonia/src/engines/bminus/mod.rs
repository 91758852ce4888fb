//! The bminus engine: a B+-tree for storage that compresses, after the paper of that name.
//!
//! Structure, algorithm and differences from the paper: `docs/engines/bminus.md`. Numbers in
//! brackets are sections of the paper. Pages and their homes: `crate::pages::homes`.
//!
//! | module | contents |
//! | --- | --- |
//! | `config` | options of a tree and the sizes derived from them |
//! | `node` | nodes, which list pages and their homes; the directory of nodes |
//! | `codec` | on-disk encoding of nodes and of the directory |
//! | `absorb` | updates into pages; freeing space; overwriting what failed absorbs left |
//! | `output` | extents written, and extents no longer referenced; nodes |
//! | `read` | point reads and range reads |
//! | `version`, `contract` | a version; what every engine does with one |
//! | `check` | verification, salvage, dumps |
//! | `counters` | event counters |
//!
//! Invariants:
//! 1. The newest version is replaced only after everything it refers to was written.
//! 2. A failed absorb changes nothing that a version believes: its stamp is dead, and its
//!    allocations are freed.
//! 3. The extents reported as gained and lost are exactly the difference between two versions.
//! 4. A place of a home is written only while no version that exists needs it.
//!
//! Absorbs and jobs are called by one thread at a time (`crate::engine`). Lock order: `clearing`,
//! then `newest`; the other locks are held only briefly, and no lock of the engine is taken under
//! them (under that of a region's places those of the cache and the budget are).

use self::absorb::clear::Clearing;
use self::absorb::reclaim::Unpackable;
pub use self::config::BminusConfig;
use self::counters::Counters;
use self::node::{Directory, NodeCache};
use self::version::{BminusVersion, Parts};
use crate::base::error::Result;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::stream::SortedUpdates;
use crate::engine::{Absorbed, Engine, EngineStats, Job, LiveOptions, Version, Work, WriteBudget};
use crate::pages::homes::HeldStamps;
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, RwLock};
use crate::storage::Storage;
use crate::structure::DirectoryRoot;

mod absorb;
mod check;
mod codec;
mod config;
mod contract;
mod counters;
mod node;
mod output;
mod read;
mod version;

#[cfg(test)]
mod tests;

/// The root blob, in errors.
const ROOT: &str = "root of a bminus tree";

/// Decodes a root blob, for tests.
#[cfg(feature = "internals")]
pub fn decode_root(bytes: &[u8]) -> Result<()> {
    DirectoryRoot::decode(bytes, ROOT).map(|_| ())
}

/// Decodes a node and a directory, for tests.
#[cfg(feature = "internals")]
pub fn decode_structure(bytes: &[u8], storage: &Arc<Storage>) {
    let config = BminusConfig::new(crate::engine::BminusOptions::new());
    let node_cache = NodeCache::new(Arc::clone(storage), config);
    drop(codec::decode_node(bytes, &node_cache));
    drop(Parts::decode(bytes, &node_cache));
}

/// State shared by an engine and its versions.
struct Shared {
    node_cache: NodeCache,
    counters: Counters,
    held: HeldStamps,
}

/// A bminus tree: see the module documentation.
pub struct Bminus {
    shared: Arc<Shared>,
    newest: RwLock<Arc<BminusVersion>>,
    /// True if something may have been written with a stamp behind that of the newest version.
    tainted: AtomicBool,
    clearing: Mutex<Clearing>,
    unpackable: Mutex<Unpackable>,
}

impl Bminus {
    /// Opens the tree described by `root`, or an empty one. Reads the directory.
    pub fn open(storage: &Arc<Storage>, config: BminusConfig, root: Option<&[u8]>) -> Result<Self> {
        let node_cache = NodeCache::new(Arc::clone(storage), config);
        let (blob, parts) =
            DirectoryRoot::open(root, ROOT, storage, |bytes| Parts::decode(bytes, &node_cache))?;
        let (counters, held) = (Counters::default(), HeldStamps::default());
        let shared = Arc::new(Shared { node_cache, counters, held });
        // The last process may have written more than it made durable.
        let tainted = AtomicBool::new(!parts.directory.nodes.is_empty());
        let version =
            BminusVersion::new(Arc::clone(&shared), blob.directory, parts, blob.disk_blocks);
        Ok(Self {
            shared,
            newest: RwLock::new(Arc::new(version)),
            tainted,
            clearing: Mutex::default(),
            unpackable: Mutex::default(),
        })
    }

    fn newest(&self) -> Arc<BminusVersion> {
        Arc::clone(&self.newest.read())
    }

    fn storage(&self) -> &Arc<Storage> {
        self.shared.node_cache.storage()
    }

    fn config(&self) -> BminusConfig {
        *self.shared.node_cache.context()
    }
}

impl Engine for Bminus {
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
        self.absorb_updates(updates, budget, work)
    }

    fn reclaim(&self, work: &Work<'_>) -> Result<Option<Absorbed>> {
        self.pack_node(work)
    }

    fn reclaim_needs_bytes(&self) -> u64 {
        self.pack_needs_bytes()
    }

    fn space_times(&self, budget: WriteBudget) -> u64 {
        let layout = self.config().usual();
        let home = u64::from(layout.home_blocks().div_ceil(layout.page_blocks.max(1)));
        match budget {
            // Pages that were divided are half full, and some homes are spare.
            WriteBudget::Usual => 2 * home + 1,
            WriteBudget::Minimal => 2 * home,
        }
    }

    fn plan(&self, _: &Work<'_>) -> Result<Option<Box<dyn Job + '_>>> {
        Ok(self.plan_clearing())
    }

    fn wants_maintenance(&self) -> bool {
        self.is_clearing_due()
    }

    fn expect_updates(&self, _expected: bool) {}

    fn debt_bytes(&self) -> u64 {
        0
    }

    fn set_checkpoint_distance(&self, _bytes: u64) {}

    fn set_live_options(&self, _: LiveOptions) {}

    fn stats(&self) -> EngineStats {
        let version = self.newest();
        let counters = &self.shared.counters;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let directory: &Directory = &version.parts.directory;
        // A forged directory may contain any number.
        let pages = directory.nodes.iter().map(|node| u64::from(node.facts.pages));
        EngineStats {
            height: if version.place.is_none() { 0 } else { 2 },
            nodes: directory.nodes.len() as u64,
            leaves: pages.fold(0, u64::saturating_add),
            buffered_runs: 0,
            leaf_bytes: version.parts.totals().bytes,
            buffered_bytes: 0,
            disk_bytes: version.disk_blocks.saturating_mul(BLOCK_BYTES_U64),
            run_bytes_written: read(&counters.data_bytes),
            node_bytes_written: read(&counters.node_bytes),
            merge_bytes_read: read(&counters.read_bytes),
            events: counters.list(self.shared.node_cache.moves()),
        }
    }
}
