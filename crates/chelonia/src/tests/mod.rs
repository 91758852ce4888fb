//! Tests of rare situations: event orders between threads, devices with too little space for some
//! operations, and keyspaces that are dropped when they cannot be read.
//!
//! | file | subject |
//! | --- | --- |
//! | `order`, `watched` | orders of events, jobs held in the middle; code run before file calls |
//! | `full`, `refused` | full devices; memory that the system refuses |
//! | `closing`, `waiting` | closes during file calls; commits that wait, or have a time limit |
//! | `idle`, `memory` | write-idle periods, freed memory |
//! | `pins`, `keyspaces`, `scrub` | many pins; dropped keyspaces; scrubbing |

mod closing;
mod full;
mod idle;
mod keyspaces;
mod memory;
mod order;
mod pins;
mod refused;
mod scrub;
mod waiting;
mod watched;

use crate::runtime::sync::Arc;
use crate::storage::io::Directory;
use crate::storage::io::fault::{FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::{Database, Keyspace, Result};

/// Opens a database whose background work is done by committing threads, or by the test.
fn open(directory: Arc<dyn Directory>) -> Database {
    try_open(directory).unwrap()
}

/// Like [`open`], for opens that may fail.
fn try_open(directory: Arc<dyn Directory>) -> Result<Database> {
    let builder = Database::builder("memory").memory(64 << 20);
    let builder = builder.internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.leave_log = true;
    });
    builder.open()
}

/// Opens a database on a device that can fail, which holds these files.
pub fn open_faulty(memory: &MemoryDirectory) -> (Database, FaultPlan) {
    let plan = FaultPlan::new();
    let faulty = FaultDirectory::new(Arc::new(memory.clone()), plan.clone()).unwrap();
    (open(Arc::new(faulty)), plan)
}

/// Rotates the memtable of a keyspace.
fn rotate(database: &Database, keyspace: &Keyspace) {
    let _commit = database.handle.core().commit.lock();
    database.handle.core().rotate(&keyspace.core);
}
