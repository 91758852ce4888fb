//! Reference counts: the extents that a version gained and lost.
//!
//! Every node has one reference. Runs are referenced by nodes: leaves by one, segments by one or,
//! after a node was cut or a run was moved down by reference, by several. Large values are
//! referenced by the runs that list them. Only counts of two and more are stored; an extent that is
//! not in the map has one reference, or none and does not exist.
//!
//! ```text
//!   absorb   Ledger: runs written, references added and removed, nodes written and retired
//!              -> runs gained, runs lost (count reached 0), runs unused (never referenced)
//!              -> large values: new ones start at 0; +1 for each run gained, then -1 for each lost
//!   open     a walk over nodes and the lists of large values rebuilds the same counts
//! ```
//!
//! Counts are changed on a copy, so that an error leaves them unchanged.
//!
//! A walk remembers only extents that it may meet twice:
//!
//! - Runs marked as shared. In turtle a cut of a node marks at most one run per level, about six. A
//!   terabyte in leaves of 256 KiB has 4.7 million leaves, in some 80 thousand nodes: if every node
//!   came directly from a cut, that would be half a million marks, 16 MiB. Marked runs are flushed
//!   in time, so there are far fewer. In splinter a flush marks every run that it leaves in the
//!   node, so most runs that are not in the merged branch of a leaf are marked: of a terabyte in
//!   runs of 6 MiB up to 170 thousand, 5 MiB; in those of 256 KiB, which the least budgets have, up
//!   to four million, 128 MiB.
//! - Large values, by one bit per block, in a window of the file that takes a part of the budget: 2
//!   MiB of a budget of 32 MiB, which covers 60 GiB of the file. For large values beyond the window
//!   the tree is walked again with the next window: 18 times for a full terabyte. Walks after the
//!   first read only nodes and lists, and only of runs that have a list.
//!
//! So a terabyte of turtle opens in 32 MiB. The counts themselves, which absorbs need, contain
//! shared runs and large values that are listed twice: by a run, and by an older segment from which
//! they were flushed and which is still pending in other pivots. They are charged to the budget;
//! their only bound is that segments are flushed eventually.

use crate::base::error::{Error, Result};
use crate::base::ids::BlockNo;
use crate::base::stream::LargeRef;
use crate::buffer_tree::node::{Child, Node, NodeCache, NodeSlot};
use crate::engine::OwnedExtent;
use crate::memory::budget::{Charge, Use};
use crate::run::{Run, RunRef};
use crate::runtime::sync::{Arc, Ordering};
use crate::storage::Storage;
use std::collections::{BTreeMap, BTreeSet};

/// Approximate bytes of an entry in a map of counts.
const COUNT_BYTES: u64 = 32;

/// Bytes of a chunk of a set of blocks; and the number of blocks it covers.
const CHUNK_BYTES: u64 = 512 + 32;
const CHUNK_BLOCKS: u64 = 4096;

/// Divisor of the memory budget for the large values remembered by a walk.
const WINDOW_PART: u64 = 16;

/// A set of block numbers, dense where it is used.
#[derive(Default)]
pub struct BlockSet {
    chunks: BTreeMap<u64, Box<[u64; 64]>>,
}

