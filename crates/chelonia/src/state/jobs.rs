//! Outstanding jobs of engines, and how flushes and jobs share the worker threads.
//!
//! Lock order: both locks here are innermost, and nobody waits under them for anything but the end
//! of jobs ([`Jobs::bar`], which is called without the flush lock: a job needs that to end).

use crate::runtime::sync::{Condvar, Mutex};
use crate::runtime::workers::Workers;

/// The outstanding jobs of one keyspace.
#[derive(Default)]
pub struct Jobs {
    state: Mutex<JobCounts>,
    ended: Condvar,
}

#[derive(Default)]
struct JobCounts {
    running: usize,
    barred: usize,
}

impl Jobs {
    /// Counts a job until the result is dropped; `None` while jobs are barred.
    pub fn begin(&self) -> Option<Running<'_>> {
        let mut state = self.state.lock();
        if state.barred > 0 {
            return None;
        }
        state.running += 1;
        Some(Running { jobs: self })
    }

    /// Waits for all jobs to end, and lets none begin until the result is dropped.
    pub fn bar(&self) -> Barred<'_> {
        let mut state = self.state.lock();
        state.barred += 1;
        while state.running > 0 {
            self.ended.wait(&mut state);
        }
        Barred { jobs: self }
    }
}

/// An outstanding job.
#[must_use]
pub struct Running<'j> {
    jobs: &'j Jobs,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.jobs.state.lock().running -= 1;
        self.jobs.ended.notify_all();
    }
}

/// While it lives no job of the keyspace is outstanding.
#[must_use]
pub struct Barred<'j> {
    jobs: &'j Jobs,
}

impl Drop for Barred<'_> {
    fn drop(&mut self) {
        self.jobs.state.lock().barred -= 1;
    }
}

/// Most background threads that flush or do jobs, beside the flush thread.
const HELPERS_MAX: usize = 8;

/// Jobs beside a flush get at most this part of the worker threads.
const BESIDE_FLUSH_PART: usize = 4;

/// There are at most as many worker threads as the memory budget has this many bytes.
const THREAD_MEMORY_BYTES: u64 = 16 << 20;

/// With this many worker threads or more, one job gets at most half of them.
const SHARED_FROM: usize = 4;

/// The division of the worker threads of a database.
pub struct WorkerShares {
    workers: Workers,
    state: Mutex<Shares>,
}

#[derive(Default)]
struct Shares {
    flushes: usize,
    jobs: usize,
    /// Threads of jobs.
    job_threads: usize,
}

impl WorkerShares {
    /// Divides `workers`, or as many of them as a memory budget of `memory` bytes allows: each
    /// thread has keys and buffers of its own, and the allocator retains some memory for it.
    pub fn new(workers: Workers, memory: u64) -> Self {
        let most = usize::try_from(memory / THREAD_MEMORY_BYTES).unwrap_or(usize::MAX);
        Self { workers: workers.at_most(most.max(1)), state: Mutex::default() }
    }

    /// The number of worker threads.
    pub fn workers(&self) -> usize {
        self.workers.threads()
    }

    /// The number of background threads that flush or do jobs, beside the flush thread: one more
    /// than there are jobs at a time, so that jobs never keep a second keyspace from its flush.
    pub fn helpers(&self) -> usize {
        (self.workers.threads() / 2).clamp(2, HELPERS_MAX)
    }

