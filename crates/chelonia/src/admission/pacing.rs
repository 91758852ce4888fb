//! Back-pressure: writers are delayed smoothly as flush debt grows.
//!
//! Writers may take the remainder of the write share (`headroom`) while the background absorbs
//! immutable memtables (`backlog`). If the backlog is flushed at `rate` bytes a second, writers
//! that fill the headroom just as it ends write at `rate * headroom / backlog`. They are held to
//! that speed: far above their demand while the headroom is large, and falling smoothly to the
//! speed of the flush as it shrinks. Only without any headroom a writer waits for memory.
//!
//! Conversely, a flush that will be complete long before its memory is needed rests in between
//! ([`Pacer::rest`]), so that it takes processors and device from others a little at a time.

use crate::base::error::{Error, ErrorKind};
use crate::runtime::clock::Clock;
use crate::runtime::sync::{
    AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, thread_local,
};
use std::cell::Cell;
use std::time::Duration;

/// Shorter delays are accumulated: a sleep takes about this long anyway.
const SLEEP_LEAST: Duration = Duration::from_micros(100);
/// A commit is delayed for at most this long per [`PIECE_BYTES`]; the next one checks the headroom
/// again. So a commit of 8 MiB may be delayed for a second, like the small commits that it equals.
const SLEEP_MOST: Duration = Duration::from_millis(2);

/// Bytes of a commit that count as one small commit.
const PIECE_BYTES: u64 = 16 << 10;

/// A flush thread works at most this long before it checks again whether it may rest.
const WORK_MOST: Duration = Duration::from_millis(200);

/// The longest single rest.
const REST_MOST: Duration = Duration::from_millis(500);

/// This part (1/16) of the immutable memtables counts as backlog until their flush ends: its end
/// absorbs nothing, but takes time.
pub const FLUSH_END_PART: u64 = 16;

/// Flushed bytes that give a throughput: a flush of a few records takes the time of its syncs.
const MEASURED_BYTES_MIN: u64 = 256 << 10;

/// The throughput is that of about this much time of flushes.
const MEASURED_MOST: Duration = Duration::from_secs(2);

/// Interval at which a resting thread checks for waiting writers.
const REST_SLICE: Duration = Duration::from_millis(2);

/// A writer without headroom checks again without a wake-up after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Time that flushes do not rest after a writer that would not wait was refused.
const HURRIED_AFTER: Duration = Duration::from_millis(500);

/// The inputs of the pace.
#[derive(Clone, Copy, Debug)]
pub struct Debt {
    /// Bytes that memtables may still take.
    pub headroom_bytes: u64,
    /// Immutable bytes not yet absorbed, plus the debt of the engines.
    pub backlog_bytes: u64,
}

impl Debt {
    /// The one that leaves writers the lower speed.
    pub fn tighter(self, other: Self) -> Self {
        let scaled = |one: Self, by: Self| {
            u128::from(one.headroom_bytes) * u128::from(by.backlog_bytes.max(1))
        };
        let is_tighter = other.backlog_bytes > 0 && scaled(other, self) < scaled(self, other);
        if self.backlog_bytes == 0 || is_tighter { other } else { self }
    }
}

/// Holds writers to the pace of the background.
pub struct Pacer {
    clock: Clock,
    /// Recent flushes, from which `flush_rate` is.
    flushed: Mutex<Flushed>,
    /// Recent throughput in bytes per second, also of the first flush so far; 0: not known yet.
    flush_rate: AtomicU64,
    /// Time at which the admitted writes are paid for, in nanoseconds of the clock.
    paid_until: AtomicU64,
    /// True if the current flush has rested.
    rested: AtomicBool,
    /// Threads that wait for flushes.
    hurried: AtomicU32,
    /// Until when a refused writer counts as waiting, in nanoseconds of the clock.
    hurried_until: AtomicU64,
    // Statistics: delays, their sum, the longest, and writers that did not wait.
    delays: AtomicU64,
    delay_nanos: AtomicU64,
    delay_nanos_max: AtomicU64,
    refused: AtomicU64,
    /// Writers without headroom wait here.
    memory: Mutex<()>,
    released: Condvar,
}

