//! The pass: moves updates down the tree once, from the root to the leaves they reach.
//!
//! ```text
//!   node(incoming)
//!     plan        pivots to flush, levels to merge (`plan.rs`), pieces (`cut.rs`)
//!     tasks         Leaves: a flush into leaves, or a piece of one     -> runs
//!                   Child:  a flush into a node = node(...) below      -> its new pivots
//!                   Level:  a piece of the new top level               -> parts
//!     assembly    new pivots in key order; child nodes are cut, joined and written
//! ```
//!
//! `visit.rs` has the order in which tasks run, on any number of threads.
//!
//! Invariants:
//! 1. Every update and every entry of a flushed part is read by exactly one task, so that it is in
//!    exactly one place afterwards. Estimates decide where, never whether.
//! 2. A flushed pivot has no parts. So neighbouring flushed pivots may be joined and cut again. The
//!    range of a pivot may grow over an empty neighbour's only where no run can become live by it:
//!    if the pivot has no parts, and its child is not a node.
//! 3. A child node is written by the assembly of its parent, when its neighbours are known; the
//!    root by the engine.
//! 4. The division of work depends on the tree, the updates, read costs and known damage, not on
//!    the number of threads.
//! 5. A pass fails if an old run cannot be read, after recording all damage it could reach; a pass
//!    that knows of the damage avoids it (`damage.rs`).

use super::shape::{self, LeafPlan};
use crate::base::error::{Error, Result};
use crate::base::keys::Direction;
use crate::base::stream::SortedStream;
use crate::buffer_tree::check::damage::Damage;
use crate::buffer_tree::events::{Event, Events};
use crate::buffer_tree::level::{LevelOutput, LevelPivot, write_level};
use crate::buffer_tree::node::{Child, Node, NodeCache, Part, Pivot, ReadCost};
use crate::buffer_tree::output::{Output, WrittenRun};
use crate::buffer_tree::read::read_cost::ReadCosts;
use crate::buffer_tree::source::{Incoming, Selection, Source};
use crate::buffer_tree::span::{KeySpan, SharedRange};
use crate::engines::turtle::pass::geometry::Geometry;
use crate::engines::turtle::pass::plan::{Group, PivotStats};
use crate::memory::epoch::Guard;
use crate::merge::{Merge, Tombstones};
use crate::runtime::sync::{Arc, Mutex};
use crate::runtime::workers::Workers;
use crate::structure::{KeyView, SharedKey};
use std::collections::BTreeMap;

mod assemble;
mod cut;
pub mod geometry;
pub mod job;
mod levels;
pub mod plan;
mod survey;
mod visit;

/// Result of a pass at a node: its new pivots, any number of them.
pub(super) struct Grown {
    /// Height of a node of these pivots.
    pub height: u8,
    /// At least one pivot.
    pub pivots: Vec<Pivot>,
    /// All growth was at the end.
    pub appended: bool,
}

/// One pass over a tree.
pub(super) struct Pass<'t, 'u> {
    /// Cache of nodes and runs.
    pub node_cache: &'t NodeCache,
    /// Event counters.
    pub events: &'t Events,
    /// Sizes of the tree.
    pub geometry: Geometry,
    /// Output of the pass.
    pub output: &'t Output<'t>,
    /// Read costs of the tree.
    pub read_costs: &'t ReadCosts,
    /// Known damage of the tree.
    pub damage: &'t Damage,
    /// The first key of the node whose buffer reclaiming units are emptying.
    pub emptying: &'t Mutex<Option<SharedKey>>,
    /// The pass serves read-triggered flushes, and has no updates.
    pub maintenance: bool,
    /// The threads of the pass.
    pub workers: Workers,
    /// Bytes of memory for all tasks that run at the same time.
    pub work_bytes: u64,
    /// Called with the number of ranks absorbed.
    pub progress: &'u (dyn Fn(u64) + Sync),
}

/// A node that a pass has reached.
struct Entered<'u> {
    node: Arc<Node>,
    /// End of its range.
    upper: Option<SharedKey>,
    /// No node above it has another pivot.
    root: bool,
    incoming: Incoming<'u>,
}

impl Entered<'_> {
    fn place(&self) -> Place<'_> {
        let upper = self.upper.as_ref().map(SharedKey::view);
        Place { node: &self.node, upper, root: self.root }
    }
}

/// Position of a pass: a node and its range.
#[derive(Clone, Copy)]
struct Place<'n> {
    node: &'n Node,
    upper: Option<KeyView<'n>>,
    /// No node above it has another pivot.
    root: bool,
}

