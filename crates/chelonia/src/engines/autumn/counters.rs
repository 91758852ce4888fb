//! Event counters of a tree since it was opened.

use crate::structure::events::event_counters;

event_counters! {
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
