//! The lifetime of a database, held by its handles, and all that they may do with its state.
//!
//! A public handle does not see the shared state: it reaches it through [`Reads`],
//! [`Handle::commit`], [`KeyspaceSet`] and [`Upkeep`].
//!
//! Every handle (database, keyspace, snapshot, iterator, batch) holds the same [`Handle`]. Dropping
//! the last one closes the database; [`Handle::close`] closes it while other handles live, which
//! fail with `Stopped` from then on. A close has these steps:
//!
//! 1. The background threads end.
//! 2. Memtables are flushed and a checkpoint is made, so that the next open replays nothing. This
//!    is skipped while the thread panics; if it fails for lack of space, the log stays.
//! 3. The log is synced, and the superblock records its durable end: a recovery can distinguish
//!    damage from the torn end of a last write.
//! 4. The fence is closed, so that no thread reaches the files any more, and the lock is released.

use crate::api::keyspace_set::KeyspaceSet;
use crate::api::upkeep::Upkeep;
use crate::base::error::Result;
use crate::base::logs::LogMark;
use crate::flush::background::Threads;
use crate::memory::budget::Budget;
use crate::options::commit::CommitOptions;
use crate::options::keyspace::Durability;
use crate::runtime::sync::{Arc, Mutex, Ordering, thread};
use crate::state::core::Core;
use crate::state::health::Health;
use crate::state::keyspace::KeyspaceCore;
use crate::state::reads::Reads;
use crate::versions::recent_writes::Watch;
use crate::write::commit::Condition;
use crate::write::writes::Writes;
use std::time::Duration;

/// Attempts of a transaction that follow each other at once.
const ATTEMPTS_AT_ONCE: u32 = 4;

