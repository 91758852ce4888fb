//! Event counters of a tree since it was opened.

use crate::structure::events::event_counters;

event_counters! {
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
    /// New pages with space for inserts that are expected.
    spaced = "pages_with_space",
    /// Groups written anew.
    rewritten = "groups_rewritten",
    /// Those of them that have one page.
    single = "groups_of_one_page",
    /// Groups without updates that were joined with a neighbor.
    joined = "groups_joined",
    /// Groups whose last entry was deleted.
    emptied = "groups_emptied",
    /// Sweeps that ended at an unreadable block.
    stuck = "sweeps_stuck",
}