impl BlockSet {
    /// Inserts a block; returns false if it was present.
    pub fn insert(&mut self, block: BlockNo) -> bool {
        let chunk = self.chunks.entry(block.0 >> 12).or_insert_with(|| Box::new([0; 64]));
        let place = usize::try_from(block.0 & 0xfff).unwrap_or(0);
        let (word, bit) = (&mut chunk[place / 64], 1 << (place % 64));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Inserts a block, after clearing the set if it has more than `chunks_max` chunks.
    pub fn insert_bounded(&mut self, block: BlockNo, chunks_max: usize) -> bool {
        if self.chunks.len() > chunks_max {
            self.chunks.clear();
        }
        self.insert(block)
    }
}

/// Returns the extent of a run as an [`OwnedExtent`].
pub fn run_extent(reference: &RunRef) -> OwnedExtent {
    OwnedExtent::structure(reference.extent, reference.generation)
}

/// Returns the listed large values of a run, each once, and whether the list is complete.
pub fn large_of(run: &Run) -> (BTreeSet<LargeRef>, Result<()>) {
    let mut list = BTreeSet::new();
    if run.reference().large_blocks == 0 {
        return (list, Ok(()));
    }
    let listed = run.large_refs(&mut |large| {
        list.insert(large);
        Ok(())
    });
    (list, listed)
}

/// The counts of two and more of one version.
#[derive(Default)]
pub struct Counts {
    /// References from nodes to runs, by first block.
    runs: BTreeMap<BlockNo, u32>,
    /// References from runs to large values, by first block.
    large: BTreeMap<BlockNo, u32>,
    charge: Option<Charge>,
}

/// Changes made by a pass, recorded while it runs.
#[derive(Default)]
pub struct Ledger {
    /// Runs written, by first block.
    pub runs: BTreeMap<BlockNo, RunRef>,
    /// Nodes written.
    pub nodes: Vec<OwnedExtent>,
    /// Net changes of references from nodes to runs, by first block, where not zero.
    pub references: BTreeMap<BlockNo, (RunRef, i64)>,
    /// Nodes that the next version does not have.
    pub nodes_retired: Vec<OwnedExtent>,
    /// Nodes written and retired again: to be freed at once.
    pub nodes_unused: Vec<OwnedExtent>,
    /// Large values that arrived with the updates.
    pub large: Vec<LargeRef>,
}

impl Ledger {
    /// Records that the next version does not have a node, which may have been written since.
    pub fn retire(&mut self, node: OwnedExtent) {
        match self.nodes.iter().rposition(|written| *written == node) {
            Some(place) => self.nodes_unused.push(self.nodes.swap_remove(place)),
            None => self.nodes_retired.push(node),
        }
    }

    /// Records that a node refers to `runs` (`change` 1), or no longer does (-1). Most changes of a
    /// rewritten node cancel out.
    pub fn refer(&mut self, runs: impl Iterator<Item = Arc<Run>>, change: i64) {
        for run in runs {
            let start = run.reference().extent.start;
            let (_, sum) = self.references.entry(start).or_insert((*run.reference(), 0));
            *sum += change;
            if *sum == 0 {
                self.references.remove(&start);
            }
        }
    }

    /// Frees everything that a failed or dropped pass allocated. Continues after an error.
    pub fn roll_back(&self, storage: &Storage) -> Result<()> {
        let runs = self.runs.values().map(|run| run.extent);
        let nodes = self.nodes.iter().chain(&self.nodes_unused).map(|node| node.extent);
        let freed = runs.chain(nodes).map(|extent| storage.free(extent));
        freed.fold(Ok(()), Result::and)
    }
}

/// Externally visible changes of a pass.
#[derive(Default)]
pub struct Settled {
    /// See [`crate::engine::Absorbed`].
    pub gained: Vec<OwnedExtent>,
    /// See [`crate::engine::Absorbed`].
    pub lost: Vec<OwnedExtent>,
    /// Runs that were written but are not referenced: to be freed at once.
    pub unused: Vec<OwnedExtent>,
}

impl Settled {
    /// Returns true if no extent of a run or a node is listed twice. A large value is both gained
    /// and lost if it arrived with an update that a newer one hides.
    fn is_difference(&self) -> bool {
        let lists = [&self.gained, &self.lost, &self.unused];
        let mut seen = BTreeSet::new();
        let mut owned = lists.into_iter().flatten().filter(|owned| !owned.is_large_value());
        owned.all(|owned| seen.insert(owned.extent.start))
    }
}

impl Counts {
    /// Counts the references of the tree below `root`.
    pub fn walk(node_cache: &NodeCache, root: &Arc<NodeSlot>) -> Result<Self> {
        let mut counts = Self::default();
        let window = window_blocks(node_cache);
        let memory = walk_references(node_cache, root, window, &mut |met| {
            if let Met::Large(large, false) = met {
                *counts.large.entry(large.extent.start).or_insert(1) += 1;
            }
            Ok(())
        })?;
        counts.runs = memory.shared;
        counts.runs.retain(|_, count| *count > 1);
        counts.charge = Some(node_cache.storage().budget().charge(Use::Metadata, 0));
        counts.count_memory();
        Ok(counts)
    }

