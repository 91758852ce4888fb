//! The splinter engine: a tree whose nodes share the runs that they buffer, and move them by
//! reference.
//!
//! Structure, algorithm and differences from the SplinterDB paper: `docs/engines/splinter.md`.
//! Numbers in brackets are sections of the paper. Nodes, versions and reads of them: `buffer_tree`.
//!
//! | module | contents |
//! | --- | --- |
//! | `sizes` | options of a tree, and the sizes that follow from them |
//! | `absorb` | a memtable becomes a branch of the root |
//! | `edit`, `parts` | changes of the trunk: flushes by reference, splits, joins; parts of pivots |
//! | `due`, `pending` | which merges are due, and where |
//! | `merge` | merging levels of a node |
//! | `job`, `claims`, `replace` | merges as jobs; what these read; installing their output |
//!
//! Words of the paper: a *branch* is a sequence of runs, a level of a pivot; a *trunk node* is a
//! node; a trunk leaf is a pivot of a node of height 1.
//!
//! Invariants:
//! 1. The newest version is replaced only after everything it refers to was written.
//! 2. A failed absorb or job changes nothing: the newest version and the counts stay, and its
//!    allocations are freed.
//! 3. The extents reported as gained and lost are exactly the difference between two versions.
//!
//! Locks: `writer` is held for a whole absorb, and for the plan and the install of a job, not for
//! its run; then `claims`; `newest` and `options` only briefly, and no other lock is taken while
//! they are held.

use self::claims::Claims;
use self::job::not_counted;
use self::pending::{Changed, Pending};
use self::sizes::Sizes;
pub use self::sizes::SplinterConfig;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::stream::SortedUpdates;
use crate::buffer_tree::Shared;
use crate::buffer_tree::check::damage::Damage;
use crate::buffer_tree::counts::{Counts, Ledger, walk_nodes};
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Node, NodeSlot, Pivot, Summary};
use crate::buffer_tree::output::Output;
use crate::buffer_tree::overlap::Overlap;
use crate::buffer_tree::version::{Built, DEPTH_MOVED_DOWN, Settled, TreeVersion};
use crate::engine::{Absorbed, Engine, EngineStats, Job, LiveOptions, Version, Work, WriteBudget};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, RwLock};
use crate::storage::Storage;

mod absorb;
mod claims;
mod due;
mod edit;
mod job;
mod merge;
mod parts;
mod pending;
mod replace;
mod sizes;

#[cfg(test)]
mod tests;

/// Approximate bytes of a run beside its entries: its index, its filter, and the end of its data.
const RUN_OVERHEAD_BYTES: u64 = 3 * BLOCK_BYTES_U64;

/// Approximate bytes of the nodes written by one reclaiming unit.
const RECLAIM_NODES_BYTES: u64 = 64 << 10;

/// Change of the share of new keys among the updates, in percentage points, after which all leaves
/// are evaluated again: those that are not written would not be.
const NEW_PERCENT_STEP: u64 = 20;

/// Events that only other engines have.
const NOT_OF_SPLINTER: [Event; 15] = [
    Event::PassThrough,
    Event::TombstoneFlushes,
    Event::ReadFlushes,
    Event::LeavesKept,
    Event::LevelsAdded,
    Event::MergesLevel,
    Event::MergesForced,
    Event::MergedForReads,
    Event::Rewrites,
    Event::FlushesCut,
    Event::LevelsCut,
    Event::NodesPlanned,
    Event::PlannedBytes,
    Event::HeaviestTask,
    Event::NodesAssembled,
];

/// A splinter tree: see the module documentation.
pub struct Splinter {
    shared: Arc<Shared>,
    newest: RwLock<Arc<TreeVersion>>,
    options: Mutex<SplinterConfig>,
    writer: Mutex<Writer>,
    claims: Claims,
    wants: AtomicBool,
    /// All nodes are evaluated before the next plan: after an open, or a change of the options.
    survey_due: AtomicBool,
    debt: AtomicU64,
}

/// State used only by absorbs, plans and installs.
#[derive(Default)]
struct Writer {
    /// Reference counts, built by a walk for the first change.
    counts: Option<Counts>,
    pending: Pending,
    damage: Damage,
    overlap: Overlap,
    /// Share of new keys among the updates when all nodes were last evaluated, in percent.
    surveyed_percent: u64,
}

/// Returns the bytes that a merge of the levels of a pivot rewrites, if it has several.
fn merge_price(pivot: &Pivot) -> Option<u64> {
    (pivot.levels() > 1).then(|| pivot.pending().weight())
}

impl Splinter {
    /// Opens the tree described by `root`, or an empty one. Reads only the blob.
    pub fn open(
        storage: &Arc<Storage>,
        options: SplinterConfig,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        let shared = Shared::new(storage, merge_price);
        let version = shared.open(root)?;
        Ok(Self {
            shared,
            newest: RwLock::new(Arc::new(version)),
            options: Mutex::new(options),
            writer: Mutex::default(),
            claims: Claims::default(),
            // The first plan finds the merges that are due.
            wants: AtomicBool::new(root.is_some()),
            survey_due: AtomicBool::new(root.is_some()),
            debt: AtomicU64::new(0),
        })
    }

    fn newest(&self) -> Arc<TreeVersion> {
        Arc::clone(&self.newest.read())
    }

    fn sizes(&self, version: &TreeVersion, overlap: Overlap) -> Sizes {
        let options = *self.options.lock();
        options.sizes(version.summary.buffered.weight(), self.shared.run_max(), overlap)
    }