impl<'n> Place<'n> {
    fn span(&self) -> KeySpan<'n> {
        KeySpan { lower: self.node.pivots[0].key.view(), upper: self.upper }
    }

    fn span_of(&self, pivot: usize) -> KeySpan<'n> {
        self.node.span_of(pivot, self.upper)
    }

    /// Returns true if the pivots, which are in key order, are within its range.
    fn contains(&self, pivots: &[Pivot]) -> bool {
        pivots.last().is_some_and(|last| self.upper.is_none_or(|upper| last.key.view() < upper))
    }
}

/// Changes to the buffer of a node.
#[derive(Default)]
struct BufferPlan {
    levels: Levels,
    /// Part of the read cost of levels that is spent on merging levels, of pivots that are not
    /// stuck.
    spent_permille: u32,
    /// Pivots that get entries of the new level, with the weight of these.
    written: Vec<(usize, u64)>,
    /// Changes for stuck pivots, which have levels of their own.
    stuck: BTreeMap<usize, StuckPlan>,
}

/// Changes to the levels of a buffer.
#[derive(Default)]
struct Levels {
    /// Parts below this level are merged into the new top level.
    cutoff: usize,
    /// New numbers of the remaining levels.
    renumbered: BTreeMap<u8, u8>,
}

struct StuckPlan {
    levels: Levels,
    /// The pivot gets entries of a new level.
    written: bool,
}

impl BufferPlan {
    /// Returns the level changes of `pivot`.
    fn levels_of(&self, pivot: usize) -> &Levels {
        self.stuck.get(&pivot).map_or(&self.levels, |plan| &plan.levels)
    }

    /// Returns the read cost that `pivot` keeps if it is not flushed.
    fn read_cost_of(&self, pivot: usize, old: &Pivot) -> ReadCost {
        let is_stuck = self.stuck.contains_key(&pivot);
        old.read_cost.after_spending(if is_stuck { 0 } else { self.spent_permille })
    }
}

enum Task {
    /// A leaf that stays unchanged before appended entries.
    Keep {
        group: usize,
        pivot: usize,
    },
    Leaves {
        group: usize,
        pivots: Vec<usize>,
        clip: SharedRange,
        plan: LeafPlan,
        skip_leaf: bool,
    },
    Child {
        pivot: usize,
    },
    Level {
        pivots: Vec<usize>,
        clip: SharedRange,
        cutoff: usize,
        /// Approximate weight of the entries that it reads.
        incoming: u64,
    },
}

enum Done {
    Leaves(Vec<WrittenRun>),
    Child(Grown),
    Level(Vec<(usize, Part)>),
}

/// Results of the tasks of a node, by group and pivot.
#[derive(Default)]
struct Gathered {
    leaves: BTreeMap<usize, Vec<WrittenRun>>,
    children: BTreeMap<usize, Grown>,
    parts: BTreeMap<usize, Vec<Part>>,
}

impl Gathered {
    /// Adds an empty list of parts for each pivot of the new level without parts: its old parts are
    /// gone.
    fn complete(&mut self, buffer: &BufferPlan) {
        let stuck = buffer.stuck.iter().filter(|(_, plan)| plan.written);
        let written = buffer.written.iter().map(|(pivot, _)| *pivot);
        for pivot in written.chain(stuck.map(|(pivot, _)| *pivot)) {
            self.parts.entry(pivot).or_default();
        }
    }
}

impl<'t, 'u> Pass<'t, 'u> {
    /// Applies `incoming` to the root and returns its new pivots.
    pub fn root(&self, node: Arc<Node>, incoming: Incoming<'u>) -> Result<Grown> {
        visit::walk(self, Entered { node, upper: None, root: true, incoming })
    }

    /// Assembles a node from the results of its tasks.
    fn assemble(
        &self,
        at: Place<'_>,
        groups: &[Group],
        buffer: &BufferPlan,
        gathered: Gathered,
    ) -> Result<Grown> {
        let grown = if at.node.height == 1 {
            self.assemble_leaves(at.node, groups, buffer, gathered)?
        } else {
            self.assemble_nodes(at, groups, buffer, gathered)?
        };
        self.check_grown(at, &grown);
        self.events.add(Event::NodesAssembled, 1);
        Ok(grown)
    }

    fn write_leaves(
        &self,
        selection: &Selection<'_>,
        incoming: &Incoming<'u>,
        mut plan: LeafPlan,
    ) -> Result<Vec<WrittenRun>> {
        let sources = selection.open(incoming, self.progress)?;
        let standing = sources.iter().filter(|source| source.key().is_some());
        if standing.count() <= 1 && matches!(sources.first(), Some(Source::Updates(_))) {
            // The only source is the memtable: the output weight is known exactly.
            plan.incoming = incoming.weight_of(&incoming.ranks_in(selection.clip));
            plan.exact = true;
        }
        let mut merge = Merge::new(sources, Direction::Ascending, Tombstones::Drop)?;
        let node = selection.node;
        let was_cached = |key: &[u8], guard: &Guard| match &node.pivots[node.pivot_of(key)].child {
            Child::Leaf(leaf) => leaf.heat(key, guard),
            Child::None | Child::Node(..) => None,
        };
        let leaves =
            shape::write_leaves(self.output, &mut merge, plan, &self.geometry, &was_cached)?;
        self.output.count_merge(merge, leaves.iter().map(|leaf| leaf.run.reference().totals()));
        Ok(leaves)
    }

