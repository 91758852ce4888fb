//! The turtle engine: a tree of runs whose nodes buffer updates. The default engine.
//!
//! Structure, algorithm and differences from the TurtleKV paper: `docs/engines/turtle.md`.
//!
//! | module | contents |
//! | --- | --- |
//! | `pass`, `pass/visit` | the pass itself; the order of its tasks |
//! | `pass/job` | a pass over the whole tree, of an absorb or as a job |
//! | `pass/plan`, `pass/levels`, `pass/cut` | decisions of a pass at a node; pieces of merges |
//! | `shape` | cutting of merged entries into leaves |
//!
//! Nodes, versions and reads of them: `buffer_tree`.
//!
//! Invariants:
//! 1. The newest version is replaced only after everything it refers to was written.
//! 2. A failed absorb changes nothing: the newest version and the counts stay, and its allocations
//!    are freed.
//! 3. The extents reported by an absorb as gained and lost are exactly the difference between the
//!    two versions.
//!
//! Locks: `writer` is held for a whole absorb, and for the plan and the install of a job, not for
//! its run; `newest` only briefly, and no other lock is taken while it is held.

use self::pass::geometry::{Geometry, LEVELS_MAX, LEVELS_READ, Pace};
use self::pass::job::{Outstanding, PassJob};
use crate::base::error::Result;
use crate::base::stream::SortedUpdates;
use crate::buffer_tree::check::damage::Damage;
use crate::buffer_tree::counts::Counts;
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, Pivot};
use crate::buffer_tree::overlap::{FLUSH_PERCENT_MAX, Overlap};
use crate::buffer_tree::version::TreeVersion;
use crate::buffer_tree::{RUN_MAX_MIN, Shared};
use crate::engine::{
    Absorbed, Engine, EngineStats, Job, LiveOptions, PIVOTS_MAX, TurtleOptions, Version, Work,
    WriteBudget,
};
use crate::merge::NoUpdates;
use crate::run::RunOptions;
use crate::runtime::sync::{Arc, Mutex, RwLock};
use crate::storage::Storage;
use crate::structure::SharedKey;

mod pass;
mod shape;

#[cfg(test)]
mod tests;

/// Minimum size of leaves sized by what is stored.
const LEAF_AUTO_MIN: u64 = RUN_MAX_MIN;

/// Maximum size of leaves sized by what is stored: larger leaves do not save writes.
const LEAF_AUTO_MAX: u64 = 2 << 20;

/// Number of leaves that a tree has before they reach their maximum size.
const LEAVES_AUTO: u64 = 128;

/// Divisor of the memory budget for everything that the tasks of a pass need while they run. A task
/// that needs more runs alone.
const WORK_PART: u64 = 6;

/// Options of a tree. All but `run` may change from one open to the next.
#[derive(Clone, Copy, Debug)]
pub struct TurtleConfig {
    /// Approximate maximum bytes of a leaf; 0 derives it from what is stored.
    pub leaf_bytes: u64,
    /// Maximum pivots of a node: 4 to 256.
    pub pivots_max: usize,
    /// Maximum levels of a node's buffer: 1 to 32.
    pub levels_max: usize,
    /// Flush size of a pivot, in percent of the leaf size; 0 derives it from the share of new keys
    /// among the updates.
    pub flush_percent: u64,
    /// Options for new runs.
    pub run: RunOptions,
}

impl TurtleConfig {
    /// Derives the options of a tree from the options of a keyspace.
    #[must_use]
    pub fn new(options: TurtleOptions, run: RunOptions) -> Self {
        Self {
            leaf_bytes: options.leaf_bytes.unwrap_or(0).into(),
            pivots_max: options.pivots_max.unwrap_or(PIVOTS_MAX) as usize,
            levels_max: LEVELS_MAX,
            flush_percent: 0,
            run,
        }
    }

    /// Returns the geometry of a pass over a tree of weight `stored`, incoming updates included,
    /// whose leaves weigh at most `leaf_max`. It does not depend on the size of the memtable, so
    /// that the shape on disk does not depend on the checkpoint distance.
    fn geometry(&self, stored: u64, leaf_max: u64, overlap: Overlap) -> Geometry {
        let leaf = match self.leaf_bytes {
            0 => (stored / LEAVES_AUTO).clamp(LEAF_AUTO_MIN, LEAF_AUTO_MAX),
            bytes => bytes,
        };
        Geometry {
            leaf: leaf.min(leaf_max),
            pivots_max: self.pivots_max.clamp(4, 256),
            levels_max: self.levels_max.clamp(1, 32),
            levels_read: LEVELS_READ,
            flush_percent: match self.flush_percent {
                0 => overlap.flush_percent(),
                percent => percent.clamp(10, 1000),
            },
            new_percent: overlap.new_percent(),
            pace: Pace::Usual,
        }
    }
}

/// Divisor: minimum cost of a flush as a part of the leaf, however much is pending.
const LEAST_PART: u64 = 16;

/// Pending updates, as a multiple of the leaf, at which a flush would come anyway: the maximum
/// flush size, apart from jitter.
const FULL_LEAVES: u64 = FLUSH_PERCENT_MAX / 100;