    fn output<'t>(&'t self, work: &Work<'t>) -> Output<'t> {
        let shared = &self.shared;
        let run = self.options.lock().run;
        Output::new(&shared.node_cache, &shared.events, run, work)
    }

    /// Counts the references of `version`, the newest one, before the first change.
    fn count(&self, writer: &mut Writer, version: &TreeVersion) -> Result<()> {
        if writer.counts.is_none() {
            writer.counts = Some(Counts::walk(&self.shared.node_cache, &version.root)?);
        }
        Ok(())
    }

    /// Finds the merges that are due in `version`, the newest one, if all nodes shall be evaluated.
    /// After an error this is still due.
    fn survey_if_due(&self, writer: &mut Writer, version: &TreeVersion) -> Result<()> {
        if !self.survey_due.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let surveyed = self.survey(writer, version);
        surveyed.inspect_err(|_| self.survey_due.store(true, Ordering::SeqCst))
    }

    /// Notes the share of new keys among the updates.
    fn learn(&self, writer: &mut Writer, overlap: Overlap) {
        writer.overlap = overlap;
        if overlap.new_percent().abs_diff(writer.surveyed_percent) > NEW_PERCENT_STEP {
            self.survey_due.store(true, Ordering::SeqCst);
        }
    }

    /// Evaluates all nodes of `version`, except unreadable ones.
    fn survey(&self, writer: &mut Writer, version: &TreeVersion) -> Result<()> {
        let sizes = self.sizes(version, writer.overlap);
        writer.surveyed_percent = writer.overlap.new_percent();
        let mut changed = Changed::default();
        let mut unread = None;
        walk_nodes(&self.shared.node_cache, &version.root, &mut unread, &mut |_, node: &Node| {
            changed.write(node.height, &node.pivots, None, &sizes);
            Ok(())
        })?;
        writer.pending.apply(changed);
        unread.filter(|error: &Error| error.kind() != ErrorKind::Corrupt).map_or(Ok(()), Err)
    }

    /// Publishes a tree that was built on `version`, the newest one.
    fn publish(
        &self,
        writer: &mut Writer,
        version: &TreeVersion,
        (root, summary): (Arc<NodeSlot>, Summary),
        ledger: Ledger,
        changed: Changed,
    ) -> Result<Absorbed> {
        let counts = writer.counts.as_mut().ok_or_else(not_counted)?;
        let built = Built { root, summary, ledger };
        let Settled { version: next, gained, lost } = self.shared.settle(counts, version, built)?;
        *self.newest.write() = Arc::clone(&next);
        writer.pending.apply(changed);
        self.note_pending(writer);
        Ok(Absorbed { version: next, gained, lost })
    }

    /// Stores how much is due, for callers without the lock.
    fn note_pending(&self, writer: &Writer) {
        // In the order in which `set_live_options` sets both: none of its changes is missed.
        self.wants.store(!writer.pending.is_empty(), Ordering::SeqCst);
        if self.survey_due.load(Ordering::SeqCst) {
            self.wants.store(true, Ordering::SeqCst);
        }
        self.debt.store(writer.pending.bytes(), Ordering::Relaxed);
    }
}

impl Engine for Splinter {
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
        self.incorporate(&mut self.writer.lock(), updates, budget, work)
    }

    fn reclaim(&self, work: &Work<'_>) -> Result<Option<Absorbed>> {
        // Only merges of leaves free space, so updates move down to leaves first.
        if let Some(absorbed) = self.push_one(work)? {
            return Ok(Some(absorbed));
        }
        loop {
            let known = self.writer.lock().damage.count();
            let Some(mut job) = self.plan_reclaim()? else { return Ok(None) };
            job.run(work)?;
            let absorbed = Box::new(job).install(work)?;
            // A leaf that proved unreadable is passed over the next time.
            if absorbed.is_some() || self.writer.lock().damage.count() == known {
                return Ok(absorbed);
            }
        }
    }

    fn reclaim_needs_bytes(&self) -> u64 {
        let version = self.newest();
        let sizes = self.sizes(&version, Overlap::default());
        let known = version.unit_bounds().pending;
        // Below the nodes that are examined: the merged branch of a leaf before it is split, and as
        // much as the leaf may have beside that.
        let is_high = usize::from(version.root.about()) > DEPTH_MOVED_DOWN;
        let leaf = if is_high { 2 * sizes.node_max() } else { 0 };
        let weight = known.max(leaf);
        let runs = weight / sizes.run.max(1) * RUN_OVERHEAD_BYTES;
        (weight + runs).min(version.disk_bytes()) + RECLAIM_NODES_BYTES
    }

    fn plan(&self, _: &Work<'_>) -> Result<Option<Box<dyn Job + '_>>> {
        Ok(self.plan_job()?.map(|job| Box::new(job) as Box<dyn Job>))
    }

    fn wants_maintenance(&self) -> bool {
        self.wants.load(Ordering::Relaxed) || self.shared.read_costs.may_be_due()
    }

    fn expect_updates(&self, expected: bool) {
        self.shared.read_costs.expect_updates(expected);
    }

    fn debt_bytes(&self) -> u64 {
        self.debt.load(Ordering::Relaxed)
    }

    fn set_checkpoint_distance(&self, _: u64) {}

    fn set_live_options(&self, options: LiveOptions) {
        let LiveOptions::SpacePercent(percent) = options else { return };
        let before = std::mem::replace(&mut self.options.lock().space_percent, percent.into());
        if before != u64::from(percent) {
            self.survey_due.store(true, Ordering::SeqCst);
            self.wants.store(true, Ordering::SeqCst);
        }
    }

    fn stats(&self) -> EngineStats {
        self.newest().stats(&NOT_OF_SPLINTER)
    }
}