/// The longest pause after that, in microseconds, and how often it doubles.
const PAUSE_MICROS: u64 = 8;
const PAUSE_DOUBLINGS_MAX: u32 = 10;

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

    /// The reads of the database.
    #[inline]
    pub fn reads(&self) -> Reads<'_> {
        Reads::new(&self.core)
    }

    /// The keyspaces, and how they change.
    pub fn keyspaces(&self) -> KeyspaceSet<'_> {
        KeyspaceSet::new(&self.core)
    }

    /// Memory, syncs, checkpoints, verification and statistics.
    pub fn upkeep(&self) -> Upkeep<'_> {
        Upkeep::new(&self.core)
    }

    /// Commits writes of one keyspace or several: see [`Core::commit`].
    #[inline]
    pub fn commit<'a>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        options: CommitOptions,
    ) -> Result<()> {
        let committed = self.core.commit(keyspaces, writes, options);
        committed.map_err(|error| self.core.locate(error))
    }

    /// Commits writes like [`Handle::commit`], if `condition` holds at their place in the order of
    /// commits: see [`Core::commit_if`].
    pub fn commit_if<'a>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        options: CommitOptions,
        condition: &dyn Condition,
    ) -> Result<()> {
        let committed = self.core.commit_if(keyspaces, writes, options, Some(condition));
        committed.map_err(|error| self.core.locate(error))
    }

    /// The commit of a transaction without writes: makes all earlier commits durable, if that is
    /// asked for.
    pub fn commit_nothing(&self, options: CommitOptions) -> Result<()> {
        let level = options.durability.unwrap_or(self.core.durability);
        if level == Durability::Sync && !self.core.read_only {
            return self.upkeep().sync();
        }
        Ok(())
    }

    /// Begins a watch of what is written from now on.
    pub fn watch(&self) -> Result<Watch> {
        self.core.watch()
    }

    /// The budget of the database's memory.
    pub fn budget(&self) -> &Arc<Budget> {
        self.core.storage.budget()
    }

    /// Counts a commit that was refused because of a conflict.
    pub fn count_conflict(&self) {
        self.core.counters.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits after the failed attempt number `attempt`, counted from 0, for a random time that
    /// grows with it; hardly at all after the first ones.
    pub fn pause(&self, attempt: u32) {
        if attempt < ATTEMPTS_AT_ONCE {
            return thread::yield_now();
        }
        let most = PAUSE_MICROS << (attempt - ATTEMPTS_AT_ONCE).min(PAUSE_DOUBLINGS_MAX);
        // The nanoseconds within the second are as good as random.
        let micros = u64::from(self.core.clock.now().subsec_nanos()) % most;
        self.core.clock.sleep(Duration::from_micros(micros + 1));
    }

    /// The shared state, for tests of what no public call shows.
    #[cfg(any(test, feature = "internals"))]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Ends background work, syncs, marks the end of the log, and lets others open the database.
    pub fn close(&self) -> Result<()> {
        self.close_files().map_err(|error| self.core.locate(error))
    }

    fn close_files(&self) -> Result<()> {
        if !self.core.health.is_owner_process() {
            return Err(Health::inherited());
        }
        let mut threads = self.threads.lock();
        self.core.signals.stop();
        threads.join();
        if self.core.health.is_closed() {
            return Ok(());
        }
        let closed = self.core.shut_down();
        // All commits are durable now, or writes were stopped.
        let synced = match &closed {
            Err(error) if !error.is_transient() => Err(self.core.locate(error.clone())),
            _ => Ok(()),
        };
        self.core.pending_syncs.take().complete(&synced);
        self.core.health.close();
        self.core.pacer.wake();
        // Other threads may be within a commit, a checkpoint or a read. Before the lock is
        // released, and another owner may open the database, none of their calls can reach the
        // files any more.
        if let Some(log) = self.core.log.get() {
            log.lock_tails().iter_mut().for_each(|tail| **tail = None);
        }
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
        if !self.core.health.is_owner_process() {
            // Locks may be held by threads that do not exist in this process: nothing is freed. The
            // parent process owns it all.
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        // A drop cannot return an error; `Database::close` returns it. Acknowledged writes are as
        // durable as their level promises, whether this succeeds or not.
        let _ = self.close();
        // Frees memory retired by calls that were under way at the close: nothing else will free
        // it.
        self.core.storage.epochs().close();
    }
}

impl Core {
    /// Steps 2 and 3. A failure of step 2 for lack of space is returned after step 3.
    fn shut_down(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.health.check_write()?;
        let settled = self.checkpoint_for_close();
        if settled.as_ref().is_err_and(|error| !error.is_transient()) {
            return settled;
        }
        // A checkpoint of another thread completes first, or finds no log tail and fails.
        let _order = self.checkpoint.lock();
        self.sync()?;
        let Some(log) = self.log.get() else { return Ok(()) };
        log.lock_tails().iter_mut().for_each(|tail| **tail = None);
        self.commit.lock().tail = None;
        log.release_idle();
        let before = self.storage.superblock().log;
        let mut durable = log.synced();
        durable
            .iter_mut()
            .zip(before.durable.iter())
            .for_each(|(now, then)| *now = (*now).max(*then));
        let mark = LogMark { durable, ..before };
        let marked = self.storage.mark_log(mark);
        marked.map_err(|error| self.health.stop(error))?;
        settled
    }

    /// Makes everything durable in the data file, unless it already is.
    fn checkpoint_for_close(&self) -> Result<()> {
        let options_changed = self.counters.options_changed.load(Ordering::Relaxed);
        if self.leave_log || std::thread::panicking() {
            return if options_changed { self.checkpoint_now() } else { Ok(()) };
        }
        let has_updates = |keyspace: &Arc<KeyspaceCore>| keyspace.current_view().has_updates();
        let is_undurable = self.counters.undurable_bytes.load(Ordering::Relaxed) > 0;
        if options_changed || is_undurable || self.all_keyspaces().iter().any(has_updates) {
            return self.checkpoint_all();
        }
        Ok(())
    }
}