/// Returns the price of a read-triggered flush of `pivot`.
#[expect(clippy::unnecessary_wraps, reason = "the type of a price")]
fn flush_price(pivot: &Pivot) -> Option<u64> {
    let pending = pivot.pending().weight();
    Some(match &pivot.child {
        Child::Leaf(leaf) => {
            let leaf = leaf.reference().totals().weight();
            // The part of the leaf that would not have been rewritten sooner or later.
            let early = FULL_LEAVES.saturating_sub(pending / leaf.max(1));
            (leaf / LEAST_PART).saturating_add(leaf / FULL_LEAVES * early)
        }
        // Updates flushed into a node may be written once more there.
        Child::Node(..) => pending,
        Child::None => 0,
    })
}

/// A turtle tree: see the module documentation.
pub struct Turtle {
    shared: Arc<Shared>,
    newest: RwLock<Arc<TreeVersion>>,
    options: TurtleConfig,
    writer: Mutex<Writer>,
    outstanding: Outstanding,
    /// The first key of the node above leaves whose buffer reclaiming units are emptying.
    emptying: Mutex<Option<SharedKey>>,
}

/// State used only by absorbs.
#[derive(Default)]
struct Writer {
    /// Reference counts, built by a walk for the first absorb.
    counts: Option<Counts>,
    damage: Damage,
    overlap: Overlap,
}

impl Turtle {
    /// Opens the tree described by `root`, or an empty one. Reads only the blob.
    pub fn open(
        storage: &Arc<Storage>,
        options: TurtleConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        let shared = Shared::new(storage, flush_price);
        let version = shared.open(root)?;
        Ok(Self {
            shared,
            newest: RwLock::new(Arc::new(version)),
            options,
            writer: Mutex::default(),
            outstanding: Outstanding::default(),
            emptying: Mutex::default(),
        })
    }

    fn newest(&self) -> Arc<TreeVersion> {
        Arc::clone(&self.newest.read())
    }

    /// Returns true if a read-triggered flush is due anywhere.
    fn is_due(&self) -> bool {
        let guard = self.shared.node_cache.storage().epochs().pin();
        let version = self.newest();
        let root = version.root.peek(&guard);
        let due = |pivot| self.shared.read_costs.is_due_within(pivot, &guard);
        self.shared.read_costs.may_be_due() && root.is_some_and(|root| root.pivots.iter().any(due))
    }
}

/// Events that only other engines have.
const NOT_OF_TURTLE: [Event; 3] = [Event::Compactions, Event::LeafMerges, Event::JobsDropped];

/// On a full device, updates flushed into a buffer are written with at most this multiple of their
/// weight in merged levels: see [`Geometry::gathered_max`].
const LEVEL_TIMES: u64 = 2;

/// Number of leaf sizes needed by a reclaiming pass for leaves, and as many for pending updates.
const RECLAIM_LEAVES: u64 = 3;

impl Engine for Turtle {
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
        let pace = match budget {
            WriteBudget::Usual => Pace::Usual,
            WriteBudget::Minimal => Pace::Incoming,
        };
        let absorbed = self.pass(updates, pace, work)?;
        self.shared.events.add(Event::Absorbs, 1);
        Ok(absorbed)
    }

    fn reclaim(&self, work: &Work<'_>) -> Result<Option<Absorbed>> {
        if self.newest().summary.buffered.entries == 0 {
            return Ok(None);
        }
        self.pass(&NoUpdates, Pace::OneLeaf, work).map(Some)
    }

    fn plan(&self, _: &Work<'_>) -> Result<Option<Box<dyn Job + '_>>> {
        // Damaged pivots cannot be flushed, and would stay due forever.
        if !self.is_due() || self.writer.lock().damage.is_known() {
            self.shared.read_costs.settle();
            return Ok(None);
        }
        Ok(PassJob::plan(self).map(|job| Box::new(job) as Box<dyn Job>))
    }

    fn reclaim_needs_bytes(&self) -> u64 {
        // Commits call this: they must not wait for an absorb.
        let version = self.newest();
        let [leaves, buffered] =
            [version.summary.leaf, version.summary.buffered].map(|it| it.weight());
        let now = self
            .options
            .geometry(leaves + buffered, self.shared.run_max(), Overlap::default())
            .leaf;
        // Leaves written when more was stored, or with another option, may be larger.
        let leaf = now.max(version.unit_bounds().leaf);
        let moved_down = LEVEL_TIMES * version.unit_bounds().pending;
        // One leaf, and the updates buffered in runs that it shares with the next ones.
        RECLAIM_LEAVES * (leaf.min(leaves) + leaf.min(buffered)) + moved_down
    }

    fn wants_maintenance(&self) -> bool {
        self.shared.read_costs.may_be_due()
    }

    fn expect_updates(&self, expected: bool) {
        self.shared.read_costs.expect_updates(expected);
    }

    fn debt_bytes(&self) -> u64 {
        0
    }

    fn set_checkpoint_distance(&self, _: u64) {}

    fn set_live_options(&self, _: LiveOptions) {}

    fn stats(&self) -> EngineStats {
        self.newest().stats(&NOT_OF_TURTLE)
    }
}
