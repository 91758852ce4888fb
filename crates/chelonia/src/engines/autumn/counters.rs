//! Event counters of a tree since it was opened.

use crate::runtime::sync::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Counters of one tree. Thread-safe.
        #[derive(Default)]
        pub(super) struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Bytes written for runs.
            pub run_bytes: AtomicU64,
            /// Bytes written for nodes.
            pub node_bytes: AtomicU64,
            /// Bytes of runs read by merges.
            pub read_bytes: AtomicU64,
        }

        impl Counters {
            /// Lists all counters with their names.
            pub fn list(&self, (loaded, evicted): (u64, u64)) -> Vec<(&'static str, u64)> {
                let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
                vec![
                    $(($text, read(&self.$name)),)*
                    ("nodes_loaded", loaded),
                    ("nodes_evicted", evicted),
                ]
            }
        }
    };
}

counters! {
    /// Memtables that became sequences of level 0.
    absorbs = "absorbs",
    /// Sets of level-0 sequences whose merge into level 1 began.
    sinkings = "level0_merges_begun",
    /// Merge units from level 0.
    level0_units = "merges_level0",
    /// Merge units between lower levels.
    level_units = "merges_levels",
    /// Merges of level 0 within itself, because of unreadable blocks.
    merges_within = "merges_within_level0",
    /// Tables moved down a level without being rewritten.
    tables_moved = "tables_moved",
    /// Levels added.
    levels_added = "levels_added",
    /// Levels removed.
    levels_removed = "levels_removed",
    /// Tombstones dropped at the bottom level.
    tombstones_dropped = "tombstones_dropped",
    /// Entries dropped because a newer entry has the same key.
    entries_shadowed = "entries_shadowed",
    /// Tables left in their level because of unreadable blocks.
    tables_stuck = "tables_stuck",
}

impl Counters {
    /// Adds `times` to a counter.
    pub fn add(count: &AtomicU64, times: u64) {
        if times > 0 {
            count.fetch_add(times, Ordering::Relaxed);
        }
    }
}
