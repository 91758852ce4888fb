//! The course of a pass: nodes are visited, their tasks run, and the last task of a node assembles
//! it.
//!
//! ```text
//!   Child task             enters the node below: its plan, and its tasks into the queue
//!   Keep, Leaves, Level    run to their end; their result is kept at the visit of their node
//!   last result of a node  assembly; the result of the Child task above, and so on, up to the root
//! ```
//!
//! One queue has the tasks of all nodes (`runtime/workers.rs`). No task waits for others, so a
//! thread can take any task of any node. Tasks of low nodes start first: so hardly more nodes are
//! open than one path for each thread, however large the tree is. Among nodes of one height the
//! heaviest task starts first, so that none begins a large one when the others are nearly done; of
//! a single thread the first one in key order.
//!
//! A task states the memory that it needs, and starts when there is as much: a merge has a buffer
//! for each of its sources, a leaf under construction, and copies of keys.
//!
//! Invariants:
//! 1. Each task runs once. A node is assembled once, after all of its tasks succeeded.
//! 2. After damage was met, the other tasks run, but the pass fails.

use super::survey::flush_selection;
use super::{BufferPlan, Done, Entered, Gathered, Grown, Pass, Task, plan, reads_each_update_once};
use crate::base::error::{Error, Result};
use crate::base::limits::SLAB_BYTES;
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, Node};
use crate::buffer_tree::source::Incoming;
use crate::engines::turtle::pass::plan::{Group, PivotStats};
use crate::run::Totals;
use crate::runtime::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::runtime::workers::{self, Queue};
use std::cmp::Reverse;

/// Copies of a key, besides its entry, that a source of a merge has: its position, the end of its
/// range, and the last key before its block.
const KEYS_PER_SOURCE: u64 = 4;

/// Memory of a leaf under construction, as a multiple of its size: its blocks, staged entries,
/// separators and hashes.
const LEAF_TIMES: u64 = 3;

/// A node whose tasks run.
struct Visit<'u> {
    entered: Entered<'u>,
    stats: Vec<PivotStats>,
    groups: Vec<Group>,
    buffer: BufferPlan,
    tasks: Vec<Task>,
    /// Results of the tasks.
    done: Mutex<Vec<Option<Done>>>,
    /// Tasks without a result.
    left: AtomicUsize,
    /// The Child task that entered the node; `None` at the root.
    above: Option<Above<'u>>,
    /// Its number in the trace of the tree.
    #[cfg(test)]
    traced: usize,
}

/// A Child task: the visit of its node, and its index there.
type Above<'u> = (Arc<Visit<'u>>, usize);

/// A task that can start.
struct Ready<'u> {
    visit: Arc<Visit<'u>>,
    index: usize,
    /// The greatest starts first: of the lowest node, the heaviest, the oldest.
    rank: (Reverse<u8>, u64, Reverse<u64>),
    memory_bytes: u64,
}

impl workers::Task for Ready<'_> {
    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl PartialEq for Ready<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Ready<'_> {}

impl PartialOrd for Ready<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ready<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

/// Runs a pass from the root; returns the new pivots of the root.
pub(super) fn walk<'u>(pass: &Pass<'_, 'u>, root: Entered<'u>) -> Result<Grown> {
    let walk = Walk {
        pass,
        grown: Mutex::new(None),
        damaged: Mutex::new(None),
        pushed: AtomicU64::new(0),
    };
    let first = walk.visit(root, None)?;
    pass.workers.drain(pass.work_bytes, first, &|ready, queue| walk.step(&ready, queue))?;
    if let Some(error) = walk.damaged.into_inner() {
        return Err(error);
    }
    walk.grown.into_inner().ok_or_else(|| Error::internal("the root of a pass has no result"))
}

struct Walk<'p, 't, 'u> {
    pass: &'p Pass<'t, 'u>,
    /// The result of the root.
    grown: Mutex<Option<Grown>>,
    /// Damage that a task has met.
    damaged: Mutex<Option<Error>>,
    /// Number of tasks so far.
    pushed: AtomicU64,
}

impl<'u> Walk<'_, '_, 'u> {
    /// Runs a task, and what becomes possible by it.
    fn step(&self, ready: &Ready<'u>, queue: &Queue<Ready<'u>>) -> Result<()> {
        match self.run(&ready.visit, ready.index) {
            Ok(further) => queue.push(further),
            // The other tasks continue: the next pass should know all damage.
            Err(error) => *self.damaged.lock() = Some(self.pass.damage.meet(error)?),
        }
        Ok(())
    }

