//! The versions of a record that a read may return: exactly the newest, unless it is being written.
//!
//! ```text
//!   state of a record:  bit 15: an update is in flight    bits 0..15: the newest committed version
//!
//!   idle v --begin--> in flight, v --finish (the commit returned)--> idle v + 1
//! ```
//!
//! 1. Updates of one record come one after the other: `begin` waits while another is in flight. So
//!    the order of versions is the order of commits, and a read can be held to it.
//! 2. A read that saw state `a` before it began and state `b` after it ended may give any version
//!    from `a`'s to `b`'s, and the one after `b`'s if `b` is in flight. All else is a lost, stale
//!    or invented value.
//! 3. Versions start again after [`VERSION_MAX`]. Only a read that took longer than
//!    [`EXACT_READ_MAX`] could meet so many updates of one record; it may give any version.
//!
//! 4. A scan meets records that nobody named before it began, so their states then are not known.
//!    Where no update at all was in flight from its start to its end ([`Versions::quiet`]), each
//!    must be at its newest version.
//!
//! Two bytes a record, touched before the run. Threads share it freely; each counts its updates on
//! a cache line of its own.

use crate::workload::values::{VERSION_MAX, Version};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

const IN_FLIGHT: u16 = 1 << 15;

/// Reads that took longer may give any version: far more than 32,768 updates need, far less than
/// most reads.
const EXACT_READ_MAX: Duration = Duration::from_millis(10);

/// The state of every record.
#[derive(Debug)]
pub struct Versions {
    states: Vec<AtomicU16>,
    /// For each thread, twice the updates that it finished, and one more if one is in flight.
    updates: Vec<Counter>,
}

/// A counter on a cache line of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Counter(pub AtomicU64);

/// The state of a record at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(u16);

impl State {
    /// The newest committed version.
    pub fn version(self) -> Version {
        self.0 & VERSION_MAX
    }

    /// True if an update is on its way.
    fn in_flight(self) -> bool {
        self.0 & IN_FLIGHT != 0
    }

    /// True if a read that began at this state, ended at `after` and took `time` may give `seen`.
    pub fn permits(self, after: State, time: Duration, seen: Version) -> bool {
        let newest = after.version() + Version::from(after.in_flight());
        let span = newest.wrapping_sub(self.version()) & VERSION_MAX;
        let place = seen.wrapping_sub(self.version()) & VERSION_MAX;
        time > EXACT_READ_MAX || place <= span
    }
}

impl Versions {
    /// All records at version 0, updated by so many threads.
    pub fn new(records: usize, threads: usize) -> Self {
        Self {
            states: (0..records).map(|_| AtomicU16::new(0)).collect(),
            updates: (0..threads).map(|_| Counter::default()).collect(),
        }
    }

    /// The memory it takes.
    pub fn memory_bytes(&self) -> usize {
        self.states.capacity() * size_of::<AtomicU16>()
    }

    /// The state of `record`.
    pub fn state(&self, record: u64) -> State {
        State(self.of(record).load(Ordering::Acquire))
    }

    /// A number that is the same at two moments if no update was in flight between them; `None` if
    /// one is now. A caller reads the states of versions before the second moment.
    pub fn quiet(&self) -> Option<u64> {
        let mut sum = 0;
        for counter in &self.updates {
            let updates = counter.0.load(Ordering::Acquire);
            if !updates.is_multiple_of(2) {
                return None;
            }
            sum += updates;
        }
        Some(sum)
    }

    /// Begins an update of `record` by `thread`, once no other is in flight; gives the version it
    /// makes.
    pub fn begin(&self, record: u64, thread: u64) -> Version {
        // Before the store can show anything of it.
        self.count(thread);
        let state = self.of(record);
        let mut spins = 0_u32;
        loop {
            let now = State(state.load(Ordering::Relaxed));
            let marked = now.0 | IN_FLIGHT;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if !now.in_flight()
                && state.compare_exchange_weak(now.0, marked, order.0, order.1).is_ok()
            {
                return now.version().wrapping_add(1) & VERSION_MAX;
            }
            spins += 1;
            if spins.is_multiple_of(64) {
                // The thread that holds it may need this processor.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// The update of `record` to `version` by `thread` is committed.
    pub fn finish(&self, record: u64, version: Version, thread: u64) {
        self.of(record).store(version, Ordering::Release);
        self.count(thread);
    }

    /// Only `thread` itself counts.
    fn count(&self, thread: u64) {
        let counter = &self.updates[usize::try_from(thread).unwrap_or(usize::MAX)].0;
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    fn of(&self, record: u64) -> &AtomicU16 {
        // Records are numbered below the length that was asked for; see `Plan::capacity`.
        &self.states[usize::try_from(record).unwrap_or(usize::MAX)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(5);

    #[test]
    fn a_read_returns_the_newest_version_or_one_in_flight() {
        let versions = Versions::new(2, 1);
        assert_eq!(versions.quiet(), Some(0));
        let idle = versions.state(1);
        assert!(idle.permits(idle, SHORT, 0));
        assert!(!idle.permits(idle, SHORT, 1) && !idle.permits(idle, SHORT, VERSION_MAX));
        assert_eq!(versions.begin(1, 0), 1);
        assert_eq!(versions.quiet(), None);
        let writing = versions.state(1);
        assert!(idle.permits(writing, SHORT, 0) && idle.permits(writing, SHORT, 1));
        assert!(!idle.permits(writing, SHORT, 2));
        versions.finish(1, 1, 0);
        assert_eq!(versions.quiet(), Some(2));
        let written = versions.state(1);
        assert!(writing.permits(written, SHORT, 0) && writing.permits(written, SHORT, 1));
        assert!(!written.permits(written, SHORT, 0), "an old value");
        assert!(written.permits(written, Duration::from_secs(1), 0), "too long to determine");
        assert_eq!(versions.state(0), idle);
    }

    #[test]
    fn versions_start_again() {
        let versions = Versions::new(1, 4);
        for expected in (1..=VERSION_MAX).chain([0]) {
            let version = versions.begin(0, 0);
            assert_eq!(version, expected);
            versions.finish(0, version, 0);
        }
        let (last, first) = (State(VERSION_MAX), versions.state(0));
        assert!(last.permits(first, SHORT, 0) && last.permits(first, SHORT, VERSION_MAX));
        assert!(!last.permits(first, SHORT, 1));
        let wrapping = State(VERSION_MAX | IN_FLIGHT);
        assert!(last.permits(wrapping, SHORT, 0));
    }

    #[test]
    fn updates_of_a_record_come_one_after_the_other() {
        let versions = Versions::new(1, 4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let versions = &versions;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let version = versions.begin(0, thread);
                        versions.finish(0, version, thread);
                    }
                });
            }
        });
        assert_eq!(versions.state(0).version(), 4000);
    }
}
