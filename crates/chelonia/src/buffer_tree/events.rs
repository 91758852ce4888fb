//! Event counters of a tree since it was opened.

#[cfg(test)]
use crate::runtime::sync::Mutex;
use crate::runtime::sync::{AtomicU64, Ordering};

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Events of a tree.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Event {
            $($(#[$doc])* $name,)*
        }

        /// Event names, in the order of the enum.
        const NAMES: &[&str] = &[$($text,)*];
    };
}

events! {
    /// Absorbs that changed the tree.
    Absorbs = "absorbs",
    /// Pivots that were flushed.
    Flushes = "flushes",
    /// Flushes for which the incoming updates alone were enough.
    PassThrough = "pass_through",
    /// Pivots flushed because of pending tombstones.
    TombstoneFlushes = "tombstone_flushes",
    /// Read-triggered flushes of pivots.
    ReadFlushes = "read_flushes",
    /// Leaves split into two or more.
    SplitsLeaf = "splits_leaf",
    /// Leaves left unchanged because all new entries were appended after them.
    LeavesKept = "leaves_kept",
    /// Neighbouring pivots whose leaves were merged into one group.
    JoinsLeaf = "joins_leaf",
    /// Nodes split into two or more.
    SplitsNode = "splits_node",
    /// Neighbouring nodes joined into one.
    JoinsNode = "joins_node",
    /// Pivots removed because they were empty.
    PivotsRemoved = "pivots_removed",
    /// Increases of the height of the tree.
    RootGrown = "root_grown",
    /// Decreases of the height of the tree.
    RootShrunk = "root_shrunk",
    /// Pivots left unchanged because of unreadable blocks.
    PivotsStuck = "pivots_stuck",
    /// Passes repeated because of unreadable blocks.
    PassesRepeated = "passes_repeated",
    /// New levels added on top of a buffer.
    LevelsAdded = "levels_added",
    /// Levels merged into a newer one.
    MergesLevel = "merges_level",
    /// Levels merged because a buffer had too many.
    MergesForced = "merges_forced",
    /// Bytes of levels merged only because reads paid for it.
    MergedForReads = "merged_for_reads",
    /// Parts moved to another level without being rewritten.
    TrivialMoves = "trivial_moves",
    /// Parts rewritten without overlapping newer entries, because little of their run was live.
    Rewrites = "rewrites",
    /// Tombstones dropped at the bottom.
    TombstonesDropped = "tombstones_dropped",
    /// Entries dropped because a newer entry has the same key.
    EntriesShadowed = "entries_shadowed",
    /// Segments that became shared between nodes.
    SegmentsShared = "segments_shared",
    /// Flushes cut into pieces for several threads.
    FlushesCut = "flushes_cut",
    /// Levels cut within a pivot for several threads.
    LevelsCut = "levels_cut",
    /// Stage 1 of a pass, plan: nodes planned.
    NodesPlanned = "nodes_planned",
    /// Approximate weight of the entries that the plans divided into tasks, in bytes.
    PlannedBytes = "planned_bytes",
    /// Weight of the heaviest task that was planned, in bytes.
    HeaviestTask = "heaviest_task",
    /// Stage 2, merge: tasks that merged their entries into runs.
    MergesDone = "merges_done",
    /// Weight of the entries that they read, in bytes.
    MergedBytes = "merged_bytes",
    /// Stage 3, assembly: nodes assembled from the results of their tasks.
    NodesAssembled = "nodes_assembled",
    /// Branches merged above leaves.
    Compactions = "compactions",
    /// Leaves of which all branches were merged.
    LeafMerges = "leaf_merges",
    /// Jobs of which nothing was left to install.
    JobsDropped = "jobs_dropped",
    /// Lookups in the tree, extrapolated from those that are charged for filters.
    Lookups = "lookups",
    /// Filters that these checked, of buffered runs and leaves.
    FiltersChecked = "filters_checked",
    /// Ranges of one leaf that cursors opened.
    RangesOpened = "ranges_opened",
    /// Runs that they opened there.
    SourcesOpened = "sources_opened",
    /// Maximum number of levels of a node after an absorb.
    LevelsMax = "levels_max",
}

/// Counters of one tree. Thread-safe.
pub struct Events {
    counts: Vec<AtomicU64>,
    /// Bytes written for runs.
    pub run_bytes: AtomicU64,
    /// Bytes written for nodes.
    pub node_bytes: AtomicU64,
    /// Bytes of runs read by passes.
    pub read_bytes: AtomicU64,
    /// The course of all passes.
    #[cfg(test)]
    pub trace: Mutex<Vec<TracedNode>>,
}

/// A node that a pass has entered, for tests of the division of work.
#[cfg(test)]
#[derive(Clone, Debug)]
pub struct TracedNode {
    /// Height of the node.
    pub height: u8,
    /// Number of its pivots.
    pub pivots: u64,
    /// The node above it, and the task there that entered it.
    pub above: Option<(usize, usize)>,
    /// Its tasks: the weight that was planned, and the weight that was written.
    pub tasks: Vec<(u64, u64)>,
}

impl Events {
    /// Creates counters at zero.
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        let counts = NAMES.iter().map(|_| zero()).collect();
        Self {
            counts,
            run_bytes: zero(),
            node_bytes: zero(),
            read_bytes: zero(),
            #[cfg(test)]
            trace: Mutex::default(),
        }
    }

    /// Adds `times` to the counter of `event`.
    pub fn add(&self, event: Event, times: u64) {
        if times > 0 {
            self.counts[event as usize].fetch_add(times, Ordering::Relaxed);
        }
    }

    /// Raises the counter of `event` to `value` if that is greater.
    pub fn raise(&self, event: Event, value: u64) {
        self.counts[event as usize].fetch_max(value, Ordering::Relaxed);
    }

    /// Lists the counters with their names, without those of the `other` engine, and the numbers of
    /// nodes loaded and evicted.
    pub fn list(&self, (loaded, evicted): (u64, u64), other: &[Event]) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let moves = [("nodes_loaded", loaded), ("nodes_evicted", evicted)];
        let is_own = |number: usize| other.iter().all(|event| *event as usize != number);
        let own = NAMES.iter().copied().zip(counts).enumerate();
        let own = own.filter(|(number, _)| is_own(*number)).map(|(_, counted)| counted);
        own.chain(moves).collect()
    }
}
