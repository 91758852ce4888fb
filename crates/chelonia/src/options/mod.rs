//! The options of databases, keyspaces and commits, each typed and in one place.
//!
//! | file | content |
//! | --- | --- |
//! | `database` | of a database: given to each open by `api/builder.rs`, never stored |
//! | `keyspace` | of a keyspace: stored in the catalog, with those of its engine |
//! | `compression` | how values are stored |
//! | `commit` | of one commit |
//!
//! `engine/options.rs` has the options of engines. `StoredOptions` in `options/keyspace.rs` encodes
//! both for the catalog; every checkpoint writes them, so a changed option is durable with the next
//! one.

pub mod commit;
pub mod compression;
pub mod database;
pub mod keyspace;
