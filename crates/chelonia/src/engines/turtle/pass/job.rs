//! A pass over the whole tree: of an absorb, or as a job that makes read-triggered flushes.
//!
//! ```text
//!   plan      the newest version, if flushes are due in it
//!   run       builds a new tree from that version; an absorb may go on meanwhile
//!   install   the new tree becomes the newest version, if that is still the one of the plan
//! ```
//!
//! An absorb rewrites the root and nodes below it, so a job that it overtakes is dropped: its tree
//! lacks the updates of the absorb. The read cost stays with the old pivots, so the flushes are
//! planned again. A job after two that were dropped keeps the lock, so that absorbs cannot starve
//! jobs forever. One job at a time is outstanding, since each pass begins at the root.

use crate::base::error::{Error, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::stream::SortedUpdates;
use crate::buffer_tree::check::damage::Damage;
use crate::buffer_tree::counts::Counts;
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, HEIGHT_MAX, Node, NodeSlot, Summary};
use crate::buffer_tree::output::Output;
use crate::buffer_tree::overlap::Overlap;
use crate::buffer_tree::source::Incoming;
use crate::buffer_tree::version::{Built, Settled, TreeVersion};
use crate::engine::{Absorbed, Job, Work};
use crate::engines::turtle::pass::geometry::{Geometry, Pace};
use crate::engines::turtle::pass::{Grown, Pass};
use crate::engines::turtle::{Turtle, WORK_PART, Writer};
use crate::merge::NoUpdates;
use crate::run::weight;
use crate::runtime::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Number of dropped jobs in a row after which one keeps the lock.
const DROPPED_MAX: u32 = 2;

/// The outstanding job of a tree.
#[derive(Default)]
pub(in crate::engines::turtle) struct Outstanding {
    is_any: AtomicBool,
    /// Jobs dropped in a row because an absorb overtook them.
    dropped: AtomicU32,
}

impl Turtle {
    /// Builds a new tree from `version` and the updates. Publishes nothing, and frees its output on
    /// failure. Repeats passes that meet damage, which is known afterwards.
    fn build(
        &self,
        version: &TreeVersion,
        updates: &dyn SortedUpdates,
        pace: Pace,
        overlap: Overlap,
        damage: &mut Damage,
        work: &Work<'_>,
    ) -> Result<Built> {
        let shared = &self.shared;
        let Summary { leaf, buffered, .. } = version.summary;
        let incoming = weight(updates.len() as u64, updates.bytes_before(updates.len()));
        let stored = leaf.weight() + buffered.weight() + incoming;
        let geometry = self.options.geometry(stored, shared.run_max(), overlap);
        let geometry = Geometry { pace, ..geometry };
        let workers = shared.workers_for(*work.workers, geometry.leaf);
        let reported = AtomicU64::new(0);
        loop {
            let done = AtomicU64::new(0);
            // A retried pass does not report the same progress again.
            let progress = |ranks: u64| {
                let now = done.fetch_add(ranks, Ordering::Relaxed) + ranks;
                let before = reported.fetch_max(now, Ordering::Relaxed);
                (work.progress)(now.saturating_sub(before));
            };
            let work = Work { workers: &workers, progress: &progress, ..*work };
            let output = Output::new(&shared.node_cache, &shared.events, self.options.run, &work);
            match self.grow(version, updates, &work, geometry, &output, damage) {
                Ok((root, summary)) => {
                    return Ok(Built { root, summary, ledger: output.into_ledger() });
                }
                Err(error) => {
                    // The first error is more useful than one from the roll-back.
                    let _ = output.into_ledger().roll_back(shared.node_cache.storage());
                    if !damage.learn() {
                        return Err(error);
                    }
                    shared.events.add(Event::PassesRepeated, 1);
                }
            }
        }
    }

    /// Builds a new tree from the newest one and the updates. Publishes nothing.
    fn grow(
        &self,
        version: &TreeVersion,
        updates: &dyn SortedUpdates,
        work: &Work<'_>,
        geometry: Geometry,
        output: &Output<'_>,
        damage: &Damage,
    ) -> Result<(Arc<NodeSlot>, Summary)> {
        let shared = &self.shared;
        let old = shared.node_cache.load_owned(&version.root)?;
        output.retire(version.root.reference(), &old);
        let pass = Pass {
            node_cache: &shared.node_cache,
            events: &shared.events,
            geometry,
            output,
            read_costs: &shared.read_costs,
            damage,
            emptying: &self.emptying,
            maintenance: updates.is_empty(),
            workers: *work.workers,
            work_bytes: shared.node_cache.storage().budget().limit() / WORK_PART,
            progress: work.progress,
        };
        let incoming = Incoming { updates, ranks: 0..updates.len(), older: Vec::new() };
        let grown = pass.root(old, incoming);
        // Damage met by a survey has not been recorded by a task.
        let mut grown = grown.map_err(|error| damage.meet(error).unwrap_or_else(|other| other))?;
        while pass.is_over(&mut grown) {
            let height = grown.height + 1;
            if height > HEIGHT_MAX {
                return Err(Error::internal("the tree exceeds the maximum height"));
            }
            let pivots = pass.write_children(vec![grown])?;
            grown = Grown { height, pivots, appended: false };
            shared.events.add(Event::RootGrown, 1);
        }
        if grown.pivots.len() == 1 && grown.pivots[0].is_empty() {
            let root = shared.node_cache.slot(None, 1);
            return Ok((root, Node::empty().summary()));
        }
        match output.write_node(grown.height, grown.pivots)?.child {
            Child::Node(root, summary) => Ok((root, summary)),
            Child::None | Child::Leaf(_) => Err(Error::internal("a written child is not a node")),
        }
    }