    fn write_level(
        &self,
        at: Place<'_>,
        incoming: &Incoming<'u>,
        stats: &[PivotStats],
        (pivots, clip): (&[usize], KeySpan<'_>),
        cutoff: usize,
    ) -> Result<Vec<(usize, Part)>> {
        let (node, upper) = (at.node, at.upper);
        let selection = Selection { node, upper, pivots, clip, levels: 0..cutoff, leaves: false };
        let sources = selection.open(incoming, self.progress)?;
        let mut merge = Merge::new(sources, Direction::Ascending, Tombstones::Keep)?;
        let level_pivot = |index: &usize| {
            let span = at.span_of(*index);
            span.clip(clip)?;
            let incoming = stats[*index].incoming + merged_weight(node, *index, cutoff);
            let key = &node.pivots[*index].key;
            Some(LevelPivot { index: *index, key, upper: span.upper, incoming })
        };
        let targets: Vec<_> = pivots.iter().filter_map(level_pivot).collect();
        let begins = targets.first().filter(|first| first.key.view() < clip.lower);
        let begins = begins.map(|first| clip.lower.to_shared().beside(first.key));
        let run_max = self.geometry.buffer_run();
        let level = LevelOutput { writer: self.output.level_writer(), run_max, was_cached: None };
        let parts = write_level(level, &mut merge, &targets, begins)?;
        self.output.count_merge(merge, parts.iter().map(|(_, part)| part.totals));
        Ok(parts)
    }

    /// Enters the child of `pivot`, into which its incoming and pending updates move.
    fn descend(&self, at: Place<'_>, pivot: usize, incoming: &Incoming<'u>) -> Result<Entered<'u>> {
        let from = &at.node.pivots[pivot];
        let child = match &from.child {
            Child::Node(slot, _) => {
                let child = self.node_cache.load_owned(slot)?;
                self.output.retire(slot.reference(), &child);
                child
            }
            Child::None => {
                let empty = Pivot::settled(from.key.clone(), Child::None);
                Arc::new(Node::new(at.node.height - 1, vec![empty]))
            }
            Child::Leaf(_) => return Err(Error::internal("a leaf lies above height 1")),
        };
        if child.pivots[0].key != from.key {
            return Err(Error::corrupt("the first key of a node differs from its parent"));
        }
        let mut updates = incoming.clone();
        updates.ranks = incoming.ranks_in(at.span_of(pivot));
        updates.older.extend(from.parts.iter().map(|part| Arc::clone(&part.segment.run)));
        let upper = at.span_of(pivot).upper.map(KeyView::to_shared);
        let root = at.root && at.node.pivots.len() == 1;
        let below = Entered { node: child, upper, root, incoming: updates };
        if !below.place().contains(&below.node.pivots) {
            return Err(Error::corrupt("a node has a pivot outside of its range"));
        }
        Ok(below)
    }
}

/// Returns the weight of the parts of a pivot that a new level takes in.
fn merged_weight(node: &Node, pivot: usize, cutoff: usize) -> u64 {
    let parts = node.pivots[pivot].parts.iter();
    let merged = parts.filter(|part| usize::from(part.level) < cutoff);
    merged.map(|part| part.totals.weight()).sum()
}

/// Invariant 1 for the memtable: each of its incoming updates is in the range of one pivot, and
/// each pivot with updates is flushed or gets entries of a new level, and not both.
fn reads_each_update_once(
    at: Place<'_>,
    incoming: &Incoming<'_>,
    groups: &[Group],
    buffer: &BufferPlan,
) -> bool {
    let mut next = incoming.ranks_in(at.span()).start;
    let mut is_read_once = true;
    for group in groups {
        for pivot in group.pivots.clone() {
            let ranks = incoming.ranks_in(at.span_of(pivot));
            let is_stuck = buffer.stuck.get(&pivot).is_some_and(|plan| plan.written);
            let is_written = is_stuck || buffer.written.iter().any(|(index, _)| *index == pivot);
            let is_flushed = group.flush.is_some();
            is_read_once &= ranks.start == next && !(is_written && is_flushed);
            is_read_once &= ranks.is_empty() || is_written || is_flushed;
            next = ranks.end;
        }
    }
    is_read_once && next == incoming.ranks_in(at.span()).end
}
