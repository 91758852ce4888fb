//! Memory: the budget, what it is spent on, and when it is given back.
//!
//! | file | what |
//! | --- | --- |
//! | `budget` | the one budget of a database: slabs and charges |
//! | `slab`, `pages` | memory that is mapped from the system, not from the allocator |
//! | `split` | how caches share what is left |
//! | `node_clock` | which decoded nodes stay in memory |
//! | `epoch` | when memory that readers may still look at is freed |
//! | `fork` | tells a child of the process, which must not touch any of it |

pub mod budget;
pub mod epoch;
pub mod fork;
pub mod node_clock;
pub mod pages;
pub mod slab;
pub mod split;
