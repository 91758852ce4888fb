//! What happened in a tree since it was opened, counted.

use crate::runtime::sync::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The counters of one tree. Any thread may count.
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
            /// The things that happened, with their names.
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
    /// Sets of sequences of level 0 that began to go down together.
    sinkings = "level0_merges_begun",
    /// Units of merging from level 0.
    level0_units = "merges_level0",
    /// Units of merging between levels below.
    level_units = "merges_levels",
    /// Merges of level 0 within itself, because something cannot be read.
    merges_within = "merges_within_level0",
    /// Tables that went down a level without being rewritten.
    tables_moved = "tables_moved",
    /// Levels that were added.
    levels_added = "levels_added",
    /// Levels that were taken away.
    levels_removed = "levels_removed",
    /// Tombstones dropped at the bottom.
    tombstones_dropped = "tombstones_dropped",
    /// Entries dropped because a newer one had their key.
    entries_shadowed = "entries_shadowed",
    /// Tables that are left where they are because something cannot be read.
    tables_stuck = "tables_stuck",
}

impl Counters {
    /// One of them happened `times` times.
    pub fn add(count: &AtomicU64, times: u64) {
        if times > 0 {
            count.fetch_add(times, Ordering::Relaxed);
        }
    }
}
