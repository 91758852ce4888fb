//! Parallel execution of the tasks of a job on a few threads.
//!
//! ```text
//!            push                    take: the greatest task that fits the memory
//!   tasks ----------> [ queue ] -----------------------------------> caller's thread
//!     ^                          \---------------------------------> thread 2, 3, ...
//!     +------------ a task may push further ones -----------------------+
//! ```
//!
//! A [`Queue`] belongs to one job. Tasks never wait for each other: a task that depends on others
//! is pushed by the last of them. So a thread either works or there is nothing to do.
//!
//! Threads are started when there is a task for them, and live until the job ends: milliseconds to
//! seconds. A thread without a task waits on the queue. With one thread (tests that replay a run)
//! the tasks run on the caller's thread in the order of the queue.
//!
//! Invariants:
//! 1. At most `threads` tasks run at the same time, and together need at most `memory_bytes`,
//!    unless one task alone needs more.
//! 2. A job ends when no task is ready or running, or after a failure or a panic when none is
//!    running.

use crate::base::error::{Error, Result};
use crate::runtime::clock;
use crate::runtime::sync::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::thread::{Builder, Scope};
use std::time::Duration;

/// How many threads a job may use.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    threads: usize,
}

/// A task of a queue. The greatest one starts first.
pub trait Task: Ord + Send {
    /// Bytes of memory that the task needs while it runs.
    fn memory_bytes(&self) -> u64;
}

/// Runs a task, which may push further ones.
pub type Run<'r, T> = &'r (dyn Fn(T, &Queue<T>) -> Result<()> + Sync);

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

    /// Runs `task(0)` to `task(count - 1)`, each once, started in this order. After a failure no
    /// further task starts, and the first failure is returned.
    pub fn run(self, count: usize, task: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        if self.threads == 1 || count <= 1 {
            return (0..count).try_for_each(task);
        }
        let tasks = (0..count).map(|index| Numbered(Reverse(index))).collect();
        self.drain(u64::MAX, tasks, &|Numbered(Reverse(index)), _| task(index))
    }

    /// Runs `tasks` and all that they push, the greatest first, in at most `memory_bytes` of
    /// memory. After a failure no further task starts, and the first failure is returned.
    pub fn drain<T: Task>(self, memory_bytes: u64, tasks: Vec<T>, run: Run<'_, T>) -> Result<()> {
        let state = State {
            ready: tasks.into(),
            running: 0,
            running_bytes: 0,
            waiting: 0,
            threads: 1,
            is_stopped: false,
            failure: None,
            processor_time: Duration::ZERO,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let queue = Queue { threads_max: self.threads, memory_bytes, state, changed };
        std::thread::scope(|scope| queue.work(scope, run));
        let state = queue.state.into_inner();
        clock::add_of_workers(state.processor_time);
        state.failure.map_or(Ok(()), Err)
    }
}

/// A task that is only a number, the least of which starts first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Numbered(Reverse<usize>);

impl Task for Numbered {
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// The tasks of a job that can start.
pub struct Queue<T> {
    threads_max: usize,
    memory_bytes: u64,
    state: Mutex<State<T>>,
    /// Signalled when a waiting thread may take a task, or the job has ended.
    changed: Condvar,
}

struct State<T> {
    ready: BinaryHeap<T>,
    /// Tasks that run now, and the memory that they need.
    running: usize,
    running_bytes: u64,
    /// Threads without a task.
    waiting: usize,
    /// Threads of the job, including the caller's.
    threads: usize,
    is_stopped: bool,
    /// The first failure.
    failure: Option<Error>,
    /// Of threads that have ended.
    processor_time: Duration,
}

impl<T: Task> State<T> {
    /// Returns true if the next task can start.
    fn can_start(&self, memory_bytes: u64) -> bool {
        self.ready.peek().is_some_and(|next| {
            let bytes = self.running_bytes.saturating_add(next.memory_bytes());
            self.running == 0 || bytes <= memory_bytes
        })
    }
}

/// A running task. Dropped when it has ended.
struct Running<'q, T: Task> {
    queue: &'q Queue<T>,
    bytes: u64,
}

impl<T: Task> Queue<T> {
    /// Adds tasks.
    pub fn push(&self, tasks: Vec<T>) {
        if tasks.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.ready.extend(tasks);
        self.wake(&state);
    }

    /// Runs tasks until the job has ended.
    fn work<'scope, 'env>(&'env self, scope: &'scope Scope<'scope, 'env>, run: Run<'env, T>) {
        while let Some((task, is_hiring)) = self.take() {
            let running = Running { queue: self, bytes: task.memory_bytes() };
            if is_hiring {
                // If the system refuses another thread, the existing ones do the work.
                let _ = Builder::new().spawn_scoped(scope, move || {
                    self.work(scope, run);
                    self.state.lock().processor_time += clock::of_thread();
                });
            }
            if let Err(error) = run(task, self) {
                let mut state = self.state.lock();
                state.is_stopped = true;
                state.failure.get_or_insert(error);
            }
            drop(running);
        }
    }

