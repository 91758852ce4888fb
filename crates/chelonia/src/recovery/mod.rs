//! Open of a database: superblock, catalog, trees, log replay.
//!
//! | file | content |
//! | --- | --- |
//! | `open` | the steps of an open, and the creation of a database |
//! | `replay` | the log goes back into memtables; `log/recover.rs` finds its end |

pub mod open;
pub mod replay;
