//! Event counters of a tree since it was opened.

use crate::runtime::sync::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Counters of one tree. Thread-safe.
        #[derive(Default)]
        pub(super) struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Bytes written for runs and pages.
            pub data_bytes: AtomicU64,
            /// Bytes written for nodes.
            pub node_bytes: AtomicU64,
            /// Bytes of runs and pages read by sweeps.
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
    /// Memtables that were staged.
    absorbs = "absorbs",
    /// Small staged memtables merged into one.
    gathered = "staged_merges",
    /// Sweeps of staged memtables that were begun.
    sweeps = "sweeps_begun",
    /// Jobs of sweeps that were installed.
    sweep_jobs = "sweep_jobs",
    /// Pages written to a free slot of their group.
    in_place = "pages_in_place",
    /// Pages divided within their group.
    splits = "page_splits",
    /// Groups written anew.
    rewritten = "groups_rewritten",
    /// Groups without updates that were joined with a neighbor.
    joined = "groups_joined",
    /// Groups whose last entry was deleted.
    emptied = "groups_emptied",
    /// Sweeps that ended at an unreadable block.
    stuck = "sweeps_stuck",
}

impl Counters {
    /// Adds `times` to a counter.
    pub fn add(count: &AtomicU64, times: u64) {
        if times > 0 {
            count.fetch_add(times, Ordering::Relaxed);
        }
    }
}
