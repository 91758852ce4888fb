//! Parallel execution of the independent tasks of a job on a few threads.
//!
//! Threads take the next task until none is left. They live as long as the job, which takes
//! milliseconds to seconds, so the cost of starting them is negligible. With one thread (tests that
//! replay a run) the tasks run in order on the caller's thread.

use crate::base::error::{Error, Result};
use crate::runtime::sync::{AtomicUsize, Mutex, Ordering};

/// How many threads a job may use.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    threads: usize,
}

impl Workers {
    /// Allows up to `threads` threads, including the caller's.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { threads: threads.max(1) }
    }

    /// Jobs on the caller's thread alone, in order.
    #[must_use]
    pub fn inline() -> Self {
        Self::new(1)
    }

    /// The same with `threads` at most.
    #[must_use]
    pub fn at_most(self, threads: usize) -> Self {
        Self::new(self.threads.min(threads))
    }

    /// How many threads there are at most.
    #[must_use]
    pub fn threads(self) -> usize {
        self.threads
    }

    /// Runs `task(0)` to `task(count - 1)`, each once, in any order. After the first failure no
    /// further task starts; the failure of the lowest task that failed is returned.
    pub fn run(&self, count: usize, task: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        if self.threads == 1 || count <= 1 {
            return (0..count).try_for_each(task);
        }
        let next = AtomicUsize::new(0);
        let failure: Mutex<Option<(usize, Error)>> = Mutex::new(None);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count || failure.lock().is_some() {
                    return;
                }
                if let Err(error) = task(index) {
                    let mut first = failure.lock();
                    if first.as_ref().is_none_or(|(lowest, _)| index < *lowest) {
                        *first = Some((index, error));
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(count) {
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    // The system refuses another thread: the existing ones do the work.
                    break;
                }
            }
            work();
        });
        failure.into_inner().map_or(Ok(()), |(_, error)| Err(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_the_first_failure_is_reported() {
        for threads in [1, 3] {
            let runs: Vec<_> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            let count = |index: usize| {
                runs[index].fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            Workers::new(threads).run(runs.len(), &count).unwrap();
            assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
            let fail = |index: usize| Err(Error::internal(format!("task {index}")));
            let error = Workers::new(threads).run(1, &fail).unwrap_err();
            assert!(error.to_string().contains("task 0"));
        }
    }
}
