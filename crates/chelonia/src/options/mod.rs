//! The options of databases, keyspaces and commits, each typed and in one place.

pub mod commit;
pub mod database;
pub mod keyspace;
