//! Space factors: bytes of the data file that updates need, for each of their bytes.
//!
//! Engines differ in them (`Engine::space_times`). Updates in a memtable count with the factor of
//! their engine. Commits on their way to a memtable, and the log, are not counted by keyspace: the
//! largest factor of all keyspaces applies to them.
//!
//! The *claim* of the log ([`crate::storage::quota`]) only grows with it, and its earlier part does
//! not change when the factor does:
//!
//! ```text
//!   claim        ____----  smaller factor: the keyspace was dropped
//!             _-'
//!          _-'             larger factor, from the creation of a keyspace on
//!   ____---
//!   ---------------------> bytes of the log
//! ```
//!
//! Thread-safety: one mutex, which no commit takes while enough space is known.

use crate::runtime::sync::Mutex;

/// The largest space factors among the engines of all keyspaces, and the claim of the log.
pub struct SpaceFactors {
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    usual: u64,
    minimal: u64,
    /// Bytes of the log when `usual` was set.
    logged_before: u64,
    /// The claim of those bytes.
    claimed_before: u64,
}

impl State {
    fn claim(&self, logged_bytes: u64) -> u64 {
        // To flush it, and its place in the log.
        let times = self.usual + 1;
        let since = logged_bytes.saturating_sub(self.logged_before);
        self.claimed_before.saturating_add(times.saturating_mul(since))
    }
}

impl Default for SpaceFactors {
    /// Those of a database without keyspaces.
    fn default() -> Self {
        let state = State { usual: 1, minimal: 1, logged_before: 0, claimed_before: 0 };
        Self { state: Mutex::new(state) }
    }
}

impl SpaceFactors {
    /// The factor of flushes at the usual pace, at least 1.
    pub fn usual(&self) -> u64 {
        self.state.lock().usual
    }

    /// The factor of minimal flushes, at least 1.
    pub fn minimal(&self) -> u64 {
        self.state.lock().minimal
    }

    /// Sets both factors for what is written after the first `logged_bytes` of the log; true if
    /// `usual` has grown.
    pub fn set(&self, usual: u64, minimal: u64, logged_bytes: u64) -> bool {
        let mut state = self.state.lock();
        let before = *state;
        *state = State {
            usual: usual.max(1),
            minimal: minimal.max(1),
            logged_before: logged_bytes,
            claimed_before: before.claim(logged_bytes),
        };
        state.usual > before.usual
    }

    /// The claim of the first `logged_bytes` of the log, which may be more than it has. Never less
    /// than that of fewer bytes.
    pub fn claim(&self, logged_bytes: u64) -> u64 {
        self.state.lock().claim(logged_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_counts_from_when_it_was_set() {
        let factors = SpaceFactors::default();
        assert!(factors.set(3, 2, 0));
        let both = || [factors.usual(), factors.minimal()];
        assert_eq!((both(), factors.claim(100)), ([3, 2], 400));
        assert!(!factors.set(3, 4, 50));
        assert_eq!((both(), factors.claim(100)), ([3, 4], 400));
        assert!(factors.set(6, 4, 100));
        assert_eq!([100, 110, 200].map(|logged| factors.claim(logged)), [400, 470, 1_100]);
        assert!(!factors.set(3, 2, 200));
        assert_eq!([200, 210].map(|logged| factors.claim(logged)), [1_100, 1_140]);
        // Read before the factor was set.
        assert_eq!(factors.claim(150), 1_100);
        assert!(!factors.set(0, 0, 300));
        assert_eq!(both(), [1, 1]);
    }
}
