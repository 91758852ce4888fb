//! The threads of a phase, and the one that watches them.
//!
//! ```text
//!   workers:  open a session -> (fill the queue) -> barrier -> operations ... -> commit -> ended
//!   watcher:                                        barrier -> count, look at memory and the cap
//! ```
//!
//! The time of a phase goes from the barrier to the end of the last worker. A worker that fails,
//! and the cap, stop all.

use crate::driver::clock;
use crate::driver::versions::Counter;
use crate::driver::worker::{Place, Shared, Tally, Worker};
use crate::failure::Result;
use crate::process::Memory;
use crate::stores::Store;
use crate::workload::phases::Phase;
use crate::workload::stream::{Operation, Workload};
use indicatif::ProgressBar;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often the watcher moves the bar and looks at the cap.
const WATCH_STEP: Duration = Duration::from_millis(100);

const SECOND: Duration = Duration::from_secs(1);

/// The work of a team.
#[derive(Clone, Debug)]
pub struct Job {
    /// The phase.
    pub phase: Phase,
    /// The operations.
    pub workload: Workload,
    /// Operations of all threads together.
    pub operations: u64,
    /// These are not timed.
    pub warm_up: bool,
    /// The most time.
    pub cap: Option<Duration>,
    /// Operations a second of all threads together.
    pub rate: Option<u64>,
    /// Writes per commit of the store.
    pub commit_every: u32,
}

/// One second of a phase.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Second {
    /// Operations, thousands a second.
    pub kops: f64,
    /// Resident memory at its end.
    pub rss_bytes: u64,
}

/// The result of a team.
#[derive(Debug)]
pub struct Outcome {
    /// All threads together.
    pub tally: Tally,
    /// From the first operation to the last.
    pub time: Duration,
    /// Every complete second.
    pub seconds: Vec<Second>,
    /// The cap ended it.
    pub capped: bool,
}

/// The shared state of a team.
struct Control {
    barrier: Barrier,
    stop: AtomicBool,
    done: Vec<Counter>,
    running: AtomicU64,
    watcher: Thread,
}

impl Control {
    fn operations(&self) -> u64 {
        self.done.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Counts a thread as ended, however it ends.
struct Running<'a>(&'a Control);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Release);
        self.0.watcher.unpark();
    }
}

/// Does `job` on `store`.
pub fn run(store: &dyn Store, shared: &Shared, job: &Job, bar: &ProgressBar) -> Result<Outcome> {
    let threads = shared.threads();
    let count = usize::try_from(threads).unwrap_or(usize::MAX);
    let control = Control {
        barrier: Barrier::new(count + 1),
        stop: AtomicBool::new(false),
        done: (0..count).map(|_| Counter::default()).collect(),
        running: AtomicU64::new(threads),
        watcher: thread::current(),
    };
    thread::scope(|scope| {
        let control = &control;
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(store, shared, job, control, thread)))
            .collect();
        control.barrier.wait();
        let start = clock::now();
        let (seconds, capped) = watch(control, job, start, bar);
        let mut outcome =
            Outcome { tally: Tally::default(), time: Duration::ZERO, seconds, capped };
        let mut failed = Ok(());
        for worker in workers {
            // A panic of a worker is a bug of this program: it goes on here.
            let ended = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match ended {
                Ok((tally, end)) => {
                    outcome.time = outcome.time.max(end.saturating_duration_since(start));
                    outcome.tally.operations += tally.operations;
                    outcome.tally.user_bytes += tally.user_bytes;
                    outcome.tally.latencies.add(&tally.latencies);
                }
                // The first error is the cause: others only stopped.
                Err(failure) => failed = failed.and(Err(failure)),
            }
        }
        failed.map(|()| outcome)
    })
}

/// One worker in one phase: returns its counts, and when it ended.
fn work(
    store: &dyn Store,
    shared: &Shared,
    job: &Job,
    control: &Control,
    thread: u64,
) -> Result<(Tally, Instant)> {
    let _running = Running(control);
    let place = Place { thread, commit_every: job.commit_every };
    let mut prepared = store.session().and_then(|session| {
        let mut worker = Worker::new(shared, session, place);
        if job.phase == Phase::Q {
            worker.fill_queue()?;
            worker.tally = Tally::default();
        }
        Ok(worker)
    });
    // Also after an error: the others wait here.
    control.barrier.wait();
    let ended = prepared.as_mut().map_err(|failure| failure.clone()).and_then(|worker| {
        operate(worker, shared, job, control, thread)?;
        let end = clock::now();
        let tally = std::mem::take(&mut worker.tally);
        if job.phase == Phase::Q {
            worker.drain_queue()?;
        }
        Ok((tally, end))
    });
    if ended.is_err() {
        control.stop.store(true, Ordering::Relaxed);
    }
    ended
}

/// This thread's share of the operations.
fn operate(
    worker: &mut Worker<'_>,
    shared: &Shared,
    job: &Job,
    control: &Control,
    thread: u64,
) -> Result<()> {
    let threads = shared.threads();
    let share = job.operations / threads + u64::from(thread < job.operations % threads);
    let progress = &control.done[usize::try_from(thread).unwrap_or(usize::MAX)].0;
    let mut stream = job.workload.stream(thread, job.warm_up);
    let pace = job.rate.map(|rate| Pace { start: clock::now(), rate, threads });
    let (mut done, mut step) = (0, 0);
    while done < share && !control.is_stopped() {
        let operation: Operation = stream.next();
        let intended = pace.map(|pace| pace.wait(step));
        done += worker.execute(operation, intended)?;
        step += 1;
        progress.store(done, Ordering::Relaxed);
    }
    worker.commit()
}

/// When each operation of a thread is meant to begin.
#[derive(Clone, Copy)]
struct Pace {
    start: Instant,
    rate: u64,
    threads: u64,
}

impl Pace {
    /// Waits until operation `step` is to begin, if that is not over; gives that time.
    fn wait(self, step: u64) -> Instant {
        let nanos = u128::from(step) * u128::from(self.threads) * 1_000_000_000;
        let nanos = u64::try_from(nanos / u128::from(self.rate)).unwrap_or(u64::MAX);
        let time = self.start + Duration::from_nanos(nanos);
        clock::wait_until(time);
        time
    }
}

/// Counts until all threads have ended; stops them at the cap. True if it did.
fn watch(control: &Control, job: &Job, start: Instant, bar: &ProgressBar) -> (Vec<Second>, bool) {
    let mut seconds = Vec::new();
    let (mut last_time, mut last_count) = (start, 0);
    let mut capped = false;
    while control.running.load(Ordering::Acquire) > 0 {
        thread::park_timeout(WATCH_STEP);
        let now = clock::now();
        let count = control.operations();
        bar.set_position(count);
        let passed = now.saturating_duration_since(last_time);
        if passed >= SECOND {
            let rss_bytes = Memory::now().map_or(0, |memory| memory.rss_bytes);
            seconds.push(Second { kops: kops(count - last_count, passed), rss_bytes });
            (last_time, last_count) = (now, count);
        }
        let total = now.saturating_duration_since(start);
        if job.cap.is_some_and(|cap| total >= cap) && !capped {
            capped = count < job.operations;
            control.stop.store(true, Ordering::Relaxed);
        }
    }
    (seconds, capped)
}

/// Thousands of operations a second.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub fn kops(operations: u64, time: Duration) -> f64 {
    operations as f64 / time.as_secs_f64().max(1e-9) / 1000.0
}
