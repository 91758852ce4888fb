//! Wake-ups of the background threads.
//!
//! Thread-safety: everything may be called from any thread; one thread waits for flushes, one for
//! ticks, one to scrub.

use crate::runtime::sync::{AtomicBool, Condvar, Mutex, Ordering};
use std::time::Duration;

/// The signals that background threads wait for.
#[derive(Default)]
pub struct Signals {
    state: Mutex<Wanted>,
    flush_wanted: Condvar,
    log_wanted: Condvar,
    /// The scrub thread only waits for the end.
    scrub_ended: Condvar,
    /// The log thread was woken for a segment and has not looked yet.
    log_woken: AtomicBool,
}

#[derive(Default)]
struct Wanted {
    drain: bool,
    log: bool,
    stop: bool,
}

impl Signals {
    /// A memtable became immutable, or an engine wants maintenance.
    pub fn wake_flush(&self) {
        self.state.lock().drain = true;
        self.flush_wanted.notify_all();
    }

    /// The log wants its next segment prepared.
    pub fn wake_log(&self) {
        if !self.log_woken.swap(true, Ordering::Relaxed) {
            self.state.lock().log = true;
            self.log_wanted.notify_all();
        }
    }

    /// Ends all threads.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.flush_wanted.notify_all();
        self.log_wanted.notify_all();
        self.scrub_ended.notify_all();
    }

    /// True once all threads are to end.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits until a flush is wanted, or for `at_most`; false if the thread should end.
    pub fn wait_for_flush(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        while !state.drain && !state.stop {
            match at_most {
                None => self.flush_wanted.wait(&mut state),
                Some(duration) => {
                    if self.flush_wanted.wait_for(&mut state, duration).timed_out() {
                        break;
                    }
                }
            }
        }
        state.drain = false;
        !state.stop
    }

    /// Waits one interval, or until the log wants a segment; false if the thread should end.
    pub fn wait_for_tick(&self, interval: Duration) -> bool {
        let mut state = self.state.lock();
        while !state.stop && !state.log {
            if self.log_wanted.wait_for(&mut state, interval).timed_out() {
                break;
            }
        }
        state.log = false;
        self.log_woken.store(false, Ordering::Relaxed);
        !state.stop
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
