//! Back-pressure: a delay that grows with debt, never a cliff.
//!
//! Writers may take what is left of the write share (`room`) while the background absorbs what is
//! finalized (`backlog`). If the backlog drains at `rate` bytes a second, writers that fill the
//! room just as it ends write at `rate * room / backlog`. That is the speed they are held to: far
//! above what they do while the room is large, and smoothly down to the speed of the drain as it
//! shrinks. Only with no room at all a writer waits for memory to come back.

use crate::base::clock::Clock;
use crate::base::sync::{AtomicU64, Condvar, Mutex, Ordering};
use std::time::Duration;

/// Delays shorter than this are saved up: a sleep takes about this long anyway.
const SLEEP_LEAST: Duration = Duration::from_micros(100);
/// A single delay is at most this long; then the room is looked at again.
const SLEEP_MOST: Duration = Duration::from_millis(2);

/// How long a writer without room waits before it looks again by itself.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What the pace depends on.
#[derive(Clone, Copy, Debug)]
pub struct Debt {
    /// Bytes that memtables may still take.
    pub room_bytes: u64,
    /// Bytes finalized and not yet absorbed, with what the engine owes on top.
    pub backlog_bytes: u64,
}

/// Holds writers to the pace of the background.
pub struct Pacer {
    clock: Clock,
    /// Bytes a second that drains absorbed lately; 0 before the first.
    drain_rate: AtomicU64,
    /// When the writes let through so far are paid for, in nanoseconds of the clock.
    paid_until: AtomicU64,
    /// Delays and their sum, for statistics.
    delays: AtomicU64,
    delay_nanos: AtomicU64,
    /// Writers without room wait here.
    memory: Mutex<()>,
    released: Condvar,
}

impl Pacer {
    /// No drain was seen yet: nobody waits.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            drain_rate: AtomicU64::new(0),
            paid_until: AtomicU64::new(0),
            delays: AtomicU64::new(0),
            delay_nanos: AtomicU64::new(0),
            memory: Mutex::new(()),
            released: Condvar::new(),
        }
    }

    /// A drain absorbed `bytes` in `took`.
    pub fn drained(&self, bytes: u64, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let rate = bytes.saturating_mul(1_000_000) / micros;
        let before = self.drain_rate.load(Ordering::Relaxed);
        let mixed = if before == 0 { rate } else { before / 4 * 3 + rate / 4 };
        self.drain_rate.store(mixed.max(1), Ordering::Relaxed);
    }

    /// Lets a write of `bytes` through, after the delay that `debt` asks for.
    pub fn admit(&self, bytes: u64, debt: Debt) {
        let rate = self.drain_rate.load(Ordering::Relaxed);
        if debt.backlog_bytes == 0 || rate == 0 {
            return;
        }
        let room = u128::from(debt.room_bytes.max(1));
        let allowed = (u128::from(rate) * room / u128::from(debt.backlog_bytes)).max(1);
        let cost = u64::try_from(u128::from(bytes) * 1_000_000_000 / allowed).unwrap_or(u64::MAX);
        let now = nanos(self.clock.now());
        let mut paid = self.paid_until.load(Ordering::Relaxed);
        let until = loop {
            // Time that nobody wrote in is not saved up.
            let until = paid.max(now).saturating_add(cost);
            match self.paid_until.compare_exchange_weak(
                paid,
                until,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => break until,
                Err(current) => paid = current,
            }
        };
        let owed = Duration::from_nanos(until - now);
        if owed >= SLEEP_LEAST {
            self.delay(owed.min(SLEEP_MOST));
        }
        // What is owed beyond one delay is forgiven: the debt is looked at anew each time.
        self.paid_until.fetch_min(now + nanos(SLEEP_MOST), Ordering::Relaxed);
    }

    fn delay(&self, duration: Duration) {
        self.delays.fetch_add(1, Ordering::Relaxed);
        self.delay_nanos.fetch_add(nanos(duration), Ordering::Relaxed);
        self.clock.sleep(duration);
    }

    /// Waits until `ready`; whoever changes what it depends on calls [`Pacer::wake`].
    pub fn wait_until(&self, mut ready: impl FnMut() -> bool) {
        let mut order = self.memory.lock();
        if ready() {
            return;
        }
        let start = self.clock.now();
        while !ready() {
            // Not only when woken: memory that a reader still saw comes back without a word.
            self.released.wait_for(&mut order, LOOK_AGAIN);
        }
        drop(order);
        self.delays.fetch_add(1, Ordering::Relaxed);
        let waited = self.clock.now().saturating_sub(start);
        self.delay_nanos.fetch_add(nanos(waited), Ordering::Relaxed);
    }

    /// Memory came back, or the database stopped.
    pub fn wake(&self) {
        let _order = self.memory.lock();
        self.released.notify_all();
    }

    /// How many writes were delayed, and for how many nanoseconds in all.
    pub fn figures(&self) -> (u64, u64) {
        (self.delays.load(Ordering::Relaxed), self.delay_nanos.load(Ordering::Relaxed))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_to_write(pacer: &Pacer, bytes: u64, debt: Debt) -> Duration {
        let start = pacer.clock.now();
        for _ in 0..bytes / 1_000 {
            pacer.admit(1_000, debt);
        }
        pacer.clock.now() - start
    }

    #[test]
    fn the_delay_grows_with_debt() {
        let pacer = Pacer::new(Clock::manual());
        let debt = |room_bytes, backlog_bytes| Debt { room_bytes, backlog_bytes };
        assert_eq!(time_to_write(&pacer, 1_000_000, debt(1, 1_000)), Duration::ZERO);
        pacer.drained(100_000_000, Duration::from_secs(1));
        assert_eq!(time_to_write(&pacer, 1_000_000, debt(1, 0)), Duration::ZERO);
        let even = time_to_write(&pacer, 10_000_000, debt(1_000_000, 1_000_000));
        let tight = time_to_write(&pacer, 10_000_000, debt(250_000, 1_000_000));
        let near = |time: Duration, millis: u128| time.as_millis().abs_diff(millis) < millis / 5;
        assert!(near(even, 100), "{even:?}");
        assert!(near(tight, 400), "{tight:?}");
    }
}
