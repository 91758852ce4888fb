//! Wake-ups of the background threads.
//!
//! Thread-safety: everything may be called from any thread; several threads wait for flushes and
//! jobs, one for checkpoints, one for ticks, one to scrub.

use crate::runtime::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};
use std::time::Duration;

/// The signals that background threads wait for.
#[derive(Default)]
pub struct Signals {
    state: Mutex<Wanted>,
    flush_wanted: Condvar,
    checkpoint_wanted: Condvar,
    log_wanted: Condvar,
    /// The scrub thread only waits for the end.
    scrub_ended: Condvar,
    /// The log thread was woken for a segment and has not looked yet.
    log_woken: AtomicBool,
}

#[derive(Default)]
struct Wanted {
    /// Number of wake-ups for flushes and jobs: every waiting thread sees each.
    work: u64,
    checkpoint: bool,
    log: bool,
    sync: bool,
    stop: bool,
}

/// The work that the log thread was woken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogWork {
    /// An interval has passed, or the log wants a segment.
    Tick,
    /// Somebody waits for a sync.
    Sync,
}

impl Signals {
    /// A memtable became immutable, or an engine wants maintenance.
    pub fn wake_flush(&self) {
        self.state.lock().work += 1;
        self.flush_wanted.notify_all();
    }

    /// A checkpoint is wanted.
    pub fn wake_checkpoint(&self) {
        self.state.lock().checkpoint = true;
        self.checkpoint_wanted.notify_all();
    }

    /// The log wants its next segment prepared.
    pub fn wake_log(&self) {
        if !self.log_woken.swap(true, Ordering::Relaxed) {
            self.state.lock().log = true;
            self.log_wanted.notify_all();
        }
    }

    /// Somebody waits for a sync.
    pub fn wake_to_sync(&self) {
        self.state.lock().sync = true;
        self.log_wanted.notify_all();
    }

    /// Ends all threads.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.flush_wanted.notify_all();
        self.checkpoint_wanted.notify_all();
        self.log_wanted.notify_all();
        self.scrub_ended.notify_all();
    }

    /// True once all threads are to end.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits for a wake-up for flushes and jobs after those that this thread has `seen`, or for
    /// `at_most`; false if the thread should end.
    pub fn wait_for_flush(&self, seen: &mut u64, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        while state.work == *seen && !state.stop {
            if is_over(&self.flush_wanted, &mut state, at_most) {
                break;
            }
        }
        *seen = state.work;
        !state.stop
    }

    /// Waits until a checkpoint is wanted, or for `at_most`; false if the thread should end.
    pub fn wait_for_checkpoint(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        while !state.checkpoint && !state.stop {
            if is_over(&self.checkpoint_wanted, &mut state, at_most) {
                break;
            }
        }
        state.checkpoint = false;
        !state.stop
    }

    /// Waits until `interval` has passed, the log wants a segment, or somebody waits for a sync;
    /// `None` if the thread should end.
    pub fn wait_for_log_work(&self, interval: Duration) -> Option<LogWork> {
        let mut state = self.state.lock();
        while !state.stop && !state.log && !state.sync {
            if self.log_wanted.wait_for(&mut state, interval).timed_out() {
                state.log = true;
            }
        }
        if state.stop {
            return None;
        }
        if std::mem::take(&mut state.sync) {
            return Some(LogWork::Sync);
        }
        state.log = false;
        self.log_woken.store(false, Ordering::Relaxed);
        Some(LogWork::Tick)
    }

    /// Waits for `interval`; false if the thread should end.
    pub fn wait_to_scrub(&self, interval: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stop {
            self.scrub_ended.wait_for(&mut state, interval);
        }
        !state.stop
    }
}

/// Waits for a wake-up; true if `at_most` passed first.
fn is_over(
    wanted: &Condvar,
    state: &mut MutexGuard<'_, Wanted>,
    at_most: Option<Duration>,
) -> bool {
    match at_most {
        None => {
            wanted.wait(state);
            false
        }
        Some(duration) => wanted.wait_for(state, duration).timed_out(),
    }
}
