//! Counters of values that were removed from the cells of a database and not dropped yet;
//! `Epochs::settle` waits for them. A collector reports when a function is called, not when it has
//! returned, so values count themselves.
//!
//! ```text
//!   round 7                round 8                 settle: rounds up to 7 are over
//!   taken out: 7 + 1  ...  taken out: 8 + 1  ...   dropped: 7 - 1
//! ```
//!
//! Thread-safety: every method may be called from any thread.

use crate::runtime::sync::{Arc, AtomicU64, Ordering};

/// The number of distinguished rounds of `Epochs::settle`.
const ROUNDS: usize = 64;

/// The number of removed and not yet dropped values, by round.
pub(super) struct Rounds {
    /// The number of `Epochs::settle` calls: values removed now belong to this round.
    current: AtomicU64,
    undropped: [AtomicU64; ROUNDS],
}

impl Default for Rounds {
    fn default() -> Self {
        Self { current: AtomicU64::new(0), undropped: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Rounds {
    /// Ends the current round; returns its number.
    pub fn begin(&self) -> u64 {
        self.current.fetch_add(1, Ordering::AcqRel)
    }

    fn undropped(&self, round: u64) -> &AtomicU64 {
        &self.undropped[usize::try_from(round % ROUNDS as u64).unwrap_or(0)]
    }

    /// True if no value of `round` and earlier rounds is left.
    pub fn are_dropped_before(&self, round: u64) -> bool {
        let mut earlier = (0..ROUNDS as u64 - 1).map(|back| round.wrapping_sub(back));
        earlier.all(|round| self.undropped(round).load(Ordering::Acquire) == 0)
    }
}

/// Counts a removed value, from its removal until its drop.
pub(super) struct TakenOut {
    rounds: Arc<Rounds>,
    /// The round plus one; 0 before the removal.
    since: AtomicU64,
}

impl TakenOut {
    /// Creates the counter of a value that is not removed yet.
    pub fn new(rounds: &Arc<Rounds>) -> Self {
        Self { rounds: Arc::clone(rounds), since: AtomicU64::new(0) }
    }

    /// Starts counting: the value is removed now.
    pub fn begin(&self) {
        let round = self.rounds.current.load(Ordering::Acquire);
        self.rounds.undropped(round).fetch_add(1, Ordering::AcqRel);
        self.since.store(round + 1, Ordering::Release);
    }
}

impl Drop for TakenOut {
    fn drop(&mut self) {
        if let Some(round) = self.since.load(Ordering::Acquire).checked_sub(1) {
            self.rounds.undropped(round).fetch_sub(1, Ordering::AcqRel);
        }
    }
}