    /// Runs a task; returns those that it makes possible.
    fn run(&self, visit: &Arc<Visit<'u>>, index: usize) -> Result<Vec<Ready<'u>>> {
        let (pass, at) = (self.pass, visit.entered.place());
        let (incoming, stats) = (&visit.entered.incoming, &visit.stats);
        let done = match &visit.tasks[index] {
            Task::Child { pivot } => {
                let below = pass.descend(at, *pivot, incoming)?;
                return self.visit(below, Some((Arc::clone(visit), index)));
            }
            Task::Keep { pivot, .. } => Done::Leaves(pass.keep_leaf(&at.node.pivots[*pivot])?),
            Task::Leaves { pivots, clip, plan, skip_leaf, .. } => {
                let selection = flush_selection(at, pivots, clip.span(), *skip_leaf);
                Done::Leaves(pass.write_leaves(&selection, incoming, *plan)?)
            }
            Task::Level { pivots, clip, cutoff, .. } => {
                let pieces = (pivots.as_slice(), clip.span());
                Done::Level(pass.write_level(at, incoming, stats, pieces, *cutoff)?)
            }
        };
        self.finish(Arc::clone(visit), index, done)?;
        Ok(Vec::new())
    }

    /// Enters a node: plans it and returns its tasks. A node without tasks is finished at once.
    fn visit(&self, entered: Entered<'u>, above: Option<Above<'u>>) -> Result<Vec<Ready<'u>>> {
        let pass = self.pass;
        let (at, incoming) = (entered.place(), &entered.incoming);
        if incoming.ranks.is_empty() && incoming.older.is_empty() && !at.root && !pass.maintenance {
            // The node is only to be joined with a neighbour.
            let (height, pivots) = (at.node.height, at.node.pivots.clone());
            self.deliver(above, Grown { height, pivots, appended: false })?;
            return Ok(Vec::new());
        }
        let stats = pass.stats(at, incoming)?;
        let groups = plan::groups(at.node.height, &stats, &pass.geometry);
        debug_assert!(plan::is_partition(&groups, stats.len()), "each pivot is in one group");
        pass.count_flushes(at.node, &groups);
        pass.note_emptying(at, &stats, &groups);
        let buffer = pass.plan_buffer(at, incoming, &stats, &groups)?;
        debug_assert!(
            reads_each_update_once(at, incoming, &groups, &buffer),
            "each update goes to one pivot, which is flushed or gets a new level"
        );
        let tasks = pass.tasks(at, incoming, &stats, &groups, &buffer)?;
        pass.events.add(Event::NodesPlanned, 1);
        let left = AtomicUsize::new(tasks.len());
        let done = Mutex::new(tasks.iter().map(|_| None).collect());
        let visit = Arc::new(Visit {
            #[cfg(test)]
            traced: self.trace_node(at, &tasks, &stats, above.as_ref()),
            entered,
            stats,
            groups,
            buffer,
            tasks,
            done,
            left,
            above,
        });
        if visit.tasks.is_empty() {
            self.assemble(visit)?;
            return Ok(Vec::new());
        }
        Ok((0..visit.tasks.len()).map(|index| self.ready(&visit, index)).collect())
    }

    fn ready(&self, visit: &Arc<Visit<'u>>, index: usize) -> Ready<'u> {
        let (pass, node) = (self.pass, &visit.entered.node);
        let weight = visit.tasks[index].weight(&visit.stats);
        if !matches!(visit.tasks[index], Task::Child { .. }) {
            pass.events.add(Event::PlannedBytes, weight);
            pass.events.raise(Event::HeaviestTask, weight);
        }
        let weight = if pass.workers.threads() > 1 { weight } else { 0 };
        let number = self.pushed.fetch_add(1, Ordering::Relaxed);
        let rank = (Reverse(node.height), weight, Reverse(number));
        let memory_bytes = visit.memory_bytes(index, pass.geometry.leaf);
        Ready { visit: Arc::clone(visit), index, rank, memory_bytes }
    }

    /// Keeps the result of a task. The last one assembles the node.
    fn finish(&self, visit: Arc<Visit<'u>>, index: usize, done: Done) -> Result<()> {
        #[cfg(test)]
        self.trace_done(&visit, index, &done);
        visit.done.lock()[index] = Some(done);
        if visit.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        self.assemble(visit)
    }

    /// Assembles a node all of whose tasks are done.
    fn assemble(&self, visit: Arc<Visit<'u>>) -> Result<()> {
        if self.damaged.lock().is_some() {
            return Ok(());
        }
        let gathered = visit.gather()?;
        let at = visit.entered.place();
        let grown = self.pass.assemble(at, &visit.groups, &visit.buffer, gathered)?;
        let above = visit.above.as_ref().map(|(above, index)| (Arc::clone(above), *index));
        drop(visit);
        self.deliver(above, grown)
    }

    /// Gives the result of a node to the Child task that entered it.
    fn deliver(&self, above: Option<Above<'u>>, grown: Grown) -> Result<()> {
        match above {
            Some((visit, index)) => self.finish(visit, index, Done::Child(grown)),
            None => {
                *self.grown.lock() = Some(grown);
                Ok(())
            }
        }
    }
}

impl Task {
    /// Approximate weight of the entries that it reads, and all tasks below it.
    fn weight(&self, stats: &[PivotStats]) -> u64 {
        match self {
            Task::Keep { .. } => 0,
            Task::Leaves { plan, .. } => plan.incoming,
            Task::Child { pivot } => stats[*pivot].incoming + stats[*pivot].pending,
            Task::Level { incoming, .. } => *incoming,
        }
    }
}

/// The trace of tests.
#[cfg(test)]
impl<'u> Walk<'_, '_, 'u> {
    fn trace_node(
        &self,
        at: super::Place<'_>,
        tasks: &[Task],
        stats: &[PivotStats],
        above: Option<&Above<'u>>,
    ) -> usize {
        let mut trace = self.pass.events.trace.lock();
        trace.push(crate::buffer_tree::events::TracedNode {
            height: at.node.height,
            pivots: at.node.pivots.len() as u64,
            above: above.map(|(visit, index)| (visit.traced, *index)),
            tasks: tasks.iter().map(|task| (task.weight(stats), 0)).collect(),
        });
        trace.len() - 1
    }

