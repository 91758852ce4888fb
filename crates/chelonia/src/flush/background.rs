//! The background threads of a database.
//!
//! | thread | task | woken by |
//! | --- | --- | --- |
//! | flush | flushes; space on a full device | a rotation |
//! | help, a few | flushes of other keyspaces, jobs of engines | a rotation, wanted maintenance |
//! | checkpoint | checkpoints | a flush or a job |
//! | log | syncs, segments, memory governor, idle periods | [`SYNC_INTERVAL`], a full segment, |
//! |  |  | `sync_later` |
//! | scrub | reads stored blocks to find bit rot | [`SCRUB_TICK`] |
//!
//! They only call functions that any thread may call: a stepped database does the same work on the
//! committing thread. They hold the shared state, never a handle, so that dropping the last handle
//! ends them.

use crate::admission::balance::{Balance, Totals};
use crate::admission::headroom::{RETRY_INTERVAL, RETRY_INTERVAL_MAX};
use crate::base::error::{Error, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::flush::idle::IdlePeriods;
use crate::memory::budget::{Charge, Use};
use crate::runtime::sync::{Arc, AtomicU64, Ordering, thread};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::state::signals::LogWork;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Interval of the background sync: how long the log may stay unsynced.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which the scrub thread checks for work.
const SCRUB_TICK: Duration = Duration::from_secs(1);

/// The memory that a thread is charged for: the touched part of its stack, and small pieces that
/// the allocator retains for it.
const THREAD_BYTES: u64 = 192 << 10;

/// The running threads; joined by [`Threads::join`].
#[derive(Default)]
pub struct Threads {
    handles: Vec<thread::JoinHandle<()>>,
    charge: Option<Charge>,
}

impl Threads {
    /// Starts all threads, or none.
    pub fn start(core: &Arc<Core>) -> std::io::Result<Self> {
        let mut threads = Self::default();
        let mut started = threads.add("chelonia-flush", flush_loop, core);
        for _ in 0..core.shares.helpers() {
            started = started.and_then(|()| threads.add("chelonia-help", help_loop, core));
        }
        let started = started.and_then(|()| threads.add("chelonia-save", checkpoint_loop, core));
        let started = started.and_then(|()| threads.add("chelonia-log", log_loop, core));
        let started = match core.scrub_interval {
            Some(_) => started.and_then(|()| threads.add("chelonia-scrub", scrub_loop, core)),
            None => started,
        };
        if started.is_err() {
            core.signals.stop();
            threads.join();
        }
        let count = threads.handles.len() + core.shares.workers();
        let bytes = THREAD_BYTES * count as u64;
        threads.charge = Some(core.storage.budget().charge(Use::Metadata, bytes));
        started.map(|()| threads)
    }

    fn add(
        &mut self,
        name: &str,
        work: impl FnOnce(&Core) + Send + 'static,
        core: &Arc<Core>,
    ) -> std::io::Result<()> {
        let shared = Arc::clone(core);
        let builder = thread::Builder::new().name(name.to_owned());
        self.handles.push(builder.spawn(move || work(&shared))?);
        Ok(())
    }

    /// Waits for the threads to end, after [`crate::state::signals::Signals::stop`].
    pub fn join(&mut self) {
        for handle in self.handles.drain(..) {
            // A callback of `sync_later` may drop the last handle, on the log thread: it ends after
            // the close.
            if handle.thread().id() == thread::current().id() {
                continue;
            }
            // The panic hook has already reported a panic of the thread.
            let _ = handle.join();
        }
        self.charge = None;
    }
}

fn flush_loop(core: &Core) {
    let (mut full, mut seen) = (None, 0);
    while core.signals.wait_for_flush(&mut seen, full.as_ref().map(|full: &FullDevice| full.wait)) {
        let is_retry = full.as_ref().is_some_and(|full| !core.may_flush(full.free_blocks));
        if is_retry && !core.headroom.is_wanted() {
            continue;
        }
        let before = full.take();
        match stopping(core, || flush_once(core)) {
            Ok(()) => core.counters.helps_not.store(false, Ordering::Relaxed),
            Err(error) if error.is_transient() => {
                // A checkpoint without space too: commits that wait for flushes would wait forever.
                core.note_full();
                full = Some(FullDevice::new(core, before));
            }
            // Writes are stopped and return the cause; reads continue without this thread.
            Err(_) => core.pacer.wake(),
        }
    }
}

fn help_loop(core: &Core) {
    let mut seen = 0;
    while core.signals.wait_for_flush(&mut seen, None) {
        let helped = stopping(core, || {
            while !core.signals.is_stopping()
                && core.health.check_write().is_ok()
                && (core.flush_beside()? || core.maintain_next()?)
            {
                core.want_checkpoint(core.governor.write_share())?;
            }
            core.want_checkpoint_at_rest()
        });
        match helped {
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                // A checkpoint without space: its thread tries again.
                core.note_full();
                core.signals.wake_checkpoint();
            }
            // Writes are stopped and return the cause; reads continue without this thread.
            Err(_) => core.pacer.wake(),
        }
    }
}

fn checkpoint_loop(core: &Core) {
    let mut full = None;
    while core.signals.wait_for_checkpoint(full.as_ref().map(|full: &FullDevice| full.wait)) {
        if core.health.check_write().is_err() {
            continue;
        }
        let before = full.take();
        match stopping(core, || core.checkpoint_if_undurable(1)) {
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                // Commits that wait for flushes would wait forever.
                core.note_full();
                full = Some(FullDevice::new(core, before));
            }
            Err(_) => core.pacer.wake(),
        }
    }
}

