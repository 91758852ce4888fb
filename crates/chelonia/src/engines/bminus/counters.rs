//! Event counters of a tree since it was opened.

use crate::structure::events::event_counters;

event_counters! {
    /// Memtables that were absorbed.
    absorbs = "absorbs",
    /// Updates of a page written as a delta.
    deltas = "deltas_written",
    /// Bytes of the segments in these deltas.
    segment_bytes = "delta_bytes_written",
    /// Updates of a page written as a whole page.
    bases = "pages_written",
    /// Pages that were moved to another home, because none of their places was free.
    moves = "pages_moved",
    /// Pages divided.
    splits = "page_splits",
    /// Pages joined with a neighbor.
    joins = "page_joins",
    /// Pages whose last entry was deleted.
    emptied = "pages_emptied",
    /// Nodes divided.
    node_splits = "node_splits",
    /// Nodes joined with a neighbor.
    node_joins = "node_joins",
    /// Regions allocated.
    regions = "regions_created",
    /// Regions freed because none of their homes was used any more.
    regions_freed = "regions_freed",
    /// Old images overwritten with zeros.
    slots_cleared = "slots_cleared",
    /// Homes read wholly, because it was not known where their image is.
    found = "homes_searched",
    /// Nodes read wholly, because a place of a home could not be read.
    settled = "suspects_settled",
    /// Nodes in which what failed absorbs had left was overwritten.
    cleared = "nodes_cleared",
}
