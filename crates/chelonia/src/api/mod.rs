//! The public handles: databases, keyspaces, batches, snapshots, iterators.

pub(crate) mod batch;
pub(crate) mod builder;
pub(crate) mod database;
pub(crate) mod iter;
pub(crate) mod keyspace;
pub(crate) mod salvage;
pub(crate) mod snapshot;
