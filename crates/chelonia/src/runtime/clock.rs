//! Injectable time source: real for users, manually advanced for tests that replay a run.

#[cfg(any(test, feature = "internals"))]
use crate::runtime::sync::{Arc, AtomicU64, Ordering};
use crate::runtime::sync::{thread, thread_local};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    /// Processor time of workers that ended their job on this thread.
    static OF_WORKERS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The processor time of this thread.
#[must_use]
pub fn of_thread() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Counts `time` of workers as that of this thread, whose job they did.
pub fn add_of_workers(time: Duration) {
    OF_WORKERS.with(|total| total.set(total.get() + time));
}

/// A monotonic clock.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's monotonic clock.
    Real(Instant),
    /// A manual clock, in nanoseconds.
    #[cfg(any(test, feature = "internals"))]
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock, starting at zero now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one door to the machine's clock")]
    pub fn real() -> Self {
        Clock::Real(Instant::now())
    }

    /// A clock that stands still until [`Clock::advance`].
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn manual() -> Self {
        Clock::Manual(Arc::new(AtomicU64::new(0)))
    }

    /// The time since the clock was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        match self {
            Clock::Real(start) => start.elapsed(),
            #[cfg(any(test, feature = "internals"))]
            Clock::Manual(nanos) => Duration::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }

    /// Advances a manual clock; has no effect on a real one.
    #[cfg(any(test, feature = "internals"))]
    pub fn advance(&self, by: Duration) {
        if let Clock::Manual(nanos) = self {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            nanos.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Processor time of this thread, and of the workers of jobs that ended on it
    /// (`runtime/workers.rs`). None passes on a manual clock.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        match self {
            Clock::Real(_) => of_thread() + OF_WORKERS.with(Cell::get),
            #[cfg(any(test, feature = "internals"))]
            Clock::Manual(_) => Duration::ZERO,
        }
    }

    /// Sleeps; on a manual clock the time passes at once.
    #[cfg_attr(
        not(feature = "shuttle"),
        expect(clippy::disallowed_methods, reason = "this is the one door to waiting by time")
    )]
    pub fn sleep(&self, duration: Duration) {
        match self {
            Clock::Real(_) => thread::sleep(duration),
            #[cfg(any(test, feature = "internals"))]
            Clock::Manual(_) => self.advance(duration),
        }
    }
}
