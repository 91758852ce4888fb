//! What happened in a tree since it was opened, counted by kind.

use crate::runtime::sync::{AtomicU64, Ordering};

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Things that happen in a tree.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub(super) enum Event {
            $($(#[$doc])* $name,)*
        }

        /// The names, in the order of the enum.
        const NAMES: &[&str] = &[$($text,)*];
    };
}

events! {
    /// Absorbs that changed the tree.
    Absorbs = "absorbs",
    /// Pivots whose entries went down.
    Flushes = "flushes",
    /// The same, when what came in was enough without what waited.
    PassThrough = "pass_through",
    /// Pivots flushed because of the tombstones that waited.
    TombstoneFlushes = "tombstone_flushes",
    /// Pivots flushed because of what reads had paid.
    ReadFlushes = "read_flushes",
    /// Leaves that became two or more.
    SplitsLeaf = "splits_leaf",
    /// Leaves that were kept as they were because everything new was appended after them.
    LeavesKept = "leaves_kept",
    /// Neighbouring pivots whose leaves were merged into one group.
    JoinsLeaf = "joins_leaf",
    /// Nodes that became two or more.
    SplitsNode = "splits_node",
    /// Neighbouring nodes that became one.
    JoinsNode = "joins_node",
    /// Pivots that were taken out because nothing was left in them.
    PivotsRemoved = "pivots_removed",
    /// The tree became one higher.
    RootGrown = "root_grown",
    /// The tree became one lower.
    RootShrunk = "root_shrunk",
    /// Pivots that were left as they were because what is there cannot be read.
    PivotsStuck = "pivots_stuck",
    /// Passes that began anew because something could not be read.
    PassesRepeated = "passes_repeated",
    /// New levels put on top of a buffer.
    LevelsAdded = "levels_added",
    /// Levels merged into a newer one.
    MergesLevel = "merges_level",
    /// Merges that were needed because there were too many levels.
    MergesForced = "merges_forced",
    /// Parts that moved to a newer level without being rewritten.
    TrivialMoves = "trivial_moves",
    /// Parts that were rewritten although nothing newer met them, because little of their run was
    /// alive.
    Rewrites = "rewrites",
    /// Tombstones dropped at the bottom.
    TombstonesDropped = "tombstones_dropped",
    /// Entries dropped because a newer one had their key.
    EntriesShadowed = "entries_shadowed",
    /// Segments that two nodes came to share.
    SegmentsShared = "segments_shared",
    /// Flushes cut into pieces for several threads.
    FlushesCut = "flushes_cut",
    /// The most levels a node had after an absorb.
    LevelsMax = "levels_max",
}

/// The counters of one tree. Any thread may count.
pub(super) struct Events {
    counts: Vec<AtomicU64>,
    /// Bytes written for runs.
    pub run_bytes: AtomicU64,
    /// Bytes written for nodes.
    pub node_bytes: AtomicU64,
    /// Bytes of runs read by passes.
    pub read_bytes: AtomicU64,
}

impl Events {
    /// All at zero.
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        let counts = NAMES.iter().map(|_| zero()).collect();
        Self { counts, run_bytes: zero(), node_bytes: zero(), read_bytes: zero() }
    }

    /// `event` happened `times` times.
    pub fn add(&self, event: Event, times: u64) {
        if times > 0 {
            self.counts[event as usize].fetch_add(times, Ordering::Relaxed);
        }
    }

    /// `event` counts the greatest `value` seen.
    pub fn raise(&self, event: Event, value: u64) {
        self.counts[event as usize].fetch_max(value, Ordering::Relaxed);
    }

    /// All of them with their names, and the nodes that were read and dropped from memory.
    pub fn list(&self, (loaded, evicted): (u64, u64)) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let moves = [("nodes_loaded", loaded), ("nodes_evicted", evicted)];
        NAMES.iter().copied().zip(counts).chain(moves).collect()
    }
}
