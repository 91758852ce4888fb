//! The clock: everything that is measured or waited for uses it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Beyond this a thread sleeps until shortly before the time that it waits for, as a sleep may end
/// late by about this much; then it asks again and again, and lets others go first.
const SPIN: Duration = Duration::from_micros(100);

/// Now.
#[expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]
pub fn now() -> Instant {
    Instant::now()
}

/// The time since `start`.
pub fn since(start: Instant) -> Duration {
    now().saturating_duration_since(start)
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "results say when they were measured")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "the one door to waiting by time")]
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `time`, exactly.
pub fn wait_until(time: Instant) {
    loop {
        let left = time.saturating_duration_since(now());
        if left.is_zero() {
            return;
        }
        if left > SPIN * 2 {
            sleep(left.saturating_sub(SPIN));
        } else {
            std::thread::yield_now();
        }
    }
}