/// Bytes that recent flushes absorbed, and their time.
#[derive(Clone, Copy, Default)]
struct Flushed {
    bytes: u64,
    nanos: u64,
}

impl Pacer {
    /// Creates a pacer. Until the first flush has absorbed a little it delays no writer.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            flushed: Mutex::new(Flushed::default()),
            flush_rate: AtomicU64::new(0),
            paid_until: AtomicU64::new(0),
            rested: AtomicBool::new(false),
            hurried: AtomicU32::new(0),
            hurried_until: AtomicU64::new(0),
            delays: AtomicU64::new(0),
            delay_nanos: AtomicU64::new(0),
            delay_nanos_max: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            memory: Mutex::new(()),
            released: Condvar::new(),
        }
    }

    /// Records that a flush has absorbed `bytes` so far, in `took`. This is the throughput until a
    /// flush has ended: writers would fill all memory beside the first one, and wait for its end.
    pub fn absorbing(&self, bytes: u64, took: Duration) {
        let is_first = || self.flushed.lock().nanos == 0;
        if bytes >= MEASURED_BYTES_MIN && !self.rested.load(Ordering::Relaxed) && is_first() {
            let rate = u128::from(bytes) * 1_000_000_000 / u128::from(nanos(took).max(1));
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            self.flush_rate.store(rate.max(1), Ordering::Relaxed);
        }
    }

    /// Records that a flush absorbed `bytes` in `took`. A flush that rested gives no throughput.
    pub fn flushed(&self, bytes: u64, took: Duration) {
        let mut flushed = self.flushed.lock();
        let is_known = flushed.nanos != 0 && self.flush_rate.load(Ordering::Relaxed) != 0;
        if self.rested.swap(false, Ordering::Relaxed) && is_known {
            return;
        }
        flushed.bytes = flushed.bytes.saturating_add(bytes);
        flushed.nanos = flushed.nanos.saturating_add(nanos(took)).max(1);
        let per = |bytes: u64, by: u64| {
            let bytes = u128::from(bytes) * u128::from(by) / u128::from(flushed.nanos);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let most = nanos(MEASURED_MOST);
        if flushed.bytes >= MEASURED_BYTES_MIN || flushed.nanos >= most {
            self.flush_rate.store(per(flushed.bytes, 1_000_000_000).max(1), Ordering::Relaxed);
        }
        if flushed.nanos > most {
            *flushed = Flushed { bytes: per(flushed.bytes, most), nanos: most };
        }
    }

    /// Keeps flushes from resting while the returned value lives: a thread waits for them.
    pub fn hurry(&self) -> Hurry<'_> {
        self.hurried.fetch_add(1, Ordering::Relaxed);
        Hurry(self)
    }

    /// True if a thread waits for flushes.
    #[cfg(test)]
    pub fn is_waited_for(&self) -> bool {
        self.hurried.load(Ordering::Relaxed) > 0
    }

    /// Lets a flush thread, one of `threads`, rest: for the time that it worked since the last
    /// call, times a factor such that all threads together work half of the time of one. It does
    /// not rest while a thread waits, or once the flush has no time left.
    pub fn rest(&self, threads: usize, has_time: impl Fn() -> bool) {
        thread_local! {
            static WORKS_SINCE: Cell<Option<Duration>> = const { Cell::new(None) };
        }
        let now = self.clock.now();
        let since = WORKS_SINCE.with(|since| since.replace(Some(now)));
        let is_hurried = || {
            self.hurried.load(Ordering::Relaxed) > 0
                || nanos(self.clock.now()) < self.hurried_until.load(Ordering::Relaxed)
        };
        let may_rest = || !is_hurried() && has_time();
        if !may_rest() {
            return;
        }
        self.rested.store(true, Ordering::Relaxed);
        // An interval longer than any work began before this flush.
        let worked = since.map_or(Duration::ZERO, |since| now.saturating_sub(since)).min(WORK_MOST);
        let times = u32::try_from(2 * threads).unwrap_or(u32::MAX).saturating_sub(1);
        let until = now + (worked * times).min(REST_MOST);
        while self.clock.now() < until && may_rest() {
            self.clock.sleep(REST_SLICE.min(until.saturating_sub(self.clock.now())));
        }
        WORKS_SINCE.with(|since| since.set(Some(self.clock.now())));
    }

    /// Admits a write of `bytes` after the delay that `debt` demands, or once `is_over`. A write
    /// that may wait no longer than `left` is refused (false) while the writes before it are not
    /// paid for by then.
    pub fn admit(
        &self,
        bytes: u64,
        debt: Debt,
        left: Option<Duration>,
        is_over: impl Fn() -> bool,
    ) -> bool {
        let rate = self.flush_rate.load(Ordering::Relaxed);
        if debt.backlog_bytes == 0 || rate == 0 {
            return true;
        }
        let room = u128::from(debt.headroom_bytes.max(1));
        let allowed = (u128::from(rate) * room / u128::from(debt.backlog_bytes)).max(1);
        let cost = u64::try_from(u128::from(bytes) * 1_000_000_000 / allowed).unwrap_or(u64::MAX);
        let most = nanos(SLEEP_MOST).saturating_mul(bytes.div_ceil(PIECE_BYTES).max(1));
        let now = nanos(self.clock.now());
        let mut paid = self.paid_until.load(Ordering::Relaxed);
        let until = loop {
            let owed_before = paid.saturating_sub(now);
            if left.is_some_and(|left| owed_before > nanos(left.max(SLEEP_LEAST))) {
                return false;
            }
            // Time without writes is not accumulated as credit. The excess over the longest delay
            // of this write is forgiven, but not the debt of the writes before it.
            let least = paid.max(now);
            let until = least.saturating_add(cost).min(least.max(now.saturating_add(most)));
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
        let delay = owed.min(Duration::from_nanos(most)).min(left.unwrap_or(Duration::MAX));
        if delay < SLEEP_LEAST {
            return true;
        }
        let mut slept = Duration::ZERO;
        while slept < delay {
            if !slept.is_zero() && is_over() {
                // The debt is paid; the commits after this one owe nothing for it.
                self.paid_until.fetch_min(nanos(self.clock.now()), Ordering::Relaxed);
                break;
            }
            let slice = SLEEP_MOST.min(delay.saturating_sub(slept));
            self.clock.sleep(slice);
            slept = self.clock.now().saturating_sub(Duration::from_nanos(now)).max(slept + slice);
        }
        self.delayed(slept);
        true
    }

    /// Records a delay of a writer.
    pub fn delayed(&self, duration: Duration) {
        self.delays.fetch_add(1, Ordering::Relaxed);
        self.delay_nanos.fetch_add(nanos(duration), Ordering::Relaxed);
        self.delay_nanos_max.fetch_max(nanos(duration), Ordering::Relaxed);
    }

    /// The error of a writer that would have to wait longer than it may.
    #[cold]
    pub fn refuse(&self) -> Error {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let until = nanos(self.clock.now().saturating_add(HURRIED_AFTER));
        self.hurried_until.fetch_max(until, Ordering::Relaxed);
        let text = "the commit would have to wait longer than its options allow; retry later";
        Error::new(ErrorKind::WouldBlock, text)
    }

    /// Waits until `ready` returns true; whoever changes its inputs calls [`Pacer::wake`]. False if
    /// `left` passes first.
    pub fn wait_until(&self, left: Option<Duration>, mut ready: impl FnMut() -> bool) -> bool {
        let mut order = self.memory.lock();
        if ready() {
            return true;
        }
        let start = self.clock.now();
        let mut waited = Duration::ZERO;
        let mut is_ready = false;
        while !is_ready && left.is_none_or(|left| waited < left) {
            // Memory that a reader held is freed without a wake-up.
            let rest = left.map_or(LOOK_AGAIN, |left| left.saturating_sub(waited));
            self.released.wait_for(&mut order, rest.min(LOOK_AGAIN));
            waited = self.clock.now().saturating_sub(start);
            is_ready = ready();
        }
        drop(order);
        if waited > Duration::ZERO {
            self.delayed(waited);
        }
        is_ready
    }

    /// Wakes waiting writers: memory was freed, or the database stopped.
    pub fn wake(&self) {
        let _order = self.memory.lock();
        self.released.notify_all();
    }

    /// Statistics of delayed and refused writes.
    pub fn delays(&self) -> Delays {
        Delays {
            count: self.delays.load(Ordering::Relaxed),
            nanos: self.delay_nanos.load(Ordering::Relaxed),
            nanos_max: self.delay_nanos_max.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Write delays since the open.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Number of delays.
    pub count: u64,
    /// Total delay, in nanoseconds.
    pub nanos: u64,
    /// Longest delay, in nanoseconds.
    pub nanos_max: u64,
    /// Writes refused because they would not wait.
    pub refused: u64,
}

/// While it lives flushes do not rest.
#[must_use]
pub struct Hurry<'a>(&'a Pacer);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurried.fetch_sub(1, Ordering::Relaxed);
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
            assert!(pacer.admit(1_000, debt, None, || false));
        }
        pacer.clock.now() - start
    }

    #[test]
    fn the_delay_grows_with_debt() {
        let pacer = Pacer::new(Clock::manual());
        let debt = |headroom_bytes, backlog_bytes| Debt { headroom_bytes, backlog_bytes };
        assert_eq!(time_to_write(&pacer, 1_000_000, debt(1, 1_000)), Duration::ZERO);
        pacer.flushed(100_000_000, Duration::from_secs(1));
        assert_eq!(time_to_write(&pacer, 1_000_000, debt(1, 0)), Duration::ZERO);
        for (headroom, expected) in [(1_000_000, 100), (250_000, 400)] {
            let took = time_to_write(&pacer, 10_000_000, debt(headroom, 1_000_000));
            assert!(near(took, expected), "{took:?}");
        }
    }

    #[test]
    fn the_first_flush_gives_a_pace_before_its_end() {
        let pacer = Pacer::new(Clock::manual());
        let debt = Debt { headroom_bytes: 1_000_000, backlog_bytes: 1_000_000 };
        pacer.absorbing(50_000_000, Duration::from_secs(1));
        assert!(near(time_to_write(&pacer, 10_000_000, debt), 200));
        pacer.flushed(100_000_000, Duration::from_secs(1));
        pacer.absorbing(1_000_000, Duration::from_secs(1));
        let paced = time_to_write(&pacer, 10_000_000, debt);
        assert!(near(paced, 100), "whole flushes count once there are any");
    }

    #[test]
    fn who_does_not_wait_is_held_to_the_same_pace_and_refused_in_between() {
        let pacer = Pacer::new(Clock::manual());
        pacer.flushed(100_000_000, Duration::from_secs(1));
        let debt = Debt { headroom_bytes: 1_000_000, backlog_bytes: 1_000_000 };
        let start = pacer.clock.now();
        let (mut accepted, mut refused) = (0, 0);
        while accepted < 10_000 {
            if pacer.admit(1_000, debt, Some(Duration::ZERO), || false) {
                accepted += 1;
            } else {
                refused += 1;
                pacer.clock.advance(Duration::from_micros(50));
            }
        }
        let took = pacer.clock.now() - start;
        assert!(near(took, 100) && refused > 100, "{took:?}, {refused} refused");
        assert_eq!((pacer.delays().count, pacer.delays().nanos), (0, 0));
        // A write without a limit is admitted, however large the debt before it.
        let owed = 100 * SLEEP_MOST;
        pacer.paid_until.store(nanos(pacer.clock.now() + owed), Ordering::Relaxed);
        let before = pacer.clock.now();
        assert!(pacer.admit(1, debt, None, || false));
        assert_eq!(pacer.clock.now() - before, SLEEP_MOST);
        // So is a write worth many delays, once the writes before it are paid for; those after it
        // wait until it is.
        pacer.clock.advance(owed);
        let no_wait = |bytes| pacer.admit(bytes, debt, Some(Duration::ZERO), || false);
        assert!(no_wait(100_000_000));
        pacer.clock.advance(Duration::from_millis(990));
        assert!(!no_wait(1));
        pacer.clock.advance(Duration::from_millis(10));
        assert!(no_wait(1));
    }

    #[test]
    fn a_large_commit_is_delayed_for_its_bytes() {
        let pacer = Pacer::new(Clock::manual());
        pacer.flushed(100_000_000, Duration::from_secs(1));
        let debt = |headroom_bytes| Debt { headroom_bytes, backlog_bytes: 1_000_000 };
        let time = |bytes, debt, is_over: &dyn Fn() -> bool| {
            let start = pacer.clock.now();
            assert!(pacer.admit(bytes, debt, None, is_over));
            pacer.clock.now() - start
        };
        // As long as many small ones, which `the_delay_grows_with_debt` measures.
        let large = time(10_000_000, debt(1_000_000), &|| false);
        assert!(near(large, 100), "{large:?}");
        // Even without headroom a commit has a longest delay, small or large.
        assert_eq!(time(1, debt(1), &|| false), SLEEP_MOST);
        assert_eq!(time(8 << 20, debt(1), &|| false), 512 * SLEEP_MOST);
        // It ends when no memtable waits any more.
        pacer.clock.advance(512 * SLEEP_MOST);
        let start = pacer.clock.now();
        let is_over = || pacer.clock.now() - start >= Duration::from_millis(50);
        let ended = time(8 << 20, debt(1), &is_over);
        assert!(near(ended, 50), "{ended:?}");
        // Nothing is owed for it any more, and commits with a limit are not refused.
        assert!(pacer.admit(1, debt(1_000_000_000), Some(Duration::ZERO), || false));
        // A small commit beside a large one does not wait for all of it.
        pacer.paid_until.store(nanos(pacer.clock.now() + 100 * SLEEP_MOST), Ordering::Relaxed);
        assert_eq!(time(1, debt(1), &|| false), SLEEP_MOST);
    }

    #[test]
    fn the_tighter_debt_allows_less() {
        let debt = |headroom_bytes, backlog_bytes| Debt { headroom_bytes, backlog_bytes };
        let tighter = |one: Debt, other: Debt| {
            let [one, other] = [one.tighter(other), other.tighter(one)];
            assert_eq!(one.headroom_bytes, other.headroom_bytes);
            one.headroom_bytes
        };
        assert_eq!(tighter(debt(1_000, 100), debt(1_000_000, 200)), 1_000);
        assert_eq!(tighter(debt(1_000, 100), debt(2_000, 100_000)), 2_000);
        // No backlog, no delay, however small the headroom.
        assert_eq!(tighter(debt(1, 0), debt(1_000, 100)), 1_000);
        assert_eq!(debt(1, 0).tighter(debt(5, 0)).backlog_bytes, 0);
    }

    #[test]
    fn flushes_count_by_their_time() {
        let pacer = Pacer::new(Clock::manual());
        let rate = || pacer.flush_rate.load(Ordering::Relaxed);
        pacer.flushed(10_000, Duration::from_millis(20));
        assert_eq!(rate(), 0);
        pacer.flushed(99_990_000, Duration::from_millis(980));
        assert_eq!(rate(), 100_000_000);
        // A small flush that takes long hardly matters.
        pacer.flushed(10_000, Duration::from_millis(20));
        assert!((97_000_000..100_000_000).contains(&rate()), "{}", rate());
        // A device that became slower is noticed after as long as it was fast.
        (0..5).for_each(|_| pacer.flushed(1_000_000, Duration::from_secs(1)));
        assert!((1_000_000..20_000_000).contains(&rate()), "{}", rate());
    }

    fn near(time: Duration, millis: u128) -> bool {
        time.as_millis().abs_diff(millis) < millis / 5
    }

    #[test]
    fn flushes_rest_unless_somebody_waits_and_are_no_measure_then() {
        let pacer = Pacer::new(Clock::manual());
        let time_to_flush = |threads| {
            let start = pacer.clock.now();
            for _ in 0..100 {
                pacer.rest(threads, || true);
                pacer.clock.advance(Duration::from_millis(1));
            }
            pacer.clock.now() - start
        };
        pacer.flushed(100_000_000, Duration::from_secs(1));
        assert!(near(time_to_flush(1), 200));
        assert!(near(time_to_flush(4), 800));
        pacer.flushed(10_000_000, Duration::from_secs(1));
        assert_eq!(pacer.flush_rate.load(Ordering::Relaxed), 100_000_000);
        let hurry = pacer.hurry();
        assert_eq!(time_to_flush(4), Duration::from_millis(100));
        drop(hurry);
        assert!(time_to_flush(4) > Duration::from_millis(500));
    }
}
