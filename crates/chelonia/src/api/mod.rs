//! The public handles: databases, keyspaces, batches, transactions, snapshots,
//! iterators.
//!
//! They hold a [`handle::Handle`], which keeps the database open and gives them narrow access to
//! its shared state: reads, commits, the set of keyspaces, upkeep. No other file here sees
//! [`crate::state::core::Core`].
//!
//! | file | content |
//! | --- | --- |
//! | `builder` | options of an open |
//! | `database`, `keyspace`, `batch`, `snapshot`, `iter` | the handles of the same names |
//! | `transaction` | transactions; compare and swap |
//! | `handle` | lifetime of a database, and the steps of a close |
//! | `keyspace_set` | keyspaces are created, dropped, and given other options |
//! | `upkeep` | memory, syncs, checkpoints, verification, statistics of an open database |
//! | `backup` | copies of an open database |
//! | `salvage` | copies of damaged databases |

mod backup;
pub(crate) mod batch;
pub(crate) mod builder;
pub(crate) mod database;
pub(crate) mod handle;
pub(crate) mod iter;
pub(crate) mod keyspace;
mod keyspace_set;
pub(crate) mod salvage;
pub(crate) mod snapshot;
pub(crate) mod transaction;
mod upkeep;