    /// Counts a flush. Flushes side by side divide the threads evenly.
    pub fn flush(&self) -> Share<'_> {
        let mut state = self.state.lock();
        state.flushes += 1;
        let workers = self.workers.at_most(self.workers.threads() / state.flushes);
        Share { shares: self, workers, job_threads: None }
    }

    /// True if nothing is flushed and no job runs.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.flushes == 0 && state.jobs == 0
    }

    /// The number of flushes.
    pub fn flushes(&self) -> usize {
        self.state.lock().flushes
    }

    /// Takes threads for a job; `None` if none is free. Writers wait for debt, so a job that
    /// reduces it may take all that are free. Without debt readers keep the processors. While a
    /// memtable waits (`is_behind`) the threads count as taken by its flush.
    pub fn job(&self, has_debt: bool, is_behind: bool) -> Option<Share<'_>> {
        let mut state = self.state.lock();
        let all = self.workers.threads();
        let most = if state.flushes > 0 || is_behind { all / BESIDE_FLUSH_PART } else { all };
        let most = if has_debt { most } else { most.min(1) };
        let free = most.saturating_sub(state.job_threads);
        if free == 0 || state.jobs + 1 >= self.helpers() {
            return None;
        }
        let threads = free.min(if all >= SHARED_FROM { all / 2 } else { all });
        state.jobs += 1;
        state.job_threads += threads;
        let workers = self.workers.at_most(threads);
        Some(Share { shares: self, workers, job_threads: Some(threads) })
    }
}

/// Threads of a flush or of a job; free again when dropped.
#[must_use]
pub struct Share<'s> {
    shares: &'s WorkerShares,
    pub workers: Workers,
    /// `None` for a flush.
    job_threads: Option<usize>,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut state = self.shares.state.lock();
        match self.job_threads {
            None => state.flushes -= 1,
            Some(threads) => {
                state.jobs -= 1;
                state.job_threads -= threads;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sync::{AtomicBool, Ordering};

    #[test]
    fn jobs_beside_a_flush_get_a_quarter_of_the_threads() {
        let shares = WorkerShares::new(Workers::new(8), 1 << 30);
        let threads = |share: &Share<'_>| share.workers.threads();
        let first = shares.job(true, false).unwrap();
        let second = shares.job(true, false).unwrap();
        assert_eq!([threads(&first), threads(&second)], [4, 4]);
        assert!(shares.job(true, false).is_none(), "no thread is free");
        drop((first, second));
        let flush = shares.flush();
        let beside = shares.job(true, false).unwrap();
        assert_eq!([threads(&flush), threads(&beside)], [8, 2]);
        assert!(shares.job(true, false).is_none());
        assert_eq!(threads(&shares.flush()), 4, "two flushes divide the threads");
        drop((flush, beside));
        assert_eq!(threads(&shares.job(true, true).unwrap()), 2, "a flush is about to begin");
        let inline = shares.job(false, false).unwrap();
        assert!(threads(&inline) == 1 && shares.job(false, false).is_none());
        // A small budget has few threads.
        assert_eq!(WorkerShares::new(Workers::new(64), 32 << 20).flush().workers.threads(), 2);
        // Few threads: none is left for a job.
        let shares = WorkerShares::new(Workers::new(2), 1 << 30);
        let alone = shares.job(true, false).unwrap();
        assert!(threads(&alone) == 2 && shares.job(true, false).is_none());
        drop(alone);
        let flush = shares.flush();
        assert!(shares.job(true, false).is_none());
        drop(flush);
        assert!(shares.job(true, false).is_some());
    }

    #[test]
    fn a_bar_waits_for_jobs_and_lets_none_begin() {
        let jobs = Jobs::default();
        let has_ended = AtomicBool::new(false);
        let running = jobs.begin().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let barred = jobs.bar();
                assert!(has_ended.load(Ordering::SeqCst), "the bar did not wait for the job");
                assert!(jobs.begin().is_none());
                drop(barred);
            });
            // From here on the other thread waits, or has not asked yet: both are right.
            while jobs.state.lock().barred == 0 {
                std::thread::yield_now();
            }
            assert!(jobs.begin().is_none(), "a job began before one that waits for its end");
            // If this is too short, the test only detects less.
            (0..2_000).for_each(|_| std::thread::yield_now());
            has_ended.store(true, Ordering::SeqCst);
            drop(running);
            waiting.join().unwrap();
        });
        assert!(jobs.begin().is_some());
    }
}