    /// Takes the next task, and returns true beside it if the caller must start another thread for
    /// the one after it. Waits for a task; `None` is the end of the job.
    fn take(&self) -> Option<(T, bool)> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if state.can_start(self.memory_bytes) {
                let task = state.ready.pop()?;
                state.running += 1;
                state.running_bytes = state.running_bytes.saturating_add(task.memory_bytes());
                let is_hiring = state.waiting == 0
                    && state.threads < self.threads_max
                    && state.can_start(self.memory_bytes);
                state.threads += usize::from(is_hiring);
                self.wake(&state);
                return Some((task, is_hiring));
            }
            if state.running == 0 {
                return None;
            }
            state.waiting += 1;
            self.changed.wait(&mut state);
            state.waiting -= 1;
        }
    }

    /// Wakes waiting threads if there is something to do for them.
    fn wake(&self, state: &State<T>) {
        let is_over = state.is_stopped || state.running == 0;
        if state.waiting > 0 && (is_over || state.can_start(self.memory_bytes)) {
            self.changed.notify_all();
        }
    }
}

impl<T: Task> Drop for Running<'_, T> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.running -= 1;
        state.running_bytes = state.running_bytes.saturating_sub(self.bytes);
        // The other threads must not wait for what a task would have pushed.
        state.is_stopped |= std::thread::panicking();
        self.queue.wake(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sync::{AtomicU64, AtomicUsize, Ordering::Relaxed};
    use std::sync::Barrier;

    /// A task with a number, which starts the greatest first, and its memory.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Step(u64, u64);

    impl Task for Step {
        fn memory_bytes(&self) -> u64 {
            self.1
        }
    }

    #[test]
    fn every_task_runs_once_and_a_failure_is_reported() {
        for threads in [1, 3] {
            let runs: Vec<_> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            let count = |index: usize| {
                runs[index].fetch_add(1, Relaxed);
                Ok(())
            };
            Workers::new(threads).run(runs.len(), &count).unwrap();
            assert!(runs.iter().all(|runs| runs.load(Relaxed) == 1));
            let started = AtomicUsize::new(0);
            let fail = |index: usize| {
                started.fetch_add(1, Relaxed);
                if index == 7 { Err(Error::internal("task 7")) } else { Ok(()) }
            };
            let error = Workers::new(threads).run(100, &fail).unwrap_err();
            assert!(error.to_string().contains("task 7"));
            assert!(threads > 1 || started.load(Relaxed) == 8);
        }
    }

    #[test]
    fn one_thread_runs_the_greatest_task_first() {
        let order = Mutex::new(Vec::new());
        let tasks = [3, 9, 5].map(|number| Step(number, 0)).to_vec();
        let run = |step: Step, queue: &Queue<Step>| {
            order.lock().push(step.0);
            if step.0 == 9 {
                queue.push([4, 12].map(|number| Step(number, 0)).to_vec());
            }
            Ok(())
        };
        Workers::inline().drain(0, tasks.clone(), &run).unwrap();
        assert_eq!(*order.lock(), [9, 12, 5, 4, 3]);
        order.lock().clear();
        let fail = |step: Step, _: &Queue<Step>| {
            order.lock().push(step.0);
            if step.0 == 5 { Err(Error::internal("task 5")) } else { Ok(()) }
        };
        let error = Workers::inline().drain(0, tasks, &fail).unwrap_err();
        assert!(error.to_string().contains("task 5"));
        assert_eq!(*order.lock(), [9, 5], "no task starts after a failure");
    }

    #[test]
    fn threads_without_a_task_take_what_any_task_pushes() {
        let all_are_here = Barrier::new(4);
        let met = AtomicUsize::new(0);
        let run = |step: Step, queue: &Queue<Step>| {
            match step.0 {
                // One task alone, while the other threads have nothing to do yet.
                0 => queue.push(vec![Step(1, 0)]),
                1 => queue.push(vec![Step(2, 0); 4]),
                _ => {
                    // Opens only if four threads run such a task at the same time.
                    all_are_here.wait();
                    met.fetch_add(1, Relaxed);
                }
            }
            Ok(())
        };
        Workers::new(4).drain(0, vec![Step(0, 0)], &run).unwrap();
        assert_eq!(met.load(Relaxed), 4);
    }

    #[test]
    fn tasks_run_together_as_far_as_threads_and_memory_allow() {
        // Threads, memory, and the number of tasks of 10 bytes that may run at the same time.
        for (threads, memory, together) in [(4, 1000, 4), (4, 25, 2), (8, 40, 4), (4, 5, 1)] {
            let [now, most, held] = [0; 3].map(AtomicU64::new);
            let all_are_here = Barrier::new(usize::try_from(together).unwrap());
            let run = |_: Step, _: &Queue<Step>| {
                let running = 1 + now.fetch_add(1, Relaxed);
                most.fetch_max(running, Relaxed);
                held.fetch_add(1, Relaxed);
                all_are_here.wait();
                now.fetch_sub(1, Relaxed);
                Ok(())
            };
            let tasks = vec![Step(0, 10); 8 * usize::try_from(together).unwrap()];
            let count = tasks.len() as u64;
            Workers::new(threads).drain(memory, tasks, &run).unwrap();
            assert_eq!((most.into_inner(), held.into_inner()), (together, count));
        }
    }

    #[test]
    fn a_panic_of_a_task_ends_the_job() {
        let run = |step: Step, _: &Queue<Step>| {
            assert!(step.0 > 0, "the last task panics");
            Ok(())
        };
        let tasks: Vec<_> = (0..50).map(|number| Step(number, 0)).collect();
        let job = std::panic::AssertUnwindSafe(|| Workers::new(3).drain(0, tasks.clone(), &run));
        assert!(std::panic::catch_unwind(job).is_err());
    }
}