    fn count_memory(&mut self) {
        let bytes = (self.runs.len() + self.large.len()) as u64 * COUNT_BYTES;
        if let Some(charge) = &mut self.charge {
            charge.resize(bytes);
        }
    }

    /// Applies the recorded changes of a pass.
    pub fn settle(&mut self, ledger: &Ledger, node_cache: &NodeCache) -> Result<Settled> {
        let mut settled = Settled::default();
        // Written runs take part even without references.
        let mut changes: BTreeMap<BlockNo, (RunRef, i64)> =
            ledger.runs.iter().map(|(start, run)| (*start, (*run, 0))).collect();
        changes.extend(&ledger.references);
        let mut runs = Changes::new(&self.runs);
        let (mut gained, mut lost) = (Vec::new(), Vec::new());
        for (start, (run, change)) in changes {
            let fresh = ledger.runs.contains_key(&start);
            match runs.apply(start, !fresh, change)? {
                (0, 0) => settled.unused.push(run_extent(&run)),
                (0, _) => gained.push(run),
                (_, 0) => lost.push(run),
                _ => {}
            }
        }
        let opened = |runs: &[RunRef]| -> Vec<Arc<Run>> {
            let listing = runs.iter().filter(|run| run.large_blocks > 0);
            listing.map(|run| node_cache.context().open(node_cache.storage(), *run)).collect()
        };
        let large =
            self.settle_large(&ledger.large, &opened(&gained), &opened(&lost), &mut settled)?;
        let runs = runs.changed;
        settled.gained.extend(gained.iter().map(run_extent));
        settled.lost.extend(lost.iter().map(run_extent));
        settled.unused.extend(&ledger.nodes_unused);
        settled.gained.extend(&ledger.nodes);
        settled.lost.extend(&ledger.nodes_retired);
        debug_assert!(
            settled.is_difference(),
            "no run and no node is gained or lost twice, or both gained and lost"
        );
        commit(&mut self.runs, runs);
        commit(&mut self.large, large);
        self.count_memory();
        Ok(settled)
    }

    fn settle_large(
        &self,
        arrived: &[LargeRef],
        gained: &[Arc<Run>],
        lost: &[Arc<Run>],
        settled: &mut Settled,
    ) -> Result<BTreeMap<BlockNo, i64>> {
        let mut changes: BTreeMap<LargeRef, i64> =
            arrived.iter().map(|large| (*large, 0)).collect();
        for (runs, change) in [(gained, 1), (lost, -1)] {
            for run in runs {
                let (large, listed) = large_of(run);
                listed?;
                for large in large {
                    *changes.entry(large).or_default() += change;
                }
            }
        }
        let fresh: BTreeSet<&LargeRef> = arrived.iter().collect();
        let mut counts = Changes::new(&self.large);
        for (large, change) in changes {
            let is_fresh = fresh.contains(&large);
            let (_, after) = counts.apply(large.extent.start, !is_fresh, change)?;
            if is_fresh {
                settled.gained.push(OwnedExtent::from(&large));
            }
            if after == 0 {
                settled.lost.push(OwnedExtent::from(&large));
            }
        }
        Ok(counts.changed)
    }
}

/// Count changes that are not applied yet.
struct Changes<'a> {
    counts: &'a BTreeMap<BlockNo, u32>,
    changed: BTreeMap<BlockNo, i64>,
}