/// State of a thread after a flush or a checkpoint that found the device full.
struct FullDevice {
    /// Free blocks of the data file at that time.
    free_blocks: u64,
    /// Time to wait before the next attempt.
    wait: Duration,
}

impl FullDevice {
    fn new(core: &Core, before: Option<Self>) -> Self {
        let wait = before.map_or(RETRY_INTERVAL, |before| 2 * before.wait);
        let free_blocks = core.storage.stats().space.free_blocks;
        Self { free_blocks, wait: wait.min(RETRY_INTERVAL_MAX) }
    }
}

/// Runs `work`. A panic in it stops all writes: they must neither continue without this thread nor
/// wait for it.
fn stopping(core: &Core, work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(core.health.stop(Error::internal("a background thread panicked; see its message")))
    })
}

fn flush_once(core: &Core) -> Result<()> {
    if core.health.check_write().is_err() {
        return Ok(());
    }
    core.reclaim_if_wanted()?;
    while !core.signals.is_stopping() && core.flush_or_reclaim(|pace| core.flush_oldest(pace))? {
        core.want_checkpoint(core.governor.write_share())?;
    }
    core.want_checkpoint_at_rest()
}

fn log_loop(core: &Core) {
    let mut progress = LogProgress::default();
    let mut ticked = core.clock.now();
    loop {
        let left = SYNC_INTERVAL.saturating_sub(core.clock.now().saturating_sub(ticked));
        let Some(work) = core.signals.wait_for_log_work(left) else { return };
        if work == LogWork::Sync {
            let _ = stopping(core, || {
                core.sync_for_waiting();
                Ok(())
            });
            if core.clock.now().saturating_sub(ticked) < SYNC_INTERVAL {
                continue;
            }
        }
        ticked = core.clock.now();
        if core.health.check_write().is_err() {
            continue;
        }
        // Failures stop writes inside; the next writer meets a lack of space again.
        let _ = stopping(core, || {
            let ticked = core.log_tick(&mut progress);
            core.storage.epochs().collect();
            ticked
        });
    }
}

fn scrub_loop(core: &Core) {
    while core.signals.wait_to_scrub(SCRUB_TICK) {
        // Damage that scrub finds is reported by statistics; it stops nothing.
        let _ = stopping(core, || {
            core.scrub_tick();
            Ok(())
        });
    }
}

/// State that the log thread keeps between ticks.
#[derive(Default)]
pub struct LogProgress {
    /// Bytes of the log at the last tick.
    seen: u64,
    /// Bytes of the log when the last durability witness was written.
    witnessed: u64,
    /// The next segment could not be prepared.
    lacks_segment: bool,
    /// Blocks of entries read up to the last tick.
    misses: u64,
    balance: Balance,
    /// Write-idle periods and the reads within them.
    idle_periods: IdlePeriods,
}

impl Core {
    /// Log work of one interval: syncs new writes. After an interval without writes it writes a
    /// witness into the log that all of it is durable, so that a later recovery can
    /// distinguish bit rot from a torn end, and frees memory that an idle database does not need.
    pub fn log_tick(&self, progress: &mut LogProgress) -> Result<()> {
        let Some(log) = self.log.get() else { return Ok(()) };
        let wants = |keyspace: &Arc<KeyspaceCore>| self.wants_maintenance(keyspace);
        // Flushes have priority, and wake the threads themselves.
        if !self.has_immutable() && self.all_keyspaces().iter().any(wants) {
            self.signals.wake_flush();
        }
        self.adapt(progress);
        self.storage.budget().tick();
        // The budget may have been lowered while readers held memory.
        self.storage.budget().trim();
        let mut prepared = Ok(());
        if log.wants_segment() || progress.lacks_segment {
            let made = log.prepare_next();
            prepared = made.map_err(|error| self.health.stop_unless_harmless(error));
            // Without disk space for a segment this is retried at the next tick; written records
            // are synced in any case.
            progress.lacks_segment = prepared.is_err();
        }
        let written = log.written_bytes();
        if !log.is_synced() {
            self.sync()?;
        } else if written == progress.seen && written != progress.witnessed {
            self.leave_witness()?;
            progress.witnessed = log.written_bytes();
            log.release_idle();
        }
        progress.seen = log.written_bytes();
        prepared
    }

    /// Adapts the division of memory and engines to the work since the last tick.
    fn adapt(&self, progress: &mut LogProgress) {
        let written_bytes = self.commit.lock().totals.user_bytes;
        let storage = self.storage.stats();
        let misses = storage.cache.entry_misses;
        let split = self.storage.budget().split();
        split.wrote(written_bytes.saturating_sub(progress.balance.written_bytes()));
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let totals = Totals {
            written_bytes,
            flushed_bytes: load(&self.counters.flushed_bytes),
            background: Duration::from_nanos(load(&self.counters.background_nanos)),
            saved: split.saved(),
            misses,
            waited: Duration::from_nanos(storage.cache.waited_nanos),
        };
        let stored = storage.space.used_blocks * BLOCK_BYTES_U64;
        let step = progress.balance.tick(totals, self.governor.division(stored));
        self.governor.adapt(step);
        let before = std::mem::replace(&mut progress.misses, misses);
        self.follow_idle_periods(&mut progress.idle_periods, misses - before);
    }

    /// Closes the open log block, so that the header of the next block records how far the log is
    /// durable.
    fn leave_witness(&self) -> Result<()> {
        let sealed = match self.log.get() {
            Some(logs) if !logs.is_single() => logs.seal_blocks(),
            _ => {
                let mut commit = self.commit.lock();
                let Some(tail) = &mut commit.tail else { return Ok(()) };
                tail.seal_block().map(|_| ())
            }
        };
        sealed.map_err(|error| self.health.stop_unless_harmless(error))?;
        self.sync()
    }
}