    fn trace_done(&self, visit: &Visit<'u>, index: usize, done: &Done) {
        let written: u64 = match done {
            Done::Leaves(leaves) => {
                leaves.iter().map(|leaf| leaf.run.reference().totals().weight()).sum()
            }
            Done::Level(parts) => parts.iter().map(|(_, part)| part.totals.weight()).sum(),
            Done::Child(_) => 0,
        };
        self.pass.events.trace.lock()[visit.traced].tasks[index].1 = written;
    }
}

impl Visit<'_> {
    /// Approximate memory of a task while it runs.
    fn memory_bytes(&self, index: usize, leaf: u64) -> u64 {
        let (node, incoming) = (&self.entered.node, &self.entered.incoming);
        let sources = match &self.tasks[index] {
            Task::Keep { .. } | Task::Child { .. } => return 0,
            Task::Leaves { pivots, skip_leaf, .. } => {
                Sources::of(node, incoming, pivots, usize::MAX, !skip_leaf)
            }
            Task::Level { pivots, cutoff, .. } => {
                Sources::of(node, incoming, pivots, *cutoff, false)
            }
        };
        sources.count * (SLAB_BYTES as u64 + KEYS_PER_SOURCE * sources.entry) + LEAF_TIMES * leaf
    }

    /// Collects the results of all tasks in key order.
    fn gather(&self) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        for (task, done) in self.tasks.iter().zip(self.done.lock().drain(..)) {
            match (task, done) {
                (
                    Task::Keep { group, .. } | Task::Leaves { group, .. },
                    Some(Done::Leaves(leaves)),
                ) => {
                    gathered.leaves.entry(*group).or_default().extend(leaves);
                }
                (Task::Child { pivot }, Some(Done::Child(grown))) => {
                    gathered.children.insert(*pivot, grown);
                }
                (Task::Level { .. }, Some(Done::Level(parts))) => {
                    for (pivot, part) in parts {
                        gathered.parts.entry(pivot).or_default().push(part);
                    }
                }
                _ => return Err(Error::internal("a task of a pass has no result")),
            }
        }
        Ok(gathered)
    }
}

/// The sources of a merge: their number, and the largest average size of their entries.
struct Sources {
    count: u64,
    entry: u64,
}

impl Sources {
    fn of(
        node: &Node,
        incoming: &Incoming<'_>,
        pivots: &[usize],
        cutoff: usize,
        leaves: bool,
    ) -> Self {
        let (mut levels, mut leaf, mut entry) = (0_u64, 0, 0);
        let mut meet = |totals: Totals| entry = entry.max(totals.bytes / totals.entries.max(1));
        incoming.older.iter().for_each(|run| meet(run.reference().totals()));
        for pivot in pivots.iter().map(|pivot| &node.pivots[*pivot]) {
            for part in pivot.parts.iter().filter(|part| usize::from(part.level) < cutoff) {
                levels |= 1 << part.level;
                meet(part.totals);
            }
            if let Child::Leaf(run) = &pivot.child
                && leaves
            {
                leaf = 1;
                meet(run.reference().totals());
            }
        }
        let ranks = incoming.ranks.len() as u64;
        let entries = incoming.weight_of(&incoming.ranks) / ranks.max(1);
        let count = incoming.older.len() as u64 + u64::from(levels.count_ones()) + leaf;
        Self { count, entry: entry.max(entries) }
    }
}