impl<'a> Changes<'a> {
    fn new(counts: &'a BTreeMap<BlockNo, u32>) -> Self {
        Self { counts, changed: BTreeMap::new() }
    }

    /// Changes the count of the extent that begins at `start`; returns the counts before and after.
    fn apply(&mut self, start: BlockNo, existed: bool, change: i64) -> Result<(i64, i64)> {
        let before = match self.counts.get(&start) {
            Some(count) if existed => i64::from(*count),
            _ => i64::from(existed),
        };
        let after = before + change;
        if after < 0 {
            return Err(Error::internal("the reference count of an extent became negative"));
        }
        self.changed.insert(start, after);
        Ok((before, after))
    }
}

fn commit(counts: &mut BTreeMap<BlockNo, u32>, changed: BTreeMap<BlockNo, i64>) {
    for (start, count) in changed {
        match u32::try_from(count) {
            Ok(count) if count >= 2 => drop(counts.insert(start, count)),
            _ => drop(counts.remove(&start)),
        }
    }
}

/// Visits the root and the nodes below, parents first, left to right, with the reference of each.
/// Holds at most one node per height. Skips unreadable children; the first error goes to `unread`.
pub fn walk_nodes(
    node_cache: &NodeCache,
    root: &Arc<NodeSlot>,
    unread: &mut Option<Error>,
    visit: &mut dyn FnMut(&Arc<NodeSlot>, &Node) -> Result<()>,
) -> Result<()> {
    let first = node_cache.load_owned(root)?;
    visit(root, &first)?;
    let mut path = vec![(first, 0)];
    while let Some((node, next)) = path.last_mut() {
        let Some(pivot) = node.pivots.get(*next) else {
            path.pop();
            continue;
        };
        *next += 1;
        if let Child::Node(slot, _) = &pivot.child {
            let slot = Arc::clone(slot);
            match node_cache.load_owned(&slot) {
                Ok(child) => {
                    visit(&slot, &child)?;
                    path.push((child, 0));
                }
                Err(error) => drop(unread.get_or_insert(error)),
            }
        }
    }
    Ok(())
}

