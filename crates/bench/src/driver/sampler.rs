//! Resident memory over the complete run, including warm-ups and settles.
//!
//! A thread takes a sample every [`STEP`]. [`Sampler::take`] takes one more, so every result has at
//! least one sample, and its last is from its own end.

use crate::driver::clock;
use crate::failure::{Failure, Result};
use crate::process::Memory;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Often enough to see what a checkpoint needs, rarely enough to cost nothing.
const STEP: Duration = Duration::from_millis(200);

/// Seconds since the start, and resident bytes.
type Sample = (f64, u64);

/// Looks until it is dropped.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    samples: Mutex<Vec<Sample>>,
    stop: AtomicBool,
}

impl Shared {
    fn look(&self) {
        // A failed read is skipped; the next may succeed.
        let Ok(memory) = Memory::now() else { return };
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push((clock::since(self.start).as_secs_f64(), memory.rss_bytes));
    }
}

impl Sampler {
    /// Begins to look.
    pub fn start() -> Result<Self> {
        let shared = Arc::new(Shared {
            start: clock::now(),
            samples: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let watch = move || {
            while !own.stop.load(Ordering::Acquire) {
                own.look();
                thread::park_timeout(STEP);
            }
        };
        let thread = thread::Builder::new().name("memory sampler".to_owned()).spawn(watch);
        let thread = thread.map_err(|error| Failure::failed("start a thread", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The samples since the last call.
    pub fn take(&self) -> Vec<Sample> {
        self.shared.look();
        let mut samples = self.shared.samples.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *samples)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It cannot panic; if it did, the run would be valid without it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_take_has_samples_of_its_own_in_order() {
        let sampler = Sampler::start().unwrap();
        let (first, second) = (sampler.take(), sampler.take());
        assert!(!first.is_empty() && !second.is_empty());
        let all: Vec<Sample> = [first, second].concat();
        assert!(all.is_sorted_by(|a, b| a.0 <= b.0), "{all:?}");
        assert!(all.iter().all(|(_, bytes)| *bytes > 1 << 16));
    }
}
