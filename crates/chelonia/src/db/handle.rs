//! The life of a database as its handles hold it.
//!
//! Every handle (database, keyspace, snapshot, iterator, batch) holds the same [`Handle`]; when the
//! last one goes, background threads end and the log is synced. [`Handle::close`] does the same
//! while other handles live: from then on they answer `Stopped`.

use crate::base::error::Result;
use crate::base::sync::{Arc, Mutex};
use crate::db::background::Threads;
use crate::db::core::Core;
use crate::db::health::Health;

/// Keeps a database open.
pub struct Handle {
    core: Arc<Core>,
    threads: Mutex<Threads>,
}

impl Handle {
    /// Starts the background of an open database.
    pub fn new(core: Arc<Core>, threads: Threads) -> Arc<Self> {
        Arc::new(Self { core, threads: Mutex::new(threads) })
    }

    /// The shared state.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Ends background work, syncs, marks the end of the log, and lets others open the database.
    pub fn close(&self) -> Result<()> {
        if !self.core.health.is_at_home() {
            return Err(Health::inherited());
        }
        let mut threads = self.threads.lock();
        self.core.signals.stop();
        threads.join();
        if self.core.health.is_closed() {
            return Ok(());
        }
        let closed = self.core.shut_down();
        self.core.health.close();
        self.core.pacer.wake();
        // Other threads may be in the middle of a commit, a checkpoint or a read. Before the lock
        // goes, and another owner may come, no call of theirs can reach the files any more.
        self.core.commit.lock().tail = None;
        self.core.fence.shut();
        self.core.storage.close();
        *self.core.lock.lock() = None;
        self.core.storage.release_memory();
        self.core.storage.epochs().close();
        closed
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.core.health.is_at_home() {
            // Locks may be held by threads that are not in this process: nothing is taken down. The
            // parent has it all.
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        // A drop cannot return an error; whoever wants it calls `Database::close`. What was
        // acknowledged is as durable as its level said, whether this succeeds or not.
        let _ = self.close();
        // What was retired by calls that were on their way when it was closed: nobody else comes
        // for it any more.
        self.core.storage.epochs().close();
    }
}

impl std::ops::Deref for Handle {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}
