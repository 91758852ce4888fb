//! Parallel execution of the independent tasks of a job on a few threads.
//!
//! Threads take the next task until none is left. They live as long as their run, which takes
//! milliseconds to seconds, so the cost of starting them is negligible. With one thread (tests that
//! replay a run) the tasks run in order on the caller's thread.
//!
//! A task may run tasks of its own on the same [`Crew`]. The threads of a crew go where tasks are:
//! a thread that takes a task from a run with more of them lets an idle thread join that run. A
//! thread that waits for those that joined its run is not idle.

use crate::base::error::{Error, Result};
use crate::runtime::sync::{AtomicUsize, Mutex, Ordering};
use std::thread::{Builder, Scope};

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

    /// The same with `threads` at most, but one at least.
    #[must_use]
    pub fn at_most(self, threads: usize) -> Self {
        Self::new(self.threads.min(threads))
    }

    /// How many threads there are at most.
    #[must_use]
    pub fn threads(self) -> usize {
        self.threads
    }

    /// The threads of one job, for runs within runs.
    #[must_use]
    pub fn crew(self) -> Crew {
        Crew { threads: self.threads, idle: AtomicUsize::new(self.threads - 1) }
    }

    /// Runs `task(0)` to `task(count - 1)` on a crew of their own: see [`Crew::run`].
    pub fn run(&self, count: usize, task: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        self.crew().run(count, task)
    }
}

/// The threads of one job.
pub struct Crew {
    threads: usize,
    /// Threads that may still be started.
    idle: AtomicUsize,
}

/// One run of a crew.
struct Run<'t> {
    count: usize,
    task: &'t (dyn Fn(usize) -> Result<()> + Sync),
    next: AtomicUsize,
    /// The lowest task that failed, and its error.
    failure: Mutex<Option<(usize, Error)>>,
}

impl Crew {
    /// How many threads there are at most.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `task(0)` to `task(count - 1)`, each once, started in this order. After the first
    /// failure no further task starts; the failure of the lowest task that failed is returned.
    pub fn run(&self, count: usize, task: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        if self.threads == 1 || count <= 1 {
            return (0..count).try_for_each(task);
        }
        let run = Run { count, task, next: AtomicUsize::new(0), failure: Mutex::new(None) };
        std::thread::scope(|scope| self.work(scope, &run));
        run.failure.into_inner().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Takes tasks until none is left, and lets idle threads join.
    fn work<'scope, 'env>(&'env self, scope: &'scope Scope<'scope, 'env>, run: &'env Run<'env>) {
        loop {
            let index = run.next.fetch_add(1, Ordering::Relaxed);
            if index >= run.count || run.failure.lock().is_some() {
                return;
            }
            if index + 1 < run.count
                && let Some(member) = self.hire()
            {
                // If the system refuses another thread, the existing ones do the work.
                let _ = Builder::new().spawn_scoped(scope, move || {
                    self.work(scope, run);
                    drop(member);
                });
            }
            if let Err(error) = (run.task)(index) {
                let mut first = run.failure.lock();
                if first.as_ref().is_none_or(|(lowest, _)| index < *lowest) {
                    *first = Some((index, error));
                }
            }
        }
    }

    fn hire(&self) -> Option<Member<'_>> {
        let one_less = |idle: usize| idle.checked_sub(1);
        let hired = self.idle.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        hired.is_ok().then(|| Member { crew: self })
    }
}

/// A thread at work; idle again when dropped.
struct Member<'c> {
    crew: &'c Crew,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.crew.idle.fetch_add(1, Ordering::Relaxed);
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
    #[test]
    fn threads_that_are_idle_join_the_runs_that_have_tasks() {
        let crew = Workers::new(4).crew();
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let all_are_here = std::sync::Barrier::new(4);
        // The second outer task ends at once; its thread, and the two others, join the first one's
        // run: the barrier opens only if all four are in it.
        let outer = |index: usize| {
            if index > 0 {
                return Ok(());
            }
            crew.run(4, &|_| {
                most.fetch_max(1 + inside.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                all_are_here.wait();
                inside.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            })
        };
        crew.run(2, &outer).unwrap();
        assert_eq!(most.load(Ordering::Relaxed), 4);
        assert_eq!(crew.idle.load(Ordering::Relaxed), 3);
        // No more threads than it has, however many runs there are.
        most.store(0, Ordering::Relaxed);
        let leaf = |_| {
            most.fetch_max(1 + inside.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            std::thread::yield_now();
            inside.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        };
        crew.run(20, &|_| crew.run(20, &leaf)).unwrap();
        assert!(most.load(Ordering::Relaxed) <= 4);
        assert_eq!(crew.idle.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_panic_of_a_task_gives_its_thread_back() {
        let crew = Workers::new(2).crew();
        let panics = |_: usize| -> Result<()> { panic!("a task") };
        let run = std::panic::AssertUnwindSafe(|| crew.run(2, &panics));
        assert!(std::panic::catch_unwind(run).is_err());
        assert_eq!(crew.idle.load(Ordering::Relaxed), 1);
    }
}
