//! Views, pins and on-disk versions: what readers see, and what is retained for them.
//!
//! | file | content |
//! | --- | --- |
//! | `view` | the memtables and the version that a read searches |
//! | `visibility` | the order in which commits become visible |
//! | `pins` | seqnos that snapshots and iterators read at |
//! | `history` | older views that pins still read |
//! | `lifetimes` | held versions, and the extents that become free with them |
//! | `dropped` | dropped keyspaces that are still held |
//! | `recent_writes` | the keys of recent commits, for those who depend on what they read |
//! | `empty_ranges` | ranges without live entries, which scans skip |

pub mod dropped;
pub mod empty_ranges;
pub mod history;
pub mod lifetimes;
pub mod pins;
pub mod recent_writes;
pub mod view;
pub mod visibility;
