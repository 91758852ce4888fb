//! Injectable time source: real for users, manually advanced for tests that replay a run.

use crate::runtime::sync::thread;
#[cfg(any(test, feature = "internals"))]
use crate::runtime::sync::{Arc, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
