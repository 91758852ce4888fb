//! The threads behind a database.
//!
//! | thread | what it does | woken by |
//! | --- | --- | --- |
//! | drain | drains finalized memtables, makes a checkpoint, does engines' upkeep | a rotation |
//! | log | syncs every [`SYNC_INTERVAL`], prepares segments, tidies up | time, a full segment |
//!
//! Both only call what any thread could call: a stepped database does the same work on the
//! committing thread. They hold the shared state, never a handle, so that dropping the last handle
//! ends them.

use crate::base::epoch;
use crate::base::error::{Error, Result};
use crate::base::ids::Lsn;
use crate::base::sync::Arc;
use crate::db::core::Core;
use crate::engine::Work;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How far the background sync lets the log run ahead of the device.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// How long the drain thread waits before it tries again on a full device.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The running threads; joined by [`Threads::join`].
#[derive(Default)]
pub struct Threads {
    handles: Vec<std::thread::JoinHandle<()>>,
}

impl Threads {
    /// Starts both threads.
    pub fn start(core: &Arc<Core>) -> std::io::Result<Self> {
        let mut handles = Vec::new();
        let shared = Arc::clone(core);
        let drain = move || drain_loop(&shared);
        handles.push(std::thread::Builder::new().name("chelonia-drain".into()).spawn(drain)?);
        let shared = Arc::clone(core);
        let log = move || log_loop(&shared);
        handles.push(std::thread::Builder::new().name("chelonia-log".into()).spawn(log)?);
        Ok(Self { handles })
    }

    /// Waits for them to end, which [`crate::db::signals::Signals::stop`] told them to.
    pub fn join(&mut self) {
        for handle in self.handles.drain(..) {
            // A panic in there has been told by the panic hook; there is nothing left to do.
            let _ = handle.join();
        }
    }
}

fn drain_loop(core: &Core) {
    let mut retry = None;
    while core.signals.wait_for_drain(retry) {
        retry = None;
        match stopping(core, || drain_once(core)) {
            Ok(()) => {}
            Err(error) if error.is_passing() => retry = Some(RETRY_INTERVAL),
            // Writes were stopped, and writers are told why; reads go on without this thread.
            Err(_) => core.pacer.wake(),
        }
    }
}

/// Does `work`. A broken assertion in it stops all writes: they must not go on beside a thread that
/// is gone, nor wait for it.
fn stopping(core: &Core, work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(core.health.stop(Error::internal("the background panicked; see its message")))
    })
}

fn drain_once(core: &Core) -> Result<()> {
    if core.health.check_write().is_err() {
        return Ok(());
    }
    core.drain_everything_frozen()?;
    core.maintain_all()
}

fn log_loop(core: &Core) {
    let mut progress = LogProgress::default();
    while core.signals.wait_for_tick(SYNC_INTERVAL) {
        if core.health.check_write().is_err() {
            continue;
        }
        // Failures stop writes inside; want of room is met again by whoever writes next.
        let _ = stopping(core, || {
            let ticked = core.log_tick(&mut progress);
            epoch::collect();
            ticked
        });
    }
}

/// What the log thread remembers from tick to tick.
#[derive(Default)]
pub struct LogProgress {
    /// How far the log was written at the last tick.
    seen: Lsn,
    /// How far it was written when the last witness was left.
    witnessed: Lsn,
}

impl Core {
    /// One interval's work on the log: sync what was written; or, if nothing was for a whole
    /// interval, leave a witness in the log itself that all of it is durable, so that a later
    /// recovery can tell rot from a torn end, and give back what an idle database does not need.
    pub fn log_tick(&self, progress: &mut LogProgress) -> Result<()> {
        let Some(log) = self.log.get() else { return Ok(()) };
        if log.wants_segment() {
            log.prepare_next()?;
        }
        let written = log.written();
        if written > log.synced() {
            self.sync()?;
        } else if written == progress.seen && written != progress.witnessed {
            self.leave_witness()?;
            progress.witnessed = log.written();
            log.release_idle();
        }
        progress.seen = log.written();
        Ok(())
    }

    /// Closes the open log block, so that the next one's header says how far the log is durable.
    fn leave_witness(&self) -> Result<()> {
        {
            let mut commit = self.commit.lock();
            let Some(tail) = &mut commit.tail else { return Ok(()) };
            tail.seal_block().map_err(|error| self.health.stop_unless_harmless(error))?;
        }
        self.sync()
    }

    /// Lets every engine do the maintenance that waits.
    pub fn maintain_all(&self) -> Result<()> {
        for keyspace in self.all_keyspaces() {
            let partial = keyspace.drain.lock();
            if !partial.versions.is_empty() || keyspace.check_exists().is_err() {
                // A drain stopped half way, and its part of the memtable is not published yet; or
                // the keyspace was dropped, and what it has is given back.
                continue;
            }
            let work = Work { workers: &self.workers, progress: &|_| {} };
            while let Some(absorbed) = keyspace.engine.maintain(&work)? {
                let version = keyspace.lifetimes.hold(absorbed.version, absorbed.lost);
                keyspace.republish(version)?;
            }
        }
        Ok(())
    }
}