    /// Makes the tree that was built on `version`, the newest one, the next version.
    fn publish(
        &self,
        writer: &mut Writer,
        version: &TreeVersion,
        built: Built,
    ) -> Result<Absorbed> {
        let shared = &self.shared;
        let Some(counts) = &mut writer.counts else {
            let _ = built.ledger.roll_back(shared.node_cache.storage());
            return Err(Error::internal("a tree lost its reference counts"));
        };
        let Settled { version: next, gained, lost } = shared.settle(counts, version, built)?;
        *self.newest.write() = Arc::clone(&next);
        let Summary { leaf, buffered, .. } = next.summary;
        let hidden = writer.overlap.hidden(buffered.bytes);
        let in_use = shared.node_cache.storage().stats().space.used_blocks * BLOCK_BYTES_U64;
        shared.read_costs.weigh(leaf.bytes + buffered.bytes, buffered.bytes, hidden, in_use);
        Ok(Absorbed { version: next, gained, lost })
    }

    /// Makes the next version, under the lock.
    pub(in crate::engines::turtle) fn pass(
        &self,
        updates: &dyn SortedUpdates,
        pace: Pace,
        work: &Work<'_>,
    ) -> Result<Absorbed> {
        let mut writer = self.writer.lock();
        let version = self.newest();
        self.count(&mut writer, &version)?;
        if self.options.flush_percent == 0 {
            writer.overlap = writer.overlap.after(&self.shared, &version, updates);
        }
        let overlap = writer.overlap;
        let built = self.build(&version, updates, pace, overlap, &mut writer.damage, work)?;
        self.publish(&mut writer, &version, built)
    }

    /// Counts the references of `version`, the newest one, before the first change.
    fn count(&self, writer: &mut Writer, version: &TreeVersion) -> Result<()> {
        if writer.counts.is_none() {
            writer.counts = Some(Counts::walk(&self.shared.node_cache, &version.root)?);
        }
        Ok(())
    }
}

/// Read-triggered flushes as a job.
pub(in crate::engines::turtle) struct PassJob<'e> {
    tree: &'e Turtle,
    /// The newest version at the plan.
    version: Arc<TreeVersion>,
    overlap: Overlap,
    keeps_lock: bool,
    /// Damage that it met.
    damage: Damage,
    built: Option<Built>,
}

impl<'e> PassJob<'e> {
    /// Plans a pass over the newest version; `None` if one is outstanding.
    pub fn plan(tree: &'e Turtle) -> Option<Self> {
        if tree.outstanding.is_any.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(Self {
            tree,
            version: tree.newest(),
            overlap: tree.writer.lock().overlap,
            keeps_lock: tree.outstanding.dropped.load(Ordering::Relaxed) >= DROPPED_MAX,
            damage: Damage::default(),
            built: None,
        })
    }
}

impl Job for PassJob<'_> {
    fn keeps_lock(&self) -> bool {
        self.keeps_lock
    }

    fn run(&mut self, work: &Work<'_>) -> Result<()> {
        let (version, overlap) = (&self.version, self.overlap);
        let damage = &mut self.damage;
        let built = self.tree.build(version, &NoUpdates, Pace::Usual, overlap, damage, work);
        if self.damage.is_known() {
            self.tree.writer.lock().damage.adopt(&mut self.damage);
        }
        self.built = Some(built?);
        Ok(())
    }

    fn install(mut self: Box<Self>, _: &Work<'_>) -> Result<Option<Absorbed>> {
        let tree = self.tree;
        let mut writer = tree.writer.lock();
        if !Arc::ptr_eq(&tree.newest(), &self.version) {
            tree.outstanding.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        tree.count(&mut writer, &self.version)?;
        let Some(built) = self.built.take() else {
            return Err(Error::internal("a job was installed before its run"));
        };
        let absorbed = tree.publish(&mut writer, &self.version, built)?;
        tree.outstanding.dropped.store(0, Ordering::Relaxed);
        Ok(Some(absorbed))
    }
}

impl Drop for PassJob<'_> {
    fn drop(&mut self) {
        if let Some(built) = self.built.take() {
            // Nothing refers to it: what is not freed is found by the next open.
            let _ = built.ledger.roll_back(self.tree.shared.node_cache.storage());
        }
        self.tree.outstanding.is_any.store(false, Ordering::Relaxed);
    }
}