/// Items visited by a walk over references.
pub enum Met<'a> {
    /// A node.
    Node(&'a NodeSlot),
    /// A run, on its first visit.
    Run(&'a Run),
    /// A large value; true on its first visit.
    Large(&'a LargeRef, bool),
}

/// Statistics of a walk over references.
#[derive(Default)]
pub struct Memory {
    /// Runs marked as shared, by first block, with the number of nodes that refer to them.
    pub shared: BTreeMap<BlockNo, u32>,
    /// Maximum number of chunks of a set of blocks at one time.
    pub chunks_max: usize,
    /// Number of times the tree was walked.
    pub walks: u32,
}

/// Returns the number of file blocks in one window of large values.
fn window_blocks(node_cache: &NodeCache) -> u64 {
    let part = node_cache.storage().budget().limit() / WINDOW_PART;
    (part / CHUNK_BYTES).max(1) * CHUNK_BLOCKS
}

/// Visits everything that the tree below `root` refers to, and reports statistics: see the module
/// documentation. Fails at the end if a node or a list of large values cannot be read.
pub fn walk_references(
    node_cache: &NodeCache,
    root: &Arc<NodeSlot>,
    window_blocks: u64,
    visit: &mut dyn FnMut(Met<'_>) -> Result<()>,
) -> Result<Memory> {
    let mut memory = Memory::default();
    let mut charge = node_cache.storage().budget().charge(Use::Work, 0);
    let mut window = 0..window_blocks;
    let mut unread = None;
    loop {
        let is_first = memory.walks == 0;
        let (mut shared, mut large) = (BTreeMap::new(), BlockSet::default());
        let mut beyond: Option<u64> = None;
        let (mut unread_nodes, mut unread_lists) = (None, None);
        walk_nodes(node_cache, root, &mut unread_nodes, &mut |slot, node| {
            if is_first {
                visit(Met::Node(slot))?;
            }
            let marked = marked(node);
            for run in node.runs() {
                let start = run.reference().extent.start;
                if marked.contains(&start) {
                    let count = shared.entry(start).or_insert(0);
                    *count += 1;
                    if *count > 1 {
                        continue;
                    }
                }
                if is_first {
                    visit(Met::Run(&run))?;
                }
                let (values, listed) = large_of(&run);
                unread_lists = unread_lists.take().or(listed.err());
                for value in values {
                    let block = value.extent.start;
                    if block.0 >= window.end {
                        beyond = Some(beyond.map_or(block.0, |least| least.min(block.0)));
                    } else if block.0 >= window.start {
                        visit(Met::Large(&value, large.insert(block)))?;
                    }
                }
            }
            let bytes = shared.len() as u64 * COUNT_BYTES + large.chunks.len() as u64 * CHUNK_BYTES;
            if charge.bytes() != bytes {
                charge.resize(bytes);
            }
            Ok(())
        })?;
        unread = unread.or(unread_nodes).or(unread_lists);
        memory.walks += 1;
        memory.chunks_max = memory.chunks_max.max(large.chunks.len());
        memory.shared = shared;
        let Some(next) = beyond else { return unread.map_or(Ok(memory), Err) };
        // Aligned to chunks, so that a window uses no more chunks than planned.
        let next = next / CHUNK_BLOCKS * CHUNK_BLOCKS;
        window = next..next.saturating_add(window_blocks);
    }
}

/// Returns the segments that a node marks as shared.
fn marked(node: &Node) -> BTreeSet<BlockNo> {
    let segments = node.segments().into_iter();
    segments
        .filter(|segment| segment.shared.load(Ordering::Relaxed))
        .map(|segment| segment.run.reference().extent.start)
        .collect()
}

/// Visits every extent of the tree below `root` once.
pub fn walk_extents(
    node_cache: &NodeCache,
    root: &Arc<NodeSlot>,
    visit: &mut dyn FnMut(OwnedExtent) -> Result<()>,
) -> Result<()> {
    let window = window_blocks(node_cache);
    walk_references(node_cache, root, window, &mut |met| match met {
        Met::Node(slot) => slot.reference().map_or(Ok(()), |place| {
            let (extent, generation) = (place.extent, place.generation);
            visit(OwnedExtent::structure(extent, generation))
        }),
        Met::Run(run) => visit(run_extent(run.reference())),
        Met::Large(large, true) => visit(OwnedExtent::from(large)),
        Met::Large(_, false) => Ok(()),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_set_reports_the_first_time() {
        let mut set = BlockSet::default();
        for block in [0, 63, 64, 4095, 4096, 1 << 40] {
            assert!(set.insert(BlockNo(block)));
            assert!(!set.insert(BlockNo(block)));
        }
    }

    #[test]
    fn counts_of_one_are_not_kept() {
        let mut counts = BTreeMap::new();
        let change = |counts: &mut BTreeMap<BlockNo, u32>, existed, change| {
            let mut changes = Changes::new(counts);
            let result = changes.apply(BlockNo(7), existed, change);
            let changed = changes.changed;
            commit(counts, changed);
            result.ok()
        };
        assert_eq!(change(&mut counts, false, 2), Some((0, 2)));
        assert_eq!(counts.len(), 1);
        assert_eq!(change(&mut counts, true, -1), Some((2, 1)));
        assert!(counts.is_empty());
        assert_eq!(change(&mut counts, true, 0), Some((1, 1)));
        assert_eq!(change(&mut counts, true, -1), Some((1, 0)));
        assert_eq!(change(&mut counts, true, -2), None);
    }
}
