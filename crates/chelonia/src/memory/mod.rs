//! Memory: the budget, its consumers, and reclamation.
//!
//! | file | contents |
//! | --- | --- |
//! | `budget` | the memory budget of a database: slabs and charges |
//! | `slab`, `pages` | memory mapped from the system, bypassing the allocator |
//! | `buffers` | mapped buffers for batches of reads and writes |
//! | `split` | division of the read memory between the caches |
//! | `node_clock` | eviction of decoded nodes |
//! | `epoch` | reclamation of memory that readers may still see |
//! | `fork` | detection of a forked child, which must not touch any of it |

pub mod budget;
pub mod buffers;
pub mod epoch;
pub mod fork;
pub mod node_clock;
pub mod pages;
pub mod slab;
pub mod split;
